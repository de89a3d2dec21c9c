"""AdaComp: sends a varying number of entries from each bin of the vector.

Update, with r the memory and bins of L entries::

    r <- r + v;  H = r + v
    in each bin send every j with |H_j| >= max |r| of the bin, as sign(H_j) times the mean of the maxima of all bins
    r <- r - what was sent

so an entry is sent when one more vector like the last would make it the largest of its bin. Bins without anything but
zeros send nothing.

Cost per payload: that of the places (`dsgd.compress.sparse`), one bit each for the sign, and one number; how many there
are depends on the vector.

Source: Chen, Choi, Brand, Agrawal, Zhang and Gopalakrishnan 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsgd.compress.base import AbstractCompressor, AbstractMemory, as_words, words_for
from dsgd.compress.sparse import as_bits, check_places, place_words, unpack_places
from dsgd.handover import SUMMED
from dsgd.kernels import bits as kernels
from dsgd.kernels.quantize import select_adaptive
from dsgd.types import ByteVector, FloatVector
from dsgd.validation import check_numbers

__all__ = ["AdaComp", "ResidualMemory"]


@dataclass
class ResidualMemory(AbstractMemory):
    """The state of a compressor with a memory of its own.

    Parameters
    ----------
    residual : array, shape (n,)
        What has not been sent, in the unit of the vectors.
    """

    residual: FloatVector = field(metadata=SUMMED)


@dataclass(frozen=True)
class AdaComp(AbstractCompressor[ResidualMemory]):
    """Send from each bin the entries that are about to be its largest.

    Parameters
    ----------
    bucket : int, default 500
        Entries of a bin.

    Raises
    ------
    InvalidParameterError
        `bucket` is not a positive integer.
    """

    bucket: int = 500
    sparse = True
    remembers = True

    def __post_init__(self) -> None:
        """Refuse empty bins."""
        check_numbers(self, "bucket", low=1, integer=True)

    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> ResidualMemory:
        """Return a memory of zeros; see `AbstractCompressor.init`."""
        return ResidualMemory(np.zeros(n, dtype))

    def encode(self, vector: FloatVector, memory: ResidualMemory) -> ByteVector:
        """Return places, signs and scale, and keep the rest; see `AbstractCompressor.encode`."""
        n, scratch = vector.shape[0], memory.scratch
        places = scratch.take("places", n, np.uint32)
        signs = scratch.take("signs", n, vector.dtype)
        memory.residual += vector
        k, scale = select_adaptive(memory.residual, vector, self.bucket, places, signs)
        places, signs = places[:k], signs[:k]
        low_bits, n_low, n_high = place_words(k, n)
        n_signs = words_for(k)
        words = scratch.words(2 + n_signs + n_low + n_high)
        words[0] = k
        words[1:2].view(np.float64)[0] = scale
        kernels.pack_signs(as_bits(signs), words[2 : 2 + n_signs])
        rest = words[2 + n_signs :]
        if n_high:
            kernels.pack_ascending(places, low_bits, rest[:n_low], rest[n_low:])
        kernels.add_at(memory.residual, places, signs, -scale)
        return words.view(np.uint8)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the entries of a payload to `out`; see `AbstractCompressor.decode`."""
        n = out.shape[0]
        words = as_words(payload)
        k = check_places(words, n, 1 + words_for(int(words[0])) if words.shape[0] else 0)
        n_signs = words_for(k)
        signs = np.zeros(k, out.dtype)
        kernels.add_signs(words[2 : 2 + n_signs], signs, 1.0, -1.0)
        scale = factor * float(words[1:2].view(np.float64)[0])
        kernels.add_at(out, unpack_places(words[2 + n_signs :], k, n), signs, scale)

    def payload_bytes(self, n: int, itemsize: int) -> None:
        """Return None: it depends on the vector."""
