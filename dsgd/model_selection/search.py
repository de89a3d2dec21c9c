"""The search for parameters of linear models that trains all candidates on all folds at once.

Problem: a search of 64 candidates with five folds is 320 fits and a last one. Each of them copies its rows, checks and
hashes them, and reads them anew in every epoch, and each of its steps waits for the one before.

Method: the models are columns of one weight matrix (`dsgd.kernels.columns`). All of them walk the same rows in the same
order, that of a fit on all rows, and a column skips the rows that its fold holds out; nothing is copied. With
``factor=`` candidates are dropped as training goes on (successive halving): the resource is epochs.

Cost: an epoch reads the rows once, or once a thread, and computes two products of an entry and a weight for each entry,
candidate and fold.

Source: one matrix for many models is textbook material (the class-against-rest models of LIBLINEAR and Vowpal Wabbit);
successive halving is Jamieson and Talwalkar 2016, with epochs as Li et al. 2018 (Hyperband) have it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.estimators.base import AbstractSGD
from dsgd.inputs import count_threads
from dsgd.inputs.rows import Rows, refuse_beside
from dsgd.model_selection.base import AbstractSearchCV
from dsgd.model_selection.candidates import check_base, check_candidates, make_models, pack_rows
from dsgd.model_selection.results import make_results
from dsgd.model_selection.scoring import OWN_SCORE, score_models
from dsgd.model_selection.training import Training
from dsgd.types import AnyArray
from dsgd.validation import check_number

__all__ = ["SGDSearchCV"]

#: The scores that need no scorer, of classifiers and of regressors.
_OWN_SCORES = {True: "accuracy", False: "r2"}


class SGDSearchCV(AbstractSearchCV):
    """Search for parameters of `SGDClassifier` or `SGDRegressor` that trains all candidates on all folds in one pass.

    It is used as `sklearn.model_selection.GridSearchCV`, and with ``factor=`` as its successive halving. All models are
    columns of one weight matrix: an epoch reads the rows once, however many candidates and folds there are. See
    :doc:`/model-selection`.

    Every model is trained as ``fit`` of its candidate on one rank, on the rows of its fold: the same steps, rates and
    stopping rule. Rows come in the order of a fit on *all* rows, those that the fold holds out left away. With
    ``shuffle=False`` that is the order of a fit on the rows of the fold, so both give the same model but for rounding
    (sums are taken in another order); with ``shuffle=True`` that fit would draw another order, and scores differ as
    those of two seeds do.

    Parameters
    ----------
    estimator : SGDClassifier or SGDRegressor
        Of dsgd, for arrays of this process; not fitted. Parameters that candidates do not have are its own.
    param_grid : dict, list of dict, or iterable of dict
        A grid as `GridSearchCV` takes it, or the candidates themselves, such as a
        `sklearn.model_selection.ParameterSampler`. They may differ in alpha, penalty, l1_ratio, loss, epsilon,
        learning_rate, eta0, power_t, class_weight, fit_intercept, max_iter, tol and n_iter_no_change.
    factor : float or None, default None
        With a number above 1, only one candidate in `factor` goes on after `min_epochs` epochs, one in its square after
        `factor` times as many, and so on (successive halving). None trains all candidates to their end.
    min_epochs : int, default 1
        Epochs before the first candidates are dropped.
    scoring : str, callable, list, dict or None, default None
        As of `GridSearchCV`, but that a callable returns one number. None is accuracy, or R2 of a regressor. Sample
        weights count in scores too, as far as scorers take them.
    n_jobs : int or None, default None
        Threads that share the columns (None: 1, -1: one per core). It changes no bit of the results. The last fit has
        the `n_jobs` of the estimator.
    refit : bool, str or callable, default True
        As of `GridSearchCV`: whether the best candidate is fitted on all rows; by which metric, if there are several;
        or a function of `cv_results_` that returns the index of the best.
    cv : int, splitter, iterable or None, default None
        As of `GridSearchCV`. Splits may overlap; rows in neither part are in neither part.
    error_score : float or "raise", default nan
        The score of a model that leaves the range of numbers.
    return_train_score : bool, default False
        Whether to score on the training rows too.

    Attributes
    ----------
    cv_results_ : dict
        As of `GridSearchCV`, with ``mean_n_iter``, the epochs of a candidate, and ``rung``, how often it went on. A
        model's ``fit_time`` is its share of the seconds of the epochs that it took part in. Candidates of a later rung
        rank before others.
    best_estimator_, best_score_, best_params_, best_index_, scorer_, n_splits_, refit_time_, multimetric_
        As of `GridSearchCV`.
    n_epochs_ : int
        Epochs of the search: passes over the rows.
    classes_ : array
        Labels of the best estimator, if it classifies.
    n_features_in_, feature_names_in_
        As of the best estimator.

    Examples
    --------
    >>> import numpy as np
    >>> from dsgd import SGDClassifier
    >>> from dsgd.model_selection import SGDSearchCV
    >>> X = np.random.default_rng(0).standard_normal((300, 4))
    >>> y = X[:, 0] + X[:, 1] > 0
    >>> grid = {"alpha": [1e-4, 1e-2, 1.0], "loss": ["hinge", "log_loss"]}
    >>> search = SGDSearchCV(SGDClassifier(random_state=0), grid, cv=3).fit(X, y)
    >>> len(search.cv_results_["params"]), search.best_score_ > 0.95
    (6, True)
    """

    def __init__(
        self,
        estimator: Any,
        param_grid: Any,
        *,
        factor: float | None = None,
        min_epochs: int = 1,
        scoring: Any = None,
        n_jobs: int | None = None,
        refit: Any = True,
        cv: Any = None,
        error_score: Any = np.nan,
        return_train_score: bool = False,
    ) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.factor = factor
        self.min_epochs = min_epochs
        self.scoring = scoring
        self.n_jobs = n_jobs
        self.refit = refit
        self.cv = cv
        self.error_score = error_score
        self.return_train_score = return_train_score

    def fit(self, X: Any, y: Any = None, *, groups: Any = None, sample_weight: Any = None) -> Self:
        """Search, and fit the best candidate on all rows.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame or Rows, shape (n_samples, n_features)
            Rows, in this process.
        y : array-like, shape (n_samples,)
            Targets; None with `Rows`, which hold them.
        groups : array-like or None, shape (n_samples,)
            For splitters that keep groups together.
        sample_weight : array-like or None, shape (n_samples,)
            Weights of the rows, in training and in scores.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            A parameter, or one of a candidate, has a value that it cannot have.
        IncompatiblePartsError
            Candidates differ in what columns have in common, or the estimator has what columns do without.
        InvalidDataError
            The rows cannot be trained on, a split has no rows of a class, or a model left the range of numbers and
            ``error_score="raise"``.
        """
        self._check()
        check_base(self.estimator, X)
        settings = self._settings()
        candidates = check_candidates(self.estimator, settings)
        given = (X, y, sample_weight)
        if isinstance(X, Rows):
            refuse_beside(y, sample_weight)
            X, y = X.X, X.y
        self._scorers = self._own_scorers()
        splits = self._splits(X, y, groups)
        scores, times, training, rungs = self._search(given, candidates, splits)
        self.n_epochs_, self.n_splits_ = training.n_epochs, len(splits)
        results = make_results(settings, times, scores, rungs)
        n_iter = np.array([model.n_iter for model in training.models]).reshape(len(settings), -1)
        results["mean_n_iter"] = n_iter.mean(axis=1)
        del training  # with its rows, of which the last fit makes others
        if self.factor is not None:
            results["rung"] = rungs
        self.cv_results_ = results
        self._choose(given)
        return self

    # -- parts of a search ---------------------------------------------------------------------------------------

    def _check(self) -> None:
        self._check_options()
        check_number("SGDSearchCV(min_epochs=...)", self.min_epochs, low=1, integer=True)
        if self.factor is not None:
            check_number("SGDSearchCV(factor=...)", self.factor, low=1, open_low=True)

    def _own_scorers(self) -> dict[str, Any]:
        """Return scorers by the names that they have in `cv_results_`; a name is that of a score counted here."""
        own, scoring = _OWN_SCORES[self.estimator._is_classification], self.scoring
        scorers = self._name_scorers()
        if not self.multimetric_:
            # That of a candidate depends on its loss.
            return {"score": OWN_SCORE if scoring is None else own if scoring == own else self.scorer_}
        if self.factor is not None and self.refit not in scorers:
            raise InvalidParameterError(
                f"SGDSearchCV(factor={self.factor}) drops candidates by one metric: refit must name it. "
                f"Got {self.refit!r}."
            )
        named = scoring if isinstance(scoring, Mapping) else {name: name for name in scoring}
        return {name: own if named[name] == own else scorer for name, scorer in scorers.items()}

    def _search(
        self, given: tuple[Any, Any, Any], candidates: Sequence[AbstractSGD], splits: Sequence[tuple[Any, Any]]
    ) -> tuple[dict[str, Any], dict[str, Any], Training, AnyArray]:
        """Train and score; return scores and times by name, the training, and the last rung of each candidate."""
        probe: AbstractSGD = clone(self.estimator)
        begin_at = probe._restart(None, None)
        is_read = bool(probe.shuffle) and not probe.out_of_core
        rows = probe._rows_here(*given, begin_at, is_read=is_read)
        n_threads = count_threads(self.n_jobs)
        if is_read:
            rows.read(n_threads, type(probe).__name__)
        summary = rows.summary(classification=probe._is_classification)
        packer, *_ = probe._plan([summary], begin_at, probe._draw_seed(), None)
        packed = pack_rows(probe, rows, packer, splits)
        if probe._is_classification:
            for each in candidates:
                each.classes_ = probe.classes_
        models = make_models(candidates, summary, rows.block[1], splits)
        if packed.shard.is_sparse and any(model.optimizer.schedule == "per_epoch" for model in models):
            raise InvalidParameterError(
                "learning_rate='per_epoch' forgets all weights at every row of the first epoch, which columns do not "
                "do on sparse rows. Use GridSearchCV, or another schedule."
            )
        training = Training(packed.shard, packed.kept, models, n_threads)
        scores = _Scores(self, training, candidates, rows.block, splits)
        rungs = self._run(training, scores)
        _warn_of(training, self.error_score)
        times = {"fit_time": scores.by_split([model.seconds for model in models]), "score_time": scores.seconds}
        return scores.found, times, training, rungs

    def _run(self, training: Training, scores: _Scores) -> AnyArray:
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
                means = scores.means(self._chooser())
                ordered = competing[np.argsort(-np.nan_to_num(means[competing], nan=-np.inf), kind="stable")]
                n_left = math.ceil(len(competing) / (self.factor or 1.0))
                training.stop(scores.models_of(ordered[n_left:]))
                competing = np.sort(ordered[:n_left])
        return rungs


class _Scores:
    """The scores of a search so far, (n_candidates, n_splits) of each kind and metric.

    Parameters
    ----------
    search : SGDSearchCV
        Says what is scored, and what a model that failed gets.
    training : Training
        The models.
    candidates : sequence of AbstractSGD
        One for each candidate.
    data : tuple
        (X, y, sample_weight) of all rows.
    splits : sequence of (train, test)
        Row numbers.
    """

    def __init__(
        self,
        search: SGDSearchCV,
        training: Training,
        candidates: Sequence[AbstractSGD],
        data: tuple[Any, Any, Any],
        splits: Sequence[tuple[AnyArray, AnyArray]],
    ) -> None:
        self._search, self._training, self._candidates = search, training, candidates
        self._data, self._splits = data, splits
        shape = len(candidates), len(splits)
        kinds = ("test", "train") if search.return_train_score else ("test",)
        self.found = {kind: {name: np.full(shape, np.nan) for name in search._scorers} for kind in kinds}
        self.seconds = np.zeros(shape)

    @property
    def n_candidates(self) -> int:
        """How many candidates there are."""
        return len(self._candidates)

    def by_split(self, values: Sequence[float]) -> AnyArray:
        """Return a number of each model, (n_candidates, n_splits)."""
        return np.asarray(values).reshape(self.n_candidates, -1)

    def models_of(self, candidates: AnyArray) -> list[int]:
        """Return the numbers of the models of candidates."""
        n = len(self._splits)
        return [int(candidate) * n + split for candidate in candidates for split in range(n)]

    def means(self, metric: str) -> AnyArray:
        """Return the mean test scores, shape (n_candidates,)."""
        means: AnyArray = self.found["test"][metric].mean(axis=1)
        return means

    def update(self, candidates: AnyArray) -> None:
        """Score the models of candidates as they are, which are settled."""
        models, n = self._training.models, len(self._splits)
        for split, parts in enumerate(self._splits):
            numbers = [int(candidate) * n + split for candidate in candidates]
            sound = [number for number in numbers if not models[number].problem]
            for kind, metrics in self.found.items():
                for number in set(numbers).difference(sound):
                    for values in metrics.values():
                        values[number // n, split] = _of_failed(self._search.error_score, models[number].problem)
                if not sound:
                    continue
                found, seconds = score_models(
                    [models[number] for number in sound],
                    [clone_fitted(self._candidates[number // n]) for number in sound],
                    self._data,
                    parts[0 if kind == "train" else 1],
                    self._search._scorers,
                )
                for number, scores in zip(sound, found, strict=True):
                    self.seconds[number // n, split] += seconds if kind == "test" else 0.0
                    for name, value in scores.items():
                        metrics[name][number // n, split] = value


def clone_fitted(candidate: AbstractSGD) -> AbstractSGD:
    """Return an estimator with the parameters and the labels of another."""
    made: AbstractSGD = clone(candidate)
    if candidate._is_classification:
        made.classes_ = candidate.classes_
    return made


def _of_failed(error_score: Any, problem: str) -> float:
    if error_score == "raise":
        raise InvalidDataError(problem)
    return float(error_score)


def _warn_of(training: Training, error_score: Any) -> None:
    """Warn of models that failed, and of those that would have gone on."""
    models = training.models
    failed = [model for model in models if model.problem]
    if failed:
        warnings.warn(
            f"{len(failed)} of {len(models)} models failed, and their scores are {error_score}. The first: "
            f"{failed[0].problem}",
            FitFailedWarning,
            stacklevel=4,
        )
    cut = [m for m in models if m.n_iter == m.max_iter and not (m.converged or m.problem or m.tol is None)]
    if cut:
        warnings.warn(
            f"Maximum number of iteration reached before convergence by {len(cut)} of {len(models)} models. "
            "Consider increasing max_iter to improve the fit.",
            ConvergenceWarning,
            stacklevel=4,
        )
