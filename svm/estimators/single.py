"""Training shared by kernel SVMs that solve a single problem."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np

from dsgd.inputs import notifies_callbacks
from dsgd.inputs.docstrings import inherit_method_docs
from dsgd.inputs.named import takes_tables
from dsgd.inputs.prediction import AbstractClusterRegressor
from dsgd.svm.estimators.kernel_base import AbstractKernelSVM
from dsgd.svm.kernel_solver.merging import distribute
from dsgd.svm.kernel_solver.problem import Dual, Posed
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

    @notifies_callbacks
    @takes_tables
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train."""
        self._check_parameters()
        X = self._as_rows(X)

        def check() -> tuple[Any, Any, FloatVector]:
            rows, target, weights = self._check_training(X, y, sample_weight, y_numeric=True)
            return rows, np.asarray(target, dtype=np.float64), weights

        if self._uses_cluster(X):
            self._fit_on_cluster(X, y, sample_weight, check, classification=False, supervised=True)
        else:
            self._refuse_saving()
            self._fit_rows(*check())
        return self

    def predict(self, X: Any) -> Any:
        """Return the predicted targets."""
        if self._is_lazy(X):
            return self._apply("predict", X, None, np.float64)
        return np.asarray(self._sums(X)[:, 0] + self.intercept_[0])
