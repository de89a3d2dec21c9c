"""Approximate kernels: transformers after which a linear model is nearly a kernel machine.

::

    model = make_pipeline(RandomFeatures(2000, gamma=0.1, random_state=0), SGDClassifier()).fit(X, y)

`RandomFeatures` draws its features without seeing rows (`dsgd.local.features` has the mathematics), `Nystroem` makes
them of some of the rows. Both are what scikit-learn's `RBFSampler` and `Nystroem` are, with further kinds, sparse rows,
single precision and blocks: a transformation needs no more memory than its result.

**The Nystroem method.** Random features are the same whatever the rows are; where rows lie near a few directions, or
kernel values fall fast, features made of rows need be far fewer. With M of the rows as basis, their kernel matrix K and
the values k(x) of a row with each of them, the features are ``K^(-1/2) k(x)``: inner products of features of basis rows
are exact. Cost: M kernel values and M^2 operations a row; once M^3. Rows are transformed a block at a time.

Source: Williams and Seeger 2001 (Using the Nystroem method to speed up kernel machines).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Literal, Self

import numpy as np
import scipy.linalg
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.kernel_approximation import Nystroem as Plain
from sklearn.kernel_approximation import RBFSampler
from sklearn.metrics.pairwise import KERNEL_PARAMS, pairwise_kernels
from sklearn.utils.validation import check_is_fitted

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.inputs.frames import validated
from dsgd.inputs.linear import copied, of_peer
from dsgd.local.features import FREQUENCIES, CosineMap, RandomMap, blocks_of, entries_of
from dsgd.named import Kind, part_of
from dsgd.saving import SavingMixin
from dsgd.types import AnyArray
from dsgd.validation import as_random_state, check_bool, check_choice, check_number, warn_user

__all__ = ["Nystroem", "RandomFeatures", "parse_features"]

#: What is fitted, here and in scikit-learn, whose formula is that of every kernel.
_FITTED: Final = ("random_weights_", "random_offset_", "n_features_in_", "feature_names_in_", "_n_features_out")


@dataclass(eq=False, repr=False)
class RandomFeatures(SavingMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Random Fourier features: ``sqrt(2 / M) cos(x W + b)``, whose inner products are a kernel, on average.

    The error of a kernel value is of the order of ``1 / sqrt(M)``. With the same `random_state` frequencies and offsets
    of ``kernel="rbf"`` are those of scikit-learn's `RBFSampler`, on every machine.

    Parameters
    ----------
    n_components : int, default 100
        Features M of a row.
    gamma : float, default 1.0
        Width of the kernel.
    kernel : {"rbf", "laplacian"}, default "rbf"
        ``exp(-gamma |x - z|^2)``, or ``exp(-gamma |x - z|_1)`` with the sum of absolute differences.
    orthogonal : bool, default False
        Whether frequencies are orthogonal, in blocks of as many as there are columns: less variance, for ``"rbf"``.
    random_state : int, RandomState or None, default None
        Seed of frequencies and offsets.

    Attributes
    ----------
    random_weights_ : array, shape (n_features, n_components)
        W.
    random_offset_ : array, shape (n_components,)
        b.
    n_features_in_ : int
        Columns.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[0.0, 1.0], [0.5, 1.0]])
    >>> Z = RandomFeatures(10_000, gamma=1.0, random_state=0).fit_transform(X)
    >>> bool(abs(Z[0] @ Z[1] - np.exp(-0.25)) < 0.02)
    True
    """

    n_components: int = 100
    _: KW_ONLY
    gamma: float = 1.0
    kernel: Literal["rbf", "laplacian"] = "rbf"
    orthogonal: bool = False
    random_state: Any = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Draw frequencies and offsets for as many columns as X has.

        Parameters
        ----------
        X : array or sparse matrix, shape (n_samples, n_features)
            Rows; only their number of columns and dtype count.
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
        self.check()
        drawn = self._map(0).draw(X.shape[1], as_random_state(type(self).__name__, self.random_state), X.dtype)
        self.random_weights_, self.random_offset_ = drawn.frequencies, drawn.offsets
        self._n_features_out = drawn.n_components
        return self

    def check(self) -> None:
        """Raise if a parameter is outside its domain.

        Raises
        ------
        InvalidParameterError
            Names it.
        """
        name = type(self).__name__
        check_number(f"{name}(n_components=...)", self.n_components, low=1, integer=True)
        check_number(f"{name}(gamma=...)", self.gamma, low=0.0, open_low=True)
        check_choice(f"{name}(kernel=...)", self.kernel, tuple(FREQUENCIES))
        check_bool(f"{name}(orthogonal=...)", self.orthogonal)
        if self.orthogonal and self.kernel != "rbf":
            raise InvalidParameterError(
                f"{name}(orthogonal=True) keeps kernel='rbf' unbiased, and no other. Got kernel={self.kernel!r}."
            )

    def as_map(self, seed: int) -> RandomMap:
        """Return what an estimator makes its features from.

        Parameters
        ----------
        seed : int
            Seed of the draws where `random_state` is None.

        Raises
        ------
        InvalidParameterError
            A parameter is outside its domain, or `random_state` is a stream, which other ranks do not have.
        """
        self.check()
        given = self.random_state
        if given is not None:
            where = f"{type(self).__name__}(random_state=...) inside an estimator"
            check_number(where, given, low=0, high=2**32 - 1, integer=True)
            seed = int(given)
        return self._map(seed)

    def _map(self, seed: int) -> RandomMap:
        return RandomMap(self.kernel, float(self.gamma), int(self.n_components), bool(self.orthogonal), seed)

    def transform(self, X: Any) -> AnyArray:
        """Return the features of rows.

        Parameters
        ----------
        X : array or sparse matrix, shape (n_samples, n_features)
            Rows.

        Returns
        -------
        array, shape (n_samples, n_components)
            In single precision if X is.
        """
        check_is_fitted(self)
        X = validated(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        if self.random_weights_.shape != (self.n_features_in_, *self.random_offset_.shape):  # compiled code trusts it
            raise InvalidDataError(
                f"The internal representation of {type(self).__name__} was altered: random_weights_ has the shape "
                f"{self.random_weights_.shape}, of {self.n_features_in_} columns. Fit again."
            )
        drawn = CosineMap(
            self.random_weights_.astype(X.dtype, copy=False), self.random_offset_.astype(X.dtype, copy=False)
        )
        out = np.empty((X.shape[0], drawn.n_components), X.dtype)
        drawn.write(*entries_of(X), out)
        return out

    def to_sklearn(self) -> Any:
        """Return scikit-learn's transformer with the same frequencies and offsets.

        Returns
        -------
        sklearn.kernel_approximation.RBFSampler
            Fitted; makes the same features without dsgd.
        """
        check_is_fitted(self)
        given = {name: getattr(self, name) for name in ("gamma", "n_components", "random_state")}
        return copied(RBFSampler(**given), self, _FITTED)

    @classmethod
    def from_sklearn(cls, model: Any) -> Self:
        """Return a transformer with the frequencies and offsets of scikit-learn's.

        Parameters
        ----------
        model : sklearn.kernel_approximation.RBFSampler
            Fitted.

        Returns
        -------
        RandomFeatures
            Fitted; makes the same features.

        Raises
        ------
        InvalidParameterError
            `model` is another kind of transformer.
        """
        made: Self = copied(of_peer(cls, RBFSampler, model), model, _FITTED)
        made.gamma = float(model._gamma)  # that of "scale"
        return made

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


_FEATURES: Final = Kind(
    "map to random features", RandomFeatures, "dsgd.kernel_approximation", {"rff": RandomFeatures}, "dsgd.features"
)


def parse_features(text: str) -> RandomFeatures | None:
    """Return the random features that a text names.

    Parameters
    ----------
    text : str
        ``none``; or ``rff``, with or without parameters: ``rff:2000,gamma=0.1``,
        ``rff:2000,kernel=laplacian,random_state=7``. The number of features may be without its name.

    Raises
    ------
    InvalidParameterError
        The text names none, or they have no such parameter, or its value is out of range.

    Examples
    --------
    >>> parse_features("rff:2000,gamma=0.1")
    RandomFeatures(gamma=0.1, n_components=2000)
    """
    if text == "none":
        return None
    found: RandomFeatures | None = part_of(_FEATURES, text, f"features {text!r}")
    if found is None:
        raise InvalidParameterError(
            f"No features {text!r}; give none, rff, or rff with parameters (rff:2000,gamma=0.1)."
        )
    # An estimator would find out only after the files were read.
    found.as_map(0)
    return found


#: What is fitted, here and in scikit-learn.
_FITTED_BY_ROWS: Final = (
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
        return copied(Plain(**self.get_params(deep=False)), self, _FITTED_BY_ROWS)

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
        made: Self = copied(of_peer(cls, Plain, model), model, _FITTED_BY_ROWS)
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
