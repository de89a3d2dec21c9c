"""Half precision: 16 bits per entry.

Update: entries are rounded to nearest, to IEEE 754 binary16 (11 bits of precision, magnitudes from 6e-8 to 65504;
beyond that they become infinite) or to bfloat16 (8 bits of precision, the range of float32). float64 is rounded to
float32 first.

Cost: 2 n bytes. A sum over ranks goes in parts, one for each rank, which adds in the precision of the vectors and
rounds once more: no sum of halves is ever rounded on the way (`dsgd.collectives.compressed_mean`).

What is rounded away of a gradient is lost, as usual. In `ErrorFeedback`, which differences of models always have, it
comes later, and so does what the second rounding leaves out, which the rank of that part keeps.

Source: IEEE 754-2019; Intel 2018 (bfloat16). fp16 for what ranks exchange: Goyal et al. 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from dsgd.compress.base import WORD_BYTES, AbstractMemoryless, NoMemory, Scratch, as_words, words_for
from dsgd.kernels import quantize as kernels
from dsgd.types import AnyArray, ByteVector, FloatVector
from dsgd.validation import check_choice

__all__ = ["Half"]


@dataclass(frozen=True)
class Half(AbstractMemoryless):
    """Round floats to 16 bits.

    Parameters
    ----------
    format : {"float16", "bfloat16"}, default "float16"
        More precision, or more range.

    Raises
    ------
    InvalidParameterError
        There is no such format.
    """

    format: Literal["float16", "bfloat16"] = "float16"
    entrywise = True

    def __post_init__(self) -> None:
        """Refuse other formats."""
        check_choice("Half(format=...)", self.format, ("float16", "bfloat16"))

    def encode(self, vector: FloatVector, memory: NoMemory) -> ByteVector:
        """Return the halves; see `AbstractCompressor.encode`."""
        n = vector.shape[0]
        words = memory.scratch.words(words_for(16 * n))
        words[-1:] = 0
        self.round(vector, words.view(np.uint16)[:n], memory.scratch)
        return words.view(np.uint8)

    def round(self, vector: FloatVector, halves: AnyArray, scratch: Scratch) -> None:
        """Write the bits of rounded entries into `halves`, array of uint16, shape (n,)."""
        single = vector
        if vector.itemsize == 8:
            single = scratch.take("single", vector.shape[0], np.float32)
            with np.errstate(over="ignore"):
                single[:] = vector
        if self.format == "float16":
            kernels.to_half(single, single.view(np.uint32), halves)
        else:
            kernels.to_bfloat(single.view(np.uint32), halves)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the halves to `out`; see `AbstractCompressor.decode`."""
        words = as_words(payload, words_for(16 * out.shape[0]))
        kernels.add_halves(words.view(np.uint16)[: out.shape[0]], _table(self.format), out, factor)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of n halves in whole words; see `AbstractCompressor.payload_bytes`."""
        return WORD_BYTES * words_for(16 * n)


@cache
def _table(name: str) -> FloatVector:
    """Return the floats that all 65536 halves of a format stand for."""
    halves = np.arange(65536, dtype=np.uint16)
    if name == "float16":
        return halves.view(np.float16).astype(np.float32)
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
