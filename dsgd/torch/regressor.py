"""`TorchRegressor`: a torch module for regression, as a scikit-learn estimator."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import nn

from dsgd.comm.base import TransportName
from dsgd.compress import AbstractCompressor
from dsgd.inputs import BlockSummary
from dsgd.inputs.prediction import AbstractClusterRegressor
from dsgd.runtime.checkpoints.checkpoint import Checkpoint
from dsgd.runtime.sharing import Workers
from dsgd.runtime.timeouts import FailurePolicy, Timeouts
from dsgd.torch.estimator import AbstractTorchEstimator
from dsgd.torch.passes import Passes
from dsgd.torch.statistics import BatchNormPolicy
from dsgd.types import AnyArray


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
    client, transport
        See `TorchClassifier`.
    on_failure, checkpoint, resume_from, timeouts, workers
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
        transport: TransportName = "auto",
        on_failure: FailurePolicy = "raise",
        checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
        resume_from: str | os.PathLike[str] | None = None,
        timeouts: Timeouts | None = None,
        workers: Workers = None,
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
