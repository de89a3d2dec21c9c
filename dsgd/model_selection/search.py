"""The search for parameters of linear models that trains all candidates on all folds at once.

The models are columns of one weight matrix (`dsgd.kernels.columns`). All of them walk the same rows in the same order,
that of a fit on all rows, and a column skips the rows that its fold holds out; nothing is copied. With ``factor=``
candidates are dropped as training goes on (successive halving): the resource is epochs.

Cost: an epoch reads the rows once, or once a thread, and computes two products of an entry and a weight for each entry,
candidate and fold.

Source: one matrix for many models is textbook material (the class-against-rest models of LIBLINEAR and Vowpal Wabbit);
successive halving is Jamieson and Talwalkar 2016, with epochs as Li et al. 2018 (Hyperband) have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.estimators.base import AbstractSGD
from dsgd.estimators.job import job_of
from dsgd.estimators.start import check_all, rows_here
from dsgd.estimators.tables import encoded
from dsgd.inputs.blocks import Expected, Spread, Work, count_threads, ranks_asked
from dsgd.inputs.rows import Rows, refuse_beside
from dsgd.inputs.shared import holds_blocks
from dsgd.inputs.sources import is_distributed
from dsgd.inputs.table_files import with_files_opened
from dsgd.model_selection.base import OWN_SCORE, AbstractSearchCV, Measure, Race, Scores, make_results, score_models
from dsgd.model_selection.ranks import Found, RankRows, RolePacker, search_on_rank, split_roles, strategies_of
from dsgd.model_selection.training import (
    Model,
    Training,
    check_base,
    check_candidates,
    check_in_process,
    check_on_cluster,
    make_models,
    pack_rows,
    weigh,
)
from dsgd.validation import check_number, warn_user

#: The scores that need no scorer, of classifiers and of regressors.
_OWN_SCORES = {True: "accuracy", False: "r2"}


@dataclass(eq=False, repr=False)
class SGDSearchCV(AbstractSearchCV):
    """Search for parameters of `SGDClassifier` or `SGDRegressor` that trains all candidates on all folds in one pass.

    Use it like `sklearn.model_selection.GridSearchCV` or, with ``factor=``, like scikit-learn's successive halving. All
    models are columns of one weight matrix: an epoch reads the rows once, however many candidates and folds there are.
    See :doc:`/model-selection`.

    Every model is trained as ``fit`` would train its candidate on one rank, on the training rows of its fold: with the
    same steps, rates and stopping rule. Rows are visited in the order of a fit on *all* rows, without those that the
    fold holds out. With ``shuffle=False`` this is also the order of a fit on the rows of the fold, and both give the
    same model up to rounding. With ``shuffle=True`` that fit would draw another order, and scores differ as those of
    two seeds do.

    The `encoder` of the estimator learns the columns of all rows once, before they are split: statistics of numbers and
    known categories are those of all folds, where `GridSearchCV` would learn them anew in each. Targets are not seen.

    If the estimator has a `client`, or X is a dask collection, the ranks of the cluster train all columns on their own
    rows and average them in one message whenever `sync` of the estimator says so. Every model is that of ``fit`` on as
    many ranks.

    Parameters
    ----------
    estimator : SGDClassifier or SGDRegressor
        An estimator of dsgd, not fitted. It supplies the parameters that candidates leave out, among them `client` and
        `sync`. On a cluster `sync`, which candidates may set, too, is None, a number of samples, `dsgd.sync.LocalSGD`
        or `dsgd.sync.EpochAveraging`.
    param_grid : dict, list of dict, or iterable of dict
        A grid as `GridSearchCV` takes it, or the candidates themselves, such as a
        `sklearn.model_selection.ParameterSampler`. Candidates may differ in alpha, penalty, l1_ratio, loss, epsilon,
        learning_rate, eta0, power_t, class_weight, fit_intercept, max_iter, tol and n_iter_no_change; on a cluster in
        sync, too.
    factor : float or None, default None
        If above 1, only the best ``1 / factor`` of the candidates continue after `min_epochs` epochs, the best
        ``1 / factor**2`` after ``factor * min_epochs``, and so on (successive halving). None trains all to the end.
    min_epochs : int, default 1
        Number of epochs before the first candidates are dropped.
    scoring : str, callable, list, dict or None, default None
        As of `GridSearchCV`, except that a callable must return one number. None is accuracy, or R2 for a regressor.
        Sample weights count in scores, too, if the scorer takes them. On a cluster only None, "accuracy" and "r2".
    n_jobs : int or None, default None
        Number of threads that share the columns (None: 1, -1: one per core). Results do not depend on it, to the bit.
        The final fit has the `n_jobs` of the estimator; on a cluster, this is the number of ranks of the search, too.
    refit : bool, str or callable, default True
        As of `GridSearchCV`: whether the best candidate is fitted on all rows; by which metric, if there are several;
        or a function of `cv_results_` that returns the index of the best.
    cv : int, splitter, iterable or None, default None
        As of `GridSearchCV`. Splits may overlap. Rows that a split has in neither part are not used for it.
    error_score : float or "raise", default nan
        Score of a model that leaves the range of numbers.
    return_train_score : bool, default False
        Whether to compute scores on the training rows as well.

    Attributes
    ----------
    cv_results_ : dict
        As of `GridSearchCV`, and ``mean_n_iter``, the epochs of a candidate. With `factor` also ``rung``, how often it
        was kept; candidates of a later rung rank before others. A model's ``fit_time`` is its share of the seconds of
        the epochs that it took part in, the same for all columns of an epoch. On a cluster also ``mean_rounds``, how
        often the models of a candidate were averaged, and ``mean_bytes_sent``, the bytes that all ranks sent for one
        of them.
    best_estimator_, best_score_, best_params_, best_index_, scorer_, n_splits_, refit_time_, multimetric_
        As of `GridSearchCV`.
    n_epochs_ : int
        Number of epochs of the search, which are passes over the rows.
    ledger_ : dsgd.Ledger
        Seconds and bytes of all ranks, after a search on a cluster. It is not pickled.
    classes_ : array
        Labels of the best estimator, if it is a classifier.
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

    estimator: Any
    param_grid: Any
    _: KW_ONLY
    factor: float | None = None
    min_epochs: int = 1
    scoring: Any = None
    n_jobs: int | None = None
    refit: Any = True
    cv: Any = None
    error_score: Any = np.nan
    return_train_score: bool = False

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        state.pop("ledger_", None)  # it describes the training, and may be long
        return state

    def fit(self, X: Any, y: Any = None, *, groups: Any = None, sample_weight: Any = None) -> Self:
        """Search, and fit the best candidate on all rows.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, Rows, dask array or frame, list of delayed blocks, or files of tables
            Rows, shape (n_samples, n_features), as ``fit`` of the estimator takes them; `Rows` for a search in this
            process.
        y : array-like, dask array or str, shape (n_samples,)
            Targets, or the name of their column; None where `Rows` or blocks hold them. Splits are made in this
            process, so targets on a cluster are fetched.
        groups : array-like or None, shape (n_samples,)
            Groups, for splitters that keep them together; not on a cluster.
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
            Candidates differ in a parameter that must be common, or the estimator has an unsupported parameter.
        InvalidDataError
            The rows cannot be trained on, a split has no rows of a class, or a model left the range of numbers and
            ``error_score="raise"``.
        """
        self._check()
        check_base(self.estimator)
        settings = self._settings()
        candidates = check_candidates(self.estimator, settings)
        given = (X, y, sample_weight)
        if isinstance(X, Rows):
            refuse_beside(y, sample_weight)
        self._scorers = self._own_scorers()
        probe: AbstractSGD = clone(self.estimator)
        self.__dict__.pop("ledger_", None)
        X = with_files_opened(X)
        if probe._uses_cluster(X):
            check_on_cluster(probe, X, self._scorers)
            search = self._search_on_cluster
        else:
            check_in_process(settings)
            search = self._search
        found = search(probe, encoded(probe, (X, y, sample_weight), goes_on=False), candidates, groups)
        _warn_of(found.models, self.error_score)
        shape = len(settings), -1
        self.n_epochs_, self.n_splits_ = found.n_epochs, found.score_seconds.shape[1]
        seconds = np.array([model.seconds for model in found.models]).reshape(shape)
        times = {"fit_time": seconds, "score_time": found.score_seconds}
        results = make_results(settings, times, found.scores, found.rungs)
        n_iter = np.array([model.n_iter for model in found.models])
        results["mean_n_iter"] = n_iter.reshape(shape).mean(axis=1)
        if found.rounds:
            n_rounds = n_iter * found.rounds
            # A message has the columns of many models: its bytes are theirs by the numbers that they have in it.
            sizes = n_rounds * found.sizes
            sent = sizes * (self.ledger_.totals()["bytes_sent"] / sizes.sum())
            results["mean_rounds"] = n_rounds.reshape(shape).mean(axis=1)
            results["mean_bytes_sent"] = sent.reshape(shape).mean(axis=1)
        if self.factor is not None:
            results["rung"] = found.rungs
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
        self, probe: AbstractSGD, given: tuple[Any, Any, Any], candidates: Sequence[AbstractSGD], groups: Any
    ) -> Found:
        """Train and score on arrays of this process."""
        X, y, _ = given
        splits = self._splits(X.X, X.y, groups) if isinstance(X, Rows) else self._splits(X, y, groups)
        begin_at = probe._restart(None, None)
        rows = rows_here(probe, *given, begin_at)
        n_threads = count_threads(self.n_jobs)
        rows.check(n_threads, type(probe).__name__)
        summary = rows.summary(classification=probe._is_classification)
        packer, *_ = job_of(probe, [summary], begin_at, probe._draw_seed())
        packed = pack_rows(probe, rows, replace(packer, weight_scale=1.0), splits)
        if probe._is_classification:
            for each in candidates:
                each.classes_ = probe.classes_
        models = make_models(candidates, summary, rows.block[1], splits)
        weigh(models, packed.kept.sum(axis=1, dtype=np.float64), packed.kept @ packed.shard.weights.astype(np.float64))
        _check_schedules(models, sparse=packer.sparse)
        training, race, n = Training(packed.shard, packed.kept, models, n_threads), self._race(), len(splits)

        def score(numbers: Sequence[int], split: int, kind: str) -> tuple[list[dict[str, float]], float]:
            fitted = [clone_fitted(candidates[number // n]) for number in numbers]
            part = splits[split][0 if kind == "train" else 1]
            return score_models([models[number] for number in numbers], fitted, rows.block, part, self._scorers)

        scores = Scores(training, race, len(candidates), n, score)
        rungs = race.run(training, scores)
        return Found(scores.found, scores.seconds, training.models, training.n_epochs, rungs)

    def _search_on_cluster(
        self, probe: AbstractSGD, given: tuple[Any, Any, Any], candidates: Sequence[AbstractSGD], groups: Any
    ) -> Found:
        """Train and score on the ranks of a cluster, where the rows are."""
        X, y, sample_weight = given
        strategies = strategies_of(candidates)
        begin_at, seed = probe._restart(None, None), probe._draw_seed()
        is_here = not (is_distributed(X) or holds_blocks(X))
        splits = self._splits(X, y, groups) if is_here else []
        with probe._open_blocks(
            X,
            y,
            sample_weight,
            check=lambda: check_all(probe, X, y, sample_weight, begin_at),
            expected=Expected(probe._is_classification),
            spread=Spread(n_ranks=ranks_asked(probe.n_jobs), seed=seed if probe.shuffle else None),
        ) as blocks:
            summaries = blocks.summaries
            targets = np.asarray(y) if is_here else blocks.targets()
            if not is_here:
                splits = self._splits(np.zeros((len(targets), 0)), targets, groups)
            packer, *_ = job_of(probe, summaries, begin_at, seed)
            classes = packer.classes
            for each in candidates if classes is not None else ():
                each.classes_ = classes
            summary = replace(summaries[0], classes=classes, least=min(each.least for each in summaries))
            models = make_models(candidates, summary, targets, splits)
            _check_schedules(models, sparse=packer.sparse)
            race = replace(self._race(), error_score=np.nan if self.error_score == "raise" else self.error_score)
            # Of packed rows.
            codes = None if classes is None else packer.targets(classes)
            measures = [Measure(codes, each._deviance) for each in candidates]
            n_params = sum(model.optimizer.n_outputs for model in models) * (packer.n_features + 1)
            work = Work(
                search_on_rank,
                RolePacker(replace(packer, weight_scale=1.0), len(splits)),
                (models, strategies, race, self._scorers, measures),
                cut=RankRows.cut,
                beside=split_roles(splits, blocks.order if is_here else None, [each.rows for each in summaries]),
                demand=packer.demand(summaries, n_params, 2 * len(splits) * sum(each.visits for each in summaries)),
            )
            gang = blocks.run(work, replace(probe._terms(None), title=type(self).__name__))
        self.ledger_ = gang.ledger
        found: Found = gang.value
        for model in found.models if self.error_score == "raise" else ():
            if model.problem:
                raise InvalidDataError(model.problem)
        return found

    def _race(self) -> Race:
        """Return what is scored, and when candidates drop out."""
        kinds = ("test", "train") if self.return_train_score else ("test",)
        metrics = tuple(self._scorers)
        return Race(metrics, self._chooser(), kinds, self.error_score, self.factor, self.min_epochs)


def clone_fitted(candidate: AbstractSGD) -> AbstractSGD:
    """Return an estimator with the parameters and the labels of another."""
    made: AbstractSGD = clone(candidate)
    if candidate._is_classification:
        made.classes_ = candidate.classes_
    return made


def _check_schedules(models: Sequence[Model], *, sparse: bool) -> None:
    """Raise where columns do not forget their weights as a schedule wants it."""
    if sparse and any(model.optimizer.schedule == "per_epoch" for model in models):
        raise InvalidParameterError(
            "learning_rate='per_epoch' forgets all weights at every row of the first epoch, which columns do not "
            "do on sparse rows. Use GridSearchCV, or another schedule."
        )


def _warn_of(models: Sequence[Model], error_score: Any) -> None:
    """Warn of models that failed, and of those that would have gone on."""
    failed = [model for model in models if model.problem]
    if failed:
        warn_user(
            f"{len(failed)} of {len(models)} models failed, and their scores are {error_score}. The first: "
            f"{failed[0].problem}",
            FitFailedWarning,
        )
    cut = [m for m in models if m.n_iter == m.max_iter and not (m.converged or m.problem or m.tol is None)]
    if cut:
        warn_user(
            f"Maximum number of iteration reached before convergence by {len(cut)} of {len(models)} models. "
            "Consider increasing max_iter to improve the fit.",
            ConvergenceWarning,
        )
