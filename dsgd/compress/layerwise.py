"""Layer by layer: a compressor for each tensor of a module.

Problem: one compressor for the whole vector of a network treats its layers alike. The largest entries may all be in one
layer, so that entries of others are sent late; a bias is so short that it may as well be sent whole; and a low-rank
matrix approximates a weight matrix, not a vector folded at arbitrary places.

Update, with v_l the part of the vector that is tensor l: each is encoded by its own compressor, with its own memory.
`PowerSGD` sees a weight of shape (a, b, ...) as the matrix with a rows that it is; where that has one dimension, or the
factors would be no shorter, the tensor is sent whole.

Cost: those of the compressors, tensor by tensor. Tensors that travel whole go together in one all-reduce, and so do the
factors of all `PowerSGD`, in two.

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

from dsgd.compress.base import WORD_BYTES, AbstractCompressor, AbstractMemory, ErrorFeedback, Identity, as_words
from dsgd.compress.powersgd import PowerSGD
from dsgd.errors import IncompatiblePartsError, InvalidParameterError, ProtocolError
from dsgd.types import ByteVector, FloatVector


@dataclass
class LayerwiseMemory(AbstractMemory):
    """The state of `Layerwise`."""

    # The memory of each tensor's compressor, in their order.
    parts: tuple[Any, ...]


@dataclass(frozen=True)
class Part:
    """A tensor in the vector."""

    place: slice
    compressor: AbstractCompressor[Any]


@dataclass(frozen=True)
class Layerwise(AbstractCompressor[LayerwiseMemory]):
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
            if compressor is not None and not isinstance(compressor, AbstractCompressor):
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
    def compressors(self) -> tuple[AbstractCompressor[Any], ...]:
        """What may be used for a tensor, each once."""
        return tuple(dict.fromkeys((*(each for _, each in self.rules if each is not None), Identity())))

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

    def compressor_of(self, name: str, shape: tuple[int, ...]) -> AbstractCompressor[Any]:
        """Return how a tensor of this name and shape is encoded."""
        rules: tuple[tuple[str, AbstractCompressor[Any] | None], ...] = self.rules
        found = next((each for pattern, each in rules if fnmatch.fnmatchcase(name, pattern)), None)
        inner = found.compressor if isinstance(found, ErrorFeedback) else found
        if found is None:
            return Identity()
        if not isinstance(inner, PowerSGD) or inner.n_rows is not None or not self.tensors:
            return found
        n_rows, n_columns = shape[0] if shape else 1, math.prod(shape[1:])
        if inner.rank * (n_rows + n_columns) >= n_rows * n_columns:
            return Identity()
        matrix = replace(inner, n_rows=n_rows)
        return replace(found, compressor=matrix) if isinstance(found, ErrorFeedback) else matrix

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
        whole = memory.scratch.words(sum(map(len, words)) // WORD_BYTES).view(np.uint8)
        return np.concatenate(words, out=whole)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the tensors of a payload to `out`; see `AbstractCompressor.decode`."""
        as_words(payload)
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
            length = as_words(payload[at : at + WORD_BYTES], 1)
            at, n_bytes = at + WORD_BYTES, int(length[0])
        if at + n_bytes > payload.shape[0]:
            raise ProtocolError(f"Expected a payload of at least {at + n_bytes} bytes, got {payload.shape[0]} bytes.")
        yield part, payload[at : at + n_bytes]
        at += n_bytes
    if at != payload.shape[0]:
        raise ProtocolError(f"Expected a payload of {at} bytes, got {payload.shape[0]} bytes.")
