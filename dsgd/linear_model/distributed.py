"""Models whose rows are divided among ranks: the program that every rank runs.

Each rank keeps its rows; what travels is sums over rows, of which the file of each solver (`dsgd.linear_model.fits`)
says how many. The gap is over the rows of all ranks. All ranks take the same steps, and return the same model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.collectives import Team
from dsgd.inputs import widen
from dsgd.linear_model.fits import Start, fit_on_ranks
from dsgd.linear_model.objectives import AbstractObjective
from dsgd.linear_model.problem import Solution
from dsgd.runtime.pools import limit_blas
from dsgd.runtime.rank import Rank
from dsgd.types import AnyArray, FloatVector


@dataclass(frozen=True)
class RankRows:
    """The rows of one rank."""

    X: Any
    targets: FloatVector
    weights: FloatVector


@dataclass(frozen=True)
class Packer:
    """Makes the rows of a rank from its blocks; sent to every rank."""

    classes: AnyArray | None
    n_features: int
    dtype: str
    sparse: bool

    def __call__(self, blocks: Sequence[Any], rank_number: int) -> RankRows:
        """Return the rows of a rank, which may be none."""
        blocks = list(blocks)  # each is looked at several times
        parts = [widen(block[0], self.n_features) for block in blocks]
        shape = (0, self.n_features)
        if len(parts) == 1:
            X = parts[0]
        elif self.sparse:
            X = sp.vstack([sp.csr_array(shape, dtype=self.dtype), *parts], format="csr")
        else:
            X = np.concatenate([np.empty(shape, self.dtype), *parts])
        targets = [self._targets(block[1]) for block in blocks]
        weights = [np.ones(block[0].shape[0]) if block[2] is None else block[2] for block in blocks]
        return RankRows(
            X.astype(self.dtype, copy=False),
            np.concatenate([np.empty(0), *targets]).astype(np.float64, copy=False),
            np.concatenate([np.empty(0), *weights]).astype(np.float64, copy=False),
        )

    def _targets(self, y: AnyArray) -> AnyArray:
        return y if self.classes is None else np.searchsorted(self.classes, y)


@dataclass(frozen=True)
class RankResult:
    """What training brings home, equal on every rank but for the certificates, which rank 0 has."""

    solution: Solution
    tol: float
    certificates: list[dict[str, Any]] = field(default_factory=list)


def train_rows(
    rank: Rank, data: RankRows, objective: AbstractObjective, start: Start | None, max_iter: int
) -> RankResult:
    """Fit a model to the rows of all ranks; a rank program."""
    begin, certificates = time.perf_counter(), list[dict[str, Any]]()

    def note(primal: float, dual: float) -> None:
        if rank.number == 0:
            seconds = time.perf_counter() - begin
            found = {"seconds": seconds, "exchanges": rank.ledger.rounds, "primal": primal, "dual": dual}
            certificates.append(found)
            rank.publish({**found, "text": f"gap {max(primal - dual, 0.0):.2g}, {seconds:.2f} s"})

    with (
        limit_blas(1),
        np.errstate(all="ignore"),  # what overflows is refused, or shows in the gap
        closing(Team(rank.n_threads, rank.group, rank.check, note)) as team,
    ):
        posed = objective.pose(data.targets, data.weights, team)
        solution = fit_on_ranks(data.X, posed, start, max_iter, team)
    return RankResult(solution, posed.tol, certificates)
