"""Problems so small that their kernel matrix is one block: solved in one go, as most pairs of many classes are.

The matrix is computed once, in float64, the inner solver runs on it to the tolerance, and u = K(yα) is computed anew
from it for the proof over all samples. Rounds, cache and elimination would cost more than the steps. It ends when the
proof holds, steps are spent, proofs no longer see the gap fall where rounding may hide it, or the run stands still
(`dsgd.svm.standstill`). Cost: n² kernel values. Source: SMO as in `dsgd.svm.smo`.
"""

from __future__ import annotations

import time

import numpy as np

from dsgd.svm.dual import Dual, Solution, conclude, worth
from dsgd.svm.elimination import Elimination, EliminationRecord
from dsgd.svm.kernel_matrix import KernelMatrix
from dsgd.svm.smo import extremes, solve_block
from dsgd.svm.standstill import Standstill

__all__ = ["is_whole", "solve_whole"]

#: Variables of a problem that is solved as one block, at most.
_LARGEST = 512

#: Proofs in a row that may fail without the gap being half of what it was: rounding is then all that is left of it.
_MAX_ATTEMPTS = 3
#: Steps between two proofs, at most: indicators that are only added to drift away.
_STEPS = 100_000


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
        Not converged if steps ran out, rounding keeps the gap open, or nothing came nearer.

    Raises
    ------
    InvalidDataError
        Kernel values are not finite.
    """
    begin = time.perf_counter()
    n = matrix.n
    limit = max_iter if max_iter >= 0 else max(10_000_000, 100 * n)
    K = matrix.block(matrix.pick(np.arange(n)))
    of_variables = K if len(dual.y) == 1 else np.tile(K, (len(dual.y), len(dual.y)))
    group, n_groups = dual.group, dual.n_groups
    least, most = np.empty(n_groups), np.empty(n_groups)
    c, alpha = dual.y * dual.p, dual.alpha.astype(np.float64)
    history: list[EliminationRecord] = []
    steps, target, standstill = 0, 0.9 * tol, Standstill(n)
    largest, lowest, n_failed, is_through = float(np.abs(K).max(initial=0.0)), np.inf, 0, False
    while True:
        u = K @ (dual.y * alpha).sum(axis=0)
        gap = float(extremes(u, c, dual.y, dual.upper, alpha, group, least, most))
        seconds = time.perf_counter() - begin
        event = "verify" if history else "block"
        history.append(EliminationRecord(event, steps, n, gap, 0, matrix.n_evaluations, seconds))
        if is_through or gap < np.finfo(np.float64).eps * largest * float(alpha.sum()):
            n_failed = 0 if gap < 0.5 * lowest else n_failed + 1
        lowest = min(lowest, gap)
        is_proven = gap < tol and len(history) > 1
        if standstill.is_suspected(steps, gap) and standstill.is_certain(*worth(dual, alpha, u)):
            break
        if is_proven or steps >= limit or n_failed >= _MAX_ATTEMPTS or not np.isfinite(u.sum()):
            break
        flat, most_steps = alpha.ravel(), min(limit - steps, _STEPS)
        signs, bounds, groups, f = dual.y.ravel(), dual.upper.ravel(), group.ravel(), (u + c).ravel()
        made = int(solve_block(of_variables, signs, groups, bounds, flat, f, target, most_steps, n_groups))
        alpha = flat.reshape(dual.y.shape)
        steps += made
        is_through = made < most_steps
        target *= 0.5 if is_through else 1.0
    return conclude(
        dual,
        matrix.kernel,
        alpha,
        u,
        tol=tol,
        n_iter=steps,
        n_rounds=max(1, len(history) - 1),
        n_evaluations=matrix.n_evaluations,
        history=history,
    )
