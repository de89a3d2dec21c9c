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

from dsgd.types import AnyArray, FloatMatrix

__all__ = ["duality_gap"]


def duality_gap(y: FloatMatrix, upper: FloatMatrix, alpha: FloatMatrix, f: FloatMatrix, group: AnyArray) -> float:
    """Return the least duality gap over all thresholds.

    Parameters
    ----------
    y, upper, alpha, f : arrays, shape (r, n)
        Signs, bounds, variables, indicators.
    group : int64 array, shape (r, n)
        The group of each variable.

    Returns
    -------
    float
        Not negative; infinite where a variable without a bound violates its margin.
    """
    if not group.any():
        return _of_group(y.ravel(), upper.ravel(), alpha.ravel(), -f.ravel())
    total = 0.0
    for g in np.unique(group):
        of = group == g
        total += _of_group(y[of], upper[of], alpha[of], -f[of])
    return total


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
