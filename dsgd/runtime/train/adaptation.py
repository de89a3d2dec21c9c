"""Changing the period during training: the rank loop's part of `dsgd.sync.AbstractAdaptation`.

Problem: ranks must change how often they synchronise, all at the same round and from what all of them have measured, in
fits that are over in milliseconds.

Method: the strategy says in how many synchronisations ranks decide next. The model before that round is copied, and the
measurements of this rank since the last decision are sent with its exchange; then the rest of the epoch is cut into new
rounds. All other rounds are those of a fixed period, so that many of them may run inside one kernel.

Seconds are (lower) medians of the rounds that the ledger has timed, without the first ones of a training, when caches
are cold and peers late. For the wire they are minima: disturbances come as often per second, however rare exchanges
are.

Cost: per decision two passes over the model, and what the strategy adds to its message; otherwise nothing.
"""

from __future__ import annotations

import math
from typing import Any, Final, Protocol

import numpy as np

from dsgd.kernels.distance import squared_distances
from dsgd.ledger import COMPUTE, ENCODE, WAIT, WIRE
from dsgd.local import AbstractRows
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.state import TrainState
from dsgd.sync import AbstractAdaptation, Cut, Plan, Seen
from dsgd.types import FloatVector

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
    """What one rank does between two decisions."""

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
