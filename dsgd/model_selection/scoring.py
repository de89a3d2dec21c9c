"""Scores of candidates, and which go on.

Scores of many models on the rows that their splits hold out.

The decisions of all models of a split are one product of the rows with a matrix, made in parts. Accuracy and R2 are
counted from them; any other scorer of scikit-learn gets an estimator that has its decisions already.

The course of a search: models train, scores are taken, and candidates drop out.

It is the same in this process and on every rank of a cluster: what it decides follows from scores and objectives that
all ranks have in common.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Final, NamedTuple

import numpy as np
from sklearn.metrics import get_scorer
from sklearn.utils.extmath import safe_sparse_dot

from dsgd.errors import InvalidDataError
from dsgd.estimators.base import AbstractSGD
from dsgd.local.base import Evaluation
from dsgd.local.objective import Deviance
from dsgd.model_selection.training import Model, Training
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


#: Returns the scores by metric of models, by their numbers, on the rows of a split of a kind (``"test"`` or
#: ``"train"``), and the seconds of each.
Score = Callable[[Sequence[int], int, str], tuple[Sequence[dict[str, float]], float]]


class Scores:
    """The scores of a search so far, (n_candidates, n_splits) of each kind and metric."""

    def __init__(self, training: Training, race: Race, n_candidates: int, n_splits: int, score: Score) -> None:
        self._training, self._race, self._score = training, race, score
        self.n_candidates, self._n_splits = n_candidates, n_splits
        shape = n_candidates, n_splits
        self.found = {kind: {name: np.full(shape, np.nan) for name in race.metrics} for kind in race.kinds}
        self.seconds = np.zeros(shape)

    def models_of(self, candidates: AnyArray) -> list[int]:
        """Return the numbers of the models of candidates."""
        n = self._n_splits
        return [int(candidate) * n + split for candidate in candidates for split in range(n)]

    def means(self, metric: str) -> AnyArray:
        """Return the mean test scores, shape (n_candidates,)."""
        means: AnyArray = self.found["test"][metric].mean(axis=1)
        return means

    def update(self, candidates: AnyArray) -> None:
        """Score the models of candidates as they are, which are settled."""
        models, n = self._training.models, self._n_splits
        for split in range(n):
            numbers = [int(candidate) * n + split for candidate in candidates]
            sound = [number for number in numbers if not models[number].problem]
            for kind, metrics in self.found.items():
                for number in set(numbers).difference(sound):
                    for values in metrics.values():
                        values[number // n, split] = self._race.of_failed(models[number].problem)
                if not sound:
                    continue
                found, seconds = self._score(sound, split, kind)
                for number, scores in zip(sound, found, strict=True):
                    self.seconds[number // n, split] += seconds if kind == "test" else 0.0
                    for name, value in scores.items():
                        metrics[name][number // n, split] = value


@dataclass(frozen=True)
class Race:
    """What is scored, and when candidates drop out."""

    metrics: tuple[str, ...]
    chooser: str
    kinds: tuple[str, ...]
    error_score: Any
    factor: float | None
    min_epochs: int

    def of_failed(self, problem: str) -> float:
        """Return the score of a model that failed, or raise `InvalidDataError`."""
        if self.error_score == "raise":
            raise InvalidDataError(problem)
        return float(self.error_score)

    def run(self, training: Training, scores: Scores) -> AnyArray:
        """Train all models, dropping candidates on the way if that is wanted; return the last rung of each."""
        n = scores.n_candidates
        rungs, competing = np.zeros(n, np.int64), np.arange(n)
        n_rungs = 1 if self.factor is None else 1 + math.floor(math.log(n) / math.log(self.factor) + 1e-9)
        for rung in range(n_rungs):
            is_last = rung == n_rungs - 1
            training.run(math.inf if is_last else round(self.min_epochs * (self.factor or 1.0) ** rung))
            training.settle(training.running)
            rungs[competing] = rung
            scores.update(competing)
            if not is_last:
                means = scores.means(self.chooser)
                ordered = competing[np.argsort(-np.nan_to_num(means[competing], nan=-np.inf), kind="stable")]
                n_left = math.ceil(len(competing) / (self.factor or 1.0))
                training.stop(scores.models_of(ordered[n_left:]))
                competing = np.sort(ordered[:n_left])
        return rungs
