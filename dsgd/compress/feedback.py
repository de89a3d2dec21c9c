"""Error feedback: add what a payload leaves out to the next vector.

Problem: a biased compressor (the largest entries, the signs) loses the same part of every vector, and SGD with it
stalls or diverges.

Update, with r the memory, decay b (1 unless told otherwise) and C the compressor inside::

    a = b r + v;  send C(a);  r = a - decode(C(a))

So with b = 1 the payloads and the memory add up to all vectors so far: nothing is lost, it is only sent later.

Cost: that of the compressor inside, and one vector of memory.

Source: Seide et al. 2014 (1-bit); Stich, Cordonnier and Jaggi 2018; Karimireddy et al. 2019 (any compressor); Sarfi et
al. 2025 (SparseLoCo: a decay in the place of outer momentum).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsgd.compress.base import AbstractCompressor, AbstractMemory
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.handover import SUMMED
from dsgd.types import ByteVector, FloatVector
from dsgd.validation import check_numbers


@dataclass
class FeedbackMemory(AbstractMemory):
    """The state of `ErrorFeedback`.

    Parameters
    ----------
    residual : array, shape (n,)
        What has not been sent, in the unit of the vectors.
    inner : AbstractMemory
        The memory of the compressor inside.
    """

    residual: FloatVector = field(metadata=SUMMED)
    inner: Any


@dataclass(frozen=True)
class ErrorFeedback(AbstractCompressor[FeedbackMemory]):
    """Keep what a compressor leaves out and add it to the next vector.

    Parameters
    ----------
    compressor : AbstractCompressor
        Any that has no such memory of its own.
    decay : float, default 1.0
        The share of the memory that is kept from one vector to the next. Below 1, delayed entries count for less.

    Raises
    ------
    IncompatiblePartsError
        `compressor` has a memory of its own, or is unbiased: it has no use for a memory, and what it adds to a vector
        at random may be longer than the vector, so that the memory would grow without end.
    InvalidParameterError
        `decay` is not in (0, 1].
    """

    compressor: AbstractCompressor[Any]
    decay: float = 1.0
    remembers = True

    def __post_init__(self) -> None:
        """Refuse what cannot be wrapped."""
        if not isinstance(self.compressor, AbstractCompressor):
            raise InvalidParameterError(f"ErrorFeedback(compressor=...) must be a compressor. Got {self.compressor!r}.")
        for excluded, why in (
            (self.compressor.remembers, "it has a memory of its own"),
            (self.compressor.unbiased, "it is unbiased and needs no memory; its noise would pile up there"),
        ):
            if excluded:
                raise IncompatiblePartsError(f"ErrorFeedback cannot wrap {self.compressor!r}: {why}. Use it unwrapped.")
        check_numbers(self, "decay", low=0.0, high=1.0, open_low=True)

    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> FeedbackMemory:
        """Return a memory of zeros; see `AbstractCompressor.init`."""
        return FeedbackMemory(np.zeros(n, dtype), self.compressor.init(n, dtype, seed, rank, size))

    def accumulate(self, vector: FloatVector, memory: FeedbackMemory) -> None:
        """Decay the memory and add the vector: the sum is to be sent."""
        if self.decay != 1.0:
            memory.residual *= memory.residual.dtype.type(self.decay)
        memory.residual += vector

    def encode(self, vector: FloatVector, memory: FeedbackMemory) -> ByteVector:
        """Return the payload of memory and vector, and keep the rest; see `AbstractCompressor.encode`."""
        self.accumulate(vector, memory)
        payload = self.compressor.encode(memory.residual, memory.inner)
        self.compressor.decode(payload, memory.residual, -1.0)
        return payload

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the vector of a payload to `out`; see `AbstractCompressor.decode`."""
        self.compressor.decode(payload, out, factor)

    def payload_bytes(self, n: int, itemsize: int) -> int | None:
        """Return what the compressor inside returns."""
        return self.compressor.payload_bytes(n, itemsize)
