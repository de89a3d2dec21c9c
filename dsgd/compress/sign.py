"""Signs of the entries: with one common magnitude, or as votes.

Update of `Sign`: ``decode(encode(v)) = mean(|v|) sign(v)``, a contraction, so that with error feedback SGD converges
(EF-SGD). Of `MajorityVote`: ``u <- m u + (1 - m) v`` (m is 0 for plain signSGD), each rank sends ``sign(u)``, and what
comes out is ``magnitude`` times the sign that most ranks have sent. The sign of zero, and a tie, is plus.

Cost per payload of n entries: one bit an entry, and for `Sign` one number. Votes are counted in parts, one for each
rank: a bit up and a bit down for each entry (`dsgd.collectives.compressed_mean`).

A vote knows no lengths: its step is as long near the optimum as far from it, so the rate must fall. There are convex
functions on which signSGD without feedback does not converge.

Source: Bernstein, Wang, Azizzadenesheli and Anandkumar 2018 (signSGD, majority vote, Signum); Karimireddy, Rebjock,
Stich and Jaggi 2019 (EF-SGD and the counterexamples).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsgd.compress.base import (
    WORD_BYTES,
    AbstractCompressor,
    AbstractMemory,
    AbstractMemoryless,
    NoMemory,
    as_words,
    words_for,
)
from dsgd.compress.sparse import as_bits
from dsgd.handover import SUMMED
from dsgd.kernels.bits import add_signs, pack_signs
from dsgd.types import ByteVector, FloatVector
from dsgd.validation import check_numbers

__all__ = ["MajorityVote", "Sign", "VoteMemory"]


@dataclass(frozen=True)
class Sign(AbstractMemoryless):
    """Replace entries by their mean magnitude with their sign."""

    needs_feedback = True

    def encode(self, vector: FloatVector, memory: NoMemory) -> ByteVector:
        """Return the mean magnitude and the signs; see `AbstractCompressor.encode`."""
        words = memory.scratch.words(1 + words_for(vector.shape[0]))
        magnitudes = memory.scratch.take("magnitudes", vector.shape[0], vector.dtype)
        np.abs(vector, out=magnitudes)
        mean = float(magnitudes.mean(dtype=np.float64)) if vector.shape[0] else 0.0
        words[:1].view(np.float64)[0] = mean
        pack_signs(as_bits(vector), words[1:])
        return words.view(np.uint8)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the signed mean to `out`; see `AbstractCompressor.decode`."""
        words = as_words(payload, 1 + words_for(out.shape[0]))
        size = factor * float(words[:1].view(np.float64)[0])
        add_signs(words[1:], out, size, -size)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of a number and n bits; see `AbstractCompressor.payload_bytes`."""
        return WORD_BYTES * (1 + words_for(n))


@dataclass
class VoteMemory(AbstractMemory):
    """The state of `MajorityVote`.

    Parameters
    ----------
    momentum : array, shape (n,) or (0,)
        Running mean of the vectors; empty without momentum.
    """

    momentum: FloatVector = field(metadata=SUMMED)


@dataclass(frozen=True)
class MajorityVote(AbstractCompressor[VoteMemory]):
    """Let ranks vote on the sign of each entry.

    Parameters
    ----------
    momentum : float, default 0.0
        Share of the running mean that is kept when a vector comes; 0.9 is Signum.
    magnitude : float, default 1.0
        The magnitude of every entry that comes out.

    Raises
    ------
    InvalidParameterError
        `momentum` is not in [0, 1), or `magnitude` is not positive.
    """

    momentum: float = 0.0
    magnitude: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a value that is not a share, or not a magnitude."""
        check_numbers(self, "momentum", low=0.0, high=1.0, open_high=True)
        check_numbers(self, "magnitude", low=0.0, open_low=True)

    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> VoteMemory:
        """Return a momentum of zeros; see `AbstractCompressor.init`."""
        return VoteMemory(np.zeros(n if self.momentum else 0, dtype))

    def encode(self, vector: FloatVector, memory: VoteMemory) -> ByteVector:
        """Return the signs; see `AbstractCompressor.encode`."""
        if self.momentum:
            running = memory.momentum
            running *= running.dtype.type(self.momentum)
            running += (vector.dtype.type(1.0 - self.momentum)) * vector
            vector = running
        words = memory.scratch.words(words_for(vector.shape[0]))
        pack_signs(as_bits(vector), words)
        return words.view(np.uint8)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the magnitude with the signs to `out`; see `AbstractCompressor.decode`."""
        size = factor * self.magnitude
        add_signs(as_words(payload, words_for(out.shape[0])), out, size, -size)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of n bits; see `AbstractCompressor.payload_bytes`."""
        return WORD_BYTES * words_for(n)
