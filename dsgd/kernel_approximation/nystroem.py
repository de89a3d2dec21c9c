"""The Nystroem method: features made of the kernel's values at some of the rows.

Problem: random features are the same whatever the rows are; where rows lie near a few directions, or kernel values fall
fast, features made of rows need be far fewer.

Method: with M of the rows as basis, their kernel matrix K and the values k(x) of a row with each of them, the features
are ``K^(-1/2) k(x)``: inner products of features of basis rows are exact.

Cost: M kernel values and M^2 operations a row; once M^3. Rows are transformed a block at a time, so that no kernel
matrix of all rows exists beside the result.

Source: Williams and Seeger 2001 (Using the Nystroem method to speed up kernel machines).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Self

import numpy as np
import scipy.linalg
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.kernel_approximation import Nystroem as Plain
from sklearn.metrics.pairwise import KERNEL_PARAMS, pairwise_kernels
from sklearn.utils.validation import check_is_fitted

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.inputs.frames import validated
from dsgd.inputs.linear import copied, of_peer
from dsgd.local.features import blocks_of
from dsgd.saving import SavingMixin
from dsgd.types import AnyArray
from dsgd.validation import as_random_state, check_choice, check_number, warn_user

#: What is fitted, here and in scikit-learn.
_FITTED: Final = (
    *("components_", "component_indices_", "normalization_"),
    *("n_features_in_", "feature_names_in_", "_n_features_out"),
)

#: Below this a singular value counts as zero, as in scikit-learn.
_LEAST = 1e-12


@dataclass(eq=False, repr=False)
class Nystroem(SavingMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """The Nystroem method; equal to scikit-learn's to rounding, with the same `random_state`.

    Parameters
    ----------
    kernel : str, default "rbf"
        A kernel of `sklearn.metrics.pairwise.pairwise_kernels`: ``"rbf"``, ``"laplacian"``, ``"poly"``,
        ``"sigmoid"``, ``"linear"``, ``"cosine"``, ``"chi2"`` and others.
    gamma, coef0, degree : float or None, default None
        Parameters of the kernel; None leaves the default of scikit-learn.
    n_components : int, default 100
        Rows of the basis, and features.
    random_state : int, RandomState or None, default None
        Seed of the choice of the basis.

    Attributes
    ----------
    components_ : array or CSR matrix, shape (n_components, n_features)
        The basis.
    component_indices_ : array of int, shape (n_components,)
        Which rows it is of.
    normalization_ : array, shape (n_components, n_components)
        ``K^(-1/2)``, transposed.
    n_features_in_ : int
        Columns.
    """

    kernel: str = "rbf"
    _: KW_ONLY
    gamma: float | None = None
    coef0: float | None = None
    degree: float | None = None
    n_components: int = 100
    random_state: Any = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Choose the basis, and take the square root of its kernel matrix.

        Parameters
        ----------
        X : array or sparse matrix, shape (n_samples, n_features)
            Rows.
        y : object, default None
            Ignored.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            A parameter is outside its domain.
        """
        del y
        X = validated(self, X, accept_sparse="csr", dtype=[np.float64, np.float32])
        name = type(self).__name__
        check_choice(f"{name}(kernel=...)", self.kernel, tuple(KERNEL_PARAMS))
        check_number(f"{name}(n_components=...)", self.n_components, low=1, integer=True)
        n_rows, n_components = X.shape[0], int(self.n_components)
        if n_components > n_rows:
            warn_user(
                f"n_components > n_samples: {n_components} rows were asked for as basis, and there are {n_rows}. All "
                "of them are the basis.",
                UserWarning,
            )
        chosen = as_random_state(name, self.random_state).permutation(n_rows)[:n_components]
        basis = X[chosen]
        matrix = pairwise_kernels(basis, metric=self.kernel, filter_params=True, **self._parameters())
        if not np.isfinite(matrix).all():
            raise InvalidDataError(
                f"the kernel of some rows is not finite with {self._parameters()}. Scale X, or choose others."
            )
        U, S, V = scipy.linalg.svd(matrix)
        self.normalization_ = np.dot(U / np.sqrt(np.maximum(S, _LEAST)), V)
        self.components_, self.component_indices_ = basis, chosen
        self._n_features_out = basis.shape[0]
        return self

    def transform(self, X: Any) -> AnyArray:
        """Return the features of rows.

        Parameters
        ----------
        X : array or sparse matrix, shape (n_samples, n_features)
            Rows.

        Returns
        -------
        array, shape (n_samples, n_components)
            In single precision if rows and basis are.
        """
        check_is_fitted(self)
        X = validated(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        dtype = np.result_type(X.dtype, self.normalization_.dtype)
        transposed = np.ascontiguousarray(self.normalization_.T, dtype)
        out = np.empty((X.shape[0], transposed.shape[1]), dtype)
        for rows in blocks_of(out.shape[0], out.shape[1] * out.itemsize):
            values = pairwise_kernels(
                X[rows], self.components_, metric=self.kernel, filter_params=True, **self._parameters()
            )
            np.dot(values.astype(dtype, copy=False), transposed, out=out[rows])
        return out

    def to_sklearn(self) -> Any:
        """Return scikit-learn's transformer with the same basis.

        Returns
        -------
        sklearn.kernel_approximation.Nystroem
            Fitted; makes the same features without dsgd.
        """
        check_is_fitted(self)
        return copied(Plain(**self.get_params(deep=False)), self, _FITTED)

    @classmethod
    def from_sklearn(cls, model: Any) -> Self:
        """Return a transformer with the basis of scikit-learn's.

        Parameters
        ----------
        model : sklearn.kernel_approximation.Nystroem
            Fitted.

        Returns
        -------
        Nystroem
            Fitted; makes the same features.

        Raises
        ------
        InvalidParameterError
            `model` is another kind of transformer, or its kernel is not known by name and three parameters.
        """
        made: Self = copied(of_peer(cls, Plain, model), model, _FITTED)
        if not isinstance(model.kernel, str) or model.kernel_params:
            raise InvalidParameterError(
                f"{cls.__name__}.from_sklearn takes kernels by name, with gamma, coef0 and degree. Got {model!r:.80}."
            )
        return made

    def _parameters(self) -> dict[str, Any]:
        names = ("gamma", "coef0", "degree")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
