"""Training shared by the classifier and the regressor, in this process or on a cluster.

Every fit takes the same path: data become row blocks, each block is inspected where it is stored, the blocks of a rank
are packed into its shard, and the gang runs the rank loop. Arrays in this process are one block and a gang of threads;
anything else is many blocks and a gang of worker processes.

The steps of that path have a file each: `start` looks at rows of this process and takes in what ranks bring home,
`packing` lays out the rows of a rank, and `job` makes what ranks are sent.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.exceptions import ConvergenceWarning

from dsgd.errors import InvalidDataError
from dsgd.estimators.job import job_of, with_validation
from dsgd.estimators.packing import OUT_OF_CORE_ADVICE
from dsgd.estimators.start import (
    BESIDE,
    OF_RANKS,
    Start,
    check_all,
    check_parameters,
    check_resumable,
    loss_parameter,
    map_bytes,
    rows_here,
    take_in,
)
from dsgd.estimators.tables import encoded
from dsgd.inputs import blocks as row_blocks
from dsgd.inputs.callbacks import notifies_callbacks
from dsgd.inputs.docstrings import inherit_method_docs
from dsgd.inputs.linear import AbstractLinearEstimator, copied, of_peer
from dsgd.inputs.rows import Rows, refuse_beside
from dsgd.inputs.shared import holds_blocks, look
from dsgd.inputs.sources import check_targets
from dsgd.inputs.validation import given_validation, hold_out_as_sklearn, refuse_idle
from dsgd.kernel_approximation import RandomFeatures
from dsgd.local import AbstractReduction, AbstractRule, CustomLoss, Importance, Objective
from dsgd.local.features import RandomMap
from dsgd.local.rules import LearningRate, cycle_of
from dsgd.runtime.rank import GangResult
from dsgd.runtime.threads import run_on_threads
from dsgd.runtime.train import TrainData, train
from dsgd.runtime.train.fused import takes_plain_steps
from dsgd.runtime.train.serving import mail_for
from dsgd.types import AnyArray
from dsgd.validation import as_random_state, warn_user

if TYPE_CHECKING:
    from sklearn.kernel_approximation import RBFSampler

    from dsgd.preprocessing import ColumnEncoder


# Least rows of a thread if the user sets no strategy: with fewer, communication takes longer than the steps it saves.
_LEAST_ROWS: Final = 1000

# Blocks of each rank if workers may join: a new worker gets whole blocks.
_ELASTIC_PIECES: Final = 4


def _draw(name: str, random_state: Any) -> int:
    return int(as_random_state(name, random_state).randint(np.iinfo(np.int32).max))


#: Of a number it is always the same, and numpy takes as long for it as an epoch of a thousand rows.
_draw_of: Final = lru_cache(maxsize=64)(_draw)


@inherit_method_docs
@dataclass(eq=False, repr=False)
class AbstractSGD(AbstractLinearEstimator):
    """Linear model trained by parallel SGD; the base class of `SGDClassifier` and `SGDRegressor`.

    Parameters
    ----------
    penalty : {"l2", "l1", "elasticnet"} or None, default "l2"
        The penalty R.
    alpha : float, default 0.0001
        Its strength.
    l1_ratio : float, default 0.15
        Share of L1 in the elastic net, in [0, 1].
    fit_intercept : bool, default True
        Whether b is learned.
    max_iter : int, default 1000
        Epochs at most.
    shuffle : bool, default True
        Assign rows of this process to ranks at random, and visit them in a new random order in each epoch. Both depend
        on `random_state` and the number of a row, not on its content. False keeps the given order. Rows on a
        cluster stay on the workers that hold them: shuffle them first if their order is meaningful.
    verbose : int, default 0
        Above 0 prints a line per epoch, at most five a second; see `dsgd.progress` for a live line and callbacks.
    epsilon : float, default 0.1
        Threshold of the huber and epsilon-insensitive losses.
    n_jobs : int or None, default None
        The number of ranks: threads of this process over one copy of the data (None: 1, -1: one per core) or, on a
        cluster, threads of its workers (None or -1: all; a smaller number is spread over the workers). The model
        depends on it, because it is the mean of models that have each seen part of the rows. With the default `sync` it
        is an upper limit: `fit` in this process uses one thread per 1,000 rows, at least one; see
        ``fit_report_["ranks"]``. With any other `sync` all ranks train, at the rates of their own schedules. Unless
        these rates fall like 1/t, P ranks make less progress per epoch (at constant rates, a P-th of it), and may stop
        early.
    random_state : int, RandomState or None, default None
        Seeds the order of rows and the validation split.
    eta0 : float, default 0.01
        Initial step size.
    early_stopping : bool, default False
        Stop when the score on validation rows no longer improves. These are the rows passed to ``fit``, or else rows
        that are held out.
    n_iter_no_change : int, default 5
        See `tol`.
    scoring : str, callable or None, default None
        The score for validation rows: the name of a scikit-learn scorer or a callable (estimator, X, y), which also
        gets `sample_weight` if there are weights. None is accuracy or R2. The rows are those passed to ``fit`` or, for
        arrays in this process, those that scikit-learn would hold out; rank 0 scores all of them.
    restore_best : bool, default False
        Whether ``fit`` ends with the model of the epoch with the best validation score, instead of the last one.
    warm_start : bool, default False
        Start ``fit`` from the fitted model.
    average : bool or int, default False
        Return the mean of the iterates; an integer starts the mean after this number of samples.
    sync : int, str, strategy or None, default None
        When ranks exchange, and what. An integer n averages the models every n samples (`dsgd.sync.LocalSGD`). A string
        is a short name in `dsgd.sync.STRATEGIES`, such as ``"auto"``, ``"epoch"`` or ``"slowmo"``. None averages every
        1024 samples, less often with sparse rows (`LocalSGD`), and raises rates that do not fall like 1/t so that
        several ranks make as much progress per epoch as one. It has no effect on a single rank.
    optimizer : `dsgd.local.Momentum`, `Adagrad`, `Adam`, `LARS`, `GradientDescent`, `SAGA`, `SVRG`, str or None
        How a rank takes its steps; a text names one, with or without parameters (``"adam"``, ``"momentum:0.95"``,
        ``"saga:step=0.1"``). None is plain SGD with a step per row. The rules take one step per minibatch, and
        GradientDescent one per round, along the gradient of all of its rows. `learning_rate` sets the rates, with t
        counted in steps; most rules need ``learning_rate="constant"`` or ``"invscaling"``. SAGA and SVRG take steps by
        row, choose their length themselves, and converge to the exact minimum of a smooth loss with an L2 penalty.
    sampling : {"uniform", "importance"} or `dsgd.local.Importance`, default "uniform"
        Which rows steps are taken on. "uniform" visits each row once per epoch. From the second epoch on, "importance"
        draws the same number of rows with probabilities proportional to their last gradients, and divides steps by
        these probabilities: less noise if few rows have large gradients. The losses of an epoch are then estimates.
    features : `dsgd.kernel_approximation.RandomFeatures` or None, default None
        The model is linear in these features of the rows, which approximates a kernel machine. Features are computed
        block by block as rows are visited, and never stored for all rows. Every rank draws the same ones from a seed,
        that of `features` or else of `random_state`. `coef_` has a column for each feature.
    encoder : `dsgd.preprocessing.ColumnEncoder`, "auto" or None, default None
        How to turn the columns of tables and of files of tables into features: numbers, categories, dates and texts,
        with or without missing values. "auto" is ``ColumnEncoder()``; None takes numbers as they are. The encoder is
        fitted with the model, and `coef_` has a column for each of its features.
    client : `dsgd.Gang`, distributed.Client, SimulatedCluster or None, default None
        Where to train and how: a cluster, or a `Gang` with everything else that concerns ranks and machines. None
        trains in this process.

    Attributes
    ----------
    encoder_ : ColumnEncoder
        The fitted encoder. For files without `encoder`, one that takes numbers as they are.
    n_features_in_ : int
        Features seen in ``fit``; with an encoder, columns.
    feature_names_in_ : array, shape (n_features,)
        Their names, if X had any.
    n_iter_ : int
        Epochs run.
    t_ : float
        Step counter: one plus the number of steps of a rank. A step is a sample or, with an `optimizer` or exchanged
        gradients, a minibatch.
    loss_curve_ : list of float
        Training loss of every epoch.
    history_ : list of dict
        An entry per epoch: ``epoch``, ``train_loss``, ``seconds`` since training began, ``valid_score`` if there are
        validation rows, ``dispersion`` of the ranks' models, ``bytes_sent`` by all ranks and ``communication_s``, the
        mean seconds that ranks spent sending and waiting. ``history_.to_frame()`` is a pandas frame.
    best_score_, best_epoch_ : float, int
        With validation rows: the best score and the first epoch that reached it, counted from 1.
    sync_history_ : list of dict
        The periods of ``sync="auto"``, in order: their start in ``rows`` of the rank with the most rows and in
        ``seconds`` of training, the ``period`` in rows, and ``why`` it was chosen. Empty with other strategies.
    ledger_ : dsgd.Ledger
        Seconds and bytes of every rank; not part of a pickle of the model.
    rank_coef_, rank_intercept_ : array, shape (n_ranks, ...)
        ``coef_`` and ``intercept_`` of each rank before they were combined; only with ``sync=DPSGD(keep_models=True)``.
    fit_report_ : dict
        Ranks, strategy, transport, seconds, history by epoch, peak memory, slow ranks. ``stages`` says where the
        seconds of the whole fit went; ``recoveries`` and ``rows_lost`` report survived failures.
    loss_functions : mapping
        Attribute of the class: the table row of each loss, and the default of its threshold if it has one.
    """

    # The parameters, which `__init__` only stores; where there is no default, the final classes say it.
    loss: str | CustomLoss
    _: KW_ONLY
    penalty: str | None = "l2"
    alpha: float = 0.0001
    l1_ratio: float = 0.15
    fit_intercept: bool = True
    max_iter: int = 1000
    tol: float | None = 1e-3
    shuffle: bool = True
    verbose: int = 0
    epsilon: float = 0.1
    n_jobs: int | None = None
    random_state: Any = None
    learning_rate: LearningRate
    eta0: float = 0.01
    power_t: float
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 5
    scoring: Any = None
    restore_best: bool = False
    warm_start: bool = False
    average: bool | int = False
    sync: Any = None
    optimizer: AbstractRule | AbstractReduction | None = None
    sampling: str | Importance = "uniform"
    features: RandomFeatures | None = None
    encoder: ColumnEncoder | str | None = None
    client: Any = None

    #: Whether targets are classes.
    _is_classification: ClassVar[bool]

    #: The losses there are, by name.
    loss_functions: ClassVar[Mapping[str, tuple[Any, ...]]]

    _of_training: ClassVar = (*AbstractLinearEstimator._of_training, *BESIDE, *OF_RANKS, "_left", "history_")
    _if_too_large: ClassVar[str] = OUT_OF_CORE_ADVICE
    _takes: ClassVar = ("on_failure", "checkpoint", "resume_from", "elastic", "out_of_core", "shrink")
    _reuses_rows: ClassVar[bool] = True

    @notifies_callbacks
    def fit(
        self,
        X: Any,
        y: Any = None,
        coef_init: Any = None,
        intercept_init: Any = None,
        sample_weight: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        sample_weight_val: Any = None,
    ) -> Self:
        """Train. Each of several ranks trains on part of the rows; see `n_jobs` for the effect on the model.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, Rows, dask array or dataframe, list of delayed blocks, or svmlight file(s)
            Rows, shape (n_samples, n_features). A delayed block is a tuple (X, y) or (X, y, sample_weight). Threads and
            simulated ranks take a list of such tuples, one for each rank. Parquet, CSV and Arrow files (paths, globs)
            are read row group by row group, by this process or, with `client`, by the workers.
        y : array-like, dask collection or str, shape (n_samples,)
            Labels of any kind, or values, or the name of their column in a table or in files of tables; None if blocks
            or svmlight files hold them.
        coef_init, intercept_init : array or None
            Initial coefficients and intercepts.
        sample_weight : array-like, dask array, str or None, shape (n_samples,)
            Weights, or the name of their column. A whole number stands for that many copies of the row, zero for none.
        X_val : array, sparse matrix, DataFrame, Rows or files of tables, optional
            Validation rows in the memory of this process, scored after every epoch. With `early_stopping` they decide
            when to stop, in place of held-out rows; without it, their scores only appear in `history_`.
        y_val : array-like or str, shape (n_samples_val,)
            Their targets, or the name of the column.
        sample_weight_val : array-like, str or None, shape (n_samples_val,)
            Their weights, or the name of the column.
        """
        validation = X_val, y_val, sample_weight_val
        self.__dict__.pop("_grows", None)
        self._train(X, y, sample_weight, self._restart(coef_init, intercept_init, validation))
        is_open = not (self.fit_report_["converged"] or self.fit_report_["diverged"])
        if self.tol is not None and is_open and self.n_iter_ == self.max_iter:
            warn_user(
                "Maximum number of iteration reached before convergence. "
                "Consider increasing max_iter to improve the fit.",
                ConvergenceWarning,
            )
        return self

    @classmethod
    def from_sklearn(cls, model: Any) -> Self:
        """Return an estimator with the parameters and coefficients of scikit-learn's.

        Parameters
        ----------
        model : estimator
            The class of this name in `sklearn.linear_model`, fitted.

        Returns
        -------
        estimator
            Fitted, with the same predictions; ``partial_fit`` continues from the last step.

        Raises
        ------
        InvalidParameterError
            `model` is another kind of estimator.
        """
        made: Self = from_plain(cls, model)
        return made

    @abstractmethod
    def _weights_of_outputs(
        self, summaries: Sequence[row_blocks.BlockSummary]
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the weights of positive and of negative targets of each output."""

    @abstractmethod
    def _learn_targets(self, summaries: Sequence[row_blocks.BlockSummary]) -> None:
        """Take in the targets that the blocks hold; a later ``partial_fit`` checks them."""

    @abstractmethod
    def _classes(self) -> AnyArray | None:
        """Return the classes, sorted; None for regression."""

    def _objective(self, summaries: Sequence[row_blocks.BlockSummary]) -> Objective:
        """Return the objective for data that look like `summaries`."""
        if self._deviance is not None:
            self._deviance.check_targets(min(summary.least for summary in summaries))
        positive, negative = self._weights_of_outputs(summaries)
        return Objective(
            loss=self.loss,
            penalty=self.penalty,
            alpha=float(self.alpha),
            l1_ratio=float(self.l1_ratio or 0.0),
            epsilon=loss_parameter(self),
            fit_intercept=bool(self.fit_intercept),
            n_outputs=len(positive),
            positive_weights=positive,
            negative_weights=negative,
        )

    def _complete(self) -> None:
        check_resumable(self)

    # -- training ------------------------------------------------------------------------------------------------

    def _train(self, X: Any, y: Any, sample_weight: Any, start: Start) -> None:
        """Train on any kind of X, and set the fitted attributes."""
        check_parameters(self)
        if isinstance(X, Rows):
            refuse_beside(y, sample_weight)
        begin = time.perf_counter()
        goes_on = not start.is_first or (self.warm_start and hasattr(self, "coef_"))
        rows = encoded(self, (X, y, sample_weight), goes_on=goes_on)
        (X, y, sample_weight), start = with_validation(self, rows, start)
        train_there = self._train_on_cluster if self._uses_cluster(X) else self._train_in_process
        gang, sparse = train_there(X, y, sample_weight, start)
        take_in(self, gang, sparse=sparse, elapsed_s=time.perf_counter() - begin)

    def _train_in_process(self, X: Any, y: Any, sample_weight: Any, start: Start) -> tuple[GangResult, bool]:
        if holds_blocks(X):
            return self._train_on_blocks(X, y, sample_weight, start)
        rows = rows_here(self, X, y, sample_weight, start)
        # Calls of partial_fit have as many ranks as the first, however few rows one of them brings.
        # With a strategy of the user's choice all ranks train.
        least_rows = _LEAST_ROWS if self.sync is None else 1
        n_ranks = row_blocks.count_threads(self.n_jobs, None if start.is_part else rows.n_rows, least_rows)
        held_out = None
        if self.early_stopping and start.validation is None and not start.is_part and n_ranks == 1:
            held_out = hold_out_as_sklearn(self, rows.block, stratify=self._is_classification)
        summaries = [rows.summary(classification=self._is_classification)]
        seed = self._draw_seed()
        packer, job, given = job_of(self, summaries, start, seed)
        check = partial(rows.check, n_ranks, type(self).__name__)
        # The first epoch predicts every row, and what is not finite shows then: that saves a pass over the rows.
        shows = takes_plain_steps(job) and not (start.is_part or job.early_stopping or job.resume_from)
        if not shows or rows.block[2] is not None:
            check()
        packer = replace(packer, held_out=held_out)
        dealing = seed if self.shuffle else None
        shares = rows.packed(n_ranks, packer, seed=dealing, reads_directly=not self._deployment.out_of_core)
        shares = [replace(share, check=check) for share in shares]
        gang = run_on_threads(train, shares, (job,), on_event=self._listener(), mail=mail_for(job), given=given)
        return gang, packer.sparse

    def _train_on_blocks(self, X: Any, y: Any, sample_weight: Any, start: Start) -> tuple[GangResult, bool]:
        """Train threads of this process, each of them on the block that is given for it."""
        check_targets(X, y, sample_weight)
        if row_blocks.ranks_asked(self.n_jobs) not in (None, len(X)):
            raise InvalidDataError(
                f"X is a list of {len(X)} blocks, one for each thread, but n_jobs={self.n_jobs}: leave it at None."
            )
        blocks, expected = [row_blocks.make_block(block) for block in X], row_blocks.Expected(self._is_classification)
        summaries = [look(block, expected) for block in blocks]
        row_blocks.check_summaries(summaries)
        self._check_width(summaries, None, first=start.is_first)
        packer, job, given = job_of(self, summaries, start, self._draw_seed())
        shares = [packer([block], rank) for rank, block in enumerate(blocks)]
        gang = run_on_threads(train, shares, (job,), on_event=self._listener(), mail=mail_for(job), given=given)
        return gang, packer.sparse

    def _train_on_cluster(self, X: Any, y: Any, sample_weight: Any, start: Start) -> tuple[GangResult, bool]:
        seed = self._draw_seed()
        with self._open_blocks(
            X,
            y,
            sample_weight,
            check=lambda: check_all(self, X, y, sample_weight, start),
            expected=row_blocks.Expected(self._is_classification),
            spread=row_blocks.Spread(
                n_ranks=row_blocks.ranks_asked(self.n_jobs),
                pieces=_ELASTIC_PIECES if self._deployment.elastic else 1,
                on_disk=self._deployment.out_of_core,
                seed=seed if self.shuffle else None,
            ),
            first=start.is_first,
        ) as blocks:
            packer, job, given = job_of(self, blocks.summaries, start, seed)
            beside = map_bytes(self) + getattr(given, "nbytes", 0)
            work = row_blocks.Work(
                train,
                packer,
                (job,),
                cut=TrainData.cut,
                demand=packer.demand(blocks.summaries, job.initial.size, beside),
                mail=mail_for(job),
                given=given,
            )
            gang = blocks.run(work, self._terms(self._listener()))
        return gang, packer.sparse

    def _draw_seed(self) -> int:
        """Return the seed of this training."""
        name, given = type(self).__name__, self.random_state
        return _draw_of(name, given) if type(given) is int else _draw(name, given)

    @abstractmethod
    def _shape_model(self, coef: AnyArray, intercept: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Return coef and intercept in scikit-learn's shapes."""

    def _restart(self, coef_init: Any, intercept_init: Any, validation: tuple[Any, ...] = (None, None, None)) -> Start:
        """Return where ``fit`` begins: at zero, at what was passed, or with ``warm_start`` at the fitted model."""
        rows = given_validation(*validation, takes_files=True)
        refuse_idle(self, has_rows=rows is not None)
        warm = self.warm_start and hasattr(self, "coef_")
        return Start(
            coef=self.coef_ if warm and coef_init is None else coef_init,
            intercept=self.intercept_ if warm and intercept_init is None else intercept_init,
            validation=rows,
        )

    def _n_epochs_at_most(self) -> int:
        return int(self.max_iter)


#: Fitted attributes that all linear models have, here and there.
_SHARED: Final = ("coef_", "intercept_", "n_iter_", "t_", "n_features_in_", "feature_names_in_")

#: Parameters that mean the same to scikit-learn's logistic regression.
_OF_ANY_FIT: Final = {"fit_intercept", "class_weight", "max_iter", "random_state", "verbose", "warm_start"}


def peer_of(loss: str | CustomLoss) -> type:
    """Return the class of scikit-learn that regresses with a loss."""
    from sklearn import linear_model

    others = {
        "quantile": linear_model.QuantileRegressor,
        "poisson": linear_model.PoissonRegressor,
        "gamma": linear_model.GammaRegressor,
        "tweedie": linear_model.TweedieRegressor,
    }
    return others.get(str(loss), linear_model.SGDRegressor)  # type: ignore[no-any-return]


def to_plain(model: Any, plain: type, extra: tuple[str, ...]) -> Any:
    """Return scikit-learn's estimator with the coefficients of `model`, after `RBFSampler` if features are random."""
    ours = model.get_params(deep=False)
    theirs = {name: value for name, value in ours.items() if name in plain().get_params()}
    if isinstance(model.loss, CustomLoss):
        del theirs["loss"]  # what scikit-learn has no name for; only further training would use it
    rate = theirs.get("learning_rate", "constant")
    if cycle_of(rate) is not None:
        theirs["learning_rate"] = "constant"
    elif rate in {"pegasos", "per_epoch"}:
        theirs["learning_rate"] = "optimal"  # the nearest that scikit-learn has; only further training would use it
    if "penalty" not in theirs and model.penalty is None:
        theirs["alpha"] = 0.0
    if model.loss == "softmax":
        # Of its solvers, in other units.
        theirs = {name: value for name, value in theirs.items() if name in _OF_ANY_FIT}
    if model._deviance is not None:
        del theirs["tol"]  # of its solver, and never None
        theirs |= {"power": ours["tweedie_power"], "link": "log"} if model._deviance.loss == "tweedie" else {}
    estimator = copied(plain(**theirs), model, (*_SHARED, *extra))
    if model._deviance is not None:
        # Its fit sets it, and its predict reads its link.
        estimator._base_loss = estimator._get_loss()
    if model.loss == "softmax":
        estimator.n_iter_ = np.array([model.n_iter_], np.int32)
    if not hasattr(plain, "sparsify"):
        coef = estimator.coef_.toarray() if issparse(estimator.coef_) else estimator.coef_
        estimator.coef_, estimator.intercept_ = coef.ravel(), float(estimator.intercept_[0])
    steps = [] if model.encoder_ is None else [model.encoder_]
    if model._random_map is not None:
        steps.append(_sampler(model, model._random_map))
    if not steps:
        return estimator
    estimator.n_features_in_ = model._width if model._random_map is None else model._random_map.n_components
    vars(estimator).pop("feature_names_in_", None)
    from sklearn.pipeline import make_pipeline

    return make_pipeline(*steps, estimator)


def from_plain(kind: type[Any], given: Any) -> Any:
    """Return our estimator with the coefficients of scikit-learn's; further training goes on from its last step."""
    from sklearn import linear_model

    classifies = kind._is_classification
    plain = linear_model.SGDClassifier if classifies else linear_model.SGDRegressor
    model = copied(of_peer(kind, plain, given), given, (*_SHARED, "classes_") if classifies else _SHARED)
    if model.average:
        copied(model, given, BESIDE)
        # It counts steps, and begins with this one.
        model._n_averaged = max(0, int(given.t_) - int(model.average))
    return model


def _sampler(model: Any, given: RandomMap) -> RBFSampler:
    """Return a transformer of scikit-learn that makes the features of a model: its formula is that of every kernel."""
    from sklearn.kernel_approximation import RBFSampler

    drawn = given.drawn(model._width, model.coef_.dtype)
    sampler = RBFSampler(gamma=given.gamma, n_components=given.n_components, random_state=given.seed)
    sampler.random_weights_, sampler.random_offset_ = drawn.frequencies.copy(), drawn.offsets.copy()
    sampler._n_features_out = given.n_components
    sampler.n_features_in_ = model._width
    for name in ("feature_names_in_",):
        if hasattr(model, name) and model.encoder_ is None:
            setattr(sampler, name, getattr(model, name))
    return sampler
