"""The support of a distribution by a kernel SVM: novelty and outlier detection."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import OutlierMixin
from sklearn.utils.validation import check_is_fitted

from dsgd.svm.base import AbstractKernelSVM
from dsgd.svm.block import Dual
from dsgd.svm.elimination import Elimination
from dsgd.types import AnyArray, FloatVector
from dsgd.validation import check_number

__all__ = ["OneClassSVM"]


class OneClassSVM(OutlierMixin, AbstractKernelSVM):
    """One-class SVM, to LIBSVM's optimum, certified as in `SVC`.

    Minimises ½ α'Kα over 0 ≤ α_i ≤ w_i with Σα = ν Σw: at most a share ν of the rows lie outside of the region found,
    and at least that share are support vectors. Parameters, defaults and fitted attributes are those of
    `sklearn.svm.OneClassSVM`.

    Parameters
    ----------
    kernel : {"linear", "poly", "rbf", "sigmoid", "precomputed"} or callable, default "rbf"
        The kernel, as for `SVC`.
    degree : float, default 3
        Degree of ``"poly"``.
    gamma : {"scale", "auto"} or float, default "scale"
        Width of rbf, poly and sigmoid.
    coef0 : float, default 0.0
        Constant of poly and sigmoid.
    tol : float, default 1e-3
        Stop when the largest violation of optimality, over all samples in float64, is below.
    nu : float, default 0.5
        Share of outliers at most and of support vectors at least, in (0, 1].
    shrinking : bool, default True
        False turns elimination off.
    cache_size : float, default 200
        Megabytes of cached kernel rows at most.
    verbose : bool, default False
        Print a line at the end.
    max_iter : int, default -1
        Two-variable steps at most; −1 is max(10⁷, 100 n).
    elimination : str or dsgd.svm.Elimination, default "auto"
        When samples that look settled are left out, as for `SVC`.
    n_jobs : int or None, default None
        Threads; None takes as many as BLAS may use, −1 all cores.

    Attributes
    ----------
    support_ : int32 array, shape (n_SV,)
        Rows that are support vectors.
    support_vectors_ : array or CSR matrix, shape (n_SV, n_features)
        Those rows; empty with ``"precomputed"``.
    n_support_ : int32 array, shape (1,)
        How many.
    dual_coef_ : array or CSR matrix, shape (1, n_SV)
        Their coefficients.
    intercept_ : array, shape (1,)
        Intercept of the decision function.
    offset_ : float
        What is taken off ``score_samples`` to give the decision function; minus the intercept.
    coef_ : array or CSR matrix, shape (1, n_features)
        Weights of features; only with ``kernel="linear"``.
    n_iter_ : int
        Two-variable steps.
    shape_fit_ : tuple
        Shape of the training data.
    fit_status_ : int
        0 if the gap closed, else 1.
    n_features_in_ : int
        Features seen in ``fit``.
    feature_names_in_ : array, shape (n_features,)
        Their names, if X had any.
    gap_, dual_objective_, converged_, n_eliminated_, n_returned_, n_reconstructions_, n_kernel_evaluations_
        As for `SVC`.
    elimination_history_
        As for `SVC`.
    """

    def __init__(
        self,
        *,
        kernel: Any = "rbf",
        degree: float = 3,
        gamma: str | float = "scale",
        coef0: float = 0.0,
        tol: float = 1e-3,
        nu: float = 0.5,
        shrinking: bool = True,
        cache_size: float = 200,
        verbose: bool = False,
        max_iter: int = -1,
        elimination: str | Elimination = "auto",
        n_jobs: int | None = None,
    ) -> None:
        self.kernel = kernel
        self.degree = degree
        self.gamma = gamma
        self.coef0 = coef0
        self.tol = tol
        self.nu = nu
        self.shrinking = shrinking
        self.cache_size = cache_size
        self.verbose = verbose
        self.max_iter = max_iter
        self.elimination = elimination
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame, shape (n_samples, n_features)
            Rows, float32 or float64; the kernel matrix, shape (n_samples, n_samples), with ``"precomputed"``.
        y : None
            Not used; there for pipelines.
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
        del y
        self._check_parameters()
        check_number("OneClassSVM(nu=...)", self.nu, low=0, high=1, open_low=True)
        X, _, weights = self._check_training(X, "no_validation", sample_weight)
        first, owner, total = self._merge(X, np.zeros(X.shape[0]), weights)
        kernel = self._make_kernel(X, weights, first, owner)
        # A feasible start, as LIBSVM's: the first variables are full, until the sum is reached.
        full = np.minimum(np.cumsum(total), float(self.nu) * total.sum())
        alpha = np.minimum(np.diff(full, prepend=0.0), total)
        dual = Dual(np.ones((1, len(first))), np.zeros((1, len(first))), total[None], alpha[None])
        with self._open_pool() as pool:
            solution = self._solve(kernel, X, first, dual, float(self.tol), pool, self._cache_bytes())
        if self.verbose:
            print(f"{solution.n_iter} steps, gap {solution.gap:.3g}")  # noqa: T201
        self._deal_out(X, solution.alpha[0], weights, owner, total, -solution.thresholds)
        self.offset_ = float(solution.thresholds[0])
        self.n_iter_ = solution.n_iter
        self._take_in([solution])
        return self

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

    def score_samples(self, X: Any) -> FloatVector:
        """Return the scores of rows, shape (n,): the decision function before the offset is taken off."""
        check_is_fitted(self)
        return self._sums(X, self._dense_coefs().T)[:, 0]

    def decision_function(self, X: Any) -> FloatVector:
        """Return signed distances up to scale, shape (n,): positive inside, negative outside.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame, shape (n, n_features)
            Rows; with ``"precomputed"``, kernel values with the training rows, shape (n, n_samples).

        Returns
        -------
        array, shape (n,)
            Decision values.
        """
        return np.asarray(self.score_samples(X) - self.offset_)

    def predict(self, X: Any) -> AnyArray:
        """Return 1 for rows inside of the region and −1 for the others, shape (n,)."""
        return np.where(self.decision_function(X) >= 0, 1, -1)
