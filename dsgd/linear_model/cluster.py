"""The models that take a client: rows of arrays, dask collections or files become those of ranks that fit together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from dsgd.comm.base import TransportName, check_transport
from dsgd.errors import InvalidDataError
from dsgd.inputs import Block, BlockSummary
from dsgd.inputs.blocks import Expected, Spread, Work, ranks_asked
from dsgd.inputs.estimator import AbstractClusterEstimator
from dsgd.inputs.prediction import AbstractClusterRegressor, answers_in_kind
from dsgd.linear_model.base import AbstractLinearModel
from dsgd.linear_model.distributed import Packer, RankResult, train_rows
from dsgd.linear_model.problem import Solution
from dsgd.types import AnyArray


class AbstractClusterModel(AbstractLinearModel, AbstractClusterEstimator):
    """A generalised linear model, which ranks of a cluster can fit together.

    Parameters
    ----------
    client : distributed.Client or None, default None
        Fit on the worker processes of this client. None fits in this process or, if X is a dask collection or a list of
        blocks or files, on the current client, else on a cluster of this machine.
    transport : {"auto", "spin", "shm", "tcp", "rpc"} or str, default "auto"
        How ranks on a cluster exchange: by default shared memory inside a host and TCP between hosts; see
        `dsgd.runtime.run_on_cluster`.

    Attributes
    ----------
    ledger_ : dsgd.ledger.Ledger
        Seconds and bytes of every rank; after a fit on a cluster.
    fit_report_ : dict
        ``ranks``, ``elapsed_s``, ``converged``, ``certificates`` (seconds, exchanges, primal and dual value of each),
        ``peak_rss_bytes`` and ``stats`` per rank; after a fit on a cluster.
    """

    transport: TransportName

    #: Whether targets are classes.
    _has_classes: ClassVar[bool] = False

    verbose = 0

    def _check_common(self) -> None:
        """Check the parameters that all of these models have."""
        super()._check_common()
        check_transport(f"{type(self).__name__}(transport=...)", self.transport)

    def _check_block(self, X: Any, y: Any, sample_weight: Any) -> Block:
        """Validate arrays of this process, to be cut into blocks."""
        X, y, weights = self._check_rows(X, y, sample_weight, y_numeric=not self._has_classes)
        return X.tocsr() if sp.issparse(X) else X, y, weights

    def _classes_of(self, summaries: Sequence[BlockSummary]) -> AnyArray | None:
        """Learn the classes that blocks have between them, and return them; None for regression."""
        return None

    def _fit_on_cluster(self, X: Any, y: Any, sample_weight: Any) -> Solution:
        """Fit on worker processes, and set the fitted attributes."""
        begin = time.perf_counter()
        expected = Expected(self._has_classes)
        spread = Spread(ranks_asked(getattr(self, "n_jobs", None)), ranks_per_worker=1)
        with self._open_blocks(
            X, y, sample_weight, lambda: self._check_block(X, y, sample_weight), expected, spread
        ) as blocks:
            filled = [summary for summary in blocks.summaries if summary.rows]
            if all(summary.weight == 0.0 for summary in filled):
                raise InvalidDataError("Sample weights must contain at least one non-zero number.")
            packer = Packer(
                classes=self._classes_of(filled),
                n_features=int(self.n_features_in_),
                dtype="float32" if all(s.dtype == "float32" for s in filled) else "float64",
                sparse=filled[0].sparse,
            )
            n_classes = 2 if packer.classes is None else len(packer.classes)
            start = self._started(packer.n_features, n_classes if n_classes > 2 else 1)
            work = Work(train_rows, packer, (self._objective(), start, int(self.max_iter)))
            gang = blocks.run(work, self._terms(self._listener()))
        result: RankResult = gang.value
        self._take_in(result.solution)
        self._take_report(
            gang,
            elapsed_s=time.perf_counter() - begin,
            converged=result.solution.gap <= result.tol,
            certificates=result.certificates,
        )
        self._warn_unless(result.solution.gap, result.tol)
        return result.solution

    def _forget_cluster(self) -> None:
        """Drop what an earlier fit on a cluster has left, which a fit in this process has not."""
        for name in self._of_training:
            self.__dict__.pop(name, None)


class AbstractRegressor(AbstractClusterRegressor, AbstractClusterModel):
    """A generalised linear model that predicts one value per row.

    Attributes
    ----------
    coef_ : array of float64, shape (n_features,)
        Coefficients.
    intercept_ : float
        Intercept.
    """

    @answers_in_kind
    def predict(self, X: Any) -> Any:
        """Return the predicted values; with a log link, the means.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, files of tables, dask array or dataframe, shape (n, n_features)
            Rows; dask input gives a lazy result.

        Returns
        -------
        array, shape (n,)
            Predicted values.
        """
        if self._is_lazy(X):
            check_is_fitted(self)
            return self._apply("predict", X, None, self.coef_.dtype)
        scores = self._scores(X)
        return scores if self._deviance is None else np.exp(scores)

    @property
    def sparse_coef_(self) -> Any:
        """The coefficients as CSR matrix, shape (1, n_features)."""
        check_is_fitted(self)
        return sp.csr_matrix(self.coef_[None])
