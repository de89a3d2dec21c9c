"""The family: every synchronous strategy, what it becomes in its limit cases, its twin and its cost.

A new method enters all laws by one line here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dsgd.collectives import (
    Cost,
    allgather_cost,
    allgatherv_cost,
    allreduce_cost,
    broadcast_cost,
    compressed_cost,
    gossip_cost,
)
from dsgd.comm.topology import Complete, Groups, Ring, Star
from dsgd.compress import DGC, AbstractCompressor, DeMo, ErrorFeedback, GTopK, Identity, PowerSGD, RandomK, TopK
from dsgd.sync import (
    ADMM,
    DPSGD,
    EASGD,
    SCAFFOLD,
    SGP,
    AbstractStrategy,
    AutoSync,
    ChocoSGD,
    DiLoCo,
    EagerDiLoCo,
    EpochAveraging,
    FedProx,
    LeaderSGD,
    LocalSGD,
    MinibatchSGD,
    OneShotAveraging,
    OverlapSGP,
    PostLocalSGD,
    SlowMo,
    StreamingDiLoCo,
)
from dsgd.sync.adaptive import CommFloor, FixedPeriod
from reference import strategies as twins

Strategy = AbstractStrategy[Any]


@dataclass(frozen=True)
class Member:
    """A strategy and what is claimed of it.

    Parameters
    ----------
    strategy : AbstractStrategy
        With parameters that show, and a period of 8 rows where it has one.
    twin : callable
        Makes its plain-numpy twin from (strategy, first model, weights).
    cost : callable
        (rank, size, n, itemsize, round) -> what the rank sends in that exchange.
    synchronous : AbstractStrategy or None
        Its limit case that equals synchronous SGD if every exchange follows one step.
    alone : AbstractStrategy or None
        Its limit case in which ranks do not affect each other.
    """

    strategy: Strategy
    twin: Callable[..., Any]
    cost: Callable[..., Cost]
    synchronous: Strategy | None = None
    alone: Strategy | None = None

    def __repr__(self) -> str:
        return repr(self.strategy)


def one_sum(rank: int, size: int, n: int, itemsize: int, k: int, *, vectors: int = 1) -> Cost:
    """Return the cost of an all-reduce of so many vectors."""
    return allreduce_cost(rank, size, vectors * n, itemsize)


def late_sum(rank: int, size: int, n: int, itemsize: int, k: int) -> Cost:
    """Return the cost of an all-reduce of what the round before has left."""
    return one_sum(rank, size, n, itemsize, k) if k else Cost(0, 0)


def gossip(topology: Any, rank: int, size: int, n: int, itemsize: int, k: int, *, extra: int = 0) -> Cost:
    """Return the cost of a round of gossip."""
    return gossip_cost(topology, rank, size, n + extra, itemsize, k % topology.period(size))


def choco(rank: int, size: int, n: int, itemsize: int, k: int) -> Cost:
    """Return the cost of a payload for each neighbour."""
    strategy = ChocoSGD()
    n_bytes = strategy.compressor.payload_bytes(n, itemsize)
    return gossip(strategy.topology, rank, size, n_bytes or 0, 1, k)


def from_leader(n_groups: int, every: int, rank: int, size: int, n: int, itemsize: int, k: int) -> Cost:
    """Return the cost of an exchange with leaders, where in round k rank k has the lowest loss, then rank k + 1, ..."""
    cost = allgather_cost(size, 1, 8)
    parts = [cost]
    if min(n_groups, size) > 1:
        members = Groups(n_groups).members(rank, size)
        losses = [(member - k) % size for member in members]
        parts.append(broadcast_cost(members.index(rank), len(members), n, itemsize, losses.index(min(losses))))
    if min(n_groups, size) == 1 or (k + 1) % every == 0:
        parts.append(broadcast_cost(rank, size, n, itemsize, k % size))
    return Cost(sum(part.n_bytes for part in parts), sum(part.messages for part in parts))


def fragment(
    strategy: StreamingDiLoCo, rank: int, size: int, n: int, itemsize: int, k: int, *, summed: Any = one_sum
) -> Cost:
    """Return the cost of the sum of a fragment: that of this round, or of the one before, which is sent late."""
    turn, parts = k - (strategy.delay > 0), strategy.fragments
    if turn < 0:
        return Cost(0, 0)
    f = turn % parts
    return summed(rank, size, n * (f + 1) // parts - n * f // parts, itemsize, k)


def outer(rate: float, beta: float, nesterov: bool) -> Callable[..., Any]:
    """Return the maker of the twin of an outer step."""
    return partial(twins.Outer, rate=rate, beta=beta, nesterov=nesterov)


def compressed(compressor: AbstractCompressor[Any], rank: int, size: int, n: int, itemsize: int, k: int) -> Cost:
    """Return the cost of the mean of compressed vectors."""
    cost = compressed_cost(rank, size, n, itemsize, compressor)
    assert cost is not None
    return cost


def lossless(rank: int, size: int, n: int, itemsize: int, k: int) -> Cost:
    """Return the cost of lengths, and of one word each: models do not move in this test, so no difference is sent."""
    parts = [allgather_cost(size, 1, 8), allgatherv_cost(rank, [8] * size, 1, known=True)]
    return Cost(sum(part.n_bytes for part in parts), sum(part.messages for part in parts))


#: Compressors in the limit in which they lose nothing.
WHOLE = [GTopK(1.0), ErrorFeedback(TopK(1.0)), ErrorFeedback(PowerSGD(99))]
GRADIENTS = [DGC(1.0), DeMo(64, magnitude=None), GTopK(1.0, route="tree"), ErrorFeedback(RandomK(1.0))]

FAMILY = [
    Member(LocalSGD(8), twins.Mean, one_sum, LocalSGD(8)),
    Member(LocalSGD(8, momentum="average"), twins.Mean, one_sum, LocalSGD(8, momentum="average")),
    Member(LocalSGD(8, compressor="auto"), twins.Mean, lossless, LocalSGD(8, compressor="auto")),
    *(Member(LocalSGD(8, compressor=c), twins.Mean, partial(compressed, c), LocalSGD(8, compressor=c)) for c in WHOLE),
    *(Member(MinibatchSGD(16, compressor=c), twins.Mean, partial(compressed, c)) for c in GRADIENTS),
    Member(AutoSync(rule=CommFloor(first=8)), twins.Mean, one_sum, AutoSync(rule=FixedPeriod(8))),
    Member(PostLocalSGD(32, 8, 1), twins.Mean, one_sum, PostLocalSGD(8, 8)),
    Member(EpochAveraging(), twins.Mean, one_sum),
    Member(OneShotAveraging(), twins.Mean, one_sum),
    Member(MinibatchSGD(16), twins.Mean, one_sum),
    Member(EASGD(8, beta=0.7), twins.Elastic, one_sum, alone=EASGD(8, beta=0)),
    Member(LeaderSGD(8, global_pull=0.3), twins.Leader, partial(from_leader, 1, 4), alone=LeaderSGD(8, global_pull=0)),
    Member(
        LeaderSGD(8, n_groups=2, pull=0.4, global_pull=0.3, global_every=2),
        twins.Leader,
        partial(from_leader, 2, 2),
        alone=LeaderSGD(8, n_groups=2, pull=0, global_pull=0),
    ),
    Member(DPSGD(8), twins.Gossip, partial(gossip, Ring()), DPSGD(8, Complete()), DPSGD(8, Groups(99))),
    Member(SGP(8), twins.PushSum, partial(gossip, SGP().topology, extra=1), SGP(8, Complete()), SGP(8, Groups(99))),
    Member(
        OverlapSGP(8), twins.LatePushSum, partial(gossip, SGP().topology, extra=1), None, OverlapSGP(8, 1, Groups(99))
    ),
    Member(OverlapSGP(8, 3, Ring()), twins.LatePushSum, partial(gossip, Ring(), extra=1)),
    Member(ChocoSGD(8), twins.Choco, choco, ChocoSGD(8, Identity(), 1.0, Complete()), ChocoSGD(8, gamma=0.0)),
    Member(SGP(8, Star()), twins.PushSum, partial(gossip, Star(), extra=1)),
    Member(SlowMo(8, 0.4, 0.8), outer(0.8, 0.4, nesterov=False), one_sum, SlowMo(8, 0.0)),
    Member(DiLoCo(8, 0.6, 0.4), outer(0.6, 0.4, nesterov=True), one_sum, DiLoCo(8, 1.0, 0.0)),
    Member(SlowMo(8, 0.4, 0.8, compressor="auto"), outer(0.8, 0.4, nesterov=False), lossless),
    Member(DiLoCo(8, 0.6, 0.4, compressor=WHOLE[1]), outer(0.6, 0.4, nesterov=True), partial(compressed, WHOLE[1])),
    Member(EagerDiLoCo(8, 0.6, 0.4), twins.Eager, late_sum),
    *(
        Member(strategy, twins.Streaming, partial(fragment, strategy))
        for strategy in (StreamingDiLoCo(8, 3, 0, 0.3, 0.6, 0.4), StreamingDiLoCo(8, 5, 2, 0.4))
    ),
    Member(
        StreamingDiLoCo(8, 3, 2, compressor=WHOLE[1]),
        twins.Streaming,
        partial(fragment, StreamingDiLoCo(8, 3, 2), summed=partial(compressed, WHOLE[1])),
        StreamingDiLoCo(8, 1, 0, 0.0, 1.0, 0.0, compressor=WHOLE[1]),
    ),
    Member(SCAFFOLD(8, rate=0.9), twins.Control, partial(one_sum, vectors=2), SCAFFOLD(8)),
    Member(ADMM(8, rho=0.3, stretch=4), twins.Consensus, one_sum),
    Member(FedProx(8, mu=0.1, stretch=4), twins.Mean, one_sum, FedProx(8, mu=0.0)),
]
