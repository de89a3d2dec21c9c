"""`OneClassSVM`: novelty and outlier detection with kernels."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import OutlierMixin

from dsgd.comm.base import TransportName
from dsgd.inputs import is_collection, notifies_callbacks
from dsgd.inputs.docstrings import inherit_docs
from dsgd.inputs.named import takes_tables
from dsgd.runtime.checkpoints.checkpoint import Checkpoint
from dsgd.runtime.timeouts import FailurePolicy
from dsgd.svm.estimators.kernel_base import fill
from dsgd.svm.estimators.single import AbstractSingleSVM
from dsgd.svm.kernel_solver.elimination import Elimination
from dsgd.svm.kernel_solver.problem import Dual
from dsgd.types import FloatVector
from dsgd.validation import check_number


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

    _IS_BALANCED: ClassVar[bool] = False

    kernel: Any = "rbf"
    degree: int = 3
    gamma: str | float = "scale"
    coef0: float = 0.0
    tol: float = 1e-3
    nu: float = 0.5
    shrinking: bool = True
    cache_size: float = 200
    verbose: bool = False
    max_iter: int = -1
    elimination: str | Elimination = "auto"
    n_jobs: int | None = None
    client: Any = None
    transport: TransportName = "auto"
    on_failure: FailurePolicy = "raise"
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None
    resume_from: str | os.PathLike[str] | None = None

    @notifies_callbacks
    @takes_tables
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, dask array or dataframe, list of delayed blocks, or files
            Rows, shape (n_samples, n_features), float32 or float64; the kernel matrix, shape (n_samples, n_samples),
            with ``"precomputed"``. A delayed block is a tuple (X,), (X, y) or (X, y, sample_weight). Files are
            svmlight, Parquet, CSV or Arrow.
        y : None
            Ignored; accepted for use in pipelines. Of tables and files, the column of this name is no feature.
        sample_weight : array-like or str, shape (n_samples,), or None
            Weights, or the name of their column; a whole number stands for that many copies of the row, zero or less
            for none.
        """
        self._check_parameters()
        X = self._as_rows(X)

        def check() -> tuple[Any, Any, FloatVector]:
            rows, _, weights = self._check_training(X, None, sample_weight)
            return rows, np.zeros(rows.shape[0]), weights

        if self._uses_cluster(X):
            labels = y if is_collection(y) else None
            self._fit_on_cluster(X, labels, sample_weight, check, classification=False, supervised=False)
        else:
            self._refuse_saving()
            self._fit_rows(*check())
        self.offset_ = -float(self.intercept_[0])
        return self

    def _check_problem(self) -> None:
        check_number("OneClassSVM(nu=...)", self.nu, low=0, high=1, open_low=True)

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
