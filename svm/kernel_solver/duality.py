r"""The duality gap of a kernel SVM.

Problem: for the dual of `dsgd.svm.kernel_solver.block`, min ½ α'Qα + p'α over 0 ≤ α ≤ C with the sum of yα fixed in
each group, the primal has the same w and one free threshold b for each group. With f = K(yα) + y·p and s_i = −y_i (f_i
+ b), the gap of the pair (w, b) and α is

    Σ_i [(C_i − α_i) max(s_i, 0) + α_i max(−s_i, 0)],

a sum of terms that are not negative, so nothing cancels. The best b is a weighted quantile of the points −f_i: each
raises the slope in b by its C_i. Cost: a sort of the variables.

A kernel that is not positive semi-definite has no such primal; there the number only measures complementarity.

Source: Lagrangian duality, as in Schölkopf and Smola, "Learning with Kernels", MIT Press 2002, section 7.
"""

from __future__ import annotations

import numpy as np

from dsgd.svm.kernels.peers import Peers
from dsgd.types import AnyArray, FloatMatrix

#: Points that are tried at a time where ranks search a quantile together.
_TRIED = 255


def duality_gap(
    y: FloatMatrix,
    upper: FloatMatrix,
    alpha: FloatMatrix,
    f: FloatMatrix,
    group: AnyArray,
    n_groups: int,
    peers: Peers | None = None,
) -> float:
    """Return the least duality gap over all thresholds.

    - returned: not negative; infinite where a variable without a bound violates its margin.
    """
    total = 0.0
    for g in range(n_groups):
        of = (group == g) if n_groups > 1 else ...  # all
        signs, bounds, values, points = (part[of].ravel() for part in (y, upper, alpha, -f))
        if peers is not None and not peers.is_alone:
            total += _of_ranks(signs, bounds, values, points, peers)
        elif len(signs):
            total += _of_group(signs, bounds, values, points)
    return total


def _of_ranks(y: AnyArray, upper: AnyArray, alpha: AnyArray, points: AnyArray, peers: Peers) -> float:
    """Return what `_of_group` does of the variables of all ranks.

    The quantile is the least point up to which the weights are enough. It is searched among floats, which are in the
    order of their bits read as integers: each time some hundred of them are tried at once.
    """
    is_bounded = np.isfinite(upper)
    sums = np.array([float((~is_bounded).sum()), float(upper[is_bounded].sum()), float(alpha.sum())])
    peers.add_up(sums)
    weights = np.where(is_bounded, upper, sums[1] + sums[2]) if sums[0] else upper
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
    if not is_bounded.all():  # one without a bound weighs as much as all others and itself together
        weights = np.where(is_bounded, upper, upper[is_bounded].sum() + alpha.sum())
    mass = float(np.where(y > 0, weights - alpha, alpha).sum())
    place = int(np.searchsorted(np.cumsum(weights[order]), mass))
    slack = y * (points - points[order[min(place, len(order) - 1)]])
    wrong = slack > 0.0
    return float((upper[wrong] - alpha[wrong]) @ slack[wrong] - alpha[~wrong] @ slack[~wrong])
