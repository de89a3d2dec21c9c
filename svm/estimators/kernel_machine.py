"""What all kernel SVMs share once they are fitted: parameters, the support vectors that are kept, and predictions."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from dsgd.errors import InvalidDataError
from dsgd.inputs.docstrings import inherit_method_docs
from dsgd.inputs.estimator import AbstractClusterEstimator
from dsgd.inputs.frames import validated
from dsgd.inputs.named import known_columns
from dsgd.svm.estimators.conversion import as_objects, compare, kernel_machine_from_sklearn, kernel_machine_to_sklearn
from dsgd.svm.kernel_solver.elimination import Elimination
from dsgd.svm.kernels.functions import Kernel
from dsgd.svm.kernels.products import kernel_sums, linear_sums
from dsgd.svm.kernels.threads import Pool, count_threads, open_pool
from dsgd.types import AnyArray, FloatMatrix, FloatVector

#: Rows of a given kernel matrix at a time in prediction.
_SLAB = 256

#: Below so many products of features, rows are predicted on one thread.
_FEW_PRODUCTS = 2**16


def canonical(X: Any) -> Any:
    """Return CSR with sorted columns, each once; the caller's matrix is not changed."""
    if sp.issparse(X) and not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    return X


@dataclass(eq=False, repr=False, kw_only=True)
class KernelParameters:
    """The parameters of all kernel SVMs, with scikit-learn's names and defaults where it has them."""

    kernel: Any = "rbf"
    degree: int = 3
    gamma: str | float = "scale"
    coef0: float = 0.0
    tol: float = 1e-3
    shrinking: bool = True
    cache_size: float = 200
    verbose: int | bool = False
    max_iter: int = -1
    elimination: str | Elimination = "auto"
    n_jobs: int | None = None
    client: Any = None


@inherit_method_docs
class AbstractKernelMachine(KernelParameters, AbstractClusterEstimator):
    """A kernel machine: coefficients of support vectors, by which it predicts."""

    support_: AnyArray
    support_vectors_: Any
    dual_coef_: Any
    intercept_: FloatVector
    _n_support: AnyArray
    _gamma: float

    #: The weights of features, with a linear kernel.
    _coef: Any

    #: The rows of the fit where they are objects, which only a callable kernel can compare.
    _objects: AnyArray | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = isinstance(self.kernel, str) and self.kernel == "precomputed"
        tags.input_tags.sparse = not tags.input_tags.pairwise
        return tags

    @abstractmethod
    def predict(self, X: Any) -> Any:
        """Return the predicted values.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, files of tables, dask array or dataframe, shape (n, n_features)
            Rows (dask input gives a lazy result); with ``"precomputed"``, kernel values with the training rows, shape
            (n, n_samples).
        """

    def _is_precomputed(self) -> bool:
        """Return whether kernel values are given, or were all computed at once, as those of objects are."""
        return self._objects is not None or (isinstance(self.kernel, str) and self.kernel == "precomputed")

    def _as_rows(self, X: Any) -> Any:
        """Return rows as the kernel takes them; see `as_objects`."""
        return as_objects(X) if callable(self.kernel) else X

    def _is_linear(self) -> bool:
        return isinstance(self.kernel, str) and self.kernel == "linear"

    def _form_of_rows(self) -> dict[str, Any]:
        """Return what rows may be; a callable kernel gets float64, because it computes in that type."""
        dtype = [np.float64] if callable(self.kernel) else [np.float64, np.float32]
        return {"accept_sparse": False if self._is_precomputed() else "csr", "dtype": dtype, "order": "C"}

    def _known_kernel(self) -> Kernel:
        if self._is_precomputed():
            return Kernel("precomputed")
        if callable(self.kernel):
            return Kernel("callable", function=self.kernel)
        return Kernel(self.kernel, float(self._gamma), float(self.coef0), float(self.degree))

    def to_sklearn(self) -> Any:
        """Return the plain scikit-learn estimator with the same support vectors and coefficients.

        Returns
        -------
        estimator
            The class of this name in `sklearn.svm`, fitted; predicts without dsgd. With a callable kernel, its training
            rows are the support vectors, and ``support_`` refers to these.
        """
        return kernel_machine_to_sklearn(self)

    @classmethod
    def from_sklearn(cls, model: Any) -> Self:
        """Return a machine with the support vectors and coefficients of scikit-learn's.

        Parameters
        ----------
        model : estimator
            The class of this name in `sklearn.svm`, fitted.

        Returns
        -------
        estimator
            A fitted estimator of this class with the same predictions. It has the certificate of a solution (`gap_`,
            `converged_`) only after its own ``fit``.

        Raises
        ------
        InvalidParameterError
            `model` is another kind of estimator.
        """
        made: Self = kernel_machine_from_sklearn(cls, model)
        return made

    def _sums(self, X: Any) -> FloatMatrix:
        """Return K(X, support vectors) times the coefficients of each problem, float64, shape (n, n_problems)."""
        self._check_fitted()
        self._check_support()
        X = self._as_rows(X) if callable(self.kernel) else known_columns(self, X)
        if self._objects is not None:
            X = compare(self.kernel, X, self._objects)
        X = validated(self, X, **self._form_of_rows(), reset=False)
        if hasattr(self, "_coef"):
            return linear_sums(X, self._coef)
        coefs, ends, columns = self._grouped_coefs()
        if self._is_precomputed():
            out = np.zeros((X.shape[0], len(self.intercept_)))
            for start in range(0, len(X), _SLAB):
                values, begin = X[start : start + _SLAB][:, self.support_], 0
                for end, of in zip(ends, columns, strict=True):
                    out[start : start + _SLAB, of] += values[:, begin:end] @ coefs[begin:end]
                    begin = end
            return out
        # Starting threads, or to limit those of BLAS, which starts none here, takes as long as so few products.
        is_small = X.shape[0] * len(coefs) * X.shape[1] < _FEW_PRODUCTS
        with contextlib.nullcontext(Pool(1, None)) if is_small else open_pool(count_threads(self.n_jobs), None) as pool:
            groups, n_out = (ends, columns), len(self.intercept_)
            return kernel_sums(self._known_kernel(), self.support_vectors_, coefs, groups, canonical(X), n_out, pool)

    def _check_fitted(self) -> None:
        """Raise `NotFittedError` before a fit; scikit-learn's check of a fitted machine takes as long as a row."""
        if "support_" not in vars(self):
            check_is_fitted(self)

    @abstractmethod
    def _grouped_coefs(self) -> tuple[FloatMatrix, list[int], AnyArray]:
        """Return coefficients, shape (n_SV, m), where groups of support vectors end, and the m problems of each."""

    def _check_support(self) -> None:
        """Refuse a machine, of a file maybe, whose numbers do not fit each other: compiled code trusts them."""
        (n,), counts, coefs = self.support_.shape, self._n_support, self.dual_coef_
        altered = f"The internal representation of {type(self).__name__} was altered: "
        if (counts < 0).any() or int(counts.sum()) != n:
            raise InvalidDataError(
                f"{altered}n_support_ counts {counts.tolist()} support vectors and there are {n}. Fit again."
            )
        if coefs.shape[1] != n or coefs.dtype != np.float64:
            raise InvalidDataError(
                f"{altered}{n} support vectors have {coefs.shape[1]} coefficients, {coefs.dtype}. Fit again."
            )
        if hasattr(self, "_coef") and self._coef.shape != (len(self.intercept_), self.n_features_in_):
            raise InvalidDataError(f"{altered}coef_ has the shape {self._coef.shape}. Fit again.")
        vectors = self.support_vectors_
        if not self._is_precomputed() and (vectors.shape != (n, self.n_features_in_) or vectors.dtype.kind != "f"):
            raise InvalidDataError(
                f"{altered}{n} support vectors are of the shape {vectors.shape}, {vectors.dtype}, and rows have "
                f"{self.n_features_in_} columns. Fit again."
            )

    @abstractmethod
    def _pair_coefs(self) -> FloatMatrix:
        """Return the coefficients of each problem, shape (n_SV, n_problems)."""

    @property
    def n_support_(self) -> AnyArray:
        """Number of support vectors of each class (or in total, without classes), int32, shape (n_classes,) or (1,)."""
        if not hasattr(self, "_n_support"):
            raise AttributeError("n_support_ is available after fit")
        return self._n_support

    @property
    def coef_(self) -> Any:
        """Weights of features, a row per problem solved, shape (n_problems, n_features); only with a linear kernel."""
        if not self._is_linear():
            raise AttributeError("coef_ is only available when using a linear kernel")
        check_is_fitted(self)
        coef = self._coef.copy() if sp.issparse(self._coef) else self._coef.view()
        (coef.data if sp.issparse(coef) else coef).flags.writeable = False
        return coef

    def _dense_coefs(self) -> FloatMatrix:
        self._check_fitted()
        coefs: Any = self.dual_coef_
        return np.asarray(coefs.toarray() if sp.issparse(coefs) else coefs)
