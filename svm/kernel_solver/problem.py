"""The dual problem of a kernel SVM, its duality gap, and its solution: the types that all kernel solvers share.

For the dual of `dsgd.svm.kernel_solver.block`, min ½ α'Qα + p'α over 0 ≤ α ≤ C with the sum of yα fixed in
each group, the primal has the same w and one free threshold b for each group. With f = K(yα) + y·p and s_i = −y_i (f_i
+ b), the gap of the pair (w, b) and α is

    Σ_i [(C_i − α_i) max(s_i, 0) + α_i max(−s_i, 0)],

a sum of terms that are not negative, so nothing cancels. The best b is a weighted quantile of the points −f_i: each
raises the slope in b by its C_i. Cost: a sort of the variables.

A kernel that is not positive semi-definite has no such primal; there the number only measures complementarity.

Source: Lagrangian duality, as in Schölkopf and Smola, "Learning with Kernels", MIT Press 2002, section 7.

`conclude` makes every solution, from the variables and K(yα) alone, so its gap and objective do not depend on how it
was found.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.kernels.jit import kernel, scalar
from dsgd.svm.kernel_solver.elimination import EliminationRecord, Work
from dsgd.svm.kernel_solver.smo import extremes
from dsgd.svm.kernels.functions import Kernel
from dsgd.svm.kernels.peers import Peers
from dsgd.svm.kernels.threads import Pool
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

#: Points that are tried at a time where ranks search a quantile together.
_TRIED = 255


def duality_gap(dual: Dual, alpha: FloatMatrix, f: FloatMatrix, peers: Peers | None = None) -> float:
    """Return the least duality gap over all thresholds; infinite where a variable without a bound violates."""
    total, group = 0.0, dual.group
    for g in range(dual.n_groups):
        of = (group == g) if dual.n_groups > 1 else ...  # all
        signs, bounds, values, points = (part[of].ravel() for part in (dual.y, dual.upper, alpha, -f))
        if peers is not None and not peers.is_alone:
            total += _of_ranks(signs, bounds, values, points, peers)
        elif len(signs):
            total += _of_group(signs, bounds, values, points)
    return total


def _of_ranks(y: AnyArray, upper: AnyArray, alpha: AnyArray, points: AnyArray, peers: Peers) -> float:
    """Return what `_of_group` does of all ranks; the quantile is searched among the bits of floats, by hundreds."""
    is_bounded = np.isfinite(upper)
    sums = np.array([float((~is_bounded).sum()), float(upper[is_bounded].sum()), float(alpha.sum())])
    peers.add_up(sums)
    weights = np.where(is_bounded, upper, 1.0 + sums[1] + sums[2]) if sums[0] else upper
    order = np.argsort(points, kind="stable")
    ends = np.concatenate([[0.0], np.cumsum(weights[order])])
    keys = _ordered(points[order])
    mass = np.array([float(np.where(y > 0, weights - alpha, alpha).sum())])
    peers.add_up(mass)
    least = np.array([points.min(initial=np.inf), -points.max(initial=-np.inf)])
    peers.lowest(least)
    if not np.isfinite(least).all():  # there are none, or they overflow
        return 0.0 if (least == np.inf).all() else float("nan")
    low, high = int(_ordered(least[:1])[0]) - 1, int(_ordered(-least[1:])[0])
    while high - low > 1:  # the weights up to `low` are too few, those up to `high` enough, or all there are
        tried = np.unique(
            np.array([low + (high - low) * k // (_TRIED + 1) for k in range(1, _TRIED + 1)], dtype=np.int64)
        )
        tried = tried[(tried > low) & (tried < high)]
        reached = ends[np.searchsorted(keys, tried, side="right")]
        peers.add_up(reached)
        first = int(np.searchsorted(reached >= mass[0], True))
        low, high = (int(tried[first - 1]) if first else low), (int(tried[first]) if first < len(tried) else high)
    point = float(_float(np.array([high], dtype=np.int64))[0])
    slack = y * (points - point)
    wrong = slack > 0.0
    gap = np.array([float((upper[wrong] - alpha[wrong]) @ slack[wrong] - alpha[~wrong] @ slack[~wrong])])
    peers.add_up(gap)
    return float(gap[0])


def _ordered(points: AnyArray) -> AnyArray:
    """Return integers that are in the order of some floats: neighbours are neighbours."""
    bits = (points + 0.0).view(np.int64)  # zero has one sign
    return np.where(bits >= 0, bits, np.iinfo(np.int64).min - bits)


def _float(keys: AnyArray) -> AnyArray:
    """Return the floats of some integers: the inverse of `_ordered`."""
    return np.where(keys >= 0, keys, np.iinfo(np.int64).min - keys).view(np.float64)


def _of_group(y: AnyArray, upper: AnyArray, alpha: AnyArray, points: AnyArray) -> float:
    weights = upper
    order = np.argsort(points, kind="stable")  # the other kind takes twenty times as long on some processors
    is_bounded = np.isfinite(upper)
    if not is_bounded.all():  # one without a bound weighs more than all others and itself together
        weights = np.where(is_bounded, upper, 1.0 + upper[is_bounded].sum() + alpha.sum())
    mass = float(np.where(y > 0, weights - alpha, alpha).sum())
    place = int(np.searchsorted(np.cumsum(weights[order]), mass))
    slack = y * (points - points[order[min(place, len(order) - 1)]])
    wrong = slack > 0.0
    return float((upper[wrong] - alpha[wrong]) @ slack[wrong] - alpha[~wrong] @ slack[~wrong])


#: Sums of bounds round by this share of what is summed, at least.
SUM_ROUNDING = 4.0 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Dual:
    """The dual problem; r variables share each of n samples, and `u`, where known, is k(yα) of the start."""

    y: FloatMatrix
    p: FloatMatrix
    upper: FloatMatrix
    alpha: FloatMatrix
    by_sign: bool = False
    u: FloatVector | None = None

    def take(self, samples: IntVector) -> Dual:
        """Return what some samples have of it."""
        names = "y", "p", "upper", "alpha"
        parts = {name: getattr(self, name)[:, samples].astype(np.float64, copy=False) for name in names}
        return Dual(**parts, by_sign=self.by_sign, u=None if self.u is None else self.u[samples])

    @property
    def n_groups(self) -> int:
        """In how many groups of variables the sum is fixed."""
        return 2 if self.by_sign else 1

    @property
    def group(self) -> AnyArray:
        """The group of each variable, int64, shape (r, n)."""
        return (self.y < 0).astype(np.int64) if self.by_sign else np.zeros(self.y.shape, dtype=np.int64)


@dataclass(frozen=True)
class Posed:
    """A dual as a fit poses it: its rows, and the resources of its solver."""

    kernel: Kernel
    X: Any
    rows: IntVector
    dual: Dual
    pool: Pool
    cache_bytes: int


@dataclass(slots=True)
class Counts:
    """Counts of a run so far."""

    n_iter: int = 0
    n_rounds: int = 0
    n_eliminated: int = 0
    n_reconstructions: int = 0
    n_returned: int = 0
    n_evaluations: int = 0
    n_hits: int = 0
    history: list[EliminationRecord] = field(default_factory=list)
    work: Work = field(default_factory=Work)

    def __add__(self, later: Counts) -> Counts:
        """Return the counts of this run and a later one together."""
        return Counts(*(getattr(self, each.name) + getattr(later, each.name) for each in fields(self)))


@dataclass(slots=True)  # not frozen, as `EliminationRecord`
class Solution:
    """What the solver found."""

    alpha: FloatMatrix
    u: FloatVector
    thresholds: FloatVector
    gap: float
    duality_gap: float
    objective: float
    converged: bool
    counts: Counts


def conclude(
    dual: Dual,
    kernel: Kernel,
    alpha: FloatMatrix,
    u: FloatVector,
    *,
    tol: float,
    counts: Counts,
    peers: Peers | None = None,
) -> Solution:
    """Return the solution that variables make, with what is true of it: gap, objective, thresholds."""
    if len(alpha) == 2 and not dual.by_sign:  # the common part of the variables of a sample moves nothing, and costs
        alpha = np.maximum(dual.y * (dual.y * alpha).sum(axis=0), 0.0)
    peers = peers or Peers(len(u))
    held = settled(dual, alpha, peers)
    if held is not alpha:
        is_zero = np.array([-float(held.any())])
        peers.lowest(is_zero)
        if not is_zero[0]:  # u of variables below the rounding of those that were, times huge kernel values, is no sum
            u = np.zeros_like(u)
    alpha = held
    objective, gap_of_objectives = worth(dual, alpha, u, peers)
    is_finite = np.array([float(np.isfinite(alpha).all() and np.isfinite(u).all() and np.isfinite(objective))])
    peers.lowest(is_finite)
    if not is_finite[0]:
        raise refuse(kernel)
    least, most, group, c = np.empty(dual.n_groups), np.empty(dual.n_groups), dual.group, dual.y * dual.p
    gap = float(extremes(u, c, dual.y, dual.upper, alpha, group, least, most))
    if not peers.is_alone:
        ends = np.concatenate([least, -most])
        peers.lowest(ends)
        least, most = ends[: len(least)], -ends[len(least) :]
        gap = float((most - least).max())
    return Solution(
        alpha=peers.whole(alpha),
        u=peers.whole(u),
        thresholds=_find_thresholds(dual, u + c, alpha, (least, most), peers),
        duality_gap=gap_of_objectives,
        gap=max(gap, 0.0),  # it is infinite when no pair can move
        objective=objective,
        converged=gap < tol,
        counts=counts,
    )


def settled(dual: Dual, alpha: FloatMatrix, peers: Peers) -> FloatMatrix:
    """Return the variables, those of a group at their bounds if rounding is all that keeps them from there.

    Bounds sum up to what is fixed, where all variables should be at one, only but for rounding: what is missing is left
    to some variable. Free for that reason alone, it would decide the threshold of its group, which may be anywhere
    between two ends. What sums have been rounded by shows in the drift of yα, and is a share of what is summed.
    """
    of: list[Any] = [dual.group == g for g in range(dual.n_groups)] if dual.n_groups > 1 else [...]
    sums = np.array([*(alpha[mine].sum() for mine in of), (dual.y * (alpha - dual.alpha)).sum()])
    peers.add_up(sums)
    away = np.minimum(alpha, dual.upper - alpha)
    nearest = np.array([-away[mine].max(initial=0.0) for mine in of])
    peers.lowest(nearest)
    for mine, farthest, total in zip(of, -nearest, sums, strict=False):
        if 0.0 < farthest <= SUM_ROUNDING * total + abs(sums[-1]):
            ends, alpha = np.where(alpha < dual.upper - alpha, 0.0, dual.upper), alpha.copy()
            alpha[mine] = ends[mine]
    return alpha


def worth(dual: Dual, alpha: FloatMatrix, u: FloatVector, peers: Peers | None = None) -> tuple[float, float]:
    """Return the dual objective and the gap of variables, shape (r, n), for u = K(yα); of those of all `peers`."""
    objective = np.array([0.5 * float((dual.y * alpha).sum(axis=0) @ u) + float((dual.p * alpha).sum())])
    if peers is not None:
        peers.add_up(objective)
    return float(objective[0]), duality_gap(dual, alpha, u + dual.y * dual.p, peers)


@scalar
def _sort(points, weights, m):  # type: ignore[no-untyped-def]
    """Sort the first m points, and their weights with them, by Shell's method: `np.argsort` takes Numba seconds."""
    apart = m
    while apart > 1:
        apart = max(1, apart * 5 // 11)
        for s in range(apart, m):
            point, weight, k = points[s], weights[s], s
            while k >= apart and points[k - apart] > point:
                points[k], weights[k] = points[k - apart], weights[k - apart]
                k -= apart
            points[k], weights[k] = point, weight


@kernel
def tell(u, c, y, upper, alpha, group, fixed, told):  # type: ignore[no-untyped-def]
    """Set `told` to gap, duality gap and objective, a number that is left out, and thresholds, as `conclude` has them.

    The variables are one after another, shape (r n,), and `fixed` is what y α sums to; ``alpha`` and ``u`` may change.
    The best threshold is a weighted quantile of -f. Whose f is above the highest of I_low counts in full, whose f is
    below the lowest of I_up not at all, so it lies between the two, and few have to be sorted.
    """
    n, size, n_groups = len(u), len(y), len(told) - 4
    if size == 2 * n and n_groups == 1:
        for k in range(n):
            beta = y[k] * alpha[k] + y[n + k] * alpha[n + k]
            alpha[k], alpha[n + k] = max(y[k] * beta, 0.0), max(y[n + k] * beta, 0.0)
    drift, everything, rest, has_moved = -fixed, 1.0, 0.0, False
    for j in range(size):
        drift += y[j] * alpha[j]
        everything += alpha[j] + (upper[j] if upper[j] < np.inf else 0.0)
    for g in range(n_groups):  # as in `settled`
        total, farthest = 0.0, 0.0
        for j in range(size):
            if group[j] == g:
                total += alpha[j]
                farthest = max(farthest, min(alpha[j], upper[j] - alpha[j]))
        if 0.0 < farthest <= SUM_ROUNDING * total + abs(drift):
            has_moved = True
            for j in range(size):
                if group[j] == g:
                    alpha[j] = 0.0 if alpha[j] < upper[j] - alpha[j] else upper[j]
    for j in range(size):
        rest += alpha[j]
    points, weights = np.empty(size), np.empty(size)
    told[0], told[1], told[2] = -np.inf, 0.0, 0.0
    for g in range(n_groups):
        least, most, free, n_free = np.inf, -np.inf, 0.0, 0
        for j in range(size):
            if group[j] == g:
                k = j - n if j >= n else j
                if has_moved and rest == 0.0:
                    u[k] = 0.0
                f, below, above = u[k] + c[j], alpha[j] < upper[j], alpha[j] > 0.0
                if (below if y[j] > 0 else above) and f < least:
                    least = f
                if (above if y[j] > 0 else below) and f > most:
                    most = f
                if below and above:
                    free, n_free = free + f, n_free + 1
                told[2] += alpha[j] * y[j] * (0.5 * u[k] + c[j])
        m, mass, best, low, high = 0, 0.0, -np.inf, min(least, most), max(least, most)
        for j in range(size):
            if group[j] == g:
                f = u[j - n if j >= n else j] + c[j]
                # One without a bound weighs more than all others and itself together.
                weight = upper[j] if upper[j] < np.inf else everything
                mass += weight - alpha[j] if y[j] > 0 else alpha[j]
                if f > high:
                    mass -= weight
                    best = max(best, -f)
                elif f >= low:
                    points[m], weights[m] = -f, weight
                    m += 1
        _sort(points, weights, m)
        for s in range(m):
            best = points[s]
            mass -= weights[s]
            if mass <= 0.0:
                break
        for j in range(size):
            if group[j] == g:
                slack = -y[j] * (u[j - n if j >= n else j] + c[j] + best)
                told[1] += (upper[j] - alpha[j]) * slack if slack > 0.0 else -alpha[j] * slack
        told[0] = max(told[0], most - least)
        least, most = least if least < np.inf else most, most if most > -np.inf else least
        told[4 + g] = free / n_free if n_free else (0.5 * (least + most) if abs(most) < np.inf else 0.0)


def refuse(kernel: Kernel) -> InvalidDataError:
    """Return the error for kernel values, or sums of them, that are not finite."""
    if kernel.function is not None:
        name = getattr(kernel.function, "__name__", repr(kernel.function))
        return InvalidDataError(
            f"kernel={name} gave values that are not finite, or whose sums are not. It must return a finite float for "
            "every pair of rows; check it on the rows of the fit, and scale the features with StandardScaler."
        )
    if kernel.name == "precomputed":
        return InvalidDataError(
            "The sums of kernel values times coefficients overflow with kernel='precomputed'. Divide the kernel matrix "
            "by its largest entry and multiply C by it, or lower C."
        )
    constants = {"poly": f", degree={kernel.degree:g}", "linear": ""}.get(kernel.name, "")
    if kernel.name != "linear":
        constants = f", gamma={kernel.gamma:g}{constants}"
    if kernel.name in {"poly", "sigmoid"}:
        constants += f", coef0={kernel.coef0:g}"
    what = "gamma or degree" if kernel.name == "poly" else "C"
    return InvalidDataError(
        "The dual coefficients or intercepts are not finite, as kernel values or their sums are not, with "
        f"kernel={kernel.name!r}{constants}: they overflow on these rows, whose largest squared norm is "
        f"{kernel.largest_square:.3g}. Scale the features with StandardScaler or MinMaxScaler, or lower {what}."
    )


def _find_thresholds(
    dual: Dual, f: FloatMatrix, alpha: FloatMatrix, extreme: tuple[FloatVector, FloatVector], peers: Peers
) -> FloatVector:
    """Return the f at which variables are free, their mean, or the middle of the extremes, shape (n_groups,)."""
    least, most = extreme
    thresholds: FloatVector = np.empty(len(least))
    between = (alpha > 0) & (alpha < dual.upper)
    for g in range(len(least)):
        free = between & (dual.group == g) if len(least) > 1 else between
        ends = [end for end in (least[g], most[g]) if np.isfinite(end)]
        middle = sum(ends) / len(ends) if ends else 0.0
        if peers.is_alone:
            thresholds[g] = f[free].mean() if free.any() else middle
            continue
        sums = np.array([f[free].sum(), float(np.count_nonzero(free))])
        peers.add_up(sums)
        thresholds[g] = sums[0] / sums[1] if sums[1] else middle
    return thresholds
