"""Costs of means of compressed vectors: the bytes and messages that a rank sends, from shapes alone."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from dsgd.collectives.compressed.gtopk import gtopk_cost
from dsgd.collectives.compressed.parts import halves_cost, ternary_bytes, ternary_cost, votes_cost
from dsgd.collectives.cost import Cost, allgatherv_cost, allreduce_cost
from dsgd.compress import (
    AbstractCompressor,
    ErrorFeedback,
    GTopK,
    Half,
    Identity,
    Layerwise,
    MajorityVote,
    NonZero,
    PowerSGD,
    RandomK,
    TernGrad,
)
from dsgd.compress.sparse import n_entries

# Their sum differs from that of the decoded vectors, or never takes more bytes.
_SUMMED_AS_PAYLOADS: Final = (GTopK, Half, Identity, Layerwise, MajorityVote, NonZero, PowerSGD, RandomK)


def compressed_cost(rank: int, size: int, n: int, itemsize: int, compressor: AbstractCompressor[Any]) -> Cost | None:
    """Return what `rank` sends in `compressed_mean` of n elements, where all ranks reach each other on one host."""
    if isinstance(compressor, ErrorFeedback):
        return compressed_cost(rank, size, n, itemsize, compressor.compressor)
    if size == 1:
        return Cost(0, 0)
    if outweighs(size, n, itemsize, compressor):
        return allreduce_cost(rank, size, n, itemsize)
    return _payload_cost(rank, size, n, itemsize, compressor)


@lru_cache(maxsize=256)
def outweighs(size: int, n: int, itemsize: int, compressor: AbstractCompressor[Any]) -> bool:
    """Return whether payloads that can as well be summed decoded would cost more than that; the same on every rank."""
    if isinstance(compressor, _SUMMED_AS_PAYLOADS):
        return False
    if isinstance(compressor, TernGrad):
        n_bytes = ternary_bytes(size, n)
    else:
        # Gathered payloads are equally long: every rank sends as much.
        cost = _payload_cost(0, size, n, itemsize, compressor)
        n_bytes = 0 if cost is None else size * cost.n_bytes
    return n_bytes > whole_bytes(size, n, itemsize)


@lru_cache(maxsize=256)
def whole_bytes(size: int, n: int, itemsize: int) -> int:
    """Return what all ranks send in an all-reduce of whole vectors."""
    return sum(allreduce_cost(rank, size, n, itemsize).n_bytes for rank in range(size))


def _payload_cost(rank: int, size: int, n: int, itemsize: int, compressor: AbstractCompressor[Any]) -> Cost | None:
    """Return what `rank` sends where payloads are summed."""
    if isinstance(compressor, Layerwise):
        return _layerwise_cost(rank, size, n, itemsize, compressor)
    if isinstance(compressor, GTopK):
        return gtopk_cost(rank, size, n, itemsize, compressor)
    if isinstance(compressor, Identity):
        return allreduce_cost(rank, size, n, itemsize)
    if isinstance(compressor, RandomK):
        return allreduce_cost(rank, size, n_entries(n, compressor.density), itemsize)
    if isinstance(compressor, PowerSGD):
        left, right = (allreduce_cost(rank, size, int(compressor.rank) * k, itemsize) for k in compressor.shape(n))
        return left + right
    if isinstance(compressor, Half):
        return halves_cost(rank, size, n)
    if isinstance(compressor, MajorityVote):
        return votes_cost(rank, size, n)
    if isinstance(compressor, TernGrad):
        return ternary_cost(rank, size, n)
    known = compressor.payload_bytes(n, itemsize)
    return None if known is None else allgatherv_cost(rank, [known] * size, 1, known=True)


def _layerwise_cost(rank: int, size: int, n: int, itemsize: int, compressor: Layerwise) -> Cost | None:
    whole, lefts, rights = [], [], []
    costs: list[Cost | None] = []
    for part in compressor.parts(n):
        length, inner = part.place.stop - part.place.start, part.compressor
        if isinstance(inner, Identity):
            whole.append(length)
        elif isinstance(inner, ErrorFeedback) and isinstance(inner.compressor, PowerSGD):
            left, right = (int(inner.compressor.rank) * side for side in inner.compressor.shape(length))
            lefts.append(left)
            rights.append(right)
        else:
            costs.append(compressed_cost(rank, size, length, itemsize, inner))
    costs += [allreduce_cost(rank, size, sum(lengths), itemsize) for lengths in (whole, lefts, rights) if lengths]
    known = [cost for cost in costs if cost is not None]
    return sum(known, Cost(0, 0)) if len(known) == len(costs) else None
