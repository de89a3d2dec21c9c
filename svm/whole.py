"""Problems so small that their kernel matrix is one block: solved in one go, as most pairs of many classes are.

The matrix is computed once, in float64, the inner solver runs on it to the tolerance, and u = K(yα) is computed anew
from it for the proof over all samples. Rounds, cache and elimination would cost more than the steps. Cost: n² kernel
values. Source: SMO as in `dsgd.svm.smo`.
"""

from __future__ import annotations

import time

import numpy as np

from dsgd.svm.dual import Dual, Solution, find_thresholds
from dsgd.svm.elimination import Elimination, EliminationRecord
from dsgd.svm.kernel_matrix import KernelMatrix
from dsgd.svm.smo import extremes, solve_block

__all__ = ["is_whole", "solve_whole"]

#: Variables of a problem that is solved as one block, at most.
_LARGEST = 512

_MAX_ATTEMPTS = 3


def is_whole(dual: Dual, matrix: KernelMatrix, elimination: Elimination) -> bool:
    """Return whether `solve_whole` is meant for a problem: small, all here, and not asked to leave out at once."""
    is_idle = elimination.mode == "none" or elimination.waits_for_pressure
    is_here = matrix.peers.is_alone and len(matrix.active) == matrix.n
    return is_idle and is_here and dual.y.size <= _LARGEST and bool(matrix.dtype == np.float64)


def solve_whole(dual: Dual, matrix: KernelMatrix, *, tol: float, max_iter: int) -> Solution:
    """Solve the dual to `tol` as one block.

    Parameters
    ----------
    dual : Dual
        The problem, of r variables for each of n samples.
    matrix : KernelMatrix
        Kernel values among its samples, float64, all of them active.
    tol : float
        The gap to reach.
    max_iter : int
        Two-variable steps at most; below zero, max(10⁷, 100 n) as in LIBSVM.

    Returns
    -------
    Solution
        Not converged if steps ran out, or rounding keeps the gap open.
    """
    begin = time.perf_counter()
    n = matrix.n
    limit = max_iter if max_iter >= 0 else max(10_000_000, 100 * n)
    K = matrix.block(matrix.pick(np.arange(n)))
    of_variables = K if len(dual.y) == 1 else np.tile(K, (len(dual.y), len(dual.y)))
    group = (dual.y < 0).astype(np.int64) if dual.by_sign else np.zeros(dual.y.shape, dtype=np.int64)
    n_groups = 2 if dual.by_sign else 1
    least, most = np.empty(n_groups), np.empty(n_groups)
    c, alpha = dual.y * dual.p, dual.alpha.astype(np.float64)
    history: list[EliminationRecord] = []
    steps, target = 0, 0.9 * tol
    for attempt in range(_MAX_ATTEMPTS + 1):
        u = K @ (dual.y * alpha).sum(axis=0)
        gap = float(extremes(u, c, dual.y, dual.upper, alpha, group, least, most))
        seconds = time.perf_counter() - begin
        event = "block" if attempt == 0 else "verify"
        history.append(EliminationRecord(event, steps, n, gap, 0, matrix.n_evaluations, seconds))
        if (gap < tol and attempt > 0) or steps >= limit or attempt == _MAX_ATTEMPTS:
            break
        flat = alpha.ravel()
        signs, bounds, groups, f = dual.y.ravel(), dual.upper.ravel(), group.ravel(), (u + c).ravel()
        steps += int(solve_block(of_variables, signs, groups, bounds, flat, f, target, limit - steps, n_groups))
        alpha = flat.reshape(dual.y.shape)
        target *= 0.5
    return Solution(
        alpha=alpha,
        u=u,
        thresholds=find_thresholds(u + c, alpha, dual.upper, group, least, most),
        gap=max(gap, 0.0) if np.isfinite(gap) else 0.0,
        objective=0.5 * float((dual.y * alpha).sum(axis=0) @ u) + float((dual.p * alpha).sum()),
        converged=gap < tol,
        n_iter=steps,
        n_rounds=max(1, len(history) - 1),
        n_eliminated=0,
        n_reconstructions=0,
        n_returned=0,
        n_evaluations=matrix.n_evaluations,
        n_hits=0,
        history=history,
    )
