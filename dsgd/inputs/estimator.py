"""The base of all estimators that can train on a cluster: client, row blocks, lazy prediction.

**The base of all estimators that can train on a cluster: client, row blocks, lazy prediction.**

Training takes three steps: the data is converted to row blocks, each block is summarised where it is, and a gang runs a
rank program over the blocks. An estimator defines how arrays of this process are checked, how blocks are packed and
which program runs.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.inputs.blocks import Block, BlockSummary, Expected, Spread, Terms, check_summaries, make_block
from dsgd.inputs.callbacks import wrap_callbacks
from dsgd.inputs.frames import is_frame
from dsgd.inputs.placed import ClusterBlocks, kept_blocks, place_blocks, released
from dsgd.inputs.rows import Rows
from dsgd.inputs.shared import SimulatedBlocks, cut_rows, holds_blocks, is_simulated, take_rows
from dsgd.inputs.sources import check_targets, feature_names, is_collection, is_distributed, to_delayed_blocks
from dsgd.local.base import Evaluation
from dsgd.local.objective import Deviance
from dsgd.progress import Audience
from dsgd.runtime.deployment import Gang, as_gang
from dsgd.runtime.memory import MemoryDemand
from dsgd.runtime.rank import GangResult
from dsgd.saving import SavingMixin
from dsgd.stages import recorded, stage
from dsgd.types import AnyArray
from dsgd.validation import warn_user

if TYPE_CHECKING:
    from dsgd.sim import SimulatedCluster


def apply(model: Any, method: str, X: Any, n_columns: int | None, dtype: np.dtype[Any]) -> Any:
    """Return the lazy result of ``model.method`` on every block of X."""
    import dask

    width = X.shape[1]
    # An encoder finds the columns of a frame by their names.
    finds = getattr(model, "encoder_", None) is not None and hasattr(X, "map_partitions")
    if width != model.n_features_in_ and not finds:
        raise InvalidDataError(
            f"X has {width} features, but {type(model).__name__} is expecting {model.n_features_in_} features as input."
        )
    # One node, shared by the tasks of all blocks. Its key is random, because a hash would read the whole model.
    shared = dask.delayed(model, pure=False)
    if hasattr(X, "map_partitions"):
        return X.map_partitions(_on_frame, shared, method, meta=_frame_meta(X, n_columns, dtype))
    for axis, n_blocks in enumerate(X.numblocks[1:], start=1):
        if n_blocks > 1:
            what = "columns" if X.ndim == 2 else f"axis {axis}"
            raise InvalidDataError(
                f"X is chunked along its {what} ({n_blocks} column blocks). Use X.rechunk({{{axis}: -1}})."
            )
    shape = (0,) if n_columns is None else (0, 0)
    options: dict[str, Any] = {"drop_axis": list(range(len(shape), X.ndim))}
    if n_columns is not None:
        options["chunks"] = (X.chunks[0], (n_columns,))
    return X.map_blocks(_on_array, shared, method, dtype=dtype, meta=np.empty(shape, dtype=dtype), **options)


def accuracy(model: Any, X: Any, y: Any, sample_weight: Any) -> float:
    """Compute the share of (weighted) rows that a classifier predicts right; no row leaves its worker."""
    right, total = _added_up(_accuracy_sums, model, X, y, sample_weight)
    return float(right / total)


def r2(model: Any, X: Any, y: Any, sample_weight: Any) -> float:
    """Compute 1 - sum w (y - f)^2 / sum w (y - mean y)^2 of a regressor f; no row leaves its worker."""
    weight, y_sum, y2_sum, residual = _added_up(_r2_sums, model, X, y, sample_weight)
    return float(1 - residual / (y2_sum - y_sum**2 / weight))


def d2(model: Any, X: Any, y: Any, sample_weight: Any) -> float:
    """Compute the share of the deviance that a regressor with a log link explains; no row leaves its worker."""
    found = Evaluation.from_vector(_added_up(_d2_sums, model, X, y, sample_weight))
    return float(model._deviance.explained(found))


def d2_here(model: Any, X: Any, y: Any, sample_weight: Any) -> float:
    """Compute the same of arrays, tables and files of tables in this process."""
    scores = model._scores(X).ravel()
    check_consistent_length(scores, y, sample_weight)  # files have no length before they are read
    weights = None if sample_weight is None else column_or_1d(sample_weight)
    return float(model._deviance.explained(_deviances(model, scores, column_or_1d(y), weights)))


def _added_up(sums_of: Callable[..., AnyArray], model: Any, X: Any, y: Any, sample_weight: Any) -> AnyArray:
    """Return the sum over all blocks of what `sums_of` returns for a model and a block."""
    import dask

    shared = dask.delayed(model, pure=False)
    sums = dask.delayed(sums_of, pure=False)
    # Rows are passed to the model unchanged: it checks the column names of a table.
    parts = [sums(shared, block) for block in to_delayed_blocks(X, y, sample_weight, build=with_targets)]
    return np.sum(dask.compute(*parts), axis=0)  # type: ignore[no-any-return]


def with_targets(X: Any, y: Any = None, sample_weight: Any = None) -> Block:
    """Return a block; rows of a table stay a table."""
    if isinstance(X, (tuple, list)) and y is None:
        X, y, sample_weight = (*X, None)[:3]
    if is_frame(X):
        return X, *make_block(np.empty((len(X), 0)), y, sample_weight)[1:]
    return make_block(X, y, sample_weight)


def _accuracy_sums(model: Any, block: Any) -> AnyArray:
    X, y, sample_weight = block
    weights = np.ones(len(y)) if sample_weight is None else sample_weight
    right = model.predict(X) == y if len(y) else np.zeros(0, dtype=bool)
    return np.array([np.sum(weights * right), np.sum(weights)], dtype=np.float64)


def _r2_sums(model: Any, block: Any) -> AnyArray:
    X, y, sample_weight = block
    weights = np.ones(len(y)) if sample_weight is None else sample_weight
    predicted = model.predict(X) if len(y) else np.zeros(0)
    y = np.asarray(y, dtype=np.float64)
    return np.array([weights.sum(), weights @ y, weights @ y**2, weights @ (y - predicted) ** 2], dtype=np.float64)


def _d2_sums(model: Any, block: Any) -> AnyArray:
    X, y, sample_weight = block
    if not len(y):
        return Evaluation().as_vector()
    return _deviances(model, model._scores(X).ravel(), y, sample_weight).as_vector()


def _deviances(model: Any, scores: AnyArray, y: Any, sample_weight: Any) -> Evaluation:
    model._deviance.check_targets(float(np.min(y)))
    found: Evaluation = model._deviance.sums(y, scores, sample_weight)
    return found


def _on_array(chunk: Any, model: Any, method: str) -> AnyArray:
    # dask probes functions with empty blocks, which scikit-learn's validation refuses
    if chunk.shape[0] == 0:
        one = getattr(model, method)(np.zeros((1, *chunk.shape[1:]), dtype=chunk.dtype))
        return np.asarray(one)[:0]
    return np.asarray(getattr(model, method)(chunk))


def _on_frame(part: Any, model: Any, method: str) -> Any:
    import pandas as pd

    if len(part) or getattr(model, "encoder_", None) is not None:
        values = getattr(model, method)(part)
    else:
        values = _on_array(np.zeros((0, part.shape[1])), model, method)
    kind = pd.Series if np.ndim(values) == 1 else pd.DataFrame
    return kind(values, index=part.index)


def _frame_meta(X: Any, n_columns: int | None, dtype: np.dtype[Any]) -> Any:
    import pandas as pd

    index = X._meta.index
    if n_columns is None:
        return pd.Series(np.empty(0, dtype=dtype), index=index)
    return pd.DataFrame(np.empty((0, n_columns), dtype=dtype), index=index)


class _LeftOut:
    """Explains why an estimator has no ledger; an actual ledger takes precedence."""

    def __get__(self, estimator: Any, owner: type) -> Any:
        """Raise `AttributeError`; on the class, return this."""
        if estimator is None:
            return self
        name = owner.__name__
        if "_ledger_is_elsewhere" not in vars(estimator):
            is_fitted = any(attribute.endswith("_") and attribute[0] != "_" for attribute in vars(estimator))
            why = "only models trained on a cluster (client=) have one" if is_fitted else "no ranks have trained it yet"
            raise AttributeError(f"{name!r} object has no attribute 'ledger_': {why}.")
        raise AttributeError(
            f"this {name} has no 'ledger_': pickles and copies of a model leave it out, as it may be a thousand times "
            "as long. Save it beside the model before, as in joblib.dump((model, model.ledger_), path)."
        )


class AbstractClusterEstimator(SavingMixin, BaseEstimator):
    """An estimator with a parameter ``client``, which is kept by reference and never pickled.

    The ledger is not pickled either, as it describes the training and not the model.
    """

    client: Any  # set by the final classes' __init__
    verbose: int | bool
    ledger_: Any = _LeftOut()

    #: Fitted attributes that describe the training and are not sent with a model that predicts elsewhere.
    _of_training: ClassVar[tuple[str, ...]] = ("ledger_", "_ledger_is_elsewhere", "fit_report_", "run_")

    #: Advice for rows that exceed the memory of the workers.
    _if_too_large: ClassVar[str] = MemoryDemand.advice

    #: What training takes of a `Gang` besides what all take; see `Gang.check`.
    _takes: ClassVar[Collection[str]] = ()

    #: Whether training takes `Rows` themselves, or their contents.
    _reuses_rows: ClassVar[bool] = False

    #: The listeners of the current fit.
    _audience: Audience | None = None

    @property
    def _deviance(self) -> Deviance | None:
        """The deviance that is minimised, of models of the logarithm of a mean."""
        return None

    # What every estimator has; docstrings of its own methods are completed by these (`inherit_method_docs`).

    @abstractmethod
    def fit(self, X: Any, y: Any = None) -> Self:
        """Train.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, dask array or dataframe, list of delayed blocks, or files
            Rows, shape (n_samples, n_features). A delayed block is a tuple (X, y) or (X, y, sample_weight). Files are
            svmlight, Parquet, CSV or Arrow.
        y : array-like, dask collection or str, shape (n_samples,)
            Targets, or the name of their column; None where blocks or svmlight files hold them.

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

    @abstractmethod
    def predict(self, X: Any) -> Any:
        """Return the predicted values.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, files of tables, dask array or dataframe, shape (n, n_features)
            Rows; dask input gives a lazy result.

        Returns
        -------
        array, shape (n,)
            Predicted values.
        """

    def set_callbacks(self, *callbacks: Any) -> Self:
        """Set the callbacks of ``fit``, in place of earlier ones.

        Parameters
        ----------
        *callbacks : dsgd.progress.Callback, or callback of scikit-learn 1.9 and newer
            Instances; none removes all callbacks. A clone has the same ones.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            One of them follows neither protocol.
        """
        if callbacks:
            self._skl_callbacks = wrap_callbacks(type(self).__name__, callbacks)
        else:
            self.__dict__.pop("_skl_callbacks", None)
        return self

    def _listener(self) -> Callable[[Mapping[str, Any]], None] | None:
        """Return the receiver of events of the current fit, if there are listeners."""
        return None if self._audience is None else self._audience.tell

    def _n_epochs_at_most(self) -> int:
        """Return the number of epochs that scikit-learn's callbacks see as tasks; 0 if training has none."""
        return 0

    def _recorded(self) -> dict[str, Any]:
        """Return the record of the run, where there is a ledger that makes one."""
        ledger = vars(self).get("ledger_")
        return {} if ledger is None or ledger.record is None else {"run_": ledger.record(ledger)}

    # -- training ------------------------------------------------------------------------------------------------

    @property
    def _deployment(self) -> Gang:
        """Where training runs, and how."""
        return as_gang(self.client)

    def _uses_cluster(self, X: Any) -> bool:
        """Return whether worker processes train on X; warn about parameters that need them and have no effect."""
        gang, name = self._deployment, type(self).__name__
        gang.check(name, self._takes)
        if is_distributed(X) or gang.client is not None or (isinstance(X, Rows) and X.uses_cluster):
            return True
        if getattr(self, "_lost_client", False):
            warn_user(
                f"this {name} has lost its client because it was pickled: it trains on arrays in this "
                "process. In cross_validate and similar functions leave n_jobs at None, so that every fit runs on the "
                "whole cluster; elsewhere call set_params(client=...).",
                UserWarning,
            )
        if idle := gang.given(of_workers=True):
            said = ", ".join(f"{field}={value!r}" for field, value in idle.items())
            warn_user(
                f"{name}(client=Gang({said})) has an effect on worker processes only, but arrays are trained on in "
                "this process. Pass a client, or dask collections.",
                UserWarning,
            )
        return False

    def _terms(self, on_event: Callable[[Mapping[str, Any]], None] | None) -> Terms:
        """Return the settings of the gang of this estimator, and its listeners."""
        return Terms(self._deployment, on_event, type(self).__name__)

    def _take_report(self, gang: GangResult, **more: Any) -> None:
        """Set the report of a fit on its gang and its stages, with further entries of an estimator."""
        stages = [*recorded("client"), *gang.stages]
        self.ledger_ = replace(gang.ledger, stages=stages)
        self.__dict__.pop("run_", None)  # of an earlier fit, in a model that was loaded
        told = [{"stage": s.name, "where": s.where, "seconds": s.seconds, "bytes": s.nbytes} for s in stages]
        self.fit_report_: dict[str, Any] = {**gang.report, "stages": told, **more}

    @contextlib.contextmanager
    def _open_blocks(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        check: Callable[[], Block],
        expected: Expected,
        spread: Spread,
        *,
        first: bool = True,
    ) -> Iterator[ClusterBlocks | SimulatedBlocks]:
        """Yield the rows as checked and summarised blocks on the workers; they are released at the end."""
        kept = X if isinstance(X, Rows) else None
        if kept is not None:
            X, y, sample_weight = kept.X, kept.y, kept.sample_weight
        gang = self._deployment
        if is_simulated(gang.client):
            yield self._simulated(gang.client, (X, y, sample_weight), check, expected, spread, first=first)
            return
        from dsgd.runtime import client_for
        from dsgd.runtime.gang.cluster import Cluster

        if is_distributed(X):
            # Before worker processes are started for it.
            check_targets(X, y, sample_weight, supervised=expected.supervised)
        with client_for(self._client_of(kept)) as client, released([]) as held:
            # Summarising blocks already runs dsgd on the workers, so these are asked before the gang does.
            with stage("connect"):
                cluster = Cluster(client, gang)
            place = partial(place_blocks, cluster, (X, y, sample_weight), check, expected, spread, self._if_too_large)
            blocks = place(held) if kept is None else kept_blocks(kept, cluster, place, expected, spread)
            if is_distributed(X):
                self._check_width(blocks.summaries, feature_names(X), first=first)
            elif kept is not None:
                kept.show(self, first=first)
            yield blocks

    def _client_of(self, rows: Rows | None) -> Any:
        """Return the client to train on: that of the rows if the estimator has none."""
        own = self._deployment.client
        if rows is None or rows.client is None:
            return own
        if own is not None and own is not rows.client:
            raise InvalidParameterError(
                f"{type(self).__name__}(client={own!r}) cannot train on rows of another cluster: {rows!r} were "
                f"made with client={rows.client!r}."
            )
        return rows.client

    def _simulated(
        self,
        cluster: SimulatedCluster,
        given: tuple[Any, Any, Any],
        check: Callable[[], Block],
        expected: Expected,
        spread: Spread,
        *,
        first: bool,
    ) -> SimulatedBlocks:
        """Return (X, y, sample_weight) as blocks of a simulated cluster."""
        X, y, sample_weight = given
        if is_distributed(X):
            raise InvalidDataError(
                f"client={cluster!r} trains on arrays of this process, X is a {type(X).__name__}: load it first."
            )
        if holds_blocks(X):
            check_targets(X, y, sample_weight, supervised=expected.supervised)
            blocks = take_rows(cluster, X, expected, spread)
            check_summaries(blocks.summaries)
            self._check_width(blocks.summaries, None, first=first)
            return blocks
        blocks = cut_rows(cluster, check(), expected, spread)
        check_summaries(blocks.summaries)
        return blocks

    def _check_width(self, summaries: Sequence[BlockSummary], names: Any, *, first: bool) -> None:
        """Learn the number of features from the blocks, or compare it with that of the first call."""
        if getattr(self, "encoder_", None) is not None:
            return  # rows are encoded, and it has compared the columns
        width = max(s.n_features for s in summaries)
        if first:
            self.n_features_in_ = width
            if names is not None:
                self.feature_names_in_ = names
            elif hasattr(self, "feature_names_in_"):
                del self.feature_names_in_
        elif width != self.n_features_in_:
            raise InvalidDataError(
                f"X has {width} features, but {type(self).__name__} is expecting {self.n_features_in_} features "
                "as input"
            )
        elif names is not None and list(names) != list(getattr(self, "feature_names_in_", names)):
            raise InvalidDataError(
                "The feature names should match those that were passed during fit, in their order. Got "
                f"{', '.join(names)}, expected {', '.join(self.feature_names_in_)}."
            )

    # -- prediction ----------------------------------------------------------------------------------------------

    def _is_lazy(self, X: Any) -> bool:
        return is_collection(X)

    def _apply(self, method: str, X: Any, n_columns: int | None, dtype: Any) -> Any:
        """Run a method of the plain model on every block of a dask collection, lazily."""
        check_is_fitted(self)
        return apply(self._without_client(), method, X, n_columns, np.dtype(dtype))

    def _without_client(self) -> Self:
        state = self.__getstate__()
        for name in (*self._of_training, "_skl_callbacks"):
            state.pop(name, None)
        state["client"] = None
        model = type(self).__new__(type(self))
        model.__dict__.update(state)
        return model

    # -- scikit-learn plumbing -----------------------------------------------------------------------------------

    def __sklearn_clone__(self) -> Self:
        """Clone with the same client: a live client cannot be copied."""
        without = type(self).__new__(type(self))
        without.__dict__.update(self.__dict__, client=None)
        # scikit-learn handles the rest of a clone (metadata requests, callbacks).
        fresh: Self = BaseEstimator.__sklearn_clone__(without)
        fresh.client = self.client
        if hasattr(self, "_lost_client"):
            fresh._lost_client = self._lost_client
        return fresh

    def set_params(self, **params: Any) -> Self:
        """Set parameters; see `sklearn.base.BaseEstimator.set_params`."""
        of_gang = {name: params.pop(name) for name in list(params) if name.startswith("client__")}
        super().set_params(**params)
        if of_gang:
            changes = {name.removeprefix("client__"): value for name, value in of_gang.items()}
            self.client = self._deployment.changed(changes).plain()
        if {"client", "client__client"} & {*params, *of_gang}:
            self.__dict__.pop("_lost_client", None)
        return self

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        gang = self._deployment
        if gang.client is not None and not is_simulated(gang.client):
            state["client"], state["_lost_client"] = replace(gang, client=None).plain(), True
        if state.pop("ledger_", None) is not None:
            state["_ledger_is_elsewhere"] = True
        return state
