"""`TorchClassifier` and `TorchRegressor`: torch modules as scikit-learn estimators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.special
import torch
from sklearn.utils.validation import check_is_fitted
from torch import nn

from dsgd.compress import AbstractCompressor
from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.inputs.blocks import BlockSummary
from dsgd.inputs.docstrings import inherit_method_docs
from dsgd.inputs.linear import AbstractClusterClassifier, AbstractClusterRegressor
from dsgd.torch.estimator import AbstractTorchEstimator
from dsgd.torch.parts import Passes
from dsgd.torch.rows import BatchNormPolicy
from dsgd.types import AnyArray


@inherit_method_docs
class TorchClassifier(AbstractClusterClassifier, AbstractTorchEstimator):
    """Classifier whose model is a torch module, trained by parallel SGD.

    Parameters have the names that skorch has for them. Ranks are threads of this process (`n_jobs`), the workers of a
    Dask cluster or simulated machines (`client`); `sync` sets when they exchange, and what.

    Parameters
    ----------
    module : type, callable or torch.nn.Module
        Makes the module from the options ``module__*``, or is one. It returns scores, one column per class, or one
        number where the criterion takes one.
    criterion : type or torch.nn.Module, default torch.nn.CrossEntropyLoss
        The loss; the mean over rows. Options are ``criterion__*``.
    optimizer : type, default torch.optim.SGD
        The torch optimiser. Options are ``optimizer__*``, such as ``optimizer__momentum=0.9``;
        ``optimizer__param_groups`` is a list of (pattern, options) for parameters whose name matches.
    lr : float, default 0.01
        The learning rate.
    batch_size : int or None, default None
        Rows of a step; None is 128. Without a `sync` they are those of all ranks together; with one that averages
        models, those of a local step; one that exchanges gradients has a batch of its own, and this stays None.
    max_epochs : int, default 10
        Passes over the rows.
    sync : AbstractStrategy, int, str or None, default None
        When ranks exchange, and what. None is synchronous SGD with the mean gradient of `batch_size` rows; an integer n
        averages models every n rows; otherwise a strategy of `dsgd.sync` or its short name.
    compressor : AbstractCompressor, "auto" or None, default None
        How exchanged vectors are compressed; see `dsgd.compress`.
    batch_norm : {"average", "local", "recompute"}, default "average"
        What happens to running statistics, which every rank computes from its own batches: ``"average"`` takes their
        mean after every epoch, ``"local"`` those of rank 0, ``"recompute"`` those of one more pass of all ranks over
        their rows through the final model.
    dataset : callable or None, default None
        Called on every rank as ``dataset(part, n_parts)``, instead of rows passed to `fit`: returns (X, y) or a
        map-style dataset of torch whose targets are codes. `classes` must be given.
    classes : sequence or None, default None
        The classes, if `fit` does not see all of them.
    passes : Passes or None, default None
        Precision, accumulation and clipping of gradients; None is float32, whole batches, no limit.
    device : str, default "cpu"
        Where the module is; ``"cuda"`` gives each rank of a host a device of its own.
    n_jobs : int or None, default None
        Ranks: threads of this process, −1 for one per core; with a `client`, how many of its threads; None is one here,
        or one per device, and all of a cluster.
    random_state : int, RandomState or None, default None
        Seed of the first parameters, the order of the rows and what modules draw.
    shuffle : bool, default True
        Whether rows of this process are assigned to ranks at random and visited in a new order in every epoch.
    tol : float or None, default None
        Stop when the training loss, or with `early_stopping` the validation score, has not improved by this much for
        `n_iter_no_change` epochs. None does not stop for the loss.
    early_stopping : bool, default False
        Whether the score on validation rows decides: those passed to `fit`, else rows that are held out.
    validation_fraction : float, default 0.1
        Share of the rows of every rank that is held out.
    n_iter_no_change : int, default 5
        See `tol`.
    scoring : str, callable or None, default None
        The measure of validation rows: the name of a scorer of scikit-learn or a callable (estimator, X, y). None is
        accuracy or R2. The rows are those passed to `fit` or, of arrays in this process, those that scikit-learn would
        hold out; rank 0 scores all of them.
    restore_best : bool, default False
        Whether `fit` ends with the module of the epoch with the best validation score, its buffers included, instead of
        the last one.
    callbacks : sequence or None, default None
        Callbacks of `dsgd.progress`, or objects with any of skorch's methods ``on_train_begin(net, X, y)``,
        ``on_epoch_end(net, ...)`` and ``on_train_end(net, X, y)``. They are called in this process, for at most five
        epochs a second; ``net.history`` holds those.
    verbose : int or bool, default 0
        Whether lines on progress are printed.
    client : `dsgd.Gang`, distributed.Client, SimulatedCluster or None, default None
        Where ranks run and how: a cluster, or a `dsgd.Gang`, of which all but ``elastic`` and ``out_of_core`` is taken.
        None trains in this process.
    **options
        ``module__*``, ``criterion__*`` and ``optimizer__*``.

    Attributes
    ----------
    module_ : torch.nn.Module
        The trained module, a plain one on the CPU.
    classes_ : array, shape (n_classes,)
        The labels.
    history_ : list of dict
        A line per epoch: ``epoch``, ``train_loss``, ``seconds`` since training began, ``valid_score`` if there are
        validation rows, ``dispersion`` of the ranks' models, ``bytes_sent`` by all ranks and ``communication_s``, the
        mean of what ranks have sent and waited for. ``history_.to_frame()`` is a pandas frame.
    best_score_, best_epoch_ : float, int
        The best validation score and its first epoch, counted from 1, if there are validation rows.
    n_iter_ : int
        Epochs run.
    sync_history_ : list of dict
        The periods that a strategy has chosen; see `dsgd.SGDClassifier`.
    ledger_ : Ledger
        Seconds and bytes of every rank; a pickle of the model leaves it out.
    fit_report_ : dict
        Ranks, strategy, wires, memory, failures.
    n_features_in_ : int
        Length of the second axis of X; 0 with a `dataset`.

    Examples
    --------
    >>> import numpy as np
    >>> from torch import nn
    >>> from dsgd.torch import TorchClassifier
    >>> def network(hidden):
    ...     return nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, 2))
    >>> X = np.random.default_rng(0).standard_normal((200, 2))
    >>> y = X[:, 0] * X[:, 1] > 0
    >>> clf = TorchClassifier(network, module__hidden=16, lr=0.1, max_epochs=60, batch_size=20, random_state=0)
    >>> bool(clf.fit(X, y).score(X, y) > 0.9)
    True
    """

    classes: Sequence[Any] | None

    def __init__(
        self,
        module: Any,
        *,
        criterion: Any = nn.CrossEntropyLoss,
        optimizer: Any = torch.optim.SGD,
        lr: float = 0.01,
        batch_size: int | None = None,
        max_epochs: int = 10,
        sync: Any = None,
        compressor: AbstractCompressor[Any] | str | None = None,
        batch_norm: BatchNormPolicy = "average",
        dataset: Callable[[int, int], Any] | None = None,
        classes: Sequence[Any] | None = None,
        passes: Passes | None = None,
        device: str = "cpu",
        n_jobs: int | None = None,
        random_state: Any = None,
        shuffle: bool = True,
        tol: float | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        scoring: Any = None,
        restore_best: bool = False,
        callbacks: Sequence[Any] | None = None,
        verbose: int | bool = 0,
        client: Any = None,
        **options: Any,
    ) -> None:
        self._store(locals())

    def predict_proba(self, X: Any) -> Any:
        """Return class probabilities: what the criterion takes scores for.

        Returns
        -------
        array, shape (n, n_classes)
            Softmax of scores for `CrossEntropyLoss`, the exponential for `NLLLoss`, for one output its sigmoid; what
            the module returns with any other criterion.
        """
        if self._is_lazy(X):
            check_is_fitted(self)
            return self._apply("predict_proba", X, len(self.classes_), np.float32)
        scores = self.forward(X)
        criterion = self.criterion if isinstance(self.criterion, type) else type(self.criterion)
        if scores.ndim == 1 or scores.shape[1] == 1:
            positive = scores.ravel() if criterion is nn.BCELoss else scipy.special.expit(scores.ravel())
            return np.column_stack([1.0 - positive, positive])
        if criterion is nn.CrossEntropyLoss:
            return scipy.special.softmax(scores, axis=1)
        return np.exp(scores) if criterion is nn.NLLLoss else scores

    def predict(self, X: Any) -> Any:
        """Return the labels.

        Parameters
        ----------
        X : array or dask array, shape (n, ...)
            Rows; dask input gives a lazy result.

        Returns
        -------
        array, shape (n,)
            Predicted labels.
        """
        if self._is_lazy(X):
            check_is_fitted(self)
            return self._apply("predict", X, None, self.classes_.dtype)
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    # -- hooks of the base ---------------------------------------------------------------------------------------

    @property
    def _is_classification(self) -> bool:
        return True

    def _learn_targets(self, summaries: Sequence[BlockSummary]) -> AnyArray | None:
        found = [s.classes for s in summaries if s.classes is not None and len(s.classes)]
        if self.dataset is not None:
            if self.classes is None:
                raise InvalidParameterError(
                    "TorchClassifier(classes=...) must be given with dataset=..., whose rows only ranks see."
                )
            self.classes_ = np.unique(np.asarray(self.classes))
            return self.classes_
        seen = np.unique(np.concatenate(found))
        self.classes_ = seen if self.classes is None else np.unique(np.asarray(self.classes))
        if missing := sorted(set(seen.tolist()) - set(self.classes_.tolist())):
            raise InvalidDataError(f"y holds {missing[0]!r}, which is not in classes={list(self.classes_)}.")
        if len(self.classes_) < 2:
            raise InvalidDataError(
                f"The number of classes has to be greater than one; got {len(self.classes_)} class: "
                f"{self.classes_[0]!r}."
            )
        return self.classes_


class TorchRegressor(AbstractClusterRegressor, AbstractTorchEstimator):
    """Regressor whose model is a torch module, trained by parallel SGD.

    All parameters but these are those of `TorchClassifier`.

    Parameters
    ----------
    module : type, callable or torch.nn.Module
        Makes the module from the options ``module__*``, or is one. It returns a value per row, or a row of values.
    criterion : type or torch.nn.Module, default torch.nn.MSELoss
        The loss; the mean over rows. Options are ``criterion__*``.
    optimizer, lr, batch_size, max_epochs, sync, compressor, batch_norm, dataset, passes, device, n_jobs, random_state
        See `TorchClassifier`.
    shuffle, tol, early_stopping, validation_fraction, n_iter_no_change, scoring, restore_best, callbacks, verbose
        See `TorchClassifier`; validation rows are scored by R2 unless `scoring` says otherwise.
    client
        See `TorchClassifier`.
    **options
        ``module__*``, ``criterion__*`` and ``optimizer__*``.

    Attributes
    ----------
    module_, history_, best_score_, best_epoch_, n_iter_, sync_history_, ledger_, fit_report_, n_features_in_
        See `TorchClassifier`.
    """

    def __init__(
        self,
        module: Any,
        *,
        criterion: Any = nn.MSELoss,
        optimizer: Any = torch.optim.SGD,
        lr: float = 0.01,
        batch_size: int | None = None,
        max_epochs: int = 10,
        sync: Any = None,
        compressor: AbstractCompressor[Any] | str | None = None,
        batch_norm: BatchNormPolicy = "average",
        dataset: Callable[[int, int], Any] | None = None,
        passes: Passes | None = None,
        device: str = "cpu",
        n_jobs: int | None = None,
        random_state: Any = None,
        shuffle: bool = True,
        tol: float | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        scoring: Any = None,
        restore_best: bool = False,
        callbacks: Sequence[Any] | None = None,
        verbose: int | bool = 0,
        client: Any = None,
        **options: Any,
    ) -> None:
        self._store(locals())

    def predict(self, X: Any) -> Any:
        """Return the values.

        Parameters
        ----------
        X : array or dask array, shape (n, ...)
            Rows; dask input gives a lazy result of one value per row.

        Returns
        -------
        array, shape (n,) or (n, k)
            Predicted values; of a module with one output, without its second axis.
        """
        if self._is_lazy(X):
            check_is_fitted(self)
            return self._apply("predict", X, None, np.float32)
        found = self.forward(X)
        return found.ravel() if found.ndim == 2 and found.shape[1] == 1 else found

    # -- hooks of the base ---------------------------------------------------------------------------------------

    @property
    def _is_classification(self) -> bool:
        return False

    def _learn_targets(self, summaries: Sequence[BlockSummary]) -> AnyArray | None:
        return None
