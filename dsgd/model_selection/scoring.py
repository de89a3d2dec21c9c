"""Scores of many models on the rows that their splits hold out.

The decisions of all models of a split are one product of the rows with a matrix, made in parts. Accuracy and R2 are
counted from them; any other scorer of scikit-learn gets an estimator that has its decisions already.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, Final, NamedTuple

import numpy as np
from sklearn.metrics import get_scorer
from sklearn.utils.extmath import safe_sparse_dot

from dsgd.estimators.base import AbstractSGD
from dsgd.local import Deviance, Evaluation
from dsgd.model_selection.training import Model
from dsgd.types import AnyArray, FloatMatrix

#: In place of a scorer: the ``score`` of an estimator.
OWN_SCORE: Final = "own"

# Of the rows that are copied at a time, and of decisions that are kept at a time.
_PART_BYTES: Final = 1 << 21
_DECISIONS_BYTES: Final = 1 << 24


def score_models(
    models: Sequence[Model],
    candidates: Sequence[AbstractSGD],
    data: tuple[Any, AnyArray, AnyArray | None],
    rows: AnyArray,
    scorers: Mapping[str, Any],
) -> tuple[list[dict[str, float]], float]:
    """Return the scores of models on some rows, by the names of the scorers, and the seconds of each model."""
    begin = time.perf_counter()
    X, y, weights = data
    is_counted = all(isinstance(scorer, str) for scorer in scorers.values())
    found: list[dict[str, float]] = []
    n_most = max(1, _DECISIONS_BYTES // max(1, 8 * len(rows) * models[0].optimizer.n_outputs))
    targets, taken = y[rows], None if is_counted else X[rows]
    weights = None if weights is None else weights[rows]
    more = {
        name: {} if weights is None or not takes_weights(each) else {"sample_weight": weights}
        for name, each in scorers.items()
    }
    named, mean = list(scorers.items()), math.nan
    if is_counted and not candidates[0]._is_classification:
        mean = float(np.average(targets.astype(np.float64), weights=weights))
    for first in range(0, len(models), n_most):
        part = list(range(first, min(len(models), first + n_most)))
        decisions = decisions_of([models[k] for k in part], X, rows)
        for place, k in enumerate(part):
            own = decisions[:, place]
            if is_counted:
                measure = measure_of(candidates[k])
                found.append(
                    {name: measure.score(s, measure.sums(s, own, targets, weights, mean)) for name, s in named}
                )
            else:
                model = fitted(candidates[k], models[k], X.shape[1])
                _know(model, own)
                found.append(
                    {name: float(_scorer_of(s)(model, taken, targets, **more[name])) for name, s in scorers.items()}
                )
    return found, (time.perf_counter() - begin) / len(models)


def fitted(candidate: AbstractSGD, model: Model, n_features: int) -> AbstractSGD:
    """Return an estimator with the weights of a model."""
    assert model.coef is not None
    assert model.intercept is not None
    candidate.coef_, candidate.intercept_ = candidate._shape_model(model.coef, model.intercept)
    candidate.n_features_in_, candidate.n_iter_ = n_features, model.n_iter
    return candidate


def measure_of(candidate: AbstractSGD) -> Measure:
    """Return how a candidate is scored, on targets as they were given."""
    classes = candidate._classes()
    return Measure(None if classes is None else np.asarray(classes), candidate._deviance)


def decisions_of(models: Sequence[Model], X: Any, rows: AnyArray) -> FloatMatrix:
    """Return X coef' + intercept of some rows, shape (n_rows, n_models, n_outputs)."""
    coef = np.concatenate([model.coef for model in models if model.coef is not None])
    intercept = np.concatenate([model.intercept for model in models if model.intercept is not None])
    found: FloatMatrix = np.empty((len(rows), len(coef)), coef.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        for low, high in _parts(len(rows), X):
            found[low:high] = safe_sparse_dot(X[rows[low:high]], coef.T, dense_output=True)
        found += intercept
    return found.reshape(len(rows), len(models), models[0].optimizer.n_outputs)


def _parts(n: int, X: Any) -> Iterator[tuple[int, int]]:
    """Yield the beginnings and ends of parts of n rows that are copied at a time."""
    nbytes = X.data.nbytes if hasattr(X, "indptr") else X.nbytes
    step = max(1, _PART_BYTES * X.shape[0] // max(1, nbytes))
    for low in range(0, n, step):
        yield low, min(n, low + step)


def takes_weights(scorer: Any) -> bool:
    """Return whether a scorer takes sample weights."""
    if isinstance(scorer, str):
        return True
    # What stands for scoring=None calls the `score` of an estimator.
    own = getattr(getattr(scorer, "_estimator", None), "score", scorer)
    return "sample_weight" in signature(getattr(scorer, "_score_func", own)).parameters


def _scorer_of(scorer: Any) -> Any:
    """Return the scorer of a name that is counted here where all scores are."""
    return get_scorer(scorer) if isinstance(scorer, str) else scorer


class Measure(NamedTuple):
    """How the decisions of a candidate become a score that is counted here."""

    classes: AnyArray | None
    deviance: Deviance | None

    def sums(
        self, name: str, decisions: FloatMatrix, targets: AnyArray, weights: AnyArray | None, mean: float
    ) -> Evaluation:
        """Return the sums that the accuracy, R2 or D2 of decisions is made of; those of several ranks add up."""
        weight_sum = float(len(targets) if weights is None else weights.sum())
        if self.classes is not None:
            is_binary = decisions.shape[1] == 1
            codes = (decisions[:, 0] > 0).astype(np.intp) if is_binary else decisions.argmax(axis=1)
            return Evaluation(weight_sum=weight_sum, n_correct=_total(self.classes[codes] == targets, weights))
        deviance, predicted = self.deviance, decisions[:, 0].astype(np.float64)
        if deviance is not None and name == OWN_SCORE:
            return deviance.sums(targets, predicted, weights)
        errors = np.square(targets - (predicted if deviance is None else deviance.means(predicted)))
        spread = _total(np.square(targets - mean), weights)
        return Evaluation(weight_sum=weight_sum, sq_error_sum=_total(errors, weights), y2_sum=spread)

    def score(self, name: str, found: Evaluation) -> float:
        """Return the score that sums over all rows make."""
        if self.classes is not None:
            return found.accuracy
        if self.deviance is not None and name == OWN_SCORE:
            return self.deviance.explained(found)
        if found.y2_sum == 0.0:  # as scikit-learn has it
            return 1.0 if found.sq_error_sum == 0.0 else 0.0
        return 1.0 - found.sq_error_sum / found.y2_sum


def _total(values: AnyArray, weights: AnyArray | None) -> float:
    return float(np.sum(values if weights is None else values * weights))


def _know(model: AbstractSGD, decisions: FloatMatrix) -> None:
    """Let an estimator answer with decisions that are there, whatever rows it is asked about."""
    known = decisions[:, 0] if decisions.shape[1] == 1 else decisions
    name = "decision_function" if model._is_classification else "predict"
    if model._deviance is not None:
        known = model._deviance.means(known)

    def answer(X: Any) -> AnyArray:
        return known

    # scikit-learn asks a method for its name.
    answer.__name__ = name
    setattr(model, name, answer)
