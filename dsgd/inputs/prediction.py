"""Predictions of linear models, and their scores, on rows in memory and on clusters.

Arrays of other libraries: numpy inside, and results of the caller's kind where scikit-learn would return such.

scikit-learn computes in the library of X if ``sklearn.set_config(array_api_dispatch=True)``, and with numpy otherwise.
Kernels here read the memory of the host, so arrays on a CPU become numpy views, and results go back under the same
setting. An array on another device is refused: a copy of it is for the user to make.

Base classes of classifiers and regressors that train on a cluster: scores of dask input, computed block by block.

Predictions of linear classifiers and regressors: on arrays at once, on dask collections lazily, block by block.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from dsgd.errors import DsgdError, InvalidDataError
from dsgd.inputs import lazy
from dsgd.inputs.blocks import BlockSummary
from dsgd.inputs.docstrings import inherit_method_docs
from dsgd.inputs.estimator import AbstractClusterEstimator
from dsgd.inputs.linear import AbstractLinearEstimator
from dsgd.inputs.named import take_named
from dsgd.inputs.rows import unpacked
from dsgd.types import AnyArray


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
            return lazy.accuracy(self._without_client(), X, y, sample_weight)
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
            score = lazy.r2 if self._deviance is None else lazy.d2
            return score(self._without_client(), X, y, sample_weight)
        if self._deviance is not None:
            return lazy.d2_here(self, X, y, sample_weight)
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
