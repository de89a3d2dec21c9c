"""The set-up of training on one rank, before the first round.

Kernels are loaded here, and ranks meet only then: one that has yet to compile must not keep its peers waiting in the
first round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.local import SGD, AbstractState, Shard
from dsgd.local.base import AbstractRows
from dsgd.local.sgd_state import Dual, SGDState
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.adaptation import Adaptation, EpochWeights, PooledRates
from dsgd.runtime.train.decisions import Deadlines, StopRule
from dsgd.runtime.train.fused import FusedRounds, OffloadedRounds, is_plain, window_for
from dsgd.runtime.train.job import TrainData, TrainJob
from dsgd.runtime.train.state import TrainState, looks_at_suffix, suffix_share
from dsgd.runtime.train.visits import RowVisits
from dsgd.stages import stage
from dsgd.sync import AbstractPeriod, Cut, RoundClock
from dsgd.sync.compression import acts_alone
from dsgd.types import FloatVector


@dataclass(frozen=True)
class Run:
    """A training run as one rank has it. All that changes from round to round is in `at`."""

    rank: Rank
    job: TrainJob
    data: TrainData
    rows: list[int]
    density: float
    period: AbstractPeriod
    at: TrainState
    visits: RowVisits
    gradient: FloatVector
    fused: FusedRounds | OffloadedRounds | None
    adaptation: Adaptation | None
    deadlines: Deadlines
    weights: EpochWeights
    rates: PooledRates
    alone: bool

    def clock_at(self, number: int) -> RoundClock:
        """Return where a round of this epoch is in training."""
        epoch, rounds = self.at.epoch, self.at.cut.rounds
        is_last = number == rounds - 1 and epoch == self.job.max_iter - 1
        return RoundClock(self.job.epochs_before + epoch, number, rounds, is_last)

    def cut_epoch(self) -> None:
        """Cut the epoch that begins as its period says, which may be another way in each of them."""
        if not self.alone and self.adaptation is None:
            epoch = self.job.epochs_before + self.at.epoch
            self.at.cut = Cut.whole(self.rows, self.period.rounds_in_epoch(self.rows, epoch))

    def ends_equal(self, clock: RoundClock) -> bool:
        """Return whether all ranks have the same model after a round."""
        strategy = self.job.strategy
        return strategy.ends_equal and (strategy.exchanges == "gradient" or self.period.is_due(clock))


def begin_run(rank: Rank, data: TrainData, job: TrainJob) -> Run:
    """Make all that a run needs, and meet the other ranks; called by all of them."""
    rank.group.seed = job.seed
    deadlines = Deadlines(rank.group.transport, measures_edges=job.checkpoint is None)
    deadlines.begin_edge(rank.ledger.clock())
    state = _first_state(job, data.shard)
    dual = _dual_of(rank, job, state)
    rank.group.n_whole = 0 if dual is None else dual.n_whole
    params: FloatVector = np.array(job.initial) if dual is None else dual.params
    rank.ledger.begin_round("setup")
    if job.strategy.shares_memory:
        params = rank.group.share(params)
    visits = RowVisits(rank, job, data.shard, params, state)
    gradient = np.zeros_like(params)
    vector = params if dual is None else dual.vector
    with stage("kernels"):
        fused = _load_kernels(rank, job, data.shard, visits, params, vector, state, gradient)
    rows, density = _count_rows(rank, data, job)
    rank.ledger.end_round()

    strategy, period = job.strategy, job.strategy.period.on_rows_of(density)
    # A single rank has no peers to average with: it runs each epoch in one round, unless there is a compressor.
    alone = rank.size == 1 and strategy.exchanges == "model" and not strategy.n_servers and not acts_alone(strategy)
    cut = Cut.whole(rows, 1 if alone else period.rounds_per_epoch(rows))
    at = TrainState(params, state, cut, stop_rule=StopRule.begin(job), dual=dual)
    if strategy.local_term is not None and rank.size > 1:
        visits.add_term(strategy.local_term, at)
    adaptation: Adaptation | None = None
    if strategy.adaptation is not None and rank.size > 1:
        epochs = job.max_iter, job.epochs_before
        adaptation = Adaptation(rank, strategy.adaptation, data.shard, rows, job.optimizer, *epochs)
    weights = EpochWeights(rank, strategy, job.optimizer, rows)
    with rank.ledger.round("setup"):
        if looks := looks_at_suffix(rank, job, data.shard, params, state):
            visits.add_looks(looks, suffix_share(job))
        rates = PooledRates.begin(rank, job, data.shard, rows, weights.share)
    return Run(
        rank,
        job,
        data,
        rows,
        density,
        period,
        at,
        visits,
        gradient,
        fused,
        adaptation,
        deadlines,
        weights,
        rates,
        alone,
    )


def _count_rows(rank: Rank, data: TrainData, job: TrainJob) -> tuple[list[int], float]:
    """Return how many rows each rank has and the density of all; raise `InvalidDataError` if none can validate."""
    held_out = data.validation if job.holds_out else None
    own = [data.n_rows, data.shard.entries(0, data.n_rows), 0 if held_out is None else held_out.n_rows]
    counts = rank.group.roll_call(np.array(own[: 2 + job.holds_out], dtype=np.int64))
    rows: list[int] = counts[:, 0].tolist()
    if job.holds_out and not counts[:, 2].any():
        raise InvalidDataError(
            f"early_stopping=True, and of {sum(rows)} rows on {rank.size} rank(s) validation_fraction leaves none to "
            "validate on: it is taken of the rows of each class on each rank, and rounded. Raise validation_fraction, "
            "train on more rows or fewer ranks, or leave early_stopping at False."
        )
    places = sum(rows) * data.shard.n_features if isinstance(data.shard, Shard) else 0
    return rows, int(counts[:, 1].sum()) / places if places else 1.0


def _dual_of(rank: Rank, job: TrainJob, state: AbstractState) -> Dual | None:
    """Return the dual that ranks mix instead of models if there is an L1 penalty, or None."""
    received, strategy = state.vectors().get("received"), job.strategy
    mixes = strategy.exchanges == "model" and not strategy.shares_memory
    has_others = rank.size > 1 or strategy.n_servers or acts_alone(strategy)
    if received is None or not received.size or not mixes or not has_others:
        return None
    dual = Dual(job.initial, received, state.counters)
    # Kernels are compiled or loaded now, and not while a peer waits.
    dual.enter()
    dual.leave()
    return dual


def _first_state(job: TrainJob, shard: AbstractRows) -> AbstractState:
    """Return the state of the optimiser before the first step, or after those of ``partial_fit`` so far."""
    state: AbstractState = job.optimizer.init(shard)
    state.t = job.t_start
    # A mean of no models yet is nothing to go on with.
    if job.n_averaged and job.average_start is not None and state.averaged is not None:
        state.averaged[:] = job.average_start
        state.n_averaged = job.n_averaged
    return state


def _load_kernels(
    rank: Rank,
    job: TrainJob,
    shard: AbstractRows,
    visits: RowVisits,
    params: FloatVector,
    vector: FloatVector,
    state: AbstractState,
    gradient: FloatVector,
) -> FusedRounds | OffloadedRounds | None:
    """Load the kernels, or compile them, by a call on no rows; return what runs several rounds in one, if anything."""
    fused: FusedRounds | OffloadedRounds | None = None
    optimizer = job.optimizer
    if isinstance(optimizer, SGD) and isinstance(shard, Shard) and isinstance(state, SGDState):
        # Of a subclass the kernel would not take the steps.
        plain = optimizer.steps_in_fused_rounds and type(optimizer).bind is SGD.bind
        window = window_for(rank, job.strategy, vector) if plain else None
        if window is not None:
            fused = FusedRounds(rank, window, optimizer, params, vector, shard, state, visits.rows_per_call)
        elif plain and is_plain(job.strategy) and rank.group.offloads and vector is params:
            fused = OffloadedRounds(rank, visits.walk, params, shard, optimizer.n_outputs)
    if job.strategy.exchanges == "model":
        visits.call(0, 0)
    else:
        optimizer.gradient(params, shard, 0, 0, gradient, state)
    if isinstance(optimizer, SGD) and isinstance(shard, Shard) and isinstance(state, SGDState):
        optimizer.objective_sums(params, shard, state)  # what ends an epoch
    return fused
