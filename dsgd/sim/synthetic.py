"""Training on generated rows, to time rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

import numpy as np

from dsgd.local import SGD, Objective, Shard
from dsgd.runtime.rank import Rank
from dsgd.runtime.train import train
from dsgd.runtime.train.fused import window_for
from dsgd.runtime.train.job import TrainData, TrainJob
from dsgd.sync import AbstractStrategy

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
    """Training on made rows, which can be timed again and again.

    Every row has a loss, so that every step changes the model; steps are too small to matter.
    """

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
