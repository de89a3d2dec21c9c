"""What a draw in proportion to gradients costs, against the number of rows.

Steps are those of logistic regression on rows of 22 random numbers. Three kinds take turns, so that they share whatever
else the machine does: on rows drawn in proportion to gradients, on rows drawn uniformly, and on the rows of the walk,
which are read from one end of the memory to the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import numpy as np

from dsgd.local import SGD, Importance, Objective, Shard, make_shard, n_params
from dsgd.study.frame.rows import Row

__all__ = ["time_draws"]

_FEATURES: Final = 22
_STEPS: Final = 500_000
_KINDS: Final = {"drawn_ns": Importance(0.5), "uniform_ns": Importance(1.0), "walk_ns": None}


def time_draws(n_rows: int, repeats: int) -> Iterator[Row]:
    """Yield the nanoseconds of a step of each kind, once for each repetition.

    Parameters
    ----------
    n_rows : int
        Rows.
    repeats : int
        Repetitions.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, _FEATURES), np.float32)
    shard = make_shard(X, np.where(X[:, 0] > 0.3, 1.0, -1.0), dtype=np.float32)
    del X
    kinds = {name: _Steps(kind, shard) for name, kind in _KINDS.items()}
    epochs = max(1, _STEPS // n_rows)
    for _ in range(repeats):
        turns = [{name: steps.epoch_ns() for name, steps in kinds.items()} for _ in range(epochs)]
        # Nothing makes a step faster than it is; much makes it slower.
        yield {name: min(turn[name] for turn in turns) for name in kinds}


class _Steps:
    """Epochs of one kind, of which the first fills what is remembered and loads the kernel."""

    def __init__(self, kind: Importance | None, shard: Shard) -> None:
        self._sgd = SGD(Objective("log_loss", "l2", 1e-4), "constant", eta0=0.01, sampling=kind)
        self._shard, self._state = shard, self._sgd.init(shard)
        self._params = np.zeros(n_params(shard.n_features, 1), np.float32)
        self.epoch_ns()

    def epoch_ns(self) -> float:
        """Return the nanoseconds of a step, over an epoch."""
        self._state.start_epoch()
        self._sgd.arrange(self._shard, self._state)
        walk = self._sgd.bind(self._params, self._shard, self._state)
        begin = time.perf_counter()
        walk(0, self._shard.n_rows)
        return 1e9 * (time.perf_counter() - begin) / self._shard.n_rows
