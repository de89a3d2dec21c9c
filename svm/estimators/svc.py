"""`SVC` and `NuSVC`: kernel support vector classification, by the cost or by the share of margin errors.

The dual of `NuSVC` for a pair of classes is min ½ α'Qα over 0 ≤ α_i ≤ w_i with Σα = s for either class. LIBSVM takes s
= ν Σw / 2, which must not be more than the weight of the lighter class. The sums are fixed each, so there are two
groups of variables, each with its threshold t: the margin is ρ = (t₊ − t₋)/2, and the machine is divided by it. Source:
Schölkopf, Smola, Williamson, Bartlett, "New support vector algorithms", Neural Computation 2000; start, tolerance and
scaling as in LIBSVM. Departures: class weights are used, which LIBSVM ignores: w_i is class times sample weight, and s
is at most the weight of the lighter class. And the gap of a pair whose margin is less than twice as much is made
smaller, within a bound on steps, because division by such a margin would amplify noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.inputs.docstrings import inherit_docs
from dsgd.svm.estimators.classifiers import AbstractKernelClassifier
from dsgd.svm.kernel_solver.problem import Dual
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector


@inherit_docs
@dataclass(eq=False, repr=False, kw_only=True)
class SVC(AbstractKernelClassifier):
    """Support vector classification, to LIBSVM's optimum, proven by a gap over all samples in float64.

    Minimises ½‖w‖² + Σ C_i max(0, 1 − y_i (w'φ(x_i) + b)) by its dual; several classes are trained one against one.
    It has the parameters, defaults and fitted attributes of `sklearn.svm.SVC`.

    Parameters
    ----------
    C : float, default 1.0
        Cost of violating the margin; C_i is C times class weight times sample weight.
    probability : {"sigmoid", "isotonic"} or bool, default "deprecated"
        Whether `predict_proba` is available, and which curves turn decision values into probabilities. They are fitted
        to the scores of five more machines, each for the fifth of the rows that it has not seen
        (`dsgd.svm.calibration`). With two classes, they equal those of ``CalibratedClassifierCV(SVC(),
        ensemble=False)``, except that ``gamma="scale"`` is computed from all rows. With more, each pair has a curve,
        and pairs are combined as in LIBSVM; scikit-learn instead calibrates each class against the rest, by decision
        values that count votes and hold little of the margins (:ref:`svm-probabilities`). True is LIBSVM's sigmoid for
        each pair (`dsgd.svm.calibration`). True and False are deprecated, as in scikit-learn, and warn.
    class_weight : dict, "balanced" or None, default None
        Weight of each class. A class of weight zero is as if its rows were not there. "balanced" gives the rows of all
        classes the same total before their own weights: it counts rows as they are given, whatever their
        `sample_weight`, as in scikit-learn.
    solver : {"block", "pairwise"}, default "block"
        ``"pairwise"`` is the published parallel algorithm, one pair per step and no cache
        (`dsgd.svm.kernel_solver.pairwise`): the same optimum, much slower; for studies.

    See Also
    --------
    dsgd.SGDClassifier : Linear SVMs on data too large for an exact solution.

    Examples
    --------
    >>> import numpy as np
    >>> from dsgd.svm import SVC
    >>> X = np.array([[-1.0, -1.0], [-2.0, -1.0], [1.0, 1.0], [2.0, 1.0]])
    >>> model = SVC().fit(X, ["no", "no", "yes", "yes"])
    >>> model.predict([[-0.8, -1.0]]).tolist(), model.converged_
    (['no'], True)
    """

    C: float = 1.0
    solver: str = "block"

    def _bounds(self, codes: AnyArray, weights: FloatVector) -> FloatVector:
        bounds: FloatVector = float(self.C) * self.class_weight_[codes] * weights
        return bounds

    def _pose(self, y: FloatVector, bounds: FloatVector, sizes: IntVector) -> Dual:
        # On a gang the solver copies what belongs to its own samples: a number for all takes no memory.
        fill = np.full if self._gang is None else lambda shape, value: np.broadcast_to(value, shape)
        return Dual(y[None], fill((1, len(y)), -1.0), bounds[None], fill((1, len(y)), 0.0))

    def _find_thresholds(self, found: FloatMatrix, totals: FloatMatrix) -> FloatMatrix:
        return found


@inherit_docs
@dataclass(eq=False, repr=False, kw_only=True)
class NuSVC(AbstractKernelClassifier):
    """Support vector classification by a share of margin errors, to LIBSVM's optimum, certified as in `SVC`.

    Minimises ½‖w‖² − ν ρ n + Σ w_i max(0, ρ − y_i (w'φ(x_i) + b)) over w, b and ρ for each pair of classes, and divides
    by ρ. It has the parameters, defaults and fitted attributes of `sklearn.svm.NuSVC`. `SVC` with a pair's ``C_`` is
    the same machine.

    Parameters
    ----------
    nu : float, default 0.5
        Upper bound of the share of margin errors and lower bound of the share of support vectors, in (0, 1]. At most
        twice the share of the smaller class of a pair.
    probability : {"sigmoid", "isotonic"} or bool, default "deprecated"
        Whether `predict_proba` is available, and which curves turn decision values into probabilities. They are fitted
        to the scores of five more machines, each for the fifth of the rows that it has not seen
        (`dsgd.svm.calibration`). With two classes, they equal those of ``CalibratedClassifierCV(NuSVC(),
        ensemble=False)``, except that ``gamma="scale"`` is computed from all rows. With more, each pair has a curve,
        and pairs are combined as in LIBSVM; scikit-learn instead calibrates each class against the rest, by decision
        values that count votes and hold little of the margins (:ref:`svm-probabilities`). True is LIBSVM's sigmoid for
        each pair (`dsgd.svm.calibration`). True and False are deprecated, as in scikit-learn, and warn.
    class_weight : dict, "balanced" or None, default None
        Weight of each class, which bounds the variables of its rows (scikit-learn ignores it here). A class of weight
        zero is as if its rows were not there; other weights may make an infeasible nu feasible, never the reverse.
        "balanced" counts rows as they are given, whatever their `sample_weight`.

    Attributes
    ----------
    C_ : array, shape (n_classes * (n_classes - 1) / 2,)
        The costs of `SVC` that give these machines.
    dual_objective_ : float
        Dual objective, the sum over pairs, before the division by the margin; this also holds for both gaps.

    See Also
    --------
    SVC : The same family of machines, by the cost of errors instead of their share.

    Examples
    --------
    >>> import numpy as np
    >>> from dsgd.svm import NuSVC
    >>> X = np.array([[-1.0, -1.0], [-2.0, -1.0], [1.0, 1.0], [2.0, 1.0]])
    >>> model = NuSVC().fit(X, ["no", "no", "yes", "yes"])
    >>> model.predict([[-0.8, -1.0]]).tolist(), model.converged_
    (['no'], True)
    """

    _ONE_CLASS_LEFT: ClassVar[str] = (
        "specified nu is infeasible - all samples with positive weights belong to the same class"
    )

    nu: float = 0.5

    def _bounds(self, codes: AnyArray, weights: FloatVector) -> FloatVector:
        # The lightest class counts once: only ratios matter, and tol is meant for variables of about one.
        scale = self.class_weight_ / self.class_weight_.min()
        counts: FloatVector = np.bincount(codes, weights=weights, minlength=len(scale)).astype(np.float64)
        pairs = np.array(list(combinations(range(len(scale)), 2)))
        parts = counts[pairs], (counts * scale)[pairs]
        for pair in pairs[np.all([self._half(n) > n.min(axis=1) * (1 + 1e-12) for n in parts], axis=0)]:
            n = counts[pair]
            raise InvalidDataError(
                f"specified nu is infeasible: NuSVC(nu={self.nu:g}) needs more samples than "
                f"the smaller of classes {self.classes_[pair]} has; their weights are {n}. Take nu up to "
                f"{2 * n.min() / n.sum():.6g}, or class_weight='balanced'."
            )
        bounds: FloatVector = scale[codes] * weights
        return bounds

    def _half(self, totals: AnyArray) -> AnyArray:
        """Return half the share ν of the total weight of a pair, the sum of the variables of either class."""
        return 0.5 * float(self.nu) * totals.sum(axis=-1)

    def _pose(self, y: FloatVector, bounds: FloatVector, sizes: IntVector) -> Dual:
        # As LIBSVM starts: the first of each side are at their bounds, one is between. A line of a table for each side.
        side = 2 * np.repeat(np.arange(len(sizes)), sizes) + (y < 0)
        order, counts = np.argsort(side, kind="stable"), np.bincount(side, minlength=2 * len(sizes))
        line = side[order]
        place = np.arange(len(y)) - np.repeat(np.cumsum(counts) - counts, counts)
        table = np.zeros((len(counts), counts.max()))
        table[line, place] = bounds[order]
        ends = np.cumsum(table, axis=1)
        totals = ends[:, -1].reshape(-1, 2)
        amounts = np.repeat(np.minimum(self._half(totals), totals.min(axis=1)), 2)[:, None]
        before = np.concatenate([np.zeros((len(counts), 1)), ends[:, :-1]], axis=1)
        alpha = np.empty(len(y))
        alpha[order] = np.where(ends < amounts, table, np.clip(amounts - before, 0.0, table))[line, place]
        return Dual(y[None], np.zeros((1, len(y))), bounds[None], alpha[None], by_sign=True)

    def _find_thresholds(self, found: FloatMatrix, totals: FloatMatrix) -> FloatMatrix:
        excess = self._half(totals) / totals.min(axis=1)
        pairs = np.flatnonzero(excess > 1 + 1e-12)
        if not len(pairs):
            return found
        # All of the lighter class is at its bound, so its threshold may be anywhere beyond. The margin grows with the
        # excess of the sum that class weights require: from the nearest threshold, without an excess, to infinity.
        light, found = np.argmin(totals, axis=1)[pairs], found.copy()
        heavy = found[pairs, 1 - light]
        found[pairs, light] = heavy + excess[pairs] * (found[pairs, light] - heavy)
        return found

    @property
    def C_(self) -> FloatVector:  # noqa: N802
        """The costs of `SVC` that give these machines, shape (n_pairs,)."""
        if not hasattr(self, "_margins"):
            raise AttributeError("C_ is available after fit")
        costs: FloatVector = 1.0 / self._margins
        return costs
