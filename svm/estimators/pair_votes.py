"""Prediction of kernel classifiers from pairs of classes: votes and probabilities."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.exceptions import NotFittedError
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dsgd.errors import InvalidParameterError
from dsgd.inputs.docstrings import inherit_method_docs
from dsgd.inputs.prediction import AbstractClusterClassifier
from dsgd.svm.calibration import couple, normalised
from dsgd.svm.estimators.calibrated import AbstractCalibrated
from dsgd.svm.estimators.kernel_machine import AbstractKernelMachine
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector
from dsgd.validation import warn_user

#: Numbers of pairs, each under both of its classes, that are held at once.
_HELD = 2**17


@lru_cache(maxsize=16)
def _columns_of(k: int) -> AnyArray:
    """Return which pairs each of k classes is in, by the number of the other class, shape (k, k - 1)."""
    columns = np.empty((k, k), dtype=np.int64)
    for number, (a, b) in enumerate(combinations(range(k), 2)):
        columns[a, b] = columns[b, a] = number
    return columns[~np.eye(k, dtype=np.bool_)].reshape(k, k - 1)


def _has_probabilities(model: AbstractPairVotes) -> bool:
    if not model._is_calibrated():
        raise AttributeError("predict_proba is not available when probability=False")
    return True


@inherit_method_docs
class AbstractPairVotes(AbstractCalibrated, AbstractClusterClassifier, AbstractKernelMachine):
    """Kernel classifier as it predicts; `dsgd.svm.estimators.one_vs_one.AbstractKernelClassifier` trains it."""

    decision_function_shape: str
    break_ties: bool
    probability: bool | str

    classes_: AnyArray

    #: A and B of each pair, shape (2, n_pairs); (2, 0) where none were fitted.
    _sigmoids: FloatMatrix

    def _is_calibrated(self) -> bool:
        return bool(self.probability) and self.probability != "deprecated"

    def _sign_of_first(self) -> float:
        """Return the sign that the first class of a pair has; with two classes, positive means the second."""
        return -1.0 if len(self.classes_) == 2 else 1.0

    def _pair_coefs(self) -> FloatMatrix:
        """Return the coefficients of each pair of classes, shape (n_SV, n_pairs)."""
        coefs = self._dense_coefs()
        k = len(self.classes_)
        ends = np.concatenate([[0], np.cumsum(self._n_support)])
        out = np.zeros((coefs.shape[1], k * (k - 1) // 2))
        for column, (a, b) in enumerate(combinations(range(k), 2)):
            out[ends[a] : ends[a + 1], column] = coefs[b - 1, ends[a] : ends[a + 1]]
            out[ends[b] : ends[b + 1], column] = coefs[a, ends[b] : ends[b + 1]]
        return out

    @property
    def probA_(self) -> FloatVector:  # noqa: N802
        """Slopes of the sigmoids of all pairs; deprecated."""
        return self._sigmoid("probA_", 0)

    @property
    def probB_(self) -> FloatVector:  # noqa: N802
        """Shifts of the sigmoids of all pairs; deprecated."""
        return self._sigmoid("probB_", 1)

    def _sigmoid(self, name: str, row: int) -> FloatVector:
        if not hasattr(self, "_sigmoids"):
            raise AttributeError(f"{name} is available after fit")
        warn_user(
            f"Attribute `{name}` was deprecated by scikit-learn 1.9 and is removed when theirs is.",
            FutureWarning,
        )
        return np.asarray(self._sigmoids[row])

    def _grouped_coefs(self) -> tuple[FloatMatrix, list[tuple[int, IntVector]]]:
        # The support vectors of a class have a coefficient for each of its pairs only, not for all.
        columns = _columns_of(len(self.classes_))
        return self._dense_coefs().T, list(zip(np.cumsum(self._n_support).tolist(), columns, strict=True))

    def _pair_scores(self, X: Any) -> FloatMatrix:
        return np.asarray(self._sums(X) + self.intercept_)

    def decision_function(self, X: Any) -> Any:
        """Return decision values.

        Returns
        -------
        array, shape (n,), (n, n_classes) or (n, n_classes * (n_classes - 1) / 2)
            With two classes, positive means the second; of a pair, positive means the first. ``"ovr"`` counts votes and
            breaks ties by the sums of decision values.
        """
        if self._is_lazy(X):
            check_is_fitted(self)
            k = len(self.classes_)
            columns = k if self.decision_function_shape == "ovr" else k * (k - 1) // 2
            return self._apply("decision_function", X, None if k == 2 else columns, np.float64)
        scores = self._pair_scores(X)
        if scores.shape[1] == 1:
            return scores[:, 0]
        if self.decision_function_shape == "ovo":
            return scores
        votes, sums = self._votes(scores >= 0), self._score_sums(scores)
        return np.asarray(votes + sums / (3 * (np.abs(sums) + 1)))

    def _votes(self, is_first: AnyArray) -> FloatMatrix:
        """Return how many votes each class has, by which class of each pair a row is given to, (n, n_classes)."""
        return self._by_class(is_first, lambda mine, leads: (mine == leads).sum(axis=2))

    def _score_sums(self, scores: FloatMatrix) -> FloatMatrix:
        """Return the sums of the decision values of each class, (n, n_classes)."""
        # One after the other: sums of the same numbers in another order have other last digits.
        return self._by_class(scores, lambda mine, leads: np.cumsum(np.where(leads, mine, -mine), axis=2)[:, :, -1])

    def _by_class(self, of_pairs: AnyArray, work: Callable[[AnyArray, AnyArray], AnyArray]) -> FloatMatrix:
        """Return what `work` makes of what each class has in its pairs, (n, k, k - 1), and of where it is the first."""
        k = len(self.classes_)
        columns, leads = _columns_of(k), np.arange(k)[:, None] <= np.arange(k - 1)
        out, step = np.empty((len(of_pairs), k)), max(1, _HELD // (k * k))
        for start in range(0, len(of_pairs), step):
            out[start : start + step] = work(of_pairs[start : start + step, columns], leads)
        return out

    def predict(self, X: Any) -> Any:
        """Return the labels.

        Returns
        -------
        array, shape (n,)
            Predicted labels.

        Raises
        ------
        InvalidParameterError
            ``break_ties`` with ``decision_function_shape="ovo"``.
        """
        self._check_fitted()
        if self.break_ties and self.decision_function_shape == "ovo":
            raise InvalidParameterError("break_ties must be False when decision_function_shape is 'ovo'")
        if self._is_lazy(X):
            return self._apply("predict", X, None, self.classes_.dtype)
        scores = self._pair_scores(X)
        # To LIBSVM a score of zero names the second class of a pair, in `decision_function` of scikit-learn the first.
        if scores.shape[1] == 1:
            return np.asarray(self.classes_[(scores[:, 0] >= 0).astype(np.intp)])
        votes = self._votes(scores >= 0 if self.break_ties else scores > 0)
        if self.break_ties:
            sums = self._score_sums(scores)
            votes = votes + sums / (3 * (np.abs(sums) + 1))
        return np.asarray(self.classes_[np.argmax(votes, axis=1)])

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> Any:
        """Return class probabilities; only with a `probability`.

        The class of the largest need not be the one that `predict` names: probabilities come from machines of parts of
        the rows, labels from the votes of the machines of all. With two classes and ``"isotonic"`` they may be zero.

        Returns
        -------
        array, shape (n, n_classes)
            Probabilities, in the order of ``classes_``.
        """
        check_is_fitted(self)
        if self._curve_method() is None and not self._sigmoids.shape[1]:
            raise NotFittedError("predict_proba is not available when fitted with probability=False")
        if self._is_lazy(X):
            return self._apply("predict_proba", X, len(self.classes_), np.float64)
        if self._curve_method() is not None:
            positive = self._positive_probabilities(self._pair_scores(X))
            return normalised(positive) if len(self.classes_) == 2 else couple(positive, len(self.classes_))
        scale, shift = self._sigmoids
        return couple(expit(-(scale * self._sign_of_first() * self._pair_scores(X) + shift)), len(self.classes_))

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithm of `predict_proba`, shape (n, n_classes)."""
        check_is_fitted(self)
        if self._is_lazy(X):
            return self._apply("predict_log_proba", X, len(self.classes_), np.float64)
        with np.errstate(divide="ignore"):  # the logarithm of zero is what it should be
            return np.log(self.predict_proba(X))
