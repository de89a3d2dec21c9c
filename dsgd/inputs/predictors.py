"""Predictions of linear classifiers and regressors: on arrays at once, on dask collections lazily, block by block."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dsgd.inputs.array_api import answers_in_kind
from dsgd.inputs.docstrings import inherit_method_docs
from dsgd.inputs.linear import AbstractLinearEstimator
from dsgd.inputs.scoring import AbstractClusterClassifier, AbstractClusterRegressor
from dsgd.types import AnyArray


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
