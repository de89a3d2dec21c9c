"""Kernel SVMs of one problem: regression and one class.

The dual of `NuSVR` is that of `dsgd.svm.SVR` without ε: minimise ½ β'Kβ − z'β over β = α − α*, 0 ≤ α, α* ≤ C_i, with Σα
= Σα* = ν ΣC_i / 2. The sums are fixed each, so there are two groups of variables, each with its threshold: the tube
runs from one to the other. Source: Chang and Lin, "Training ν-support vector regression", Neural Computation 2002;
start and tolerance as in LIBSVM.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import OutlierMixin

from dsgd.inputs.callbacks import notifies_callbacks
from dsgd.inputs.docstrings import inherit_docs, inherit_method_docs
from dsgd.inputs.named import takes_tables
from dsgd.inputs.prediction import AbstractClusterRegressor
from dsgd.svm.estimators.kernel_base import AbstractKernelSVM, fill
from dsgd.svm.kernel_solver.problem import Dual, Posed
from dsgd.svm.kernels.rows import distribute
from dsgd.types import FloatMatrix, FloatVector, IntVector


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
        coefs = distribute((dual.y * solution.alpha).sum(axis=0), owner, bounds, total)
        support = np.flatnonzero(coefs)
        self._keep_support(X, support)
        self._n_support = np.array([len(support)], dtype=np.int32)
        self._keep_coefs(coefs[support][None], np.array([-solution.thresholds.mean()]), kernel)
        self._thresholds = solution.thresholds
        self.n_iter_ = solution.counts.n_iter
        self._take_in([solution])

    def _pair_coefs(self) -> FloatMatrix:
        return self._dense_coefs().T

    def _grouped_coefs(self) -> tuple[FloatMatrix, list[tuple[int, IntVector]]]:
        return self._dense_coefs().T, [(len(self.support_), np.zeros(1, dtype=np.int64))]


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
