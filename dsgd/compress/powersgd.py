"""Compressors that transform vectors: PowerSGD to a matrix of low rank, DeMo to waves; and one for each tensor.

One compressor for the whole vector of a network treats its layers alike: the largest entries may all be in one layer, a
bias is so short that it may as well be sent whole, and a low-rank matrix approximates a weight matrix, not a vector
folded at arbitrary places.

Update, with v_l the part of the vector that is tensor l: each is encoded by its own compressor, with its own memory.
`PowerSGD` sees a weight of shape (a, b, ...) as the matrix with a rows that it is; where that has one dimension, or the
factors would be no shorter, the tensor is sent whole. Tensors that travel whole go together in one all-reduce, and so
do the factors of all `PowerSGD`, in two.

Source: Dutta et al. 2020 (layer by layer against the whole vector); Vogels, Karimireddy and Jaggi 2019, section 3
(matrices of layers, biases uncompressed); Lin et al. 2018 (the largest entries of each layer).
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np

from dsgd.compress import base
from dsgd.compress.sparse import decode_sparse, encode_at, sparse_bytes
from dsgd.errors import IncompatiblePartsError, InvalidParameterError, ProtocolError
from dsgd.handover import ALIKE, SUMMED
from dsgd.kernels import quantize as kernels
from dsgd.kernels.quantize import add_waves, into_waves, largest_of_chunks
from dsgd.types import ByteVector, FloatMatrix, FloatVector, IndexVector
from dsgd.validation import number


@dataclass
class PowerMemory(base.AbstractMemory):
    """The state of `PowerSGD`."""

    # Shape (rank * n_columns,): The row factors of the last vector, one after the other.
    right: FloatVector = field(metadata=ALIKE)


@dataclass(frozen=True)
class PowerSGD(base.AbstractCompressor[PowerMemory]):
    """Send a matrix of low rank.

    Update, for the vector seen as a matrix M of a rows and b columns, and V, r rows of b columns, from the last time
    (at first drawn, with one seed on all ranks)::

        U = orthonormal rows of (V M');  W = U M;  V <- W;  decode gives U' W

    This is one step of subspace iteration: over many vectors, U' W tends to the best approximation of rank r. It is
    linear in M for a given U, so the mean over ranks takes two all-reduces, of V M' and of W, and no rank decodes
    payloads of others.

    Cost: two all-reduces of r a and r b numbers. It is biased: wrap it in `ErrorFeedback`. Source: Vogels, Karimireddy
    and Jaggi 2019, algorithms 1 and 2.

    Parameters
    ----------
    rank : int, default 2
        Rank of the matrix that is sent.
    n_rows : int or None, default None
        Rows of the matrix that a vector is seen as; about the root of its length by default, which costs least.

    Raises
    ------
    InvalidParameterError
        A number is not a positive integer.
    """

    rank: int = number(2, low=1)
    n_rows: int | None = number(None, low=1)
    needs_feedback = True

    def shape(self, n: int) -> tuple[int, int]:
        """Return rows and columns of the matrix for a vector of length n, which is padded with zeros."""
        rows = max(1, math.isqrt(n)) if self.n_rows is None else min(int(self.n_rows), max(n, 1))
        return rows, -(-n // rows)

    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> PowerMemory:
        """Return row factors drawn from normal numbers, the same on all ranks; see `AbstractCompressor.init`."""
        drawn = np.random.default_rng(seed).standard_normal(int(self.rank) * self.shape(n)[1])
        return PowerMemory(drawn.astype(dtype))

    def matrix(self, vector: FloatVector, memory: PowerMemory) -> FloatMatrix:
        """Return a vector as a matrix in scratch memory."""
        rows, columns = self.shape(vector.shape[0])
        whole: FloatVector = memory.scratch.take("matrix", rows * columns, vector.dtype)
        whole[: vector.shape[0]] = vector
        whole[vector.shape[0] :] = 0
        return whole.reshape(rows, columns)

    def project(self, matrix: FloatMatrix, memory: PowerMemory) -> FloatMatrix:
        """Return the column factors before they are made orthonormal: V M', shape (rank, n_rows)."""
        return times_rows(memory.right.reshape(int(self.rank), matrix.shape[1]), matrix.T)

    def keep(self, right: FloatMatrix, memory: PowerMemory) -> None:
        """Keep row factors for the next vector, except zeros, which would stay zero: there the old ones are kept."""
        alive = right.any(axis=1)
        memory.right.reshape(right.shape)[alive] = right[alive]

    def encode(self, vector: FloatVector, memory: PowerMemory) -> ByteVector:
        """Return both factors; see `AbstractCompressor.encode`."""
        matrix = self.matrix(vector, memory)
        left = self.project(matrix, memory)
        kernels.orthonormalise(left)
        right = times_rows(left, matrix)
        self.keep(right, memory)
        words = memory.scratch.words(base.words_for(8 * (left.nbytes + right.nbytes)))
        words[-1:] = 0
        numbers = words.view(vector.dtype)
        numbers[: left.size] = left.reshape(-1)
        numbers[left.size : left.size + right.size] = right.reshape(-1)
        return words.view(np.uint8)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the product of the factors to `out`; see `AbstractCompressor.decode`."""
        r, (rows, columns) = int(self.rank), self.shape(out.shape[0])
        numbers = base.as_words(payload, self.payload_bytes(out.shape[0], out.itemsize) // base.WORD_BYTES).view(
            out.dtype
        )
        left = numbers[: r * rows].reshape(r, rows)
        kernels.add_outer(left, numbers[r * rows : r * (rows + columns)].reshape(r, columns), out, factor)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of both factors; see `AbstractCompressor.payload_bytes`."""
        return base.WORD_BYTES * base.words_for(8 * int(self.rank) * sum(self.shape(n)) * itemsize)


def times_rows(rows: FloatMatrix, matrix: FloatMatrix) -> FloatMatrix:
    """Return ``rows @ matrix``, one row at a time: BLAS takes far longer for a product of two or three rows at once."""
    product = np.empty((rows.shape[0], matrix.shape[1]), rows.dtype)
    for row, out in zip(rows, product, strict=True):
        np.dot(row, matrix, out=out)
    return product


@dataclass
class DeMoMemory(base.AbstractMemory):
    """The state of `DeMo`."""

    # What has not been sent, in the unit of the vectors.
    momentum: FloatVector = field(metadata=SUMMED)


@dataclass(frozen=True)
class DeMo(base.AbstractCompressor[DeMoMemory]):
    """Accumulate vectors with momentum and send the strongest waves of it.

    Problem: the momentum of large models changes slowly where ranks agree and fast where they do not; to send all of it
    in every step takes the bandwidth of a data centre.

    Update, with momentum m of a rank, decay b, and g its vector::

        m <- b m + g
        q <- in every chunk of m, the part of the k strongest cosines (DCT-II)
        m <- m - q;  send q

    What comes out is ``magnitude sign(q_1 + ... + q_P)``, or with ``magnitude=None`` the sum. So what is sent and what
    stays are the momentum. The cosines are orthonormal: of all vectors of k waves, q is the nearest one to m. With all
    of them sent nothing stays, and the sum is that of plain gradients. With a decay of 1 and no sign this is error
    feedback around the compressor that sends waves.

    Cost per payload: k coefficients of each chunk and their places, `dsgd.compress.sparse.sparse_bytes`, so about ``k /
    chunk`` of the entries; each rank gets those of all others. One vector of memory.

    A sign knows no lengths: the step is as long near the optimum as far from it, so the rate must be small and fall.
    Source: Peng, Quesnelle and Kingma 2024 (DeMo). There a chunk is a square tile of a matrix and here a stretch of the
    vector; `Layerwise` lets the stretches begin with the tensors. A decay of 0.999 and a chunk of 64 are theirs; k is
    from 1 to 32 there.

    Parameters
    ----------
    k : int, default 8
        Waves of each chunk that are sent.
    chunk : int, default 64
        Entries of a chunk; the last one of a vector may be shorter.
    decay : float, default 0.999
        Share of the momentum that is kept when a vector comes, in [0, 1].
    magnitude : float or None, default 1.0
        The magnitude of every entry that comes out of the sum over ranks, which has its sign; None is the sum itself.

    Raises
    ------
    InvalidParameterError
        `k` or `chunk` is not a positive integer, `decay` not in [0, 1], or `magnitude` not positive.
    """

    k: int = number(8, low=1)
    chunk: int = number(64, low=1)
    decay: float = number(0.999, low=0.0, high=1.0)
    magnitude: float | None = number(1.0, low=0.0, open_low=True)
    remembers = True

    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> DeMoMemory:
        """Return a momentum of zeros; see `AbstractCompressor.init`."""
        return DeMoMemory(np.zeros(n, dtype))

    def encode(self, vector: FloatVector, memory: DeMoMemory) -> ByteVector:
        """Return the payload of the strongest waves; see `AbstractCompressor.encode`."""
        momentum, scratch, n = memory.momentum, memory.scratch, vector.shape[0]
        momentum *= momentum.dtype.type(self.decay)
        momentum += vector
        bases = self._bases(n, momentum.dtype)
        coefficients = scratch.take("coefficients", n, momentum.dtype)
        into_waves(momentum, *(np.ascontiguousarray(basis.T) for basis in bases), coefficients)
        places: IndexVector = scratch.take("places", self._n_sent(n), np.uint32)
        largest_of_chunks(coefficients, int(self.chunk), int(self.k), places)
        payload = encode_at(coefficients, places, scratch)
        self.decode(payload, momentum, -1.0)
        return payload

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the waves of a payload to `out`; see `AbstractCompressor.decode`."""
        places, values = decode_sparse(payload, out.shape[0], out.dtype)
        add_waves(out, places, values, factor, *self._bases(out.shape[0], out.dtype))

    def finish(self, total: FloatVector) -> None:
        """Replace the sum over ranks by its signs, in place, where that is wanted."""
        if self.magnitude is not None:
            np.sign(total, out=total)
            total *= total.dtype.type(self.magnitude)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of k coefficients of each chunk; see `AbstractCompressor.payload_bytes`."""
        return sparse_bytes(self._n_sent(n), n, itemsize)

    def _n_sent(self, n: int) -> int:
        whole, rest = divmod(n, int(self.chunk))
        return whole * min(int(self.k), int(self.chunk)) + min(int(self.k), rest)

    def _bases(self, n: int, dtype: Any) -> tuple[FloatMatrix, FloatMatrix]:
        """Return the waves of a chunk and those of the last one, where it is shorter."""
        return _cosines(int(self.chunk), dtype), _cosines(n % int(self.chunk), dtype)


@lru_cache(maxsize=32)
def _cosines(length: int, dtype: Any) -> FloatMatrix:
    """Return the orthonormal waves of a chunk, shape (length, length): one in each row, from slow to fast."""
    j, t = np.indices((length, length))
    basis = np.sqrt((1.0 + (j > 0)) / max(1, length)) * np.cos(np.pi * j * (2 * t + 1) / (2.0 * max(1, length)))
    return np.ascontiguousarray(basis.astype(dtype))


@dataclass
class LayerwiseMemory(base.AbstractMemory):
    """The state of `Layerwise`."""

    # The memory of each tensor's compressor, in their order.
    parts: tuple[Any, ...]


@dataclass(frozen=True)
class Part:
    """A tensor in the vector."""

    place: slice
    compressor: base.AbstractCompressor[Any]


@dataclass(frozen=True)
class Layerwise(base.AbstractCompressor[LayerwiseMemory]):
    """Compress each tensor of a module by a compressor of its own.

    Parameters
    ----------
    rules : mapping or sequence of (str, AbstractCompressor or None)
        The first pattern that matches a tensor's name (as for file names, ``"*.bias"``) chooses its compressor. Tensors
        with None or without a match are sent whole. A biased compressor must be wrapped in `ErrorFeedback` or have its
        own memory.
    tensors : sequence of (str, tuple of int), optional
        Names and shapes of the tensors, in their order in the vector. `dsgd.torch` fills them in; without any, the
        vector is one tensor without a name.

    Raises
    ------
    IncompatiblePartsError
        A compressor loses what it leaves out, or is a `Layerwise` itself.
    InvalidParameterError
        There is no rule, a rule is none, or a pattern matches no tensor.

    Examples
    --------
    >>> from dsgd.compress import ErrorFeedback, Layerwise, PowerSGD, TopK
    >>> by_layer = Layerwise({"conv*": ErrorFeedback(TopK(0.1)), "*": ErrorFeedback(PowerSGD(4))})
    >>> bound = by_layer.bound({"conv.weight": (8, 1, 3, 3), "out.weight": (10, 200), "out.bias": (10,)})
    >>> [(part.place.stop, part.compressor) for part in bound.parts(2082)][1:]
    [(2072, ErrorFeedback(compressor=PowerSGD(rank=4, n_rows=10), decay=1.0)), (2082, Identity())]
    """

    rules: Any
    tensors: tuple[tuple[str, tuple[int, ...]], ...] = field(default=(), repr=False)
    remembers = True

    def __post_init__(self) -> None:
        """Refuse rules that cannot be."""
        given = self.rules.items() if isinstance(self.rules, Mapping) else self.rules
        rules = tuple(map(tuple, given)) if isinstance(given, Iterable) and not isinstance(given, str) else ()
        if not rules or any(len(rule) != 2 or not isinstance(rule[0], str) for rule in rules):
            raise InvalidParameterError(
                f"Layerwise(rules=...) must be at least one (pattern, compressor), as {{'*': ...}}. Got {self.rules!r}."
            )
        for pattern, compressor in rules:
            if compressor is not None and not isinstance(compressor, base.AbstractCompressor):
                raise InvalidParameterError(
                    f"Layerwise(rules=...) must give {pattern!r} a compressor or None. Got {compressor!r}."
                )
            if isinstance(compressor, Layerwise) or (compressor is not None and compressor.needs_feedback):
                why = "it is one itself" if isinstance(compressor, Layerwise) else "what it leaves out would be lost"
                better = "" if isinstance(compressor, Layerwise) else f" Use ErrorFeedback({compressor!r})."
                raise IncompatiblePartsError(f"Layerwise cannot hold {compressor!r}: {why}.{better}")
        object.__setattr__(self, "rules", rules)
        object.__setattr__(self, "tensors", tuple((name, tuple(shape)) for name, shape in self.tensors))
        names = [name for name, _ in self.tensors] or [""]
        for pattern, _ in rules if self.tensors else ():
            if not fnmatch.filter(names, pattern):
                raise InvalidParameterError(
                    f"Layerwise(rules=...): no tensor matches {pattern!r}. There are {', '.join(names)}."
                )

    @property
    def compressors(self) -> tuple[base.AbstractCompressor[Any], ...]:
        """What may be used for a tensor, each once."""
        return tuple(dict.fromkeys((*(each for _, each in self.rules if each is not None), base.Identity())))

    def bound(self, shapes: Mapping[str, tuple[int, ...]]) -> Self:
        """Return the same for tensors of these names and shapes, in their order in the vector."""
        return replace(self, tensors=tuple(shapes.items()))

    def parts(self, n: int) -> tuple[Part, ...]:
        """Return the tensors of a vector of length n.

        Raises
        ------
        InvalidParameterError
            They are not as long as the vector.
        """
        return _parts(self, n)

    def compressor_of(self, name: str, shape: tuple[int, ...]) -> base.AbstractCompressor[Any]:
        """Return how a tensor of this name and shape is encoded."""
        rules: tuple[tuple[str, base.AbstractCompressor[Any] | None], ...] = self.rules
        found = next((each for pattern, each in rules if fnmatch.fnmatchcase(name, pattern)), None)
        inner = found.compressor if isinstance(found, base.ErrorFeedback) else found
        if found is None:
            return base.Identity()
        if not isinstance(inner, PowerSGD) or inner.n_rows is not None or not self.tensors:
            return found
        n_rows, n_columns = shape[0] if shape else 1, math.prod(shape[1:])
        if inner.rank * (n_rows + n_columns) >= n_rows * n_columns:
            return base.Identity()
        matrix = replace(inner, n_rows=n_rows)
        return replace(found, compressor=matrix) if isinstance(found, base.ErrorFeedback) else matrix

    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> LayerwiseMemory:
        """Return the memory of every tensor, random numbers of its own included; see `AbstractCompressor.init`."""
        parts = self.parts(n)
        return LayerwiseMemory(
            tuple(
                part.compressor.init(part.place.stop - part.place.start, dtype, seed + number, rank, size)
                for number, part in enumerate(parts)
            )
        )

    def encode(self, vector: FloatVector, memory: LayerwiseMemory) -> ByteVector:
        """Return the payloads of the tensors, one after the other; see `AbstractCompressor.encode`.

        Before one whose length depends on the tensor there is a word with it.
        """
        words: list[ByteVector] = []
        for part, own in zip(self.parts(vector.shape[0]), memory.parts, strict=True):
            payload = part.compressor.encode(vector[part.place], own)
            if _known(part, vector.itemsize) is None:
                words.append(np.array([payload.shape[0]], np.uint64).view(np.uint8))
            words.append(payload)
        whole = memory.scratch.words(sum(map(len, words)) // base.WORD_BYTES).view(np.uint8)
        return np.concatenate(words, out=whole)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the tensors of a payload to `out`; see `AbstractCompressor.decode`."""
        base.as_words(payload)
        for part, own in _cut(payload, self.parts(out.shape[0]), out.itemsize):
            part.compressor.decode(own, out[part.place], factor)

    def payload_bytes(self, n: int, itemsize: int) -> int | None:
        """Return the bytes of all tensors; see `AbstractCompressor.payload_bytes`."""
        total = 0
        for part in self.parts(n):
            known = _known(part, itemsize)
            if known is None:
                return None
            total += known
        return total


@lru_cache(maxsize=32)
def _parts(compressor: Layerwise, n: int) -> tuple[Part, ...]:
    tensors = compressor.tensors or (("", (n,)),)
    ends = np.cumsum([0, *(math.prod(shape) for _, shape in tensors)]).tolist()
    if ends[-1] != n:
        raise InvalidParameterError(
            f"Layerwise(tensors=...) has tensors of {ends[-1]} entries in all. Got a vector of {n}."
        )
    return tuple(
        Part(slice(ends[k], ends[k + 1]), compressor.compressor_of(name, shape))
        for k, (name, shape) in enumerate(tensors)
    )


def _known(part: Part, itemsize: int) -> int | None:
    return part.compressor.payload_bytes(part.place.stop - part.place.start, itemsize)


def _cut(payload: ByteVector, parts: Iterable[Part], itemsize: int) -> Iterator[tuple[Part, ByteVector]]:
    """Yield every tensor with its payload."""
    at = 0
    for part in parts:
        n_bytes = _known(part, itemsize)
        if n_bytes is None:
            length = base.as_words(payload[at : at + base.WORD_BYTES], 1)
            at, n_bytes = at + base.WORD_BYTES, int(length[0])
        if at + n_bytes > payload.shape[0]:
            raise ProtocolError(f"Expected a payload of at least {at + n_bytes} bytes, got {payload.shape[0]} bytes.")
        yield part, payload[at : at + n_bytes]
        at += n_bytes
    if at != payload.shape[0]:
        raise ProtocolError(f"Expected a payload of {at} bytes, got {payload.shape[0]} bytes.")
