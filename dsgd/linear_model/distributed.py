"""Models without an L1 penalty whose rows are divided among ranks: the program that every rank runs.

Each rank keeps its rows; what travels is sums over rows (`dsgd.linear_model.quasi_newton`), and the gap is over the
rows of all ranks. All ranks take the same steps, and return the same model.
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
from dsgd.linear_model.cores import one_core
from dsgd.linear_model.objectives import AbstractObjective, Posed
from dsgd.linear_model.problem import Solution
from dsgd.linear_model.quasi_newton import SmoothProblem, solve_smooth
from dsgd.linear_model.rows import make_rows
from dsgd.runtime.rank import Rank
from dsgd.types import AnyArray, FloatVector

__all__ = ["Packer", "RankResult", "RankRows", "fit_rows", "train_rows"]


@dataclass(frozen=True)
class RankRows:
    """The rows of one rank.

    Parameters
    ----------
    X : array or CSR array, shape (n_rows, n_features)
        Rows.
    targets, weights : array of float64, shape (n_rows,)
        Class codes or values, and sample weights.
    """

    X: Any
    targets: FloatVector
    weights: FloatVector


@dataclass(frozen=True)
class Packer:
    """Makes the rows of a rank from its blocks; sent to every rank.

    Parameters
    ----------
    classes : array or None
        All classes, sorted; None for regression.
    n_features : int
        Columns.
    dtype : str
        ``"float32"`` or ``"float64"``.
    sparse : bool
        Whether rows are CSR.
    """

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
    """What training brings home, equal on every rank but for the certificates, which rank 0 has.

    Parameters
    ----------
    solution : Solution
        The weights, and the intercept of the rows as they came.
    tol : float
        The gap that was asked for.
    certificates : list of dict
        ``seconds``, ``exchanges``, ``primal`` and ``dual`` of each.
    """

    solution: Solution
    tol: float
    certificates: list[dict[str, Any]] = field(default_factory=list)


def train_rows(
    rank: Rank, data: RankRows, objective: AbstractObjective, start: tuple[FloatVector, float] | None, max_iter: int
) -> RankResult:
    """Fit a model to the rows of all ranks; a rank program.

    Parameters
    ----------
    rank : Rank
        This member of the gang.
    data : RankRows
        Its rows.
    objective : AbstractObjective
        What to minimise.
    start : tuple of (array of float64, shape (n_features,), float) or None
        Weights and intercept to begin at.
    max_iter : int
        Most steps.

    Raises
    ------
    InvalidDataError
        As `AbstractObjective.pose`, on every rank.
    """
    begin, certificates = time.perf_counter(), list[dict[str, Any]]()

    def note(primal: float, dual: float) -> None:
        if rank.number == 0:
            seconds = time.perf_counter() - begin
            found = {"seconds": seconds, "exchanges": rank.ledger.rounds, "primal": primal, "dual": dual}
            certificates.append(found)
            rank.publish({**found, "text": f"gap {max(primal - dual, 0.0):.2g}, {seconds:.2f} s"})

    with one_core(), closing(Team(rank.n_threads, rank.group, rank.check, note)) as team:
        posed = objective.pose(data.targets, data.weights, team)
        solution = fit_rows(data.X, posed, objective.has_intercept, start, max_iter, team)
    return RankResult(solution, posed.tol, certificates)


def fit_rows(
    X: Any, posed: Posed, has_intercept: bool, start: tuple[FloatVector, float] | None, max_iter: int, team: Team
) -> Solution:
    """Return the model of some rows, of this process or of all ranks, by passes over them.

    Parameters
    ----------
    X : array or CSR array, shape (n_rows, n_features)
        The rows that are here.
    posed : Posed
        The problem.
    has_intercept : bool
        Whether scores have an intercept.
    start : tuple of (array of float64, shape (n_features,), float) or None
        Weights and intercept to begin at; of zeros, as without, the minimum of a sample of the rows.
    max_iter : int
        Most steps.
    team : Team
        Shares the rows.

    Returns
    -------
    Solution
        The weights, and the intercept of the rows as they came.
    """
    rows = make_rows(X, has_intercept, team)
    weights, intercept = np.zeros(X.shape[1]), posed.base
    if start is not None and start[0].any():
        weights = start[0]
        if has_intercept:
            intercept = start[1] - posed.shift + float(rows.centres @ weights)
    # Ranks must begin at the same point to the last bit.
    begin = team.agree(np.append(weights, intercept))
    problem = SmoothProblem(rows, posed.loss, posed.l2)
    found = solve_smooth(problem, begin[:-1], float(begin[-1]), posed.tol, max_iter, team)
    if not has_intercept:
        return found
    intercept = found.intercept - float(rows.centres @ found.weights) + posed.shift
    return Solution(found.weights, intercept, found.gap, found.n_iter)
