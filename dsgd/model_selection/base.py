"""What searches have in common: parameters, folds, tables of results, scores of candidates and which go on.

`AbstractSearchCV` is the base of `dsgd.model_selection.SGDSearchCV` and `dsgd.model_selection.SVMSearchCV`, which train
and score all candidates each in their own way. Names and meanings are those of `sklearn.model_selection.GridSearchCV`.

The decisions of all models of a split on the rows that it holds out are one product with a matrix, made in parts.
Accuracy and R2 are counted from them; any other scorer of scikit-learn gets an estimator that has its decisions
already. Which candidates drop out follows from scores and objectives that all ranks have in common.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.ma import MaskedArray
from scipy.stats import rankdata
from sklearn.base import clone, is_classifier
from sklearn.metrics import check_scoring, get_scorer
from sklearn.model_selection import GridSearchCV, ParameterGrid, check_cv
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import indexable

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.estimators.base import AbstractSGD
from dsgd.inputs.rows import Rows
from dsgd.local.base import Evaluation
from dsgd.local.objective import Deviance
from dsgd.model_selection.training import Model, Training
from dsgd.saving import SavingMixin
from dsgd.types import AnyArray, FloatMatrix
from dsgd.validation import check_bool, check_n_jobs


def make_results(
    candidates: Sequence[Mapping[str, Any]],
    times: Mapping[str, FloatMatrix],
    scores: Mapping[str, Mapping[str, FloatMatrix]],
    rungs: AnyArray,
) -> dict[str, Any]:
    """Return what `cv_results_` of a search of scikit-learn holds; candidates of a later rung rank first."""
    results: dict[str, Any] = {}
    for name, values in times.items():
        results[f"mean_{name}"], results[f"std_{name}"] = values.mean(axis=1), values.std(axis=1)
    names = sorted({name for candidate in candidates for name in candidate})
    for name in names:
        results[f"param_{name}"] = _column([candidate.get(name, _MISSING) for candidate in candidates])
    results["params"] = [dict(candidate) for candidate in candidates]
    for kind, metrics in scores.items():
        for metric, values in metrics.items():
            for split in range(values.shape[1]):
                results[f"split{split}_{kind}_{metric}"] = values[:, split]
            results[f"mean_{kind}_{metric}"] = values.mean(axis=1)
            results[f"std_{kind}_{metric}"] = values.std(axis=1)
            if kind == "test":
                results[f"rank_test_{metric}"] = ranked(values.mean(axis=1), rungs)
    return results


def ranked(means: AnyArray, rungs: AnyArray) -> AnyArray:
    """Return ranks from 1 of means, ties with the least; what is not a number ranks last, a later rung first."""
    ranks = np.empty(len(means), np.int32)
    before = 0
    for rung in sorted(set(rungs.tolist()), reverse=True):
        mine = np.flatnonzero(rungs == rung)
        values = np.where(np.isnan(means[mine]), -np.inf, means[mine])
        ranks[mine] = rankdata(-values, method="min").astype(np.int32) + before
        before += len(mine)
    return ranks


_MISSING = object()


def _column(values: Sequence[Any]) -> Any:
    """Return the values of a parameter as a masked array, masked where a candidate has none."""
    mask = [value is _MISSING for value in values]
    kept = [value for value in values if value is not _MISSING]
    is_number = all(isinstance(value, (bool, int, float, np.number)) for value in kept)
    dtype = np.array(kept).dtype if is_number else np.dtype(object)
    column: MaskedArray[Any, Any] = MaskedArray(np.empty(len(values), dtype), mask=mask)
    for place, value in enumerate(values):
        if value is not _MISSING:
            column[place] = value
    return column


class AbstractSearchCV(SavingMixin, GridSearchCV):
    """A search over parameters that predicts as scikit-learn's; `SGDSearchCV` and `SVMSearchCV` are the ones to use.

    A final class fits `cv_results_`, `scorer_` and what `_choose` sets.
    """

    _left_out: ClassVar = (*SavingMixin._left_out, "scorer_", "_scorers")

    cv_results_: dict[str, Any]

    # -- parts of a search ---------------------------------------------------------------------------------------

    @abstractmethod
    def _own_scorers(self) -> dict[str, Any]:
        """Return scorers by the names that they have in `cv_results_`."""

    def _check_options(self) -> None:
        name = type(self).__name__
        check_n_jobs(name, self.n_jobs)
        check_bool(f"{name}(return_train_score=...)", self.return_train_score)
        if self.error_score != "raise" and not isinstance(self.error_score, (int, float, np.number)):
            raise InvalidParameterError(
                f"{name}(error_score=...) must be 'raise' or a number. Got {self.error_score!r}."
            )

    def _settings(self) -> list[dict[str, Any]]:
        """Return the parameters of each candidate."""
        grid = self.param_grid
        if isinstance(grid, Mapping):
            return self._listed(grid)
        try:
            given = list(grid)
        except TypeError:
            given = [grid]
        if not all(isinstance(each, Mapping) for each in given):
            raise InvalidParameterError(
                f"{type(self).__name__}(param_grid=...) must be a grid, a list of them or an iterable of settings. "
                f"Got {grid!r}."
            )
        if isinstance(grid, (list, tuple)) and any(_is_listed(value) for each in given for value in each.values()):
            return self._listed(given)
        return [dict(each) for each in given]

    def _listed(self, grid: Any) -> list[dict[str, Any]]:
        try:
            return list(ParameterGrid(grid))
        except (TypeError, ValueError) as error:  # of names that are no texts, or no values
            raise InvalidParameterError(f"{type(self).__name__}(param_grid=...): {error}") from error

    def _name_scorers(self) -> dict[str, Any]:
        """Set `scorer_` and `multimetric_`; return scorers by name, "score" where there is one without."""
        scoring = self.scoring
        self.multimetric_ = isinstance(scoring, (list, tuple, set, Mapping))
        if not self.multimetric_:
            self.scorer_ = self._scorer_of(scoring)
            return {"score": self.scorer_}
        if not all(isinstance(name, str) for name in scoring):
            raise InvalidParameterError(f"{type(self).__name__}(scoring=...) has names that are no texts: {scoring!r}")
        named = dict(scoring) if isinstance(scoring, Mapping) else {name: name for name in scoring}
        self.scorer_ = {name: self._scorer_of(each) for name, each in named.items()}
        callable_ = callable(self.refit) or self.refit is False
        if not callable_ and self.refit not in named:
            raise InvalidParameterError(
                f"{type(self).__name__}(refit=...) must name the metric that chooses, be False or a function of "
                f"cv_results_, where there are several metrics: {', '.join(named)}. Got {self.refit!r}."
            )
        return dict(self.scorer_)

    def _scorer_of(self, scoring: Any) -> Any:
        try:
            return check_scoring(self.estimator, scoring)
        except (TypeError, ValueError) as error:
            raise InvalidParameterError(f"{type(self).__name__}(scoring=...): {error}") from error

    def _splits(self, X: Any, y: Any, groups: Any) -> list[tuple[AnyArray, AnyArray]]:
        """Return the numbers of the rows (train, test) of each split."""
        X, y, groups = indexable(X, y, groups)
        try:
            splitter = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        except (TypeError, ValueError) as error:
            raise InvalidParameterError(f"{type(self).__name__}(cv=...): {error}") from error
        n = X.shape[0] if hasattr(X, "shape") else len(X)
        splits = []
        for train, test in splitter.split(np.zeros((n, 0)) if not hasattr(X, "shape") else X, y, groups):
            parts = [
                np.flatnonzero(part) if np.asarray(part).dtype == bool else np.asarray(part) for part in (train, test)
            ]
            splits.append((parts[0], parts[1]))
        return splits

    def _chooser(self) -> str:
        """Return the name of the metric that chooses."""
        return str(self.refit) if self.multimetric_ else "score"

    def _choose(self, given: tuple[Any, Any, Any]) -> None:
        """Set the best candidate, and fit it if that is wanted."""
        for name in ("best_index_", "best_params_", "best_score_", "best_estimator_", "refit_time_"):
            self.__dict__.pop(name, None)
        results = self.cv_results_
        if callable(self.refit):
            self.best_index_ = int(self.refit(results))
        elif self.multimetric_ and self.refit is False:
            return
        else:
            self.best_index_ = int(np.argmin(results[f"rank_test_{self._chooser()}"]))
            self.best_score_ = float(results[f"mean_test_{self._chooser()}"][self.best_index_])
        self.best_params_ = results["params"][self.best_index_]
        if self.refit is False:
            return
        X, y, sample_weight = given
        best = clone(self.estimator).set_params(**self.best_params_)
        begin = time.perf_counter()
        self.best_estimator_ = best.fit(X) if isinstance(X, Rows) else best.fit(X, y, sample_weight=sample_weight)
        self.refit_time_ = time.perf_counter() - begin

    def _complete(self) -> None:
        for name in ("estimator", "best_estimator_"):
            if not isinstance(found := vars(self).get(name, self.estimator), SavingMixin):
                raise InvalidParameterError(f"{type(self).__name__}.{name} is no estimator: {found!r:.80}")
        if hasattr(self, "cv_results_"):
            self._scorers = self._own_scorers()

    def _row_to_try(self) -> Any:
        return self.best_estimator_._row_to_try() if hasattr(self, "best_estimator_") else None

    @property
    def feature_names_in_(self) -> AnyArray:
        """Names of the features, if X had names."""
        names: AnyArray = self.best_estimator_.feature_names_in_
        return names


def _is_listed(value: Any) -> bool:
    """Return whether a value of a setting is a list of values, as a grid has them."""
    return isinstance(value, (list, tuple, np.ndarray))


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
