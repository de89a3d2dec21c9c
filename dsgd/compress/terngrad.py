"""TernGrad: minus one, zero or one, times a scale common to all ranks.

Update: ``t_i = sign(v_i)`` with probability ``|v_i| / scale`` and zero otherwise, where scale is the largest magnitude;
``decode`` gives ``scale t_i``, whose mean is v and whose variance over the vector is ``scale ||v||_1 - ||v||_2^2``.

In a sum all ranks use the largest scale among them, so that the sums are whole numbers between -P and P: each rank sums
a part of the entries and passes the sums on (`dsgd.collectives.compressed_mean`).

Cost: 1.6 bits an entry towards the rank that sums it, ``ceil(log2(2 P + 1))`` bits back, and an all-reduce of one
number for the scale.

Source: Wen et al. 2017, with clipping at 2.5 standard deviations as theirs (their section 4), after which the mean is
the clipped vector.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsgd.compress.base import WORD_BYTES, AbstractCompressor, as_words
from dsgd.compress.randomk import StreamMemory, stream_of
from dsgd.kernels import quantize as kernels
from dsgd.types import ByteVector, FloatVector
from dsgd.validation import check_numbers

__all__ = ["TERNARY_PER_WORD", "TernGrad"]

#: Entries in a word of a payload.
TERNARY_PER_WORD = 40


@dataclass(frozen=True)
class TernGrad(AbstractCompressor[StreamMemory]):
    """Round entries at random to minus the scale, zero or the scale.

    Parameters
    ----------
    clip : float or None, default None
        Magnitudes beyond so many standard deviations of the vector count as that. The published value is 2.5; None
        clips nothing; otherwise the mean over the random numbers is the clipped vector.

    Raises
    ------
    InvalidParameterError
        `clip` is not positive.
    """

    clip: float | None = None
    unbiased = True

    def __post_init__(self) -> None:
        """Refuse to clip everything."""
        check_numbers(self, "clip", low=0.0, open_low=True, optional=True)

    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> StreamMemory:
        """Return the start of this rank's random numbers; see `AbstractCompressor.init`."""
        return stream_of(seed, rank)

    def bounds(self, vector: FloatVector) -> tuple[float, float]:
        """Return the scale of a vector and where it is clipped; the scale is infinite where it is not finite."""
        if not vector.shape[0]:
            return 0.0, math.inf
        # A NaN passes maximum and minimum on.
        top = max(float(vector.max()), -float(vector.min()), 0.0)
        clip = math.inf if self.clip is None else self.clip * float(np.std(vector, dtype=np.float64))
        return min(top, clip) if math.isfinite(top) else math.inf, clip

    def encode(self, vector: FloatVector, memory: StreamMemory) -> ByteVector:
        """Return the scale and the digits; see `AbstractCompressor.encode`."""
        scale, clip = self.bounds(vector)
        words = memory.scratch.words(1 + -(-vector.shape[0] // TERNARY_PER_WORD))
        words[:1].view(np.float64)[0] = scale
        kernels.pack_ternary(self.digits(vector, scale, clip, memory), words[1:])
        return words.view(np.uint8)

    def digits(self, vector: FloatVector, scale: float, clip: float, memory: StreamMemory) -> ByteVector:
        """Return what entries are rounded to, plus one: 0, 1 or 2, shape (n,), in scratch memory."""
        codes: ByteVector = memory.scratch.take("codes", vector.shape[0], np.uint8)
        kernels.quantise_ternary(vector, scale, clip, memory.draw(), codes)
        return codes

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times what was rounded to `out`; see `AbstractCompressor.decode`."""
        words = as_words(payload, 1 + -(-out.shape[0] // TERNARY_PER_WORD))
        codes = np.empty(out.shape[0], np.uint8)
        kernels.unpack_ternary(words[1:], codes)
        kernels.add_codes(codes, 1, factor * float(words[:1].view(np.float64)[0]), out)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of a scale and n digits; see `AbstractCompressor.payload_bytes`."""
        return WORD_BYTES * (1 + -(-n // TERNARY_PER_WORD))
