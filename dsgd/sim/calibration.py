"""Calibration of a simulated cluster: the costs of messages and work, measured on a real one.

All ranks work at the same time, as in training. `dsgd.collectives.calibrate` measures messages. In turn with it, the
training loop itself runs over generated rows with the strategy to predict, in rounds of one row and of many, narrow and
wide, on the gang and on its simulated twin, whose work is free. Epochs of few and of many of the shortest rounds
separate the cost of a round from that of the end of an epoch. The additional time of the gang is work: the differences
give the cost of a row, of an entry and of a parameter; the rest of the shortest rounds is the cost of a call. Every
number is the median of several. Cost: a few seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

import numpy as np

from dsgd.collectives.cost import Link
from dsgd.collectives.group import calibrate as calibrate_link
from dsgd.comm.base import TransportName
from dsgd.errors import InvalidParameterError
from dsgd.local import SGD, Objective, Shard
from dsgd.runtime.rank import GangResult, Rank, RankProgram
from dsgd.runtime.threads import run_on_threads
from dsgd.runtime.train import train
from dsgd.runtime.train.fused import window_for
from dsgd.runtime.train.job import TrainData, TrainJob
from dsgd.sim.cluster import SimulatedCluster
from dsgd.sim.network import Compute, Network
from dsgd.sync import AbstractStrategy, LocalSGD, resolve

# Rows that are drawn; longer shards repeat them.
_N_DRAWN: Final = 512


@dataclass(frozen=True)
class RoundKind:
    """What is done in a round."""

    width: int
    every: int
    rounds: int
    entries: int | None = None
    dtype: str = "float64"


def are_fused(rank: Rank, strategy: AbstractStrategy[Any], n_params: int) -> bool:
    """Return whether rounds run inside a kernel; they are so short that it takes many of them to be seen."""
    return window_for(rank, strategy, np.zeros(n_params)) is not None


class SyntheticRounds:
    """Training on made rows, which can be timed again and again; steps change the model too little to matter."""

    def __init__(self, rank: Rank, strategy: AbstractStrategy[Any], kind: RoundKind, n_epochs: int = 3) -> None:
        self._rank = replace(rank, keeper=None)
        # A batch is counted over all ranks.
        period = {"every": kind.every, "batch": kind.every * rank.size}
        policy: Any = strategy  # a dataclass, as all strategies are
        self._data = TrainData(_synthetic_rows(kind, rank.number))
        self._job = TrainJob(
            optimizer=SGD(Objective(), schedule="constant", eta0=1e-6),
            strategy=replace(policy, **{name: period[name] for name in period if name in vars(strategy)}),
            initial=np.zeros(kind.width + 1, dtype=kind.dtype),
            max_iter=n_epochs + 1,
            tol=None,
            n_iter_no_change=5,
        )

    def epoch_s(self) -> float:
        """Return the median seconds of an epoch; the first one, which loads kernels and meets peers, is left out."""
        history = train(self._rank, self._data, self._job).history
        return float(median(np.diff([record.seconds for record in history]).tolist()))


def _synthetic_rows(kind: RoundKind, number: int) -> Shard:
    """Return the rows of a rank."""
    n = kind.every * kind.rounds
    rng = np.random.default_rng([number, kind.width])
    per_row = kind.width if kind.entries is None else min(kind.entries, kind.width)
    drawn = rng.standard_normal((min(n, _N_DRAWN), per_row)).astype(kind.dtype)
    values = np.resize(drawn, (n, per_row))
    targets = np.where(rng.random(n) < 0.5, -1.0, 1.0).astype(kind.dtype)
    weights = np.ones(n, dtype=kind.dtype)
    if kind.entries is None:
        return Shard(values, None, None, targets, weights, kind.width)
    step = kind.width // per_row
    columns = np.arange(per_row, dtype=np.uint32) * np.uint32(step)
    # Rows of their own columns: a rank that always finds its weights in the cache would look faster than it is.
    indices = (columns + rng.integers(0, step, size=(n, per_row)).astype(np.uint32)).ravel()
    indptr = np.arange(0, n * per_row + 1, per_row, dtype=np.uint64)
    return Shard(values.ravel(), indices, indptr, targets, weights, kind.width)


# Widths of models and rows between synchronisations.
_NARROW, _WIDE, _LONG = 8, 256, 16_384
_FEW, _MANY = 1, 512
_KINDS: Final = ((_NARROW, _FEW), (_NARROW, _MANY), (_WIDE, _MANY), (_LONG, _FEW))

# Rounds of an epoch: so many that an epoch is long beside its end, over rows of no more than 32 MB.
_N_ENTRIES: Final = 1 << 22
_LEAST_ROUNDS, _MOST_ROUNDS, _MOST_FUSED = 20, 100, 5_000
_N_EPOCHS: Final = 3
_N_TURNS: Final = 3

# What a parameter costs in one of two simulations, which tell how often it is passed over.
_UNIT_S: Final = 1e-9


@dataclass(frozen=True)
class Calibration:
    """The costs of messages and work, measured on a gang.

    Parameters
    ----------
    ranks : int
        How many ranks it had.
    network : Network
        What messages cost between them.
    compute : Compute
        What work costs on each, all of them working.
    """

    ranks: int
    network: Network
    compute: Compute

    def cluster(self) -> SimulatedCluster:
        """Return the simulated twin of the gang."""
        return SimulatedCluster(self.ranks, self.network, self.compute)


def calibrate(
    client: Any = None, *, sync: Any = None, ranks: int | None = None, transport: TransportName = "auto"
) -> Calibration:
    """Measure what messages and work cost.

    Parameters
    ----------
    client : distributed.Client or None, default None
        The cluster whose workers are measured; None measures threads of this process.
    sync : object, default None
        The strategy to predict, as estimators take it. Its own work in a round becomes part of the cost of a call, its
        work for each parameter part of the cost of a parameter. None takes a plain mean.
    ranks : int or None, default None
        How many ranks; None takes one per thread of the workers, or two threads of this process. If ranks share cores,
        costs depend on it, so measure as many as there will be.
    transport : str, default "auto"
        How they exchange; see `dsgd.runtime.run_on_cluster`.

    Returns
    -------
    Calibration
        Good for this number of ranks on these machines, dense rows and float64.

    Raises
    ------
    InvalidParameterError
        There are fewer than two ranks, which have nothing to say to each other, or `sync` has neither a period that can
        be set nor ranks that all do the same.
    """
    if ranks is not None and ranks < 2:
        raise InvalidParameterError(f"calibrate(ranks=...) must be two or more ranks. Got {ranks!r}.")
    strategy = resolve(LocalSGD(_MANY) if sync is None else sync)
    if strategy.n_servers or not ({"every", "batch"} & set(vars(strategy))):
        raise InvalidParameterError(
            f"calibrate(sync=...) takes strategies without servers that have `every` or `batch`. Got {strategy!r}."
        )
    gang = run_measurement(_measure, (strategy,), client=client, ranks=ranks, transport=transport)
    link, taken = gang.value
    return calibration_of(link, taken, strategy, len(gang.stats), str(gang.stats[0]["transport"]))


def calibration_of(
    link: Link, taken: Sequence[float], strategy: AbstractStrategy[Any], size: int, wire: str
) -> Calibration:
    """Return the constants with which a simulated gang takes as long as a real one did."""
    source = f"measured on {size} ranks over {wire}"

    def twin(alpha_s: float, param_s: float) -> list[float]:
        """Return the seconds of the rounds where work is free, but for what passes over parameters."""
        way = Link(byte_s=link.byte_s, overhead_s=alpha_s)
        network = Network(f"calibrated {wire}", way, way, source=source)
        compute = Compute(0.0, 0.0, param_s, 0.0, link.added_byte_s, source)
        return list(SimulatedCluster(size, network, compute).run(measure_rounds, [None] * size, (strategy, 1)).value)

    alpha_s = link.alpha_s
    free, paid = twin(alpha_s, 0.0), twin(alpha_s, _UNIT_S)
    if taken[0] < free[0]:
        # Rounds that run inside one kernel exchange faster than single messages.
        alpha_s *= taken[0] / free[0]
        free, paid = twin(alpha_s, 0.0), twin(alpha_s, _UNIT_S)
    shortest, narrow, wide, long, end_s = (max(t - s, 0.0) for t, s in zip(taken, free, strict=True))
    passes = [(b - a) / _UNIT_S for a, b in zip(free, paid, strict=True)]
    entry_s = max(wide - narrow, 0.0) / (_MANY * (_WIDE - _NARROW))
    row_s = max((narrow - shortest) / (_MANY - _FEW) - _NARROW * entry_s, 0.0)
    # A round of few rows of a long model differs from a short one by what passes over its parameters.
    more = long - shortest - _FEW * (_LONG - _NARROW) * entry_s
    param_s = max(more, 0.0) / max(passes[3] - passes[0], 1.0)
    call_s = max(shortest - _FEW * (row_s + _NARROW * entry_s) - passes[0] * param_s, 0.0)
    way = Link(byte_s=link.byte_s, overhead_s=alpha_s)
    return Calibration(
        size,
        Network(f"calibrated {wire}", way, way, source=source),
        Compute(entry_s, row_s, param_s, call_s, link.added_byte_s, source, end_s),
    )


def run_measurement(
    program: RankProgram,
    args: tuple[Any, ...],
    *,
    client: Any,
    ranks: int | None,
    transport: TransportName,
    ranks_per_worker: int | None = None,
) -> GangResult:
    """Run a rank program that makes its own data, on the workers of a client or on threads of this process."""
    if client is None:
        return run_on_threads(program, [None] * (ranks or 2), args)
    from dsgd.runtime.deployment import Gang
    from dsgd.runtime.gang.job import run_on_cluster

    n_ranks = ranks or sum(client.nthreads().values())
    if n_ranks < 2:
        raise InvalidParameterError("calibrate(client=...) must have two or more threads on its workers. Got one.")
    return run_on_cluster(
        program,
        [],
        client=Gang(client, transport=transport),
        pack=_take_none,
        args=args,
        n_ranks=n_ranks,
        ranks_per_worker=ranks_per_worker,
    )


def _take_none(blocks: Any, rank_number: int) -> None:
    del blocks, rank_number


def _measure(rank: Rank, data: Any, strategy: AbstractStrategy[Any]) -> tuple[Link, list[float]]:
    """Return the cost of a message and the seconds of generated rounds, as measured by rank 0; a rank program."""
    del data
    made = _MadeKinds(rank, strategy)
    links: list[Link] = []
    turns: list[list[float]] = []
    # By turns, so that what disturbs the machine for a while disturbs messages and rounds alike, and no median.
    for _ in range(_N_TURNS):
        links.append(calibrate_link(rank.group))
        turns.append(made.epochs_s())
    return Link(**{name: float(median(vars(link)[name] for link in links)) for name in vars(links[0])}), made.rounds_s(
        turns
    )


def measure_rounds(rank: Rank, data: Any, strategy: AbstractStrategy[Any], n_turns: int) -> list[float]:
    """Return the seconds of rounds of each kind and of the end of an epoch, medians over turns; a rank program."""
    del data
    made = _MadeKinds(rank, strategy)
    return made.rounds_s([made.epochs_s() for _ in range(n_turns)])


class _MadeKinds:
    """Epochs of all kinds of rounds: first of few of the shortest, then of many of each."""

    def __init__(self, rank: Rank, strategy: AbstractStrategy[Any]) -> None:
        kinds = [RoundKind(*_KINDS[0], _LEAST_ROUNDS)]
        for width, every in _KINDS:
            most = _MOST_FUSED if are_fused(rank, strategy, width + 1) else _MOST_ROUNDS
            kinds.append(RoundKind(width, every, max(_LEAST_ROUNDS, min(most, _N_ENTRIES // (width * every)))))
        self._n_rounds = [kind.rounds for kind in kinds]
        self._made = [SyntheticRounds(rank, strategy, kind, _N_EPOCHS) for kind in kinds]

    def epochs_s(self) -> list[float]:
        """Return the seconds of an epoch of each."""
        return [rounds.epoch_s() for rounds in self._made]

    def rounds_s(self, turns: list[list[float]]) -> list[float]:
        """Return the seconds of a round of each kind, and of the end of an epoch."""
        few_s, *epochs_s = (float(median(column)) for column in zip(*turns, strict=True))
        few, *n_rounds = self._n_rounds
        shortest_s = max(epochs_s[0] - few_s, 0.0) / (n_rounds[0] - few)
        end_s = max(few_s - few * shortest_s, 0.0)
        return [*(max(t - end_s, 0.0) / n for t, n in zip(epochs_s, n_rounds, strict=True)), end_s]
