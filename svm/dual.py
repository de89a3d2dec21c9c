"""The dual problem of a kernel SVM and what a solver returns: the types that all solvers share."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dsgd.svm.elimination import EliminationRecord
from dsgd.types import AnyArray, FloatMatrix, FloatVector

__all__ = ["Dual", "Solution", "find_thresholds"]


@dataclass(frozen=True)
class Dual:
    """The dual problem; r variables share each of n samples (r = 2 for regression).

    Parameters
    ----------
    y : array, shape (r, n)
        Signs of variables, ±1.
    p : array, shape (r, n)
        Linear term.
    upper : array, shape (r, n)
        Upper bounds, above zero.
    alpha : array, shape (r, n)
        A feasible start.
    by_sign : bool
        Whether the sum is fixed for each sign (ν-SVMs).
    u : array, shape (n,), or None
        K(yα) of the start in float64, where it is known: no kernel value is then needed to begin.
    """

    y: FloatMatrix
    p: FloatMatrix
    upper: FloatMatrix
    alpha: FloatMatrix
    by_sign: bool = False
    u: FloatVector | None = None


@dataclass(frozen=True)
class Solution:
    """What the solver found.

    Parameters
    ----------
    alpha : array, shape (r, n)
        The variables.
    u : array, shape (n,)
        K(yα), float64.
    thresholds : array, shape (n_groups,)
        The f at which variables are free, per group.
    gap, objective : float
        The largest violation and the dual objective, over all samples in float64.
    converged : bool
        Whether gap < tol.
    n_iter, n_rounds : int
        Two-variable steps; blocks.
    n_eliminated, n_reconstructions, n_returned : int
        Samples left out, times that indicators were renewed, samples that came back.
    n_evaluations, n_hits : int
        Kernel values computed; rows found in the cache.
    history : list of EliminationRecord
        The run.
    """

    alpha: FloatMatrix
    u: FloatVector
    thresholds: FloatVector
    gap: float
    objective: float
    converged: bool
    n_iter: int
    n_rounds: int
    n_eliminated: int
    n_reconstructions: int
    n_returned: int
    n_evaluations: int
    n_hits: int
    history: list[EliminationRecord] = field(default_factory=list)


def find_thresholds(
    f: FloatMatrix, alpha: FloatMatrix, upper: FloatMatrix, group: AnyArray, least: FloatVector, most: FloatVector
) -> FloatVector:
    """Return the f at which variables are free, their mean, or the middle of the extremes, shape (n_groups,)."""
    thresholds: FloatVector = np.empty(len(least))
    for g in range(len(least)):
        free = (alpha > 0) & (alpha < upper) & (group == g)
        ends = [end for end in (least[g], most[g]) if np.isfinite(end)]
        thresholds[g] = f[free].mean() if free.any() else (sum(ends) / len(ends) if ends else 0.0)
    return thresholds
