"""Means over ranks of vectors that a compressor encodes, or with the neighbours of a graph; and what each costs.

`compressed_mean` chooses how payloads are summed. Those whose entries have a sum of their own go by
`dsgd.collectives.payloads`; the others are gathered and decoded, or summed decoded where that takes fewer bytes.

`PowerSGD`: a module has many matrices, and a sum for each of their short factors costs more in messages than in bytes.
So the factors of all matrices go in two all-reduces. For every matrix M with the row factors V of the last time:
``U <- sum V M'`` over ranks, made orthonormal; ``W <- sum U M``; the sum is ``U' W``.

Gossip: an all-reduce ends when the slowest rank and the slowest link have finished, and its cost grows with the number
of ranks. A rank that only exchanges with a few peers pays for those alone: one message per peer and round, whatever the
number of ranks. On the graph of round k:

- `neighbour_mean`: ``x_i <- sum_j W_ij x_j`` with the weights of `dsgd.comm.topology.weights`. If W is doubly
  stochastic, the mean over ranks stays and all ranks converge to it.
- `push_sum`: every rank cuts its mass (w z, w), a vector and a weight, into equal parts, keeps one, sends one to each
  of its out-peers and adds those it receives. The sums of both over ranks stay on any graph, so that the ratio z
  converges to the mean where plain mixing would converge to something else.

What comes in is added in the order of `dsgd.comm.topology.exchange_steps`, which is that of the graph alone: the same
bits on every wire.

Source: Vogels, Karimireddy and Jaggi 2019, algorithm 1 (factors); Kempe, Dobra and Gehrke 2003 (push-sum); Lian et al.
2017 (D-PSGD); Assran et al. 2019 (SGP).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from dsgd import compress
from dsgd.collectives import payloads
from dsgd.collectives.cost import Cost, allgathered_bytes, allgatherv_cost, allreduce_cost
from dsgd.collectives.group import Group
from dsgd.comm.frames import HEADER_BYTES, OP_GOSSIP
from dsgd.comm.topology import AbstractTopology, Step, exchange_steps, shares, weights
from dsgd.comm.wires import inproc
from dsgd.compress import AbstractCompressor
from dsgd.compress.base import WORD_BYTES
from dsgd.compress.powersgd import times_rows
from dsgd.compress.sparse import n_entries
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.kernels import quantize
from dsgd.types import AnyArray, FloatMatrix, FloatVector


def sum_of_factors(
    group: Group, matrices: Sequence[tuple[FloatVector, compress.PowerSGD, compress.PowerMemory, FloatVector | None]]
) -> None:
    """Replace vectors by the sums of their low-rank matrices, whose factors are sent together."""
    wholes = [compressor.matrix(vector, memory) for vector, compressor, memory, _ in matrices]
    # Each of these passes over the matrices once for each of their factors.
    n_passed = sum(whole.size * int(each[1].rank) for whole, each in zip(wholes, matrices, strict=True))

    def column_factors() -> list[AnyArray]:
        return [
            compressor.project(whole, memory)
            for whole, (_, compressor, memory, _) in zip(wholes, matrices, strict=True)
        ]

    lefts = payloads.encoding(group, n_passed, column_factors)
    sum_together(group, lefts)

    def row_factors() -> list[AnyArray]:
        rights: list[AnyArray] = []
        for left, whole, (_, _, _, rest) in zip(lefts, wholes, matrices, strict=True):
            quantize.orthonormalise(left)
            rights.append(times_rows(left, whole))
            if rest is not None:
                quantize.add_outer(left, rights[-1], rest, -1.0)
        return rights

    with_rest = any(rest is not None for *_, rest in matrices)
    rights = payloads.encoding(group, n_passed * (2 if with_rest else 1), row_factors)
    sum_together(group, rights)

    def products() -> None:
        for left, right, (vector, compressor, memory, _) in zip(lefts, rights, matrices, strict=True):
            compressor.keep(right, memory)
            vector.fill(0.0)
            quantize.add_outer(left, right, vector, 1.0)

    payloads.encoding(group, n_passed, products)


def sum_together(group: Group, arrays: Sequence[AnyArray]) -> None:
    """Replace arrays by their sums over ranks, with one all-reduce."""
    if len(arrays) == 1:
        group.allreduce(arrays[0])
        return
    whole = np.concatenate([array.reshape(-1) for array in arrays])
    group.allreduce(whole)
    at = 0
    for array in arrays:
        array[...] = whole[at : at + array.size].reshape(array.shape)
        at += array.size


def compressed_cost(rank: int, size: int, n: int, itemsize: int, compressor: AbstractCompressor[Any]) -> Cost | None:
    """Return what `rank` sends in `compressed_mean` of n elements, where all ranks reach each other on one host."""
    if isinstance(compressor, compress.ErrorFeedback):
        return compressed_cost(rank, size, n, itemsize, compressor.compressor)
    if size == 1:
        return Cost(0, 0)
    if isinstance(compressor, compress.Layerwise):
        return _layerwise_cost(rank, size, n, itemsize, compressor)
    if outweighs(size, n, itemsize, compressor):
        return allreduce_cost(rank, size, n, itemsize)
    return _sum_of(compressor).cost(rank, size, n, itemsize, compressor)


@lru_cache(maxsize=256)
def outweighs(size: int, n: int, itemsize: int, compressor: AbstractCompressor[Any]) -> bool:
    """Return whether payloads that can as well be summed decoded would cost more than that; the same on every rank."""
    if isinstance(compressor, compress.Layerwise) or not _sum_of(compressor).may_be_decoded:
        return False
    if isinstance(compressor, compress.TernGrad):
        n_bytes = payloads.ternary_bytes(size, n)
    else:
        # Gathered payloads are equally long: every rank sends as much.
        cost = _gathered_cost(0, size, n, itemsize, compressor)
        n_bytes = 0 if cost is None else size * cost.n_bytes
    return n_bytes > whole_bytes(size, n, itemsize)


@lru_cache(maxsize=256)
def whole_bytes(size: int, n: int, itemsize: int) -> int:
    """Return what all ranks send in an all-reduce of whole vectors."""
    return sum(allreduce_cost(rank, size, n, itemsize).n_bytes for rank in range(size))


def _layerwise_cost(rank: int, size: int, n: int, itemsize: int, compressor: compress.Layerwise) -> Cost | None:
    whole, lefts, rights = [], [], []
    costs: list[Cost | None] = []
    for part in compressor.parts(n):
        length, inner = part.place.stop - part.place.start, part.compressor
        if isinstance(inner, compress.Identity):
            whole.append(length)
        elif isinstance(inner, compress.ErrorFeedback) and isinstance(inner.compressor, compress.PowerSGD):
            left, right = (int(inner.compressor.rank) * side for side in inner.compressor.shape(length))
            lefts.append(left)
            rights.append(right)
        else:
            costs.append(compressed_cost(rank, size, length, itemsize, inner))
    costs += [allreduce_cost(rank, size, sum(lengths), itemsize) for lengths in (whole, lefts, rights) if lengths]
    known = [cost for cost in costs if cost is not None]
    return sum(known, Cost(0, 0)) if len(known) == len(costs) else None


def compressed_mean(
    group: Group, vector: FloatVector, weight: float, compressor: AbstractCompressor[Any], memory: Any
) -> None:
    """Replace `vector` by its weighted mean over ranks, as a compressor leaves it; bitwise equal on all of them."""
    if isinstance(compressor, compress.Layerwise):
        _mean_by_layer(group, vector, weight, compressor, memory)
        return
    _weigh(vector, weight)
    rest = None
    if isinstance(compressor, compress.ErrorFeedback):
        compressor.accumulate(vector, memory)
        rest, compressor, memory = memory.residual, compressor.compressor, memory.inner
        vector[:] = rest
    if group.size > 1 and outweighs(group.size, vector.shape[0], vector.itemsize, compressor):
        _sum_decoded(group, vector, compressor, memory, rest)
    else:
        found = _sum_of(compressor)
        votes = {"votes": weight > 0.0} if found.by_votes else {}
        found.run(group, vector, compressor, memory, rest, **votes)
    if isinstance(compressor, compress.DeMo):
        compressor.finish(vector)


def _weigh(vector: FloatVector, weight: float) -> None:
    if weight == 0.0:
        # 0 * inf is not 0: an empty rank must not be able to spoil the mean.
        vector.fill(0.0)
    elif weight != 1.0:
        vector *= float(weight)


def load_kernels(compressor: AbstractCompressor[Any], dtype: Any) -> None:
    """Compile or load what `compressed_mean` runs for vectors of a dtype, so that no peer waits for it later."""
    if isinstance(compressor, compress.Layerwise):
        for each in compressor.compressors:
            load_kernels(each, dtype)
        return
    n = 2 * payloads.UNIT
    alone = Group(inproc.connect(1)[0])
    compressed_mean(alone, np.ones(n, dtype), 0.5, compressor, compressor.init(n, dtype, 0))
    if isinstance(compressor, compress.GTopK):
        places = np.arange(2, dtype=np.uint32)
        payloads.merge_all([payloads.Entries(places, np.ones(2, dtype))] * 2, 1, compressor.route)


def _gathered_cost(rank: int, size: int, n: int, itemsize: int, compressor: AbstractCompressor[Any]) -> Cost | None:
    known = compressor.payload_bytes(n, itemsize)
    return None if known is None else allgatherv_cost(rank, [known] * size, 1, known=True)


def _power_cost(rank: int, size: int, n: int, itemsize: int, compressor: compress.PowerSGD) -> Cost:
    left, right = (allreduce_cost(rank, size, int(compressor.rank) * side, itemsize) for side in compressor.shape(n))
    return left + right


def _sum_gathered(group: Group, vector: FloatVector, compressor: Any, memory: Any, rest: FloatVector | None) -> None:
    payload = payloads.encode(group, vector, compressor, memory, rest)
    known = compressor.payload_bytes(vector.shape[0], vector.itemsize)
    if known is not None:
        lengths = [known] * group.size
    else:
        lengths = group.allgather(np.array([payload.shape[0]], dtype=np.int64)).ravel().tolist()
        if allgathered_bytes(lengths, 1) > whole_bytes(group.size, vector.shape[0], vector.itemsize):
            payloads.decode(group, [payload], vector, compressor)
            group.allreduce(vector)
            return
    payloads.decode(group, group.allgatherv(payload, lengths), vector, compressor)


def _sum_decoded(group: Group, vector: FloatVector, compressor: Any, memory: Any, rest: FloatVector | None) -> None:
    payloads.decode(group, [payloads.encode(group, vector, compressor, memory, rest)], vector, compressor)
    group.allreduce(vector)


def _sum_nonzero(group: Group, vector: FloatVector, compressor: Any, memory: Any, rest: FloatVector | None) -> None:
    payload = payloads.encode(group, vector, compressor, memory, rest)
    lengths = group.allgather(np.array([payload.shape[0]], dtype=np.int64)).ravel().tolist()
    # What an all-gather passes through each rank, against what an all-reduce does.
    if sum(lengths) < 2 * vector.nbytes:
        payloads.decode(group, group.allgatherv(payload, lengths), vector, compressor)
    else:
        group.allreduce(vector)


def _sum_random(group: Group, vector: FloatVector, compressor: Any, memory: Any, rest: FloatVector | None) -> None:
    payload = payloads.encode(group, vector, compressor, memory, rest)
    # The first word says which entries were drawn: the same on all ranks.
    group.allreduce(payload[WORD_BYTES:].view(vector.dtype)[: n_entries(vector.shape[0], compressor.density)])
    payloads.decode(group, [payload], vector, compressor)


def _mean_by_layer(
    group: Group, vector: FloatVector, weight: float, compressor: compress.Layerwise, memory: Any
) -> None:
    whole: list[FloatVector] = []
    matrices: list[tuple[FloatVector, compress.PowerSGD, Any, FloatVector | None]] = []
    for part, own in zip(compressor.parts(vector.shape[0]), memory.parts, strict=True):
        tensor, inner = vector[part.place], part.compressor
        if isinstance(inner, compress.Identity):
            _weigh(tensor, weight)
            whole.append(tensor)
        elif isinstance(inner, compress.ErrorFeedback) and isinstance(inner.compressor, compress.PowerSGD):
            _weigh(tensor, weight)
            inner.accumulate(tensor, own)
            tensor[:] = own.residual
            matrices.append((tensor, inner.compressor, own.inner, own.residual))
        else:
            compressed_mean(group, tensor, weight, inner, own)
    if whole:
        sum_together(group, whole)
    if matrices:
        sum_of_factors(group, matrices)


class _Sum(NamedTuple):
    """How payloads are summed, and what a rank sends in it: `run` of (group, vector, compressor, memory, rest)."""

    run: Callable[..., None]
    cost: Callable[[int, int, int, int, Any], Cost | None]
    #: Whether decoded vectors have the same sum, which may take fewer bytes.
    may_be_decoded: bool = False
    #: Whether ranks have a vote each, and `run` is also told if this one has: a rank without rows has none.
    by_votes: bool = False


def _whole_cost(rank: int, size: int, n: int, itemsize: int, *_: Any) -> Cost:
    return allreduce_cost(rank, size, n, itemsize)


def _random_cost(rank: int, size: int, n: int, itemsize: int, compressor: compress.RandomK) -> Cost:
    return allreduce_cost(rank, size, n_entries(n, compressor.density), itemsize)


_SUMS: Final[dict[type, _Sum]] = {
    compress.GTopK: _Sum(payloads.gtopk_sum, payloads.gtopk_cost),
    compress.Half: _Sum(payloads.sum_halves, payloads.halves_cost),
    compress.Identity: _Sum(lambda group, vector, *_: group.allreduce(vector), _whole_cost),
    compress.MajorityVote: _Sum(payloads.sum_votes, payloads.votes_cost, by_votes=True),
    compress.NonZero: _Sum(_sum_nonzero, _gathered_cost),
    compress.PowerSGD: _Sum(lambda group, *given: sum_of_factors(group, [given]), _power_cost),
    compress.RandomK: _Sum(_sum_random, _random_cost),
    compress.TernGrad: _Sum(payloads.sum_ternary, payloads.ternary_cost, may_be_decoded=True),
}
_GATHERED: Final = _Sum(_sum_gathered, _gathered_cost, may_be_decoded=True)


def _sum_of(compressor: AbstractCompressor[Any]) -> _Sum:
    return _SUMS.get(type(compressor), _GATHERED)


# Infinities are mixed as IEEE 754 says: a warning on one rank, raised as an error, would take the gang down.
@np.errstate(over="ignore", invalid="ignore")
def neighbour_mean(
    group: Group, vector: FloatVector, topology: AbstractTopology, round_number: int, scratch: FloatMatrix
) -> None:
    """Replace `vector` by the weighted mean over this rank and its neighbours in a round."""
    check_gossip(group, topology)
    _check_scratch(vector, scratch)
    plan = _plan(topology, group.rank, group.size, round_number % topology.period(group.size))
    mixed, arrived = scratch
    np.multiply(vector, vector.dtype.type(plan.own), out=mixed)
    for step, weight in zip(plan.steps, plan.weights, strict=True):
        group.transport.exchange(step.to, vector, step.source, arrived, OP_GOSSIP)
        if step.source is not None:
            arrived *= vector.dtype.type(weight)
            mixed += arrived
            group.transport.worked(n_bytes=arrived.nbytes)
    vector[:] = mixed


@np.errstate(over="ignore", invalid="ignore")
def push_sum(
    group: Group, mass: FloatVector, topology: AbstractTopology, round_number: int, scratch: FloatMatrix
) -> None:
    """Send shares of a vector and its weight to peers, and add the shares received.

    - `mass`, shape (n + 1,): ``mass[:n]`` is the vector times its weight and ``mass[n]`` the weight, which starts
      as 1; both change in place. The estimate of the mean is ``mass[:n] / mass[n]``.
    """
    check_gossip(group, topology)
    _check_scratch(mass, scratch)
    plan = _plan(topology, group.rank, group.size, round_number % topology.period(group.size))
    part, arrived = scratch
    np.multiply(mass, mass.dtype.type(plan.share), out=part)
    mass[:] = part
    for step in plan.steps:
        group.transport.exchange(step.to, part, step.source, arrived, OP_GOSSIP)
        if step.source is not None:
            mass += arrived
            group.transport.worked(n_bytes=arrived.nbytes)


def check_gossip(group: Group, topology: AbstractTopology) -> None:
    """Raise `IncompatiblePartsError` if a rank could not reach all of its peers."""
    if group.transport.processes and group.transport.mailbox is None:
        raise IncompatiblePartsError(
            f"{topology} needs ranks that reach each other one by one, and the ranks here are threads of several "
            "processes, of which only the first threads do. Start workers with one thread each, or train on the "
            "threads of one process."
        )


def gossip_cost(topology: AbstractTopology, rank: int, size: int, n: int, itemsize: int, round_number: int = 0) -> Cost:
    """Return what `rank` sends in a round of gossip about n elements; for `push_sum` the weight is one of them."""
    messages = len(topology.out_peers(rank, size, round_number))
    return Cost(messages * (n * itemsize + HEADER_BYTES), messages)


class _Plan(NamedTuple):
    """The work of a rank in a round: its steps, the weight of each received vector, its own weight, and its share."""

    steps: tuple[Step, ...]
    weights: tuple[float, ...]
    own: float
    share: float


@lru_cache(maxsize=1024)
def _plan(topology: AbstractTopology, rank: int, size: int, round_number: int) -> _Plan:
    steps = exchange_steps(topology, rank, size, round_number)
    own, of = weights(topology, rank, size, round_number)
    arriving = tuple(0.0 if step.source is None else of[step.source] for step in steps)
    return _Plan(steps, arriving, own, shares(topology, rank, size, round_number))


def _check_scratch(vector: FloatVector, scratch: FloatMatrix) -> None:
    if scratch.shape != (2, *vector.shape) or scratch.dtype != vector.dtype:
        raise InvalidParameterError(
            f"scratch=... must have shape {2, *vector.shape} and dtype {vector.dtype}. Got {scratch.shape} and "
            f"{scratch.dtype}."
        )
