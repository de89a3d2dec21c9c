"""What a compressor is, the one that changes nothing, and error feedback."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar, final

import numpy as np

from dsgd.errors import IncompatiblePartsError, InvalidParameterError, ProtocolError
from dsgd.handover import SUMMED
from dsgd.types import AnyArray, ByteVector, FloatVector, WordVector
from dsgd.validation import Checked, number

#: Payloads are a multiple of so many bytes.
WORD_BYTES = 8


class Scratch:
    """Arrays that one compressor works in, made once and used again for every vector; never part of its state."""

    def __init__(self) -> None:
        self._arrays: dict[str, AnyArray] = {}

    def take(self, name: str, n: int, dtype: Any) -> AnyArray:
        """Return the array of this name, shape (n,), with the values it had after its last use."""
        array = self._arrays.get(name)
        if array is None or array.shape[0] < n or array.dtype != dtype:
            array = self._arrays[name] = np.empty(n, dtype=dtype)
        return array[:n]

    def words(self, n: int) -> WordVector:
        """Return the words of the next payload, shape (n,)."""
        return self.take("payload", n, np.uint64)


@dataclass
class AbstractMemory:
    """The state of a compressor on one rank: arrays of at least one dimension, or records of them.

    Attributes
    ----------
    scratch : Scratch
        Where it works; no field, hence in no checkpoint.
    """

    def __post_init__(self) -> None:
        """Make the scratch memory."""
        self.scratch = Scratch()


@dataclass
class NoMemory(AbstractMemory):
    """The record of a compressor that remembers nothing."""


MemoryT = TypeVar("MemoryT", bound=AbstractMemory)


class AbstractCompressor(Checked, ABC, Generic[MemoryT]):
    """A compressor: encodes a vector in few bytes.

    A compressor is a frozen dataclass of its parameters. What it remembers between vectors (entries not sent yet,
    momentum, the number of vectors so far) is in a record that `init` makes: a dataclass of arrays, part of the
    strategy's state and so of every snapshot and checkpoint.

    A payload is whole 64-bit words, packed to the bit inside, as a vector of bytes that any transport carries. It says
    nothing that both sides know: the length and the precision of the vector are not in it. How the vectors of several
    ranks are summed is `dsgd.collectives.compressed_mean`.

    Attributes
    ----------
    unbiased : bool
        Whether the mean over the random numbers of what `decode` returns is the vector; where a compressor clips it
        first, the clipped vector.
    sparse : bool
        Whether a payload holds entries and their places, so that decoding only visits these.
    remembers : bool
        Whether entries that a payload leaves out are kept for a later one.
    needs_feedback : bool
        Whether SGD stalls if entries left out of gradients are lost; see `ErrorFeedback`.
    entrywise : bool
        Whether each entry is encoded by itself and nothing is remembered, so that a vector may be cut anywhere.
    lossless : bool
        Whether `decode` returns the vector itself.
    """

    unbiased: ClassVar[bool] = False
    sparse: ClassVar[bool] = False
    remembers: ClassVar[bool] = False
    needs_feedback: ClassVar[bool] = False
    entrywise: ClassVar[bool] = False
    lossless: ClassVar[bool] = False

    @abstractmethod
    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> MemoryT:
        """Return the memory for vectors of one rank, before the first one.

        Parameters
        ----------
        n : int
            Length of the vectors, at most 2**32.
        dtype : dtype
            float32 or float64.
        seed : int
            Where random numbers start, the same on all ranks.
        rank, size : int
            The rank, and how many there are.
        """

    @abstractmethod
    def encode(self, vector: FloatVector, memory: MemoryT) -> ByteVector:
        """Return the payload of a vector.

        Parameters
        ----------
        vector : array, shape (n,)
            Read only.
        memory : MemoryT
            What `init` returned; updated in place.

        Returns
        -------
        array of uint8
            Whole words, which belong to the memory and are overwritten by the next vector.
        """

    @abstractmethod
    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the vector of a payload to `out`.

        Parameters
        ----------
        payload : array of uint8
            What `encode` returned, here or on another rank.
        out : array, shape (n,)
            Of the length and dtype of the vector; updated in place.
        factor : float
            What to multiply by.

        Raises
        ------
        ProtocolError
            The payload is none of a vector like `out`.
        """

    @abstractmethod
    def payload_bytes(self, n: int, itemsize: int) -> int | None:
        """Return the bytes of a payload for n elements of `itemsize` bytes; None where they depend on the vector."""


class AbstractMemoryless(AbstractCompressor[NoMemory]):
    """Remembers nothing."""

    @final
    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> NoMemory:
        """Return an empty record; see `AbstractCompressor.init`."""
        return NoMemory()


def words_for(n_bits: int) -> int:
    """Return how many words hold so many bits."""
    return -(-n_bits // (8 * WORD_BYTES))


def as_words(payload: ByteVector, n_words: int | None = None) -> WordVector:
    """Return the words of a payload that came from elsewhere."""
    whole, rest = divmod(payload.shape[0], WORD_BYTES)
    if rest or (n_words is not None and whole != n_words):
        wanted = "a multiple of 8" if n_words is None else str(n_words * WORD_BYTES)
        raise ProtocolError(f"Expected a payload of {wanted} bytes, got {payload.shape[0]} bytes.")
    words: WordVector = payload.view(np.uint64)
    return words if words.flags.aligned else words.copy()


@dataclass(frozen=True)
class Identity(AbstractMemoryless):
    """Send vectors unchanged.

    For comparison, and as the limit case of all others: ``decode(encode(v)) == v``, bit for bit, n s bytes for n
    elements of s bytes.
    """

    unbiased = True
    entrywise = True
    lossless = True

    def encode(self, vector: FloatVector, memory: NoMemory) -> ByteVector:
        """Return the bytes of a vector; see `AbstractCompressor.encode`."""
        words = memory.scratch.words(words_for(8 * vector.nbytes))
        words[-1:] = 0
        words.view(vector.dtype)[: vector.shape[0]] = vector
        return words.view(np.uint8)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the vector of a payload to `out`; see `AbstractCompressor.decode`."""
        vector = as_words(payload, words_for(8 * out.nbytes)).view(out.dtype)[: out.shape[0]]
        out += vector if factor == 1.0 else vector * out.dtype.type(factor)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of n elements in whole words; see `AbstractCompressor.payload_bytes`."""
        return WORD_BYTES * words_for(8 * n * itemsize)


@dataclass
class FeedbackMemory(AbstractMemory):
    """The state of `ErrorFeedback`."""

    # What has not been sent, in the unit of the vectors.
    residual: FloatVector = field(metadata=SUMMED)
    # The memory of the compressor inside.
    inner: Any


@dataclass(frozen=True)
class ErrorFeedback(AbstractCompressor[FeedbackMemory]):
    """Keep what a compressor leaves out and add it to the next vector.

    Problem: a biased compressor (the largest entries, the signs) loses the same part of every vector, and SGD with it
    stalls or diverges.

    Update, with r the memory, decay b (1 by default) and C the compressor inside::

        a = b r + v;  send C(a);  r = a - decode(C(a))

    So with b = 1 the payloads and the memory add up to all vectors so far: nothing is lost, it is only sent later.

    Cost: that of the compressor inside, and one vector of memory. Source: Seide et al. 2014 (1-bit); Stich, Cordonnier
    and Jaggi 2018; Karimireddy et al. 2019 (any compressor); Sarfi et al. 2025 (SparseLoCo: a decay in the place of
    outer momentum).

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
    decay: float = number(1.0, low=0.0, high=1.0, open_low=True)
    remembers = True

    def __post_init__(self) -> None:
        """Refuse what cannot be wrapped."""
        super().__post_init__()
        if not isinstance(self.compressor, AbstractCompressor):
            raise InvalidParameterError(f"ErrorFeedback(compressor=...) must be a compressor. Got {self.compressor!r}.")
        for excluded, why in (
            (self.compressor.remembers, "it has a memory of its own"),
            (self.compressor.unbiased, "it is unbiased and needs no memory; its noise would pile up there"),
        ):
            if excluded:
                raise IncompatiblePartsError(f"ErrorFeedback cannot wrap {self.compressor!r}: {why}. Use it unwrapped.")

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
