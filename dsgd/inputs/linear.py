"""Linear models as every fit leaves them: coefficients, models of other packages, predictions and scores.

scikit-learn computes in the library of X if ``sklearn.set_config(array_api_dispatch=True)``, and with numpy otherwise.
Kernels here read the memory of the host, so arrays on a CPU become numpy views, and results go back under the same
setting. An array on another device is refused: a copy of it is for the user to make. Dask collections are predicted
lazily and scored block by block.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from dsgd.errors import DsgdError, InvalidDataError, InvalidParameterError, MissingPackageError
from dsgd.inputs.blocks import BlockSummary
from dsgd.inputs.docstrings import inherit_method_docs
from dsgd.inputs.estimator import AbstractClusterEstimator, accuracy, d2, d2_here, r2
from dsgd.inputs.frames import batches, validated
from dsgd.inputs.named import known_columns, take_named
from dsgd.inputs.rows import unpacked
from dsgd.inputs.table_files import are_table_files, with_files_opened
from dsgd.local.features import RandomMap, blocks_of, entries_of
from dsgd.types import AnyArray


class CoefficientsMixin:
    """A linear model that shows its coefficients."""

    def coefficients(self) -> Any:
        """Return the coefficients by the names of features, as a data frame.

        Those of an encoder are of its features: of standardised numbers, say.

        Returns
        -------
        pandas.DataFrame, shape (n_features * n_outputs, 4)
            ``feature``, ``column`` (of the table; missing where hashed columns share a feature), ``class`` (of a
            classifier; of two classes the second) and ``coefficient``.

        Raises
        ------
        MissingPackageError
            pandas is not installed.
        InvalidDataError
            The model is linear in random features, which have no names.
        """
        check_is_fitted(self)
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingPackageError("coefficients() needs pandas: pip install pandas") from error
        model: Any = self
        if getattr(model, "_random_map", None) is not None:
            raise InvalidDataError("coefficients() are of features of X, and this model is linear in random ones.")
        encoder = getattr(model, "encoder_", None)
        if encoder is not None:
            features, columns = encoder.get_feature_names_out(), encoder.columns_of_features()
        else:
            unnamed = np.array([f"x{k}" for k in range(model.n_features_in_)], dtype=object)
            features = columns = getattr(model, "feature_names_in_", unnamed)
        coef = model.coef_.toarray() if sp.issparse(model.coef_) else np.atleast_2d(model.coef_)
        found = {"feature": np.tile(features, len(coef)), "column": np.tile(columns, len(coef))}
        if hasattr(model, "classes_"):
            classes = model.classes_ if len(coef) == len(model.classes_) else model.classes_[1:]
            found["class"] = np.repeat(classes, coef.shape[1])
        return pd.DataFrame({**found, "coefficient": coef.ravel()})


def of_peer(kind: Any, peer: Any, given: Any) -> Any:
    """Return an estimator of a class, not fitted, with the parameters of a fitted one of scikit-learn."""
    if not isinstance(given, peer):
        home = ".".join(peer.__module__.split(".")[:2])
        raise InvalidParameterError(
            f"{kind.__name__}.from_sklearn(model=...) must be a fitted {home}.{peer.__name__}. Got {given!r:.60}."
        )
    check_is_fitted(given)
    known = kind._get_param_names()
    return kind(**{name: value for name, value in given.get_params(deep=False).items() if name in known})


def copied(to: Any, given: Any, names: Iterable[str]) -> Any:
    """Set copies of those attributes that there are; return `to`."""
    for name in names:
        if hasattr(given, name):
            value = getattr(given, name)
            setattr(to, name, value.copy() if hasattr(value, "copy") else value)
    return to


#: What is drawn to try a model of a file: whose columns are many may be made up.
_MOST_DRAWN: Final = 1 << 18

#: Rows of a table that are encoded together.
_BATCH_ROWS: Final = 65_536


class AbstractLinearEstimator(CoefficientsMixin, AbstractClusterEstimator):
    """A linear model, dense or sparse, which predicts from X coef' + intercept.

    Attributes
    ----------
    coef_ : array or CSR matrix, shape (n_features,) or (n_outputs, n_features)
        Coefficients.
    intercept_ : float or array, shape (n_outputs,)
        Intercepts.
    """

    coef_: Any
    intercept_: Any

    #: What the model is linear in, if that is not X.
    _random_map: RandomMap | None = None

    #: What makes rows of numbers of columns, fitted, if X is a table of any kind.
    encoder_: Any = None

    @property
    def _width(self) -> int:
        """Columns of the rows that the model is trained on."""
        return int(self.n_features_in_ if self.encoder_ is None else self.encoder_.n_features_out_)

    def _scores(self, X: Any) -> AnyArray:
        """Return X coef' + intercept, shape (n, n_outputs); X is in memory."""
        check_is_fitted(self)
        if self.encoder_ is not None:
            return self._scores_of_tables(X)
        X = known_columns(self, X)
        return self._scores_of_rows(
            validated(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        )

    def _scores_of_tables(self, X: Any) -> AnyArray:
        """Return the same of a table or of files, encoded part by part."""
        where, encoder = "the table", self.encoder_
        if are_table_files(X):
            files = with_files_opened(X)
            where, tables = repr(files), files.tables(encoder.columns_read_, encoder.wanted_)
        else:
            tables = [encoder.checked(X)]
        writer = encoder.writer()
        parts = (part for table in tables for part in batches(table, _BATCH_ROWS))
        scores = [self._scores_of_rows(writer.rows_of([part], len(part))) for part in parts]
        encoder.warn_of_unseen(writer, where)
        # Of no rows there are no parts, but columns of scores.
        return np.concatenate(scores) if scores else np.empty((0, np.size(self.intercept_)), self.coef_.dtype)

    def _scores_of_rows(self, X: Any) -> AnyArray:
        """Return the same of checked rows."""
        if self._random_map is not None:
            return self._scores_of_features(X, self._random_map)
        coef = self.coef_ if sp.issparse(self.coef_) else np.atleast_2d(self.coef_)
        with np.errstate(over="ignore", invalid="ignore"):
            scores: AnyArray = np.asarray(safe_sparse_dot(X, coef.T, dense_output=True)) + self.intercept_
        if scores.dtype == np.float32 and not np.isfinite(scores).all():
            # Products of large rows and weights are in the range of float64.
            scores = np.asarray(safe_sparse_dot(X.astype(np.float64), coef.T, dense_output=True)) + self.intercept_
        return scores

    def _scores_of_features(self, X: Any, given: RandomMap) -> AnyArray:
        """Return the same for a model that is linear in random features, which are made block by block."""
        drawn = given.drawn(self._width, X.dtype)
        coef = (self.coef_.toarray() if sp.issparse(self.coef_) else np.atleast_2d(self.coef_)).T
        scores: AnyArray = np.empty((X.shape[0], coef.shape[1]), np.result_type(coef, X))
        for rows in blocks_of(X.shape[0], drawn.n_components * X.dtype.itemsize):
            part = X[rows]
            features = np.empty((part.shape[0], drawn.n_components), X.dtype)
            drawn.write(*entries_of(part), features)
            scores[rows] = features @ coef
        scores += self.intercept_
        return scores

    def _row_to_try(self) -> Any:
        if self.encoder_ is not None:
            return self.encoder_._row_to_try()
        row, given = super()._row_to_try(), self._random_map
        if given is not None and row is not None:
            n_components = self.coef_.shape[-1]
            if given.n_components != n_components:
                raise InvalidDataError(f"coef_ is of {n_components} features, and {given.n_components} are drawn")
            if n_components * row.shape[1] > _MOST_DRAWN:
                return None
        return row

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def densify(self) -> Self:
        """Convert `coef_` to a dense array; the default.

        Returns
        -------
        self
        """
        check_is_fitted(self)
        if sp.issparse(self.coef_):
            self.coef_ = self.coef_.toarray()
        return self

    def sparsify(self) -> Self:
        """Convert `coef_` to a CSR matrix, which is smaller for models with many zeros (L1).

        Returns
        -------
        self
        """
        check_is_fitted(self)
        if not sp.issparse(self.coef_):
            self.coef_ = sp.csr_matrix(np.atleast_2d(self.coef_))
        return self


def as_numpy(X: Any, name: str = "X") -> Any:
    """Return an array of another library as one of numpy, a view if it can be; anything else as it is."""
    if isinstance(X, np.ndarray) or _namespace(X) is None:
        return X
    kind = type(X).__module__.partition(".")[0]
    device = str(getattr(getattr(X, "device", "cpu"), "type", getattr(X, "device", "cpu"))).lower()
    if kind == "cupy" or not ("cpu" in device or "host" in device):
        copy = {"cupy": f"{name}.get()", "torch": f"{name}.cpu()"}.get(kind, "a copy in memory of the host")
        raise InvalidDataError(
            f"{name} is an array of {kind} on the device {getattr(X, 'device', 'GPU')}, and ranks train on CPUs. "
            f"Pass {copy}."
        )
    return np.asarray(X.detach() if kind == "torch" else X)


def answers_in_kind(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that takes rows and returns an array: it gets numpy, and returns the kind of the rows.

    A decorator. The result is an array of the library of X if scikit-learn's ``array_api_dispatch`` is on.
    """

    @functools.wraps(method)
    def answering(estimator: Any, X: Any) -> Any:
        found = method(estimator, as_numpy(X))
        library = _namespace(X)
        if library is None or not isinstance(found, np.ndarray) or found.dtype.kind not in "fiub":
            return found
        from sklearn import get_config

        return library.asarray(found) if get_config()["array_api_dispatch"] else found

    return answering


def _namespace(X: Any) -> Any:
    """Return the library of an array that is not numpy's, None of anything else."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(X, torch.Tensor):
        return torch
    if isinstance(X, np.ndarray) or not hasattr(X, "__array_namespace__") or hasattr(X, "__dask_graph__"):
        return None
    return X.__array_namespace__()


def classes_of(summaries: Sequence[BlockSummary]) -> AnyArray:
    """Return the labels that blocks have between them, sorted."""
    found = [s.classes for s in summaries if s.classes is not None and len(s.classes)]
    labels: AnyArray = np.unique(np.concatenate(found))
    n_rows = sum(s.rows for s in summaries)
    # Whole numbers that come often enough are classes.
    if labels.dtype.kind not in "biu" or 2 * len(labels) > n_rows:
        # Of labels alone, each of which comes once, it would say that there are too many for so few rows.
        check_classification_targets(np.resize(labels, max(len(labels), min(n_rows, 4 * len(labels)))))
    return labels


class AbstractClusterClassifier(ClassifierMixin, AbstractClusterEstimator):
    """A classifier that can train on a cluster."""

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy; on dask input it is computed block by block.

        Parameters
        ----------
        X, y, sample_weight
            As for `fit`.

        Returns
        -------
        float
            Share of (weighted) rows that are predicted right.
        """
        X, y, sample_weight = take_named(*unpacked(X, y, sample_weight), classes=getattr(self, "classes_", None))
        if self._is_lazy(X):
            check_is_fitted(self)
            return accuracy(self._without_client(), X, y, sample_weight)
        return float(super().score(X, y, sample_weight))


class AbstractClusterRegressor(RegressorMixin, AbstractClusterEstimator):
    """A regressor that can train on a cluster."""

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return R2, or D2 of a loss with a log link; on dask input it is computed block by block.

        Parameters
        ----------
        X, y, sample_weight
            As for `fit`.

        Returns
        -------
        float
            1 - sum w (y - f)^2 / sum w (y - mean y)^2. With a log link each square is the deviance of a target from
            a mean instead, as in `sklearn.linear_model.PoissonRegressor`.
        """
        X, y, sample_weight = take_named(*unpacked(X, y, sample_weight))
        if self._is_lazy(X):
            check_is_fitted(self)
            score = r2 if self._deviance is None else d2
            return score(self._without_client(), X, y, sample_weight)
        if self._deviance is not None:
            return d2_here(self, X, y, sample_weight)
        try:
            return float(super().score(X, y, sample_weight))
        except DsgdError:
            raise
        except ValueError as error:  # of scikit-learn, of predictions that are not finite for instance
            raise InvalidDataError(f"{type(self).__name__}.score: {error}") from error


@inherit_method_docs
class AbstractLinearClassifier(AbstractClusterClassifier, AbstractLinearEstimator):
    """A linear classifier: one output for two classes, else one for each class against the rest."""

    classes_: AnyArray

    @answers_in_kind
    def decision_function(self, X: Any) -> Any:
        """Return the signed distances to the hyperplanes, up to scale.

        Returns
        -------
        array, shape (n,) or (n, n_classes)
            One column per class if there are more than two.
        """
        if self._is_lazy(X):
            check_is_fitted(self)
            k = len(self.classes_)
            return self._apply("decision_function", X, None if k == 2 else k, self.coef_.dtype)
        scores = self._scores(X)
        return scores.ravel() if scores.shape[1] == 1 else scores

    @answers_in_kind
    def predict(self, X: Any) -> Any:
        """Return the labels.

        Returns
        -------
        array, shape (n,)
            Predicted labels.
        """
        if self._is_lazy(X):
            check_is_fitted(self)
            return self._apply("predict", X, None, self.classes_.dtype)
        scores = self.decision_function(X)
        codes = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[codes]


@inherit_method_docs
class AbstractLinearRegressor(AbstractClusterRegressor, AbstractLinearEstimator):
    """A linear regressor, with one output, or of the logarithm of a mean."""

    @answers_in_kind
    def predict(self, X: Any) -> Any:
        """Return the predicted values."""
        if self._is_lazy(X):
            check_is_fitted(self)
            return self._apply("predict", X, None, self.coef_.dtype)
        scores = self._scores(X).ravel()
        return scores if self._deviance is None else self._deviance.means(scores)
