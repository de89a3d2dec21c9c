"""The strategies that the laws are held on: a new one enters all of them by one entry here, and its twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from compressors import SUMS, SUMS_OF_GRADIENTS, fed, half, top
from dsgd.comm.topology import Complete, Grid, Groups, Ring, Star
from dsgd.compress import DGC, DeMo, ErrorFeedback, GTopK, Half, Identity, PowerSGD, RandomK, TopK
from dsgd.sync import (
    ADMM,
    ADPSGD,
    ASGD,
    DESLOC,
    DPSGD,
    EASGD,
    SCAFFOLD,
    SGP,
    AbstractStrategy,
    AnytimeSGD,
    AsyncADMM,
    AsyncEASGD,
    AsyncLeaderSGD,
    AutoSync,
    BackupWorkers,
    ChocoSGD,
    DecoupledDiLoCo,
    DelayCompensatedASGD,
    DiLoCo,
    Downpour,
    EagerDiLoCo,
    EpochAveraging,
    FedProx,
    Hogwild,
    LeaderSGD,
    LocalSGD,
    MinibatchSGD,
    OneShotAveraging,
    OverlapSGP,
    PostLocalSGD,
    SlowMo,
    StalenessAware,
    StaleSynchronous,
    StreamingDiLoCo,
)
from dsgd.sync.adaptive import FixedPeriod
from reference import async_trajectories as async_twins
from reference import compression, messages
from reference import strategies as rules
from reference import trajectories as twins
from reference.messages import EPOCHS, PER_EPOCH, ROUNDS, M, Sent, along, averages, gathers, one_each, ring, star, sums
from reference.minimisers import Settles, led, shared_optimum, stretches

Strategy = AbstractStrategy[Any]


@dataclass(frozen=True)
class Member:
    """A strategy and what is claimed of it; None where that says nothing of this one.

    Parameters
    ----------
    strategy : AbstractStrategy
        With parameters that show, and a period of 8 rows where it has one.
    twin : callable or None
        Makes the twin of its exchange from (strategy, first model, weights); see `reference.strategies`.
    sent : callable or None
        What a fit on so many ranks sends, in closed form; see `reference.messages`.
    settles : Settles or None
        Where training settles on quadratics; see `reference.minimisers`.
    training : callable or None
        Makes the twin of a whole training from (strategy, `twin`); see `reference.trajectories`.
    synchronous : AbstractStrategy or None
        Its limit case that equals synchronous SGD if every exchange follows one step.
    alone : AbstractStrategy or None
        Its limit case in which ranks do not affect each other.
    """

    strategy: Strategy
    twin: Callable[..., Any] | None = None
    sent: Callable[[int], Sent] | None = None
    settles: Settles | None = None
    training: Callable[[Any, Any], Any] | None = None
    synchronous: Strategy | None = None
    alone: Strategy | None = None

    def __repr__(self) -> str:
        return repr(self.strategy)


def outer(rate: float, beta: float, nesterov: bool) -> Callable[..., Any]:
    """Return the maker of the twin of an outer step."""
    return partial(rules.Outer, rate=rate, beta=beta, nesterov=nesterov)


def served(method: str, **options: Any) -> Callable[..., Any]:
    """Return the maker of the twin of workers that send gradients to a server."""
    return partial(async_twins.Served, method=method, **options)


#: Compressors in the limit in which they lose nothing.
WHOLE = [GTopK(1.0), ErrorFeedback(TopK(1.0)), ErrorFeedback(PowerSGD(99))]
GRADIENTS = [DGC(1.0), DeMo(64, magnitude=None), GTopK(1.0, route="tree"), ErrorFeedback(RandomK(1.0))]
#: The order in which the simulator lets threads begin, in each epoch: none of them gives way while it walks its rows.
_USUAL = (0, 1, 2, 3)
_TURNS = [*[_USUAL] * 5, (0, 1, 2), (1, 2, 0), (1, 2, 0), (3, 0, 1, 2), *[_USUAL] * 3]

#: Of six numbers two; in one word each how many, and the low and the high parts of their places.
TOP_WORDS = 2 + 3

MEMBERS = [
    Member(LocalSGD(8), rules.Mean, averages, Settles(), twins.Averaging, LocalSGD(8)),
    Member(LocalSGD(8, momentum="average"), rules.Mean, synchronous=LocalSGD(8, momentum="average")),
    Member(LocalSGD(8, overlap=True), sent=averages, settles=Settles(2.5)),
    Member(
        LocalSGD(8, compressor="auto"),
        rules.Mean,
        messages.with_lengths,
        Settles(),
        twins.Averaging,
        LocalSGD(8, compressor="auto"),
    ),
    *(Member(LocalSGD(8, compressor=c), rules.Mean, synchronous=LocalSGD(8, compressor=c)) for c in WHOLE),
    Member(
        LocalSGD(8, compressor=TopK(0.3)),
        sent=messages.payloads(TOP_WORDS),
        settles=Settles(),
        training=partial(twins.Compressed, total=fed(top)),
    ),
    Member(LocalSGD(8, compressor=Half()), training=partial(twins.Compressed, total=lambda: compression.Halved(half))),
    *(
        Member(LocalSGD(8, compressor=compressor), training=partial(twins.Compressed, total=total))
        for compressor, total in SUMS
    ),
    Member(MinibatchSGD(16), rules.Mean, lambda P: sums(P, M, P * EPOCHS), Settles(0.2, rate=0.24), twins.Gradients),
    Member(
        MinibatchSGD(16, compressor="auto"),
        sent=lambda P: [*gathers(P, P * EPOCHS), *sums(P, M, P * EPOCHS)],
        training=twins.Gradients,
    ),
    *(Member(MinibatchSGD(16, compressor=c), rules.Mean) for c in GRADIENTS),
    *(
        Member(MinibatchSGD(16, compressor=compressor), training=partial(twins.Gradients, total=total))
        for compressor, total in [*SUMS, *SUMS_OF_GRADIENTS]
    ),
    Member(
        AutoSync(rule=FixedPeriod(8)), rules.Mean, averages, Settles(), twins.Averaging, AutoSync(rule=FixedPeriod(8))
    ),
    Member(
        # Every four rows in two epochs, then every eight.
        PostLocalSGD(8, 4, 2),
        rules.Mean,
        lambda P: sums(P, M, (2 * 2 + 1) * PER_EPOCH),
        Settles(),
        twins.Often,
        PostLocalSGD(8, 8),
    ),
    Member(DESLOC(8, 2, 3), rules.Mean, averages, Settles(), twins.Averaging, DESLOC(8, 1, 1)),
    Member(EpochAveraging(), rules.Mean, lambda P: sums(P, M, EPOCHS), Settles(2.5), twins.Seldom),
    Member(
        AnytimeSGD(1e9),
        sent=lambda P: [*sums(P, M, EPOCHS), *sums(P, 1, EPOCHS)],
        settles=Settles(at=partial(stretches, at_a_time=1)),
        training=lambda strategy, _: twins.Anytime(strategy, rules.Mean),
    ),
    Member(OneShotAveraging(), rules.Mean, lambda P: sums(P, M), Settles(at=stretches), twins.Apart),
    Member(SlowMo(8, 0.4, 0.8), outer(0.8, 0.4, nesterov=False), averages, Settles(), twins.Averaging, SlowMo(8, 0.0)),
    Member(SlowMo(8, 0.4, 0.8, compressor="auto"), outer(0.8, 0.4, nesterov=False), messages.with_lengths),
    Member(
        DiLoCo(8, 0.6, 0.4), outer(0.6, 0.4, nesterov=True), averages, Settles(), twins.Averaging, DiLoCo(8, 1.0, 0.0)
    ),
    Member(DiLoCo(8, 0.6, 0.4, compressor=WHOLE[1]), outer(0.6, 0.4, nesterov=True)),
    # The last exchange is that of the mean in the end.
    Member(EagerDiLoCo(8, 0.6, 0.4), rules.Eager, averages, Settles(), twins.Averaging),
    Member(
        StreamingDiLoCo(8, 2, 1, 0.3, 0.6, 0.4),
        rules.Streaming,
        lambda P: [*sums(P, M // 2, ROUNDS - 1), *sums(P, M)],
        Settles(2.0, speed=0.6),
        twins.Averaging,
    ),
    Member(StreamingDiLoCo(8, 3, 0, 0.3, 0.6, 0.4), rules.Streaming, lambda P: [*sums(P, M // 3, ROUNDS), *sums(P, M)]),
    Member(StreamingDiLoCo(8, 5, 2, 0.4), rules.Streaming),
    Member(
        StreamingDiLoCo(8, 3, 2, compressor=WHOLE[1]),
        rules.Streaming,
        synchronous=StreamingDiLoCo(8, 1, 0, 0.0, 1.0, 0.0, compressor=WHOLE[1]),
    ),
    Member(
        SCAFFOLD(8, 0.9, 4), rules.Control, lambda P: sums(P, 2 * M, ROUNDS), Settles(), twins.Controlled, SCAFFOLD(8)
    ),
    Member(FedProx(8, 0.3, 4), rules.Mean, averages, Settles(2.0), twins.Proximal, FedProx(8, 0.0)),
    Member(ADMM(8, 0.3, 4), rules.Consensus, averages, Settles(), twins.Priced),
    Member(EASGD(8, 0.7), rules.Elastic, averages, Settles(6.0), twins.Averaging, alone=EASGD(8, 0.0)),
    Member(
        LeaderSGD(8, global_pull=0.3),
        rules.Leader,
        messages.leaders,
        Settles(at=partial(led, 0.3, 8)),
        twins.Averaging,
        alone=LeaderSGD(8, global_pull=0.0),
    ),
    Member(
        LeaderSGD(8, 2, 0.4, 0.3, 2),
        rules.Leader,
        # Down the trees of both groups in every round, and of all in every other.
        lambda P: [*gathers(P, ROUNDS), (ROUNDS * (P - 2) + ROUNDS // 2 * (P - 1), M), *sums(P, M)],
        training=twins.Averaging,
        alone=LeaderSGD(8, 2, 0.0, 0.0),
    ),
    Member(DPSGD(8), rules.Gossip, along(ring), Settles(), twins.Averaging, DPSGD(8, Complete()), DPSGD(8, Groups(99))),
    Member(DPSGD(8, Star()), rules.Gossip, along(star), Settles(3.0), twins.Averaging),
    Member(
        SGP(8),
        rules.PushSum,
        along(one_each, M + 1),
        Settles(2.0),
        twins.Averaging,
        SGP(8, Complete()),
        SGP(8, Groups(99)),
    ),
    Member(SGP(8, Star()), rules.PushSum, along(star, M + 1), Settles(2.0), twins.Averaging),
    Member(
        OverlapSGP(8),
        rules.LatePushSum,
        along(one_each, M + 1),
        Settles(4.0),
        twins.Averaging,
        alone=OverlapSGP(8, 1, Groups(99)),
    ),
    Member(OverlapSGP(8, 3, Ring()), rules.LatePushSum, along(ring, M + 1), Settles(), twins.Averaging),
    Member(
        ChocoSGD(8, TopK(0.3), 0.4),
        rules.Choco,
        lambda P: [(ROUNDS * ring(P), TOP_WORDS), *sums(P, M)],
        Settles(2.5),
        twins.Averaging,
        ChocoSGD(8, Identity(), 1.0, Complete()),
        ChocoSGD(8, gamma=0.0),
    ),
    Member(ChocoSGD(8, TopK(0.3), 0.4, Grid()), rules.Choco, settles=Settles(3.0, ranks=6)),
    Member(ASGD(8), sent=messages.served, settles=Settles(0.5, rate=0.08), training=served("asgd")),
    # The first gradients of an epoch are of another age on every rank.
    Member(
        StalenessAware(8, usual=1.0),
        sent=messages.served,
        settles=Settles(0.3, shared_optimum, rate=0.12),
        training=served("aware", arrivals=1, usual=1.0),
    ),
    Member(StalenessAware(8, 3), training=served("aware", arrivals=3, usual=lambda size: max(1.0, size / 3))),
    Member(
        DelayCompensatedASGD(8, 0.3),
        sent=messages.served,
        settles=Settles(0.5, rate=0.08),
        training=served("compensated", strength=0.3, decay=None),
    ),
    Member(DelayCompensatedASGD(8, 0.5, 0.9), training=served("compensated", strength=0.5, decay=0.9)),
    Member(
        StaleSynchronous(8, 0), sent=messages.served, settles=Settles(0.5, rate=0.08), training=served("stale", slack=0)
    ),
    Member(StaleSynchronous(8), sent=messages.served, settles=Settles(0.5, rate=0.08)),
    Member(BackupWorkers(8, backups=0), settles=Settles(0.15, rate=0.24)),
    Member(
        BackupWorkers(8),
        sent=messages.served,
        settles=Settles(at=shared_optimum, rate=0.12),
        training=served("backup", wanted=lambda size: size - 1),
    ),
    Member(Downpour(8), sent=messages.served, settles=Settles(speed=0.4), training=async_twins.Downpour),
    Member(AsyncEASGD(8, 0.8), sent=messages.served, settles=Settles(2.5), training=async_twins.AsyncElastic),
    # Prices begin anew in each call.
    Member(AsyncADMM(8, 0.3, 4), sent=messages.served, settles=Settles(speed=0.5), training=async_twins.AsyncConsensus),
    Member(
        AsyncLeaderSGD(8, 0.3),
        sent=messages.followed,
        settles=Settles(at=shared_optimum),
        training=async_twins.AsyncLeader,
    ),
    Member(
        AsyncLeaderSGD(8, 0.3, n_groups=2, global_pull=0.4, global_every=3),
        sent=messages.followed,
        settles=Settles(at=shared_optimum),
        training=async_twins.AsyncLeaders,
    ),
    Member(DecoupledDiLoCo(8, None, 0.8, 0.4), sent=messages.served, settles=Settles(), training=async_twins.Decoupled),
    Member(ADPSGD(8), settles=Settles(4.0), training=async_twins.Pairs),
    # Simulated threads walk one after the other, and what the last has seen counts more.
    Member(Hogwild(), sent=lambda P: [], settles=Settles(12.0), training=partial(async_twins.Serial, orders=_TURNS)),
]


def having(field: str) -> list[Member]:
    """Return the members that say something in a field."""
    return [member for member in MEMBERS if getattr(member, field) is not None]


#: Those whose ranks exchange together, and those that send when they are ready.
FAMILY = having("twin")
POSTED = [member for member in having("training") if member.strategy.talks == "by mailbox" and member.twin is None]
