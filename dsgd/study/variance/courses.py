"""Courses of training at constant rates: the objective after each pass over the rows.

Every method takes its steps on the same rows, from zero, on one rank. SGD and SRG take steps of a quarter of the length
that the largest curvature of a row allows, SAGA and SVRG steps of their own length.
"""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np

from dsgd.local import SAGA, SGD, AbstractReduction, Importance, Shard, make_shard, n_params
from dsgd.study.frame.rows import Row
from dsgd.study.variance.problems import Problem
from dsgd.types import FloatVector

__all__ = ["N_PASSES", "Course", "lowest_objective"]

#: Passes after which methods that converge linearly are held against the minimum.
N_PASSES: Final = 60

_POINTS: Final = 20
_LONGER: Final = 6
_MOST_EPOCHS: Final = 2_000


def lowest_objective(problem: Problem, epochs: int) -> float:
    """Return the lowest objective that SAGA reaches in several times as many epochs.

    Parameters
    ----------
    problem : Problem
        The problem.
    epochs : int
        Epochs of a course.
    """
    longest = min(_MOST_EPOCHS, _LONGER * epochs * problem.longer)
    course = Course(problem, make_shard(problem.X, problem.y, seed=0), SAGA(), 0)
    return min(course.epoch() for _ in range(longest))


class Course:
    """One method on its way to the minimum of a problem.

    Parameters
    ----------
    problem : Problem
        The problem.
    shard : Shard
        Its rows.
    method : Importance, AbstractReduction or None
        How rows are drawn, or what is remembered of them.
    seed : int
        Of the draws.

    Attributes
    ----------
    passes : float
        Passes over the rows so far, those for full gradients among them.
    seconds : float
        Seconds of steps so far.
    """

    def __init__(
        self, problem: Problem, shard: Shard, method: Importance | AbstractReduction | None, seed: int
    ) -> None:
        objective = problem.objective
        largest, _ = SAGA().curvature(shard, objective)
        if isinstance(method, AbstractReduction):
            self._sgd = SGD(objective, "constant", eta0=1.0, reduction=method, seed=seed)
        else:
            rate = problem.rate or 1.0 / (4.0 * largest)
            self._sgd = SGD(objective, "constant", eta0=rate, sampling=method, seed=seed)
        self._shard, self._state = shard, self._sgd.init(shard)
        if isinstance(method, AbstractReduction):
            self._state.rate_factor = method.length(largest)
        self._params: FloatVector = np.zeros(n_params(shard.n_features, 1))
        self.passes, self.seconds = 0.0, 0.0
        # Loads the kernels.
        self._sgd.bind(self._params, shard, self._state)(0, 0)
        self._sgd.settle(self._params.copy(), shard, self._sgd.init(shard), is_last=False)

    def epoch(self) -> float:
        """Take the steps of an epoch; return the objective after them."""
        begin = time.perf_counter()
        self._state.start_epoch()
        self._sgd.arrange(self._shard, self._state)
        self._sgd.run(self._params, self._shard, 0, self._shard.n_rows, self._state)
        refreshed = self._sgd.settle(self._params, self._shard, self._state, is_last=False) is not None
        self.seconds += time.perf_counter() - begin
        self.passes += 1.0 + refreshed
        weights: Any = self._params[:-1]
        loss = self._sgd.evaluate(self._params, self._shard, self._state).mean_loss
        return float(loss + 0.5 * self._sgd.objective.strength * (weights @ weights))

    def row(self, epochs: int) -> Row:
        """Take all epochs; return what a row says of them.

        Parameters
        ----------
        epochs : int
            How many, 2 or more.

        Returns
        -------
        dict
            ``plateau``, the mean objective over the second half of the epochs; ``after``, that after `N_PASSES` passes,
            or all of them if these are fewer; ``reached``, the lowest; ``seconds``; and a ``curve`` of passes, seconds
            and objective.
        """
        found, after, curve = [], 0.0, []
        stride = -(-epochs // _POINTS)
        for number in range(1, epochs + 1):
            found.append(self.epoch())
            if self.passes <= N_PASSES or number == 1:
                after = found[-1]
            if number % stride == 0:
                curve.append({"passes": self.passes, "seconds": self.seconds, "objective": found[-1]})
        plateau = float(np.mean(found[epochs // 2 :]))
        return {
            "plateau": plateau, "after": after, "reached": min(found), "seconds": self.seconds, "curve": curve,
        }  # fmt: skip
