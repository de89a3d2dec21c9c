"""Base classes of classifiers and regressors that train on a cluster: scores of dask input, computed block by block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from dsgd.errors import DsgdError, InvalidDataError
from dsgd.inputs import lazy
from dsgd.inputs.blocks import BlockSummary
from dsgd.inputs.estimator import AbstractClusterEstimator
from dsgd.inputs.named import take_named
from dsgd.inputs.rows import unpacked
from dsgd.types import AnyArray


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
