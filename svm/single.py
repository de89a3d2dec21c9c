"""What kernel SVMs of one problem share: one dual solved, its coefficients dealt out to the rows."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin

from dsgd.svm.base import AbstractKernelSVM
from dsgd.svm.block import Dual
from dsgd.svm.merging import deal_out
from dsgd.types import AnyArray, FloatVector

__all__ = ["AbstractKernelRegressor", "AbstractSingleSVM"]


class AbstractSingleSVM(AbstractKernelSVM):
    """Kernel SVM of one problem; `SVR`, `NuSVR` and `OneClassSVM` are the ones to use."""

    @abstractmethod
    def _bounds(self, weights: FloatVector) -> FloatVector:
        """Return the upper bounds of the variables of all rows, shape (n,)."""

    @abstractmethod
    def _pose(self, target: FloatVector, bounds: FloatVector) -> Dual:
        """Return the dual of rows with these targets and bounds, shape (m,)."""

    def _train(self, X: Any, target: FloatVector, weights: FloatVector) -> None:
        bounds = self._bounds(weights)
        first, owner, total = self._merge(X, target, bounds)
        kernel = self._make_kernel(X, weights, first, owner)
        dual = self._pose(target[first], total)
        with self._open_pool() as pool:
            tol, limit = float(self.tol), int(self.max_iter)
            solution = self._solve(kernel, X, first, dual, tol, limit, pool, self._cache_bytes())
        if self.verbose:
            print(f"{solution.n_iter} steps, gap {solution.gap:.3g}")  # noqa: T201
        # Equal rows share a coefficient.
        coefs = deal_out((dual.y * solution.alpha).sum(axis=0), owner, bounds, total)
        support = np.flatnonzero(coefs)
        self._keep_support(X, support)
        self._keep_coefs(coefs[support][None], np.array([-solution.thresholds.mean()]))
        self._thresholds = solution.thresholds
        self.n_iter_ = solution.n_iter
        self._take_in([solution])

    @property
    def n_support_(self) -> AnyArray:
        """How many support vectors, int32, shape (1,)."""
        if not hasattr(self, "support_"):
            raise AttributeError("n_support_ is there after fit")
        return np.array([len(self.support_)], dtype=np.int32)

    @property
    def coef_(self) -> Any:
        """Weights of features, shape (1, n_features); only with a linear kernel."""
        return self._linear_coef(self._dense_coefs().T)


class AbstractKernelRegressor(RegressorMixin, AbstractSingleSVM):
    """Kernel regression; `SVR` and `NuSVR` are the ones to use."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame, shape (n_samples, n_features)
            Rows, float32 or float64; the kernel matrix, shape (n_samples, n_samples), with ``"precomputed"``.
        y : array-like, shape (n_samples,)
            Targets.
        sample_weight : array-like, shape (n_samples,), or None
            Weights; a whole number stands for that many copies of the row, zero for none.

        Returns
        -------
        self

        Raises
        ------
        InvalidDataError
            The data cannot be trained on.
        InvalidParameterError
            A parameter is out of range.
        """
        self._check_parameters()
        X, y, weights = self._check_training(X, y, sample_weight, y_numeric=True)
        self._train(X, np.asarray(y, dtype=np.float64), weights)
        return self

    def predict(self, X: Any) -> FloatVector:
        """Return predictions.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame, shape (n, n_features)
            Rows; with ``"precomputed"``, kernel values with the training rows, shape (n, n_samples).

        Returns
        -------
        array, shape (n,)
            Predicted targets.
        """
        return np.asarray(self._sums(X, self._dense_coefs().T)[:, 0] + self.intercept_[0])
