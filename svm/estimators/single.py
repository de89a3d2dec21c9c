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

from dsgd.inputs import is_collection, notifies_callbacks
from dsgd.inputs.docstrings import inherit_docs, inherit_method_docs
from dsgd.inputs.named import takes_tables
from dsgd.inputs.prediction import AbstractClusterRegressor
from dsgd.svm.estimators.kernel_base import AbstractKernelSVM, fill
from dsgd.svm.kernel_solver.elimination import Elimination
from dsgd.svm.kernel_solver.problem import Dual, Posed
from dsgd.svm.kernels.rows import distribute
from dsgd.types import FloatMatrix, FloatVector, IntVector
from dsgd.validation import check_number


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

    kernel: Any = "rbf"
    degree: int = 3
    gamma: str | float = "scale"
    coef0: float = 0.0
    tol: float = 1e-3
    C: float = 1.0
    epsilon: float = 0.1
    shrinking: bool = True
    cache_size: float = 200
    verbose: bool = False
    max_iter: int = -1
    elimination: str | Elimination = "auto"
    n_jobs: int | None = None
    client: Any = None

    def _check_problem(self) -> None:
        check_number("SVR(C=...)", self.C, low=0, open_low=True)
        check_number("SVR(epsilon=...)", self.epsilon, low=0)

    def _bounds(self, weights: FloatVector) -> FloatVector:
        return float(self.C) * weights

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
    kernel: Any = "rbf"
    degree: int = 3
    gamma: str | float = "scale"
    coef0: float = 0.0
    shrinking: bool = True
    tol: float = 1e-3
    cache_size: float = 200
    verbose: bool = False
    max_iter: int = -1
    elimination: str | Elimination = "auto"
    n_jobs: int | None = None
    client: Any = None

    def _check_problem(self) -> None:
        check_number("NuSVR(C=...)", self.C, low=0, open_low=True)
        check_number("NuSVR(nu=...)", self.nu, low=0, high=1, open_low=True)

    def _bounds(self, weights: FloatVector) -> FloatVector:
        return float(self.C) * weights

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
