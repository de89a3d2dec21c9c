"""`SVC`, `NuSVC`, `SVR`, `NuSVR` and `OneClassSVM`, and the coefficients that a fitted one proves for every optimum.

The dual of `NuSVR` is that of `dsgd.svm.SVR` without ε: minimise ½ β'Kβ − z'β over β = α − α*, 0 ≤ α, α* ≤ C_i, with Σα
= Σα* = ν ΣC_i / 2. The sums are fixed each, so there are two groups of variables, each with its threshold: the tube
runs from one to the other. Source: Chang and Lin, "Training ν-support vector regression", Neural Computation 2002;
start and tolerance as in LIBSVM.

**`SVC` and `NuSVC`: kernel support vector classification, by the cost or by the share of margin errors.**

The dual of `NuSVC` for a pair of classes is min ½ α'Qα over 0 ≤ α_i ≤ w_i with Σα = s for either class. LIBSVM takes s
= ν Σw / 2, which must not be more than the weight of the lighter class. The sums are fixed each, so there are two
groups of variables, each with its threshold t: the margin is ρ = (t₊ − t₋)/2, and the machine is divided by it. Source:
Schölkopf, Smola, Williamson, Bartlett, "New support vector algorithms", Neural Computation 2000; start, tolerance and
scaling as in LIBSVM. Departures: class weights are used, which LIBSVM ignores: w_i is class times sample weight, and s
is at most the weight of the lighter class. And the gap of a pair whose margin is less than twice as much is made
smaller, within a bound on steps, because division by such a margin would amplify noise.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import OutlierMixin

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.inputs.callbacks import notifies_callbacks
from dsgd.inputs.docstrings import inherit_docs, inherit_method_docs
from dsgd.inputs.linear import AbstractClusterRegressor
from dsgd.inputs.named import takes_tables
from dsgd.svm.certify import feature_norms, gap_ball, prove
from dsgd.svm.estimators.classifiers import AbstractKernelClassifier
from dsgd.svm.estimators.kernel_base import AbstractKernelSVM, fill
from dsgd.svm.estimators.pairs import pairs_of
from dsgd.svm.kernel_solver.problem import Dual, Posed
from dsgd.svm.kernels.rows import distribute
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector


class AbstractSingleSVM(AbstractKernelSVM):
    """Kernel SVM of one problem; `SVR`, `NuSVR` and `OneClassSVM` are the ones to use.

    Parameters
    ----------
    verbose : bool, default False
        Print a line at the end.
    max_iter : int, default -1
        Two-variable steps at most; −1 is max(10⁷, 100 n).

    Attributes
    ----------
    support_ : int32 array, shape (n_SV,)
        Rows that are support vectors.
    n_support_ : int32 array, shape (1,)
        How many.
    dual_coef_ : array or CSR matrix, shape (1, n_SV)
        Their coefficients.
    coef_ : array or CSR matrix, shape (1, n_features)
        Weights of features; only with ``kernel="linear"``.
    n_iter_ : int
        Two-variable steps.
    elimination_history_ : list of dsgd.svm.EliminationRecord
        The run.
    """

    @abstractmethod
    def _bounds(self, weights: FloatVector) -> FloatVector:
        """Return the upper bounds of the variables of all rows, shape (n,)."""

    @abstractmethod
    def _pose(self, target: FloatVector, bounds: FloatVector) -> Dual:
        """Return the dual of rows with these targets and bounds, shape (m,)."""

    @notifies_callbacks
    @takes_tables
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train.

        Parameters
        ----------
        y : array-like, dask collection or str, shape (n_samples,)
            Targets, or the name of their column; None where blocks or svmlight files hold them. `OneClassSVM` has no
            use for them: of tables and files, the column of this name is no feature.
        """
        return self._fit(X, y, sample_weight)

    def _fit_rows(self, X: Any, target: Any, weights: FloatVector) -> None:
        bounds = self._bounds(weights)
        first, owner, total = self._merge(X, target, bounds)
        kernel = self._make_kernel(X, weights, first, owner)
        dual = self._pose(target[first], total)
        with self._open_pool() as pool:
            tol, limit = float(self.tol), int(self.max_iter)
            solution = self._solve(Posed(kernel, X, first, dual, pool, self._cache_bytes()), tol, limit)
        self._say(f"{solution.counts.n_iter} steps, gap {solution.gap:.3g}", solution.gap)
        # Equal rows share a coefficient.
        coefs = distribute((dual.y * solution.alpha).sum(axis=0)[None], owner, bounds, total)[0]
        support = np.flatnonzero(coefs)
        self._keep_support(X, support)
        self._n_support = np.array([len(support)], dtype=np.int32)
        self._keep_coefs(coefs[support][None], np.array([-solution.thresholds.mean()]), kernel)
        self._thresholds = solution.thresholds
        self.n_iter_ = solution.counts.n_iter
        self._take_in([solution])

    def _pair_coefs(self) -> FloatMatrix:
        return self._dense_coefs().T

    def _grouped_coefs(self) -> tuple[FloatMatrix, list[int], AnyArray]:
        return self._dense_coefs().T, [len(self.support_)], np.zeros((1, 1), dtype=np.int64)


@inherit_method_docs
class AbstractKernelRegressor(AbstractClusterRegressor, AbstractSingleSVM):
    """Kernel regression; `SVR` and `NuSVR` are the ones to use.

    Parameters
    ----------
    C : float, default 1.0
        Cost of leaving the tube; C_i is C times sample weight.

    Attributes
    ----------
    intercept_ : array, shape (1,)
        Intercept.
    """

    _TARGETS: ClassVar[str] = "numbers"

    C: float

    def _bounds(self, weights: FloatVector) -> FloatVector:
        return float(self.C) * weights

    def predict(self, X: Any) -> Any:
        """Return the predicted targets."""
        if self._is_lazy(X):
            return self._apply("predict", X, None, np.float64)
        return np.asarray(self._sums(X)[:, 0] + self.intercept_[0])


@inherit_docs
@dataclass(eq=False, repr=False, kw_only=True)
class SVR(AbstractKernelRegressor):
    """Support vector regression with an ε-insensitive loss, to LIBSVM's optimum, certified as in `SVC`.

    Minimises ``½‖w‖² + Σ C_i max(0, |y_i − w'φ(x_i) − b| − ε)``. The dual has two variables per sample, which share
    a kernel row. It has the parameters, defaults and fitted attributes of `sklearn.svm.SVR`.

    Parameters
    ----------
    epsilon : float, default 0.1
        Half the width of the tube.
    """

    C: float = 1.0
    epsilon: float = 0.1

    def _pose(self, target: FloatVector, bounds: FloatVector) -> Dual:
        ones, epsilon = np.ones(len(target)), float(self.epsilon)
        return Dual(
            y=np.stack([ones, -ones]),
            p=np.stack([epsilon - target, epsilon + target]),
            upper=np.stack([bounds, bounds]),
            alpha=np.zeros((2, len(target))),
        )


@inherit_docs
@dataclass(eq=False, repr=False, kw_only=True)
class NuSVR(AbstractKernelRegressor):
    """Support vector regression that finds its own tube, to LIBSVM's optimum, certified as in `SVC`.

    Minimises ``½‖w‖² + ν ε Σ C_i + Σ C_i max(0, |y_i − w'φ(x_i) − b| − ε)`` over w, b and ε ≥ 0. It has the parameters,
    defaults and fitted attributes of `sklearn.svm.NuSVR`; `SVR` with ``epsilon=epsilon_`` is the same machine.

    Parameters
    ----------
    nu : float, default 0.5
        Upper bound of the share of rows outside the tube and lower bound of the share of support vectors, in (0, 1].

    Attributes
    ----------
    epsilon_ : float
        Half the width of the tube that was found.
    """

    nu: float = 0.5
    C: float = 1.0

    def _pose(self, target: FloatVector, bounds: FloatVector) -> Dual:
        ones, start = np.ones(len(target)), fill(bounds, 0.5 * float(self.nu) * bounds.sum())
        return Dual(
            y=np.stack([ones, -ones]),
            p=np.stack([-target, target]),
            upper=np.stack([bounds, bounds]),
            alpha=np.stack([start, start]),
            by_sign=True,
        )

    @property
    def epsilon_(self) -> float:
        """Half the width of the tube."""
        if not hasattr(self, "_thresholds"):
            raise AttributeError("epsilon_ is available after fit")
        return 0.5 * float(self._thresholds[1] - self._thresholds[0])


@inherit_docs
@dataclass(eq=False, repr=False, kw_only=True)
class OneClassSVM(OutlierMixin, AbstractSingleSVM):
    """One-class SVM, to LIBSVM's optimum, certified as in `SVC`.

    Minimises ½ α'Kα over 0 ≤ α_i ≤ w_i with Σα = ν Σw: at most a share ν of the rows lies outside the region, and at
    least that share are support vectors. It has the parameters, defaults and fitted attributes of
    `sklearn.svm.OneClassSVM`.

    Parameters
    ----------
    nu : float, default 0.5
        Upper bound of the share of outliers and lower bound of the share of support vectors, in (0, 1].

    Attributes
    ----------
    intercept_ : array, shape (1,)
        Intercept of the decision function.
    offset_ : float
        The difference between ``score_samples`` and the decision function; minus the intercept.
    """

    _TARGETS: ClassVar[str] = "none"

    nu: float = 0.5

    @property
    def offset_(self) -> float:
        """The difference between ``score_samples`` and the decision function."""
        return -float(self.intercept_[0])

    def _bounds(self, weights: FloatVector) -> FloatVector:
        return weights

    def _pose(self, target: FloatVector, bounds: FloatVector) -> Dual:
        start = fill(bounds, float(self.nu) * bounds.sum())
        return Dual(np.ones((1, len(target))), np.zeros((1, len(target))), bounds[None], start[None])

    def score_samples(self, X: Any) -> Any:
        """Return the scores of rows, shape (n,): the decision function before subtracting the offset."""
        if self._is_lazy(X):
            return self._apply("score_samples", X, None, np.float64)
        return self._sums(X)[:, 0]

    def decision_function(self, X: Any) -> Any:
        """Return signed distances up to scale, shape (n,): positive inside, negative outside.

        Returns
        -------
        array, shape (n,)
            Decision values.
        """
        if self._is_lazy(X):
            return self._apply("decision_function", X, None, np.float64)
        return np.asarray(self.score_samples(X) - self.offset_)

    def predict(self, X: Any) -> Any:
        """Return 1 for rows inside the region and −1 for the others, those on its edge included, shape (n,)."""
        if self._is_lazy(X):
            return self._apply("predict", X, None, np.int64)
        return np.where(self.decision_function(X) > 0, 1, -1)


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
        pairs = pairs_of(len(scale))
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
        half: AnyArray = 0.5 * float(self.nu) * totals.sum(axis=-1)
        return half

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


def screen(model: SVC | SVR | OneClassSVM, X: Any, y: Any = None, *, sample_weight: Any = None) -> FloatMatrix:
    r"""Return the dual coefficients of training rows that the gap of a fitted model proves.

    The solution is within :math:`\sqrt{G}` of the optimum in feature space, where G is its duality gap, computed over
    all rows in float64. Rows outside the margin by more than this and the remaining uncertainty of the intercept have
    the coefficient 0 at every optimum; rows inside by as much have the coefficient of their bound. Free support vectors
    are never proven. The smaller ``tol``, the more rows are proven. (`dsgd.svm.certify` has the proof.)

    Parameters
    ----------
    model : SVC, SVR or OneClassSVM
        A fitted model whose kernel is an inner product: linear, rbf, or polynomial with an integer degree and ``coef0
        >= 0``.
    X : array or sparse matrix, shape (n_samples, n_features)
        All rows that it was fitted on.
    y : array-like, shape (n_samples,), or None
        Their labels or targets; None for `OneClassSVM`.
    sample_weight : array-like, shape (n_samples,), or None
        Their weights.

    Returns
    -------
    array of float64, shape (n_samples,) or (n_samples, n_pairs)
        The coefficient (the sign of the class included) at every optimum, or NaN where nothing is proven; one column
        per pair of classes if there are more than two, 0 for rows of other classes.

    Raises
    ------
    InvalidParameterError
        The kernel is not known to be an inner product, or the model is of another class.
    InvalidDataError
        The number of rows differs from ``fit``.

    Examples
    --------
    >>> import numpy as np
    >>> from dsgd.svm import SVC, screen
    >>> X = np.array([[-3.0], [-1.0], [1.0], [3.0]])
    >>> model = SVC(kernel="linear", tol=1e-9).fit(X, [0, 0, 1, 1])
    >>> screen(model, X, [0, 0, 1, 1])
    array([ 0., nan, nan,  0.])
    """
    if not isinstance(model, SVC | SVR | OneClassSVM):
        raise InvalidParameterError(f"screen(model=...) must be a fitted SVC, SVR or OneClassSVM. Got {model!r}.")
    X = X.astype(np.float64) if hasattr(X, "nnz") else np.asarray(X, dtype=np.float64)
    norms = None if callable(model.kernel) else feature_norms(model._known_kernel(), X)
    if norms is None:
        raise InvalidParameterError(
            f"screen needs a kernel that is known to be an inner product: linear, rbf, or poly of whole degree with "
            f"coef0 >= 0. Got kernel={model.kernel!r}."
        )
    if X.shape[0] != model.shape_fit_[0]:
        raise InvalidDataError(f"screen needs the {model.shape_fit_[0]} rows of the fit, got {X.shape[0]}.")
    weights = np.ones(len(norms)) if sample_weight is None else np.broadcast_to(sample_weight, norms.shape)
    if isinstance(model, SVC):
        return _screen_pairs(model, X, np.asarray(y), weights, norms)
    coefs = np.zeros(len(norms))
    coefs[model.support_] = model._dense_coefs()[0]
    target = np.zeros(len(norms)) if isinstance(model, OneClassSVM) else np.asarray(y, dtype=np.float64)
    return _prove_rows(model._pose(target, model._bounds(weights)), coefs, model._sums(X)[:, 0], norms)


def _screen_pairs(model: SVC, X: Any, y: AnyArray, weights: FloatVector, norms: FloatVector) -> FloatMatrix:
    n_classes, codes = len(model.classes_), np.searchsorted(model.classes_, y)
    bounds = model._bounds(codes, weights)
    pair_coefs = model._pair_coefs()
    sums = model._sums(X)
    out = np.zeros(sums.shape)
    for k, pair in enumerate(combinations(range(n_classes), 2)):
        rows = np.flatnonzero(np.isin(codes, pair) & (bounds > 0))
        sign = np.where(codes[rows] == pair[0], 1.0, -1.0) * model._sign_of_first()
        beta = np.zeros(len(codes))
        beta[model.support_] = pair_coefs[:, k]
        dual = model._pose(sign, bounds[rows], np.array([len(rows)]))
        out[rows, k] = _prove_rows(dual, beta[rows], sums[rows, k], norms[rows])
    return out[:, 0] if n_classes == 2 else out


def _prove_rows(dual: Dual, coefs: FloatVector, u: FloatVector, norms: FloatVector) -> FloatVector:
    """Return the proven coefficients of the samples, shape (n,), given the solution."""
    dual = replace(dual, alpha=np.maximum(dual.y * coefs, 0.0))
    values: FloatVector = (dual.y * prove(dual, gap_ball(dual, u), norms)).sum(axis=0) + 0.0
    return values
