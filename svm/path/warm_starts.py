r"""One kernel problem at increasing costs: every solution is the start of the next.

Problem: the dual of `dsgd.svm.kernel_solver.block` at bounds f_1 C < f_2 C < ... Going from C to ρC, the variables ρα
are feasible, leave those at a bound at their bound, and have K(y ρα) = ρ K(yα), which is known: a run begins without a
kernel value, and near its end where most support vectors sit at the bound. Kernel rows do not depend on C, so one cache
serves all. Where the kernel matrix does not fit into it, samples that are proven to sit at a bound at the next C
(`dsgd.svm.certify.screening`) are left out from the beginning; on coarse grids these are few.

Where no variable is at its upper bound, every larger C has the same solution, with the same gap: higher bounds let no
variable move that could not move before. No such point is run.

Every other run ends as a cold one does, with the gap over all samples in float64 below tol, so what was carried over
cannot show in the result. Cost: a cold run at the first C; from then on the rows of samples that were no support
vectors before, and in float64 the n values of each variable that changes by more than its scale.

Source: DeCoste and Wagstaff, "Alpha seeding for support vector machines", KDD 2000, for scaled starts. Departures: the
indicators are scaled too, and rows are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsgd.svm.certify.screening import path_ball, prove
from dsgd.svm.kernel_solver.problem import Counts, Dual, Solution
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.types import AnyArray, FloatMatrix, FloatVector

#: Samples whose mean is the point that distances in feature space are taken from.
_N_MEAN = 64


@dataclass(frozen=True)
class Link:
    """One solution of a chain."""

    solution: Solution
    upper: FloatMatrix
    n_proven: int
    n_products: int
    seconds: float


def solve_chain(
    dual: Dual,
    matrix: KernelMatrix,
    factors: Sequence[float],
    *,
    dtypes: Sequence[Any],
    norms: FloatVector | None,
    run: Callable[[Dual, KernelMatrix], Solution],
    cache_bytes: int,
    count_products: Callable[[], int] | None = None,
) -> list[Link]:
    """Solve a problem at ascending multiples of its bounds.

    - `norms`, shape (n,): norms of the samples in feature space; None proves nothing before a run.
    """
    links: list[Link] = []
    count = count_products or (lambda: matrix.n_evaluations)
    for k, factor in enumerate(factors):
        begin = time.perf_counter()
        if links and _is_inside(links[-1]):
            solution = replace(links[-1].solution, counts=Counts())
            links.append(Link(solution, dual.upper * factor, 0, 0, time.perf_counter() - begin))
            continue
        n_evaluations, n_hits, n_products, n_proven = matrix.n_evaluations, matrix.n_hits, count(), 0
        now = dual
        if links:
            last, ratio = links[-1], factor / factors[k - 1]
            before = replace(dual, upper=last.upper, alpha=last.solution.alpha)
            now = _scaled(before, last.solution.u, ratio, dual.upper * factor)
            proven = np.zeros(matrix.n, dtype=np.bool_)
            if norms is not None:
                norms = _distances_from_mean(matrix, norms) if k == 1 else norms
                values = prove(before, path_ball(before, last.solution.u, ratio), norms, ratio=ratio)
                n_proven = int(np.isfinite(values).all(axis=0).sum())
                proven = _is_there(values, now)
            if np.dtype(dtypes[k]) != matrix.dtype == np.float32:
                matrix.set_dtype(np.float64)
            # With all rows in the cache shorter ones gain nothing, and other columns are needed at the next C.
            is_tight = matrix.dtype.itemsize * matrix.n * matrix.n > cache_bytes
            _activate(matrix, proven & is_tight)
        found = run(now, matrix)
        spent = (matrix.n_evaluations - n_evaluations, matrix.n_hits - n_hits, count() - n_products)
        totals = np.array(spent, dtype=np.float64)
        matrix.peers.add_up(totals)
        counts = replace(found.counts, n_evaluations=int(totals[0]), n_hits=int(totals[1]))
        found = replace(found, counts=counts)
        links.append(Link(found, now.upper, n_proven, int(totals[2]), time.perf_counter() - begin))
    return links


def _is_inside(link: Link) -> bool:
    """Return whether a solution, which has been proven, has no variable at its upper bound."""
    return link.solution.converged and bool((link.solution.alpha < link.upper).all())


def _distances_from_mean(matrix: KernelMatrix, norms: FloatVector) -> FloatVector:
    """Return the distances of samples from the mean of a few: with an intercept they do for norms, and are smaller."""
    some = np.arange(min(_N_MEAN, matrix.n)) * matrix.n // min(_N_MEAN, matrix.n)
    means = matrix.product(np.arange(matrix.n), some, np.full(len(some), 1.0 / len(some)), np.float64)
    squares = norms * norms
    # Rounding of the difference must not make a distance smaller than it is.
    apart: FloatVector = np.maximum(squares - 2.0 * means + means[some].mean(), 0.0) + 1e-12 * (1.0 + squares)
    return np.sqrt(apart)


def _scaled(before: Dual, u: FloatVector, ratio: float, upper: FloatMatrix) -> Dual:
    """Return the problem at the bounds `upper`, with the solution of before, scaled, as its start."""
    alpha = np.where(before.alpha >= before.upper, upper, np.minimum(ratio * before.alpha, upper))
    return replace(before, upper=upper, alpha=alpha, u=ratio * u)


def _is_there(values: FloatMatrix, dual: Dual) -> AnyArray:
    """Return the samples whose variables are all at the bound that is proven for them, shape (n,)."""
    at_zero, at_upper = (values == 0.0) & (dual.alpha <= 0.0), (values > 0.0) & (dual.alpha >= dual.upper)
    return np.asarray((at_zero | at_upper).all(axis=0))


def _activate(matrix: KernelMatrix, out: AnyArray) -> None:
    """Make all samples active except those in `out`; the cached rows of the others are kept."""
    if out.all():
        out = np.zeros_like(out)
    stays = ~out[matrix.active]
    if not stays.all() and stays.any():
        matrix.shrink(np.flatnonzero(stays))
    peers = matrix.peers
    missing = peers.join(np.setdiff1d(peers.mine(np.flatnonzero(~out)), matrix.active))
    if len(missing):
        matrix.extend(missing)
