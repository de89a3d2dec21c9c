"""Changes during training: of the period, of pooled rates, and of the weights of ranks in averages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.kernels.rows import squared_distances
from dsgd.ledger import COMPUTE, ENCODE, WAIT, WIRE
from dsgd.local import SGD, AbstractLocalOptimizer, Shard
from dsgd.local.base import AbstractRows
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.job import TrainJob
from dsgd.runtime.train.state import TrainState, share_of
from dsgd.sync import AbstractAdaptation, AbstractStrategy, Cut, Plan, RoundClock, Seen, mean_shares
from dsgd.types import FloatMatrix, FloatVector

_N_COLD: Final = 1

# Of so many rows slopes are taken.
_N_SLOPE: Final = 64


class _Clock(Protocol):
    """Knows since when training runs."""

    @property
    def elapsed_s(self) -> float: ...


class _Steps(Protocol):
    """Knows the rates of steps and, for strategies that ask for slopes, gradients; see `AbstractLocalOptimizer`."""

    def rate_sum(self, t_start: float, state: Any) -> float: ...

    def gradient(self, params: FloatVector, rows: Any, start: int, stop: int, out: FloatVector, state: Any) -> None: ...


class Adaptation:
    """What one rank does between two decisions of how often to exchange, which all make from the same numbers.

    The strategy says in how many synchronisations ranks decide next. The model before that round is copied, and the
    measurements of this rank since the last decision are sent with its exchange; then the rest of the epoch is cut into
    new rounds. All other rounds are those of a fixed period, so that many of them may run inside one kernel.

    Seconds are (lower) medians of the rounds that the ledger has timed, without the first ones of a training, when
    caches are cold and peers late. For the wire they are minima: disturbances come as often per second, however rare
    exchanges are. Cost: per decision two passes over the model, and what the strategy adds to its message.
    """

    def __init__(
        self,
        rank: Rank,
        strategy: AbstractAdaptation[Any],
        shard: AbstractRows | None,
        rows: list[int],
        optimizer: _Steps,
        epochs: float,
        epochs_before: int = 0,
    ) -> None:
        self._rank, self._strategy, self._shard, self._rows = rank, strategy, shard, rows
        self._optimizer, self._epochs, self._epochs_before = optimizer, epochs, epochs_before
        self.every = 1
        # Losses and rows of the running epoch that an earlier decision has used.
        self._loss_sum = self._n_seen = 0.0
        self._n_cold = _N_COLD

    def begin(self, at: TrainState, clock: _Clock) -> None:
        """Set the period at the start, or where training resumes; `clock` knows since when it runs."""
        self._clock = clock
        self._reference = at.params.copy()
        # Compiled or loaded now, and not while a peer waits.
        squared_distances(at.params, self._reference)
        self._optimizer.rate_sum(at.optimizer.t, at.optimizer)
        if self._strategy.asks_slopes:
            self._optimizer.gradient(at.params, self._shard, 0, 0, self._reference, at.optimizer)
        ahead = at.ahead
        self._apply(at, self._strategy.plan(self._rows, at.strategy))
        # Of a state that was kept the next decision is as near as it was.
        at.ahead = min(at.ahead, ahead)
        if at.begins_epoch:
            self.cut_epoch(at)
        elif at.round < at.cut.rounds and max(self._sizes(at)) > self.every:
            self._cut_anew(at)

    def cut_epoch(self, at: TrainState) -> None:
        """Cut the epoch that comes next; nothing of it is over."""
        at.cut = Cut.whole(self._rows, 1).after(0, self._rows, self.every)
        at.n_cut = at.round = 0
        self._loss_sum = self._n_seen = 0.0

    def note(self, at: TrainState) -> None:
        """Note the model before the round in which ranks decide."""
        self._reference[:] = at.params

    def observe(self, at: TrainState) -> None:
        """Tell the strategy what this rank has seen, after the steps of that round and before its exchange."""
        state, number = at.optimizer, self._rank.number
        n_rows = max(1.0, state.n_seen - self._n_seen)
        timed = np.array(list(self._rank.ledger.recent)[self._n_cold :] or [(0.0,) * 5])
        usual = np.sort(timed, axis=0)[(len(timed) - 1) // 2]
        # What the ledger charges to no phase is spent on the exchange too.
        spoken = np.maximum(timed[:, WIRE] + timed[:, ENCODE], timed[:, -1] - timed[:, COMPUTE] - timed[:, WAIT])
        over = at.epoch + state.n_seen / max(1, self._rows[number])
        seen = Seen(
            seconds=self._clock.elapsed_s,
            row_s=float(usual[COMPUTE]) / max(1.0, self._sizes(at)[number]),
            wire_s=float(spoken.min()),
            wait_s=float(usual[WAIT]),
            loss=(state.loss_sum - self._loss_sum) / n_rows,
            rate=self._optimizer.rate_sum(state.t - 1.0, state),
            drift_sq=squared_distances(at.params, self._reference)[0],
            epochs=self._epochs_before + over,
            epochs_left=max(0.0, self._epochs - over),
        )
        if self._strategy.asks_slopes:
            curvature, slope = self._slopes(at, seen.drift_sq)
            seen = seen._replace(curvature=curvature, slope=slope)
        self._strategy.observe(seen, at.strategy)

    def decide(self, at: TrainState) -> None:
        """Decide, after that exchange, and cut the rest of the epoch accordingly."""
        before = self.every
        moved_sq, norm_sq = squared_distances(at.params, self._reference)
        self._apply(at, self._strategy.decide(self._rows, moved_sq, norm_sq, at.strategy))
        self._rank.ledger.recent.clear()
        self._n_cold = 0
        self._loss_sum, self._n_seen = at.optimizer.loss_sum, float(at.optimizer.n_seen)
        if self.every != before and at.round < at.cut.rounds:
            self._cut_anew(at)

    def history(self, at: TrainState) -> list[dict[str, Any]]:
        """Return the periods so far; see `AbstractAdaptation.history`."""
        return self._strategy.history(at.strategy)

    def _slopes(self, at: TrainState, drift_sq: float) -> tuple[float, float]:
        """Return by how much gradient and loss change from the model before the round to the present one, per distance.

        The penalty is left out of both. They are taken on the last rows of the round.
        """
        assert self._shard is not None  # slopes are taken on rows
        stop = at.cut.span(self._rank.number, self._shard.n_rows, at.round, at.round + at.ahead - 1)[1]
        start = max(0, stop - _N_SLOPE)
        if start == stop or not drift_sq:
            return 0.0, 0.0
        state = at.optimizer
        counters, losses, gradients = state.counters.copy(), [], []
        for model in (self._reference, at.params):
            before = state.loss_sum
            gradient = np.zeros_like(model)
            self._optimizer.gradient(model, self._shard, start, stop, gradient, state)
            gradients.append(gradient / (stop - start))
            losses.append((state.loss_sum - before) / (stop - start))
        # What training has counted must not change by a look.
        state.counters[:] = counters
        distance = math.sqrt(drift_sq)
        change_sq = squared_distances(gradients[1], gradients[0])[0]
        return math.sqrt(change_sq) / distance, abs(losses[1] - losses[0]) / distance

    def _apply(self, at: TrainState, plan: Plan) -> None:
        self.every, at.ahead = plan.every, plan.rounds

    def _cut_anew(self, at: TrainState) -> None:
        at.cut = at.cut.after(at.round, self._rows, self.every)
        at.n_cut, at.round = at.n_cut + at.round, 0

    def _sizes(self, at: TrainState) -> list[float]:
        """Return the rows of each rank in a round of the present cut, in the mean."""
        pairs = zip(self._rows, at.cut.starts, strict=True)
        return [(n - start) / at.cut.rounds for n, start in pairs]


#: Least share of the way to the minimum that the model must be able to go along other rows than the longest.
_LEAST_MOVE: Final = 1e-2

#: In as many epochs at least: a fit of one may go on.
_MANY_EPOCHS: Final = 100


def missing_factor(strategy: AbstractStrategy[Any], optimizer: object, n_ranks: int) -> float:
    """Return the factor that rates lack: 1 where the strategy does not pool them, or they fall like 1 / t."""
    # At rates c / t an epoch gets equally far with any number of steps; and the step of a rule is not as long as the
    # gradient.
    if strategy.rates != "pooled" or not isinstance(optimizer, SGD) or optimizer.rule is not None:
        return 1.0
    if n_ranks < 1 or optimizer.rate_power >= 1.0:
        return 1.0
    return max(1.0, strategy.lag(n_ranks, optimizer.rate_power))


def _check_curvatures(told: FloatMatrix, reduction: object, max_iter: int) -> None:
    """Raise on all ranks if steps that suit the longest row would not move the model of the others.

    - `told`, shape (size, 2): of each rank the largest curvature of a row, and the sum of those of its other rows.
    """
    number = int(told[:, 0].argmax())
    largest, others = told[number, 0], told[:, 1].sum() + np.delete(told[:, 0], number).sum()
    # What all epochs together move the model by is at most their number times this ratio, as a share of the whole way.
    if np.isfinite(largest) and (others == 0.0 or max(max_iter, _MANY_EPOCHS) * others > _LEAST_MOVE * largest):
        return
    raise InvalidDataError(
        f"{reduction!r} takes steps of 1 / (3 L) with L the largest curvature of a row, which is {largest:.3g}; those "
        f"of all other rows add up to {others:.3g}, so that they would not move the model. Look for outliers in X, "
        f"scale it with RobustScaler, or set the length of steps: {type(reduction).__name__}(step=...)."
    )


@dataclass(frozen=True)
class PooledRates:
    """By how much the rates of a run are higher than those of the schedule.

    What is missing the strategy says (`dsgd.sync.AbstractStrategy.lag`), what rows bear the optimiser
    (`dsgd.local.SGD.pooled_factor`). Ranks that step on their own have one factor for all of training; where all take
    the same step, or a server takes it, each step has its own, since rates that have fallen bear a higher one.

    Cost: one pass over the rows and one number from each rank, before the first step, and only where something is
    missing. Source: the linear scaling rule, Goyal et al. 2017, section 2.1.
    """

    missing: float = 1.0
    mean_square: float = 0.0
    length: float | None = None

    @classmethod
    def begin(cls, rank: Rank, job: TrainJob, rows: AbstractRows, counts: list[int], share: float) -> PooledRates:
        """Return those of a run; called by all ranks."""
        optimizer = job.optimizer
        if isinstance(optimizer, SGD) and optimizer.reduction is not None and isinstance(rows, Shard):
            told = rank.group.roll_call(np.array(optimizer.reduction.curvature(rows, optimizer.objective)))
            if optimizer.reduction.step is None:
                _check_curvatures(told, optimizer.reduction, job.max_iter)
            return cls(length=optimizer.reduction.length(float(told[:, 0].max())))
        missing = missing_factor(job.strategy, job.optimizer, int(np.count_nonzero(counts)))
        if missing == 1.0 or not isinstance(rows, Shard):
            return cls()
        assert isinstance(optimizer, SGD)  # others miss nothing
        square = np.array([share * optimizer.mean_square(rows)])
        rank.group.allreduce(square)
        return cls(missing, float(square[0]))

    def factor(self, optimizer: object, t: float = 1.0) -> float:
        """Return the factor of the rate of step t, counted as the schedule counts."""
        if self.length is not None:
            return self.length
        if self.missing == 1.0:
            return 1.0
        assert isinstance(optimizer, SGD)
        return optimizer.pooled_factor(self.missing, self.mean_square, t)


class EpochWeights:
    """The weights of one rank, epoch by epoch, from the schedule, the step counters of ranks and their steps.

    All ranks know these, so that they compute the same weights without a message; they exchange their step counters
    only when training resumes from a saved state.
    """

    def __init__(
        self,
        rank: Rank,
        strategy: AbstractStrategy[Any],
        optimizer: AbstractLocalOptimizer[Any, Any],
        rows: Sequence[int],
    ) -> None:
        self._rank, self._optimizer, self._rows = rank, optimizer, np.array(rows, dtype=np.int64)
        self._period, self._weighs = strategy.period, strategy.weighs
        self.share = self.weight = share_of(rank.number, rows)
        self.scale = 1.0
        # The mean over one rank is its model.
        self._n_with_rows = int(np.count_nonzero(self._rows))
        self._varies = rank.size > 1 and strategy.exchanges == "model" and self._weighs != "rows"
        self._varies = self._varies and self._n_with_rows > 0
        self._begins: FloatVector = np.zeros(rank.size)
        self._counts: FloatVector = np.zeros(rank.size)

    def begin(self, at: TrainState, *, resumed: bool) -> None:
        """Take note of the steps that ranks begin with; called by all of them once the state is taken up."""
        if not self._varies:
            return
        self._begins[:] = at.optimizer.t
        if resumed:
            counters = self._rank.group.roll_call(np.array([at.optimizer.t, float(at.optimizer.n_seen)]))
            self._begins[:] = counters[:, 0]
            if not at.begins_epoch:
                self._begins -= self._steps_so_far(at, counters[:, 1])
        self._counts[:] = 0.0

    def begin_epoch(self, at: TrainState) -> None:
        """Compute the weights of the next epoch, or of the one in which training resumes."""
        if not self._varies:
            return
        self._begins += self._counts
        self._counts = self._n_steps(at)
        number = self._rank.number
        sums = self._optimizer.planned_rates(self._begins, self._counts)
        shares = _shares(self._rows.tobytes(), sums.tobytes())
        if self._weighs == "rates":
            self.weight = float(shares[number])
        elif np.unique(shares[shares > 0.0]).size == 1:
            # To the bit, which so many times one over that number need not be.
            self.scale = self._rank.size / self._n_with_rows if self._rows[number] else 1.0
        else:
            self.scale = float(self._rank.size * shares[number])

    def _n_steps(self, at: TrainState) -> FloatVector:
        """Return how many steps each rank takes in an epoch."""
        steps = self._optimizer.steps
        if steps.by_row:
            return self._rows.astype(np.float64)
        # Rounds that end in no exchange are walked in one go with the next.
        rounds = at.cut.rounds
        clocks = (RoundClock(at.epoch, k, rounds, is_last=False) for k in range(rounds))
        ends = [0, *(clock.round + 1 for clock in clocks if clock.ends_epoch or self._period.is_due(clock))]
        found = dict.fromkeys(self._rows.tolist(), 0)
        for n in found:
            spans = (n * last // rounds - n * first // rounds for first, last in pairwise(ends))
            found[n] = sum(-(-span // steps.rows) for span in spans)
        return np.array([found[n] for n in self._rows.tolist()], dtype=np.float64)

    def _steps_so_far(self, at: TrainState, n_seen: FloatVector) -> FloatVector:
        """Return how many steps of the running epoch ranks have taken; none where they have other rows than then."""
        spans = [at.cut.span(rank, n, 0, at.round - 1)[1] for rank, n in enumerate(self._rows.tolist())]
        if n_seen.tolist() != spans:
            return np.zeros(self._rank.size)
        return np.rint(self._n_steps(at) * n_seen / np.maximum(1, self._rows))


@lru_cache(maxsize=8)
def _shares(rows: bytes, rate_sums: bytes) -> FloatVector:
    """Return `mean_shares`, not to be written to: ranks of one process all ask for the same."""
    return mean_shares(np.frombuffer(rows, np.int64), np.frombuffer(rate_sums, np.float64))
