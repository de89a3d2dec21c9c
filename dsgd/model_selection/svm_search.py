"""Searches over kernel SVMs that solve the C of each split one from another.

A search of eight C, three gammas and five folds is 120 cold fits and a last one. Neighbours in C have nearly the same
solution and need the same kernel rows, and beyond some C all have the very same solution. So candidates that differ in
C alone, by ascending C and on the training rows of one split, make a chain, which ends where C bounds no variable.

Two routes lead along a chain, and both end at every point as a cold fit does, to its tolerance:

* a path (`dsgd.svm.svm_path`), where a point starts from the one before and they share kernel rows. Where rows are so
  wide that a path keeps distances for its other widths, chains that differ in gamma alone follow one path;
* fits. Problems of few rows are solved faster by the solvers that a fit has for them (`dsgd.svm.kernel_solver.solve`,
  `dsgd.svm.kernel_solver.pairs`, and `dsgd.svm.kernel_solver.solve` for linear ones): to begin near the
  solution saves a seventh of the steps there, and hardly any time.

On either, a machine that has no variable at its upper bound is that of every larger C: higher bounds let no variable
move that could not move before. So it is neither solved nor scored again.

Cost: the kernel rows of a chain instead of those of each fit, and nothing for a C that is larger than all variables.

Source: DeCoste and Wagstaff, "Alpha seeding for support vector machines", KDD 2000, as in
`dsgd.svm.path`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import combinations
from typing import Any, Final, Self

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning
from sklearn.utils import _safe_indexing, column_or_1d, indexable

from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError
from dsgd.inputs.blocks import count_threads
from dsgd.inputs.named import take_tables
from dsgd.inputs.sources import is_distributed
from dsgd.model_selection.base import AbstractSearchCV, make_results, takes_weights
from dsgd.svm import SVC
from dsgd.svm.estimators.kernel import SVR
from dsgd.svm.kernels.cache import share_pays
from dsgd.svm.kernels.threads import open_pool
from dsgd.svm.path import svm_path
from dsgd.types import AnyArray
from dsgd.validation import warn_user

#: The rows of the largest problem from which a path is faster than fits.
LEAST_ON_PATH: Final = 1500

#: What is rounded where equal rows share a coefficient.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class Chain:
    """Candidates that differ in C, or in C and gamma, alone."""

    model: Any
    costs: tuple[float, ...]
    gammas: tuple[Any, ...]
    members: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Split:
    """The rows that a chain is solved on."""

    X: Any
    y: AnyArray
    weights: AnyArray | None


@dataclass(frozen=True)
class Point:
    """One point of a chain."""

    members: tuple[int, ...]
    is_first: bool
    make: Callable[[], Any]
    seconds: float


def make_chains(candidates: Sequence[Any], settings: Sequence[Mapping[str, Any]], *, join: bool) -> list[Chain]:
    """Return the chains of candidates; with `join` those that have all C in common are one for all gammas."""
    found: dict[str, dict[float, list[int]]] = {}
    for number, (candidate, setting) in enumerate(zip(candidates, settings, strict=True)):
        others = repr(sorted((name, value) for name, value in setting.items() if name not in ("C", "gamma")))
        key = f"{others} {candidate.gamma!r}"
        found.setdefault(key, {}).setdefault(float(candidate.C), []).append(number)
    groups: dict[str, list[list[tuple[float, list[int]]]]] = {}
    for key, by_cost in found.items():
        points = sorted(by_cost.items())
        others = key.rpartition(" ")[0]
        groups.setdefault(f"{others} {[cost for cost, _ in points]}" if join else key, []).append(points)
    chains = []
    for group in groups.values():
        widths = tuple(candidates[points[0][1][0]].gamma for points in group)
        members = tuple(tuple(numbers) for points in group for _, numbers in points)
        costs = tuple(cost for cost, _ in group[0])
        chains.append(Chain(candidates[members[0][0]], costs, widths, members))
    return chains


def follows_path(model: Any, y: AnyArray, n_points: int) -> bool:
    """Return whether the chain of a model follows a path on rows with these targets, not point by point."""
    has_curves = getattr(model, "probability", False) not in (False, "deprecated")
    if has_curves or model.solver != "block" or n_points == 1:
        return False
    if model._deployment.client is not None:  # where a gang starts once for all points
        return True
    if isinstance(model.kernel, str) and model.kernel == "linear":
        return False
    if isinstance(model, SVR):
        return 2 * len(y) >= LEAST_ON_PATH  # two variables for each row
    counts = np.unique(y, return_counts=True)[1].tolist()
    return max((a + b for a, b in combinations(counts, 2)), default=0) >= LEAST_ON_PATH


def make_points(chain: Chain, split: Split, n_jobs: int | None) -> Iterator[Point]:
    """Yield the points of a chain, all C of the first gamma, then of the next."""
    model = chain.model if n_jobs is None else clone(chain.model).set_params(n_jobs=n_jobs)
    spent, path = [0.0] * len(chain.members), None
    if follows_path(model, split.y, len(chain.members)):
        begin = time.perf_counter()
        options = {key: value for key, value in model.get_params(deep=False).items() if key not in ("C", "gamma")}
        kind, weights = SVC if isinstance(model, SVC) else SVR, split.weights
        # What cannot be solved at one width may be at others: fits find out.
        with contextlib.suppress(InvalidDataError):
            path = svm_path(
                split.X, split.y, Cs=chain.costs, gammas=chain.gammas, sample_weight=weights, estimator=kind, **options
            )
            seconds = [point.seconds for point in path.points]
            rest = max(0.0, time.perf_counter() - begin - sum(seconds)) / len(seconds)
            spent = [each + rest for each in seconds]

    def make(number: int) -> Any:
        if path is not None:
            return path.estimator(number)
        width, cost = divmod(number, len(chain.costs))
        point = clone(model).set_params(C=chain.costs[cost], gamma=chain.gammas[width])
        return point.fit(split.X, split.y, sample_weight=split.weights)

    for number, members in enumerate(chain.members):
        yield Point(members, number % len(chain.costs) == 0, partial(make, number), spent[number])


def is_inside(model: Any, split: Split) -> bool:
    """Return whether a fitted model has no variable at its upper bound, so that it is that of every larger C."""
    support = model.support_
    weights = np.ones(len(support)) if split.weights is None else np.asarray(split.weights, np.float64)[support]
    if isinstance(model, SVC):
        upper = model._bounds(np.searchsorted(model.classes_, split.y[support]), weights)
    else:
        upper = model._bounds(weights)
    return bool(model.converged_ and (np.abs(model._dense_coefs()) < (1.0 - _ROUNDING) * upper).all())


def shares_distances(estimator: Any, X: Any) -> bool:
    """Return whether a path over rows keeps their distances for its other widths."""
    return not callable(estimator.kernel) and hasattr(X, "shape") and share_pays(X)


@dataclass(eq=False, repr=False)
class SVMSearchCV(AbstractSearchCV):
    """Search for parameters of `dsgd.svm.SVC` or `dsgd.svm.SVR` in which each C starts from the solution of the last.

    Use it like `sklearn.model_selection.GridSearchCV`. Every model is that of a fit of its candidate on the training
    rows of its fold, to ``tol``: shared work makes the solver faster, but the final check of all rows is the same.
    Candidates may differ in any parameters; those that differ only in C share work. See :ref:`A grid inside a
    cross-validation <svm-search>`.

    Parameters
    ----------
    estimator : SVC or SVR
        An estimator of dsgd, not fitted. It supplies the parameters that candidates leave out. With ``client``, the
        workers solve each fold together, one fold after another.
    param_grid : dict, list of dict, or iterable of dict
        A grid as `GridSearchCV` takes it, or the candidates themselves, such as a
        `sklearn.model_selection.ParameterSampler`.
    scoring : str, callable, list, dict or None, default None
        As of `GridSearchCV`, except that a callable must return one number. None is accuracy, or R2 for a regressor.
        Sample weights count in scores, too, if the scorer takes them.
    n_jobs : int or None, default None
        Number of threads (None: 1, -1: one per core). With several, each solves a chain of its own, with a cache of its
        own. With one, a chain has the `n_jobs` of the estimator, as the final fit always has.
    refit : bool, str or callable, default True
        As of `GridSearchCV`: whether the best candidate is fitted on all rows; by which metric, if there are several;
        or a function of `cv_results_` that returns the index of the best.
    cv : int, splitter, iterable or None, default None
        As of `GridSearchCV`.
    error_score : float or "raise", default nan
        Score of a model that cannot be trained on the rows of its fold.
    return_train_score : bool, default False
        Whether to compute scores on the training rows as well.

    Attributes
    ----------
    cv_results_ : dict
        As of `GridSearchCV`. A model's ``fit_time`` is the time its C added to the chain; it is zero if the model is
        the same as at a smaller C.
    best_estimator_, best_score_, best_params_, best_index_, scorer_, n_splits_, refit_time_, multimetric_
        As of `GridSearchCV`.
    classes_ : array
        Labels of the best estimator, if it is a classifier.
    n_features_in_, feature_names_in_
        As of the best estimator.

    Examples
    --------
    >>> import numpy as np
    >>> from dsgd.model_selection import SVMSearchCV
    >>> from dsgd.svm import SVC
    >>> X = np.random.default_rng(0).standard_normal((300, 4))
    >>> y = (X**2).sum(axis=1) > 4
    >>> search = SVMSearchCV(SVC(), {"C": np.logspace(-1, 2, 6), "gamma": ["scale", 0.1]}, cv=3).fit(X, y)
    >>> len(search.cv_results_["params"]), search.best_score_ > 0.9
    (12, True)
    """

    estimator: Any
    param_grid: Any
    _: KW_ONLY
    scoring: Any = None
    n_jobs: int | None = None
    refit: Any = True
    cv: Any = None
    error_score: Any = np.nan
    return_train_score: bool = False

    def fit(self, X: Any, y: Any, *, groups: Any = None, sample_weight: Any = None) -> Self:
        """Search, and fit the best candidate on all rows.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, list or files of tables, shape (n_samples, n_features)
            Rows, in this process; the kernel matrix with ``kernel="precomputed"``.
        y : array-like or str, shape (n_samples,)
            Targets, or the name of their column.
        groups : array-like or None, shape (n_samples,)
            Groups, for splitters that keep them together.
        sample_weight : array-like, str or None, shape (n_samples,)
            Weights of the rows, in training and in scores, or the name of their column.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            A parameter, or one of a candidate, has an invalid value.
        IncompatiblePartsError
            The estimator is to write checkpoints.
        InvalidDataError
            No model can be trained on the rows of its fold, or one cannot and ``error_score="raise"``.
        """
        self._check_options()
        _check_base(self.estimator)
        settings = self._settings()
        if not settings:
            raise InvalidParameterError("SVMSearchCV(param_grid=...) has no candidate.")
        candidates = [clone(self.estimator).set_params(**setting) for setting in settings]
        for candidate in candidates:
            candidate._check_parameters()
        reader = next((each for each in candidates if callable(each.kernel)), self.estimator)
        (X, y, sample_weight), _ = take_tables(reader, reader._as_rows(X), y, sample_weight, here=True)
        _check_rows(X)
        self._scorers = self._own_scorers()
        splits = self._splits(X, y, groups)
        self.n_splits_ = len(splits)
        table = _Table(self, len(settings), len(splits))
        # Chains that share distances are solved together; others are more, and so easier to deal out.
        chains = make_chains(candidates, settings, join=shares_distances(reader, X) or self._has_gang)
        rows, targets, weights = indexable(X, y, sample_weight)
        data = rows, column_or_1d(targets, warn=True), None if weights is None else np.asarray(weights)
        self._solve(data, chains, splits, table)
        table.tell_failures()
        self.cv_results_ = make_results(settings, table.times, table.scores, np.zeros(len(settings), np.int64))
        self._choose((X, y, sample_weight))
        return self

    @property
    def _has_gang(self) -> bool:
        return self.estimator._deployment.client is not None

    def _own_scorers(self) -> dict[str, Any]:
        return self._name_scorers()

    def _solve(
        self,
        data: tuple[Any, AnyArray, AnyArray | None],
        chains: Sequence[Chain],
        splits: Sequence[tuple[AnyArray, AnyArray]],
        table: _Table,
    ) -> None:
        """Solve all chains on all splits, and fill the table."""
        tasks = [(number, chain) for chain in chains for number in range(len(splits))]
        n_threads = 1 if self._has_gang else min(count_threads(self.n_jobs), len(tasks))
        is_pairwise = self.estimator.__sklearn_tags__().input_tags.pairwise

        def solve(place: int, n_jobs: int | None) -> None:
            number, chain = tasks[place]
            train, test = splits[number]
            parts = {"test": _taken(data, test, train, pairwise=is_pairwise)}
            split = _taken(data, train, train, pairwise=is_pairwise)
            if self.return_train_score:
                parts["train"] = split
            table.fill(number, chain, split, parts, n_jobs)

        if n_threads == 1:
            for place in range(len(tasks)):
                solve(place, None)
            return
        with open_pool(n_threads) as pool:
            pool.slabs(lambda start, _: solve(start, 1), len(tasks), 1)


class _Table:
    """The scores and times of a search so far, (n_candidates, n_splits) of each kind and metric."""

    def __init__(self, search: SVMSearchCV, n_candidates: int, n_splits: int) -> None:
        self._scorers, self._error_score = search._scorers, search.error_score
        self._shape = n_candidates, n_splits
        kinds = ("test", "train") if search.return_train_score else ("test",)
        self.scores = {kind: {name: np.full(self._shape, np.nan) for name in self._scorers} for kind in kinds}
        self.times = {name: np.zeros(self._shape) for name in ("fit_time", "score_time")}
        self._problems: list[InvalidDataError] = []
        self._n_failed = 0

    def fill(self, number: int, chain: Chain, split: Split, parts: Mapping[str, Split], n_jobs: int | None) -> None:
        """Solve a chain on the split of a number, and score its models on parts of the rows."""
        last, scores = None, self._blank()
        for point in make_points(chain, split, n_jobs):
            if point.is_first or last is None or not is_inside(last, split):
                begin = time.perf_counter()
                last, scores = self._made(point), self._blank()
                fit_s = point.seconds + time.perf_counter() - begin
                begin = time.perf_counter()
                if last is not None:
                    scores = {kind: self._score(last, rows) for kind, rows in parts.items()}
                for name, seconds in (("fit_time", fit_s), ("score_time", time.perf_counter() - begin)):
                    self.times[name][list(point.members), number] = seconds / len(point.members)
            for kind, metrics in scores.items():
                for name, value in metrics.items():
                    self.scores[kind][name][list(point.members), number] = value

    def tell_failures(self) -> None:
        """Warn of models that could not be trained; raise where none could be."""
        n_models = self._shape[0] * self._shape[1]
        if self._problems and self._n_failed == n_models:
            raise self._problems[0]
        if self._problems:
            warn_user(
                f"{self._n_failed} of {n_models} models failed, and their scores are {self._error_score}. The first: "
                f"{self._problems[0]}",
                FitFailedWarning,
            )

    def _blank(self) -> dict[str, dict[str, float]]:
        """Return the scores of a model that failed."""
        value = np.nan if self._error_score == "raise" else float(self._error_score)
        return {kind: dict.fromkeys(self._scorers, value) for kind in self.scores}

    def _made(self, point: Point) -> Any:
        """Return the model of a point; None, which is noted, where its rows admit none."""
        try:
            return point.make()
        except InvalidDataError as error:
            if self._error_score == "raise":
                raise
            self._problems.append(error)
            self._n_failed += len(point.members)
            return None

    def _score(self, model: Any, rows: Split) -> dict[str, float]:
        """Return the scores of a model on some rows, by name."""
        return {
            name: float(
                scorer(model, rows.X, rows.y)
                if rows.weights is None or not takes_weights(scorer)
                else scorer(model, rows.X, rows.y, sample_weight=rows.weights)
            )
            for name, scorer in self._scorers.items()
        }


def _check_base(estimator: Any) -> None:
    """Raise where the search cannot train an estimator."""
    if not isinstance(estimator, SVC | SVR):
        raise InvalidParameterError(
            f"SVMSearchCV(estimator=...) must be an SVC or SVR of dsgd.svm. Got {estimator!r}. Use GridSearchCV for "
            "pipelines and other estimators, or transform the rows before."
        )
    gang = estimator._deployment
    if gang.checkpoint is not None or gang.resume_from is not None:
        raise IncompatiblePartsError(
            "SVMSearchCV writes no checkpoints: client=Gang(checkpoint=..., resume_from=...) does not go with it. "
            "Leave both out, and set them on an estimator of best_params_."
        )


def _check_rows(X: Any) -> None:
    """Raise where rows are elsewhere."""
    if is_distributed(X):
        raise InvalidDataError(
            f"SVMSearchCV takes folds of arrays of this process, X is a {type(X).__name__}: load it, or take "
            "dsgd.svm.svm_path and rows that are held out."
        )


def _taken(data: tuple[Any, AnyArray, AnyArray | None], rows: AnyArray, train: AnyArray, *, pairwise: bool) -> Split:
    """Return some rows of the data; of a kernel matrix the columns of the rows to train on."""
    X, y, weights = data
    part = np.asarray(X)[np.ix_(rows, train)] if pairwise else _safe_indexing(X, rows)
    return Split(part, y[rows], None if weights is None else weights[rows])
