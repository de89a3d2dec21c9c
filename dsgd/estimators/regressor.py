"""Linear regression trained by parallel SGD."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Self

from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dsgd.comm.base import TransportName
from dsgd.estimators.base import AbstractSGD
from dsgd.estimators.parameters import check_whole_fit, losses_for
from dsgd.estimators.plain import to_plain
from dsgd.inputs import BlockSummary, announced, lazy
from dsgd.local import AbstractRule, Objective
from dsgd.runtime.checkpoints.checkpoint import Checkpoint
from dsgd.runtime.gang.policy import FailurePolicy
from dsgd.types import AnyArray

__all__ = ["SGDRegressor"]


class SGDRegressor(RegressorMixin, AbstractSGD):
    """Linear regression (least squares, Huber, support vector regression) trained by parallel SGD.

    Minimises over w and b::

        (1/n) sum_i loss(w'x_i + b, y_i) + alpha R(w)

    Parameters, defaults and fitted attributes are those of `sklearn.linear_model.SGDRegressor`; three parameters say
    who computes and how often the models are averaged. Scale the features first: SGD is sensitive to it.

    Parameters
    ----------
    loss : {"squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive"}, default "squared_error"
        The loss.
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
    tol : float or None, default 1e-3
        Stop once the objective, training loss and penalty, or with `early_stopping` the validation score, has not
        improved by `tol` for `n_iter_no_change` epochs. None trains for exactly `max_iter` epochs.
    shuffle : bool, default True
        Deal the rows of arrays of this process to ranks at random, and let a rank walk its own in an order drawn from
        `random_state`, another one in each epoch; both go by what is in a row: the order given does not matter. False
        keeps it. Rows that were made on a cluster stay with the workers that have them: where their order means
        something, shuffle them first.
    verbose : int, default 0
        Above 0 prints a line per epoch, at most five a second; see `dsgd.progress` for a live line and callbacks.
    epsilon : float, default 0.1
        Threshold of the huber and epsilon-insensitive losses.
    n_jobs : int or None, default None
        Ranks in all: threads of this process over one copy of the data (None: 1, -1: one per core) or, on a cluster,
        threads of its workers (None or -1: all; fewer are spread over the workers). Another number of ranks is another
        model, the mean of models that have seen a part of the rows each, and no worse a one with the default `sync`:
        there it is a limit, and `fit` in this process takes as many threads as have 1,000 rows each, one at least; see
        ``fit_report_["ranks"]``. With other ones all train, and step at the rates of their own schedules: unless these
        fall like 1/t, P ranks get less far in an epoch, at constant rates a P-th of the way, and may stop there.
    random_state : int, RandomState or None, default None
        Seeds the order of rows and the validation split.
    learning_rate : {"invscaling", "constant", "optimal", "adaptive", "pegasos", "per_epoch"}, default "invscaling"
        Step size: eta0/t^power_t, eta0, 1/(alpha (t0 + t)), eta0 divided by 5 on plateaus, 1/(alpha t), and
        1/(alpha epoch). t counts the samples of the rank.
    eta0 : float, default 0.01
        Initial step size.
    power_t : float, default 0.25
        Exponent of ``"invscaling"``; below zero, where rates grow, it is deprecated as in scikit-learn.
    early_stopping : bool, default False
        Hold rows out and stop when their score no longer improves.
    validation_fraction : float, default 0.1
        Share of rows held out. One rank holds out what scikit-learn's ``ShuffleSplit`` does with the same
        `random_state`; of several ranks each draws from its own rows.
    n_iter_no_change : int, default 5
        See `tol`.
    warm_start : bool, default False
        Begin ``fit`` at the fitted model.
    average : bool or int, default False
        Return the mean of the iterates; an integer starts the mean after so many samples.
    sync : int, str, strategy or None, default None
        When ranks talk and what they say. An integer is `dsgd.sync.LocalSGD`: samples between two averages. A text is
        a short name in `dsgd.sync.STRATEGIES`, such as ``"epoch"``, ``"easgd"`` or ``"slowmo"``. None
        averages every 1024 samples, and raises rates that do not fall like 1/t such that ranks get as far in an epoch
        as one rank. Of no effect on a single rank.
    optimizer : `dsgd.local.Momentum`, `Adagrad`, `Adam`, `LARS` or None, default None
        How a rank steps. None is plain SGD, a step per row; the others take one per minibatch. Rates are those of
        `learning_rate`, with t counted in steps; most of these rules want ``learning_rate="constant"`` or
        ``"invscaling"``.
    client : distributed.Client, SimulatedCluster or None, default None
        The cluster to train on. None trains arrays in this process and dask collections on the current client, or on
        a local cluster that is closed afterwards. With a `dsgd.sim.SimulatedCluster` ranks run in this process, on a
        virtual clock.
    transport : {"auto", "spin", "shm", "tcp", "rpc", "gloo", "mpi", "ucx"}, default "auto"
        What ranks on a cluster talk over: shared memory inside a host and TCP between hosts; see
        `dsgd.runtime.run_on_cluster`.
    on_failure : {"raise", "restart", "shrink"}, `dsgd.runtime.Restart` or `dsgd.runtime.Shrink`, default "raise"
        What happens on a cluster when a worker is lost or hangs: raise the error; go on with all rows on the workers
        that are left; or go on with the ranks that are left and the rows they hold. The objects say how often.
    checkpoint : str, path, `dsgd.runtime.Checkpoint` or None, default None
        Folder or URL where ``fit`` writes the state of training, every 30 seconds by default.
    resume_from : str, path or None, default None
        Folder or URL of checkpoints that ``fit`` goes on from, with the same data and parameters.
    elastic : bool, default False
        Whether workers that join the cluster take part from the next epoch on.
    out_of_core : bool, default False
        Keep the rows in files, on the disks of the workers or of this machine, and not in memory: for data that are
        more than that. The model is the same to the bit.

    Attributes
    ----------
    coef_ : array, shape (n_features,)
        Weights.
    intercept_ : array, shape (1,)
        Intercept.
    n_features_in_ : int
        Features seen in ``fit``.
    feature_names_in_ : array, shape (n_features,)
        Their names, if X had any.
    n_iter_ : int
        Epochs run.
    t_ : float
        Step counter: one plus the steps that a rank has taken, which are samples or, with an `optimizer` and where
        gradients are exchanged, minibatches.
    loss_curve_ : list of float
        Training loss of every epoch.
    sync_history_ : list of dict
        The periods of ``sync="auto"``, in order: since how many ``rows`` of the rank with the most rows, since when in
        ``seconds`` of training, the ``period`` in rows, and ``why``. Empty with strategies that do not choose one.
    ledger_ : dsgd.Ledger
        Seconds and bytes of every rank; a pickle of the model leaves it out.
    fit_report_ : dict
        Ranks, strategy, transport, seconds, history by epoch, peak memory, slow ranks; ``recoveries`` and ``rows_lost``
        tell of failures that the fit survived.

    loss_functions : mapping
        Of the class: the row of each loss, and the default of its threshold if it has one.

    See Also
    --------
    dsgd.sync.LocalSGD : The synchronisation frequency.

    Examples
    --------
    >>> import numpy as np
    >>> from dsgd import SGDRegressor
    >>> X = np.linspace(-1, 1, 200)[:, None]
    >>> model = SGDRegressor(random_state=0).fit(X, 2 * X.ravel())
    >>> round(model.score(X, 2 * X.ravel()), 2)
    1.0
    """

    loss_functions = losses_for(classification=False)

    def __init__(
        self,
        loss: str = "squared_error",
        *,
        penalty: str | None = "l2",
        alpha: float = 0.0001,
        l1_ratio: float = 0.15,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float | None = 1e-3,
        shuffle: bool = True,
        verbose: int = 0,
        epsilon: float = 0.1,
        n_jobs: int | None = None,
        random_state: Any = None,
        learning_rate: str = "invscaling",
        eta0: float = 0.01,
        power_t: float = 0.25,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        warm_start: bool = False,
        average: bool | int = False,
        sync: Any = None,
        optimizer: AbstractRule | None = None,
        client: Any = None,
        transport: TransportName = "auto",
        on_failure: FailurePolicy = "raise",
        checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
        resume_from: str | os.PathLike[str] | None = None,
        elastic: bool = False,
        out_of_core: bool = False,
    ) -> None:
        self.loss = loss
        self.penalty = penalty
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.shuffle = shuffle
        self.verbose = verbose
        self.epsilon = epsilon
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.learning_rate = learning_rate
        self.eta0 = eta0
        self.power_t = power_t
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.average = average
        self.sync = sync
        self.optimizer = optimizer
        self.client = client
        self.transport = transport
        self.on_failure = on_failure
        self.checkpoint = checkpoint
        self.resume_from = resume_from
        self.elastic = elastic
        self.out_of_core = out_of_core

    @announced
    def fit(
        self, X: Any, y: Any = None, coef_init: Any = None, intercept_init: Any = None, sample_weight: Any = None
    ) -> Self:
        """Train; with several ranks, on a part of the rows each (see `n_jobs` for what that costs).

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, dask array or dataframe, list of delayed blocks, or svmlight file(s)
            Rows, shape (n_samples, n_features). A delayed block is a tuple (X, y) or (X, y, sample_weight).
        y : array-like or dask collection, shape (n_samples,)
            Targets; None where blocks or files hold them.
        coef_init, intercept_init : array or None
            Where to begin.
        sample_weight : array-like, dask array or None, shape (n_samples,)
            Weights. A whole number stands for that many copies of the row, zero for none.

        Returns
        -------
        self

        Raises
        ------
        InvalidDataError
            The data cannot be trained on.
        InvalidParameterError
            A parameter is out of range.
        GangError
            A rank failed; names rank, worker and host.
        """
        self._train(X, y, sample_weight, start=self._restart(coef_init, intercept_init))
        self._warn_if_not_converged()
        return self

    @announced
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train for one epoch on these rows, going on from where the last call ended.

        With the model go on what ranks remember: the memory of the strategy, of its compressor and of the local rule,
        and where random numbers are. So k calls are one `fit` of k epochs, bit for bit on the same rows with
        ``shuffle=False``. With another number of ranks it goes over to them as from a checkpoint. With another
        `sync` or `optimizer`, or with sparse rows after dense ones, and after `fit`, they begin anew.

        Parameters
        ----------
        X, y, sample_weight
            As for `fit`.

        Returns
        -------
        self
        """
        check_whole_fit(self)
        self._train(X, y, sample_weight, start=self._resume(), first=not hasattr(self, "coef_"), max_iter=1)
        return self

    def predict(self, X: Any) -> Any:
        """Return the predicted values.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, dask array or dataframe, shape (n, n_features)
            Rows; dask input gives a lazy result.

        Returns
        -------
        array, shape (n,)
            Predictions.
        """
        if self._is_lazy(X):
            check_is_fitted(self)
            return self._apply("predict", X, None, self.coef_.dtype)
        return self._scores(X).ravel()

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return R2, a float; on dask input it is computed block by block.

        Parameters
        ----------
        X, y, sample_weight
            As for `fit`.

        Returns
        -------
        float
            1 - sum w (y - f)^2 / sum w (y - mean y)^2.
        """
        if self._is_lazy(X):
            check_is_fitted(self)
            return lazy.r2(self._without_client(), X, y, sample_weight)
        return float(super().score(X, y, sample_weight))

    def to_sklearn(self) -> Any:
        """Return the plain scikit-learn estimator with the same coefficients.

        Returns
        -------
        sklearn.linear_model.SGDRegressor
            Fitted; predicts without dsgd.
        """
        from sklearn.linear_model import SGDRegressor as Plain

        check_is_fitted(self)
        return to_plain(self, Plain, ())

    # -- hooks of the base ---------------------------------------------------------------------------------------

    @property
    def _is_classification(self) -> bool:
        return False

    def _classes(self) -> None:
        return None

    def _learn_targets(self, summaries: Sequence[BlockSummary], *, first: bool) -> None:
        """Regression targets are taken as they are."""

    def _objective(self, summaries: Sequence[BlockSummary]) -> Objective:
        return Objective(
            loss=self.loss,
            penalty=self.penalty,
            alpha=float(self.alpha),
            l1_ratio=float(self.l1_ratio or 0.0),
            epsilon=float(self.epsilon),
            fit_intercept=bool(self.fit_intercept),
            n_outputs=1,
            positive_weights=(1.0,),
            negative_weights=(1.0,),
        )

    def _shape_model(self, coef: AnyArray, intercept: AnyArray) -> tuple[AnyArray, AnyArray]:
        return coef.ravel(), intercept
