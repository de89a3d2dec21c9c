"""What searches have in common: parameters, folds, and tables of results.

The table of a search, with the columns of scikit-learn's.

What searches share: candidates and splits, the choice of the best, and what the best estimator then answers.

`AbstractSearchCV` is the base of `dsgd.model_selection.SGDSearchCV` and `dsgd.model_selection.SVMSearchCV`, which train
and score all candidates each in their own way. Names and meanings are those of `sklearn.model_selection.GridSearchCV`.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.ma import MaskedArray
from scipy.stats import rankdata
from sklearn.base import clone, is_classifier
from sklearn.metrics import check_scoring
from sklearn.model_selection import GridSearchCV, ParameterGrid, check_cv
from sklearn.utils.validation import indexable

from dsgd.errors import InvalidParameterError
from dsgd.inputs.rows import Rows
from dsgd.saving import SavingMixin
from dsgd.types import AnyArray, FloatMatrix
from dsgd.validation import check_bool, check_n_jobs


def make_results(
    candidates: Sequence[Mapping[str, Any]],
    times: Mapping[str, FloatMatrix],
    scores: Mapping[str, Mapping[str, FloatMatrix]],
    rungs: AnyArray,
) -> dict[str, Any]:
    """Return what `cv_results_` of a search of scikit-learn holds.

    - `rungs`, shape (n_candidates,): the last rung of each; candidates of a later one rank before all others.
    """
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
