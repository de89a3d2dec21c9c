"""The base of all estimators that can train on a cluster: client, row blocks, lazy prediction.

Training goes through three steps: data become row blocks, each block is looked at where it lies, and a gang runs a rank
program over them. An estimator says how to check arrays of this process, how blocks are packed and which program runs.
"""

from __future__ import annotations

import contextlib
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from dsgd.errors import ClusterError, ClusterUnreachableError, InvalidDataError, InvalidParameterError
from dsgd.inputs import lazy
from dsgd.inputs.asked import Expected, Spread, Terms, Work
from dsgd.inputs.blocks import Block, BlockSummary, check_summaries, make_block
from dsgd.inputs.callbacks import wrap_callbacks
from dsgd.inputs.rows import KeptPacks, Rows
from dsgd.inputs.simulated import SimulatedBlocks, cut_rows
from dsgd.inputs.sources import (
    check_room,
    check_targets,
    feature_names,
    is_collection,
    is_distributed,
    scatter_block,
    scatter_rows,
    settle,
    to_delayed_blocks,
)
from dsgd.inputs.spool import look, make_spooled_block
from dsgd.progress import Audience
from dsgd.runtime.memory import MemoryDemand
from dsgd.runtime.pools import count_cores
from dsgd.runtime.rank import GangResult
from dsgd.sim import SimulatedCluster
from dsgd.stages import recorded, stage

if TYPE_CHECKING:
    from distributed import Client, Future

__all__ = ["AbstractClusterEstimator", "ClusterBlocks", "count_threads", "ranks_asked"]

#: Parameters that say what worker processes do, with their defaults.
_OF_CLUSTERS: Final = {"transport": "auto", "on_failure": "raise", "elastic": False}

#: More threads than both of these are a crowd that mostly waits.
_CROWD: Final = 32
_CROWD_PER_CORE: Final = 4


@dataclass(frozen=True)
class ClusterBlocks:
    """Row blocks on the workers of a cluster.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    futures : sequence of Future
        The blocks in row order, each a tuple (X, y, sample_weight).
    summaries : sequence of BlockSummary
        What one look at each block has shown; all of them can be trained on.
    n_ranks, ranks_per_worker : int or None
        How many ranks train on them; see `run_on_cluster`.
    resend : callable or None, default None
        Takes the number of a block that is lost and returns its future, sent again from this process; None where
        Dask has computed the blocks and does so again.
    packed : KeptPacks or None, default None
        What the workers have packed them into, where that stays for further fits.
    """

    client: Client
    futures: Sequence[Future]
    summaries: Sequence[BlockSummary]
    n_ranks: int | None = None
    ranks_per_worker: int | None = None
    resend: Callable[[int], Future] | None = None
    packed: KeptPacks | None = None

    def run(self, work: Work, terms: Terms) -> GangResult:
        """Run a rank program over the blocks; see `run_on_cluster`."""
        from dsgd.runtime import run_on_cluster
        from dsgd.runtime.worker.store import PackedAs

        name, is_packed = self._name_packed(work)
        with _released([]) as held:
            futures, resend = self._numbered(held) if work.numbered else (self.futures, self.resend)
            result = run_on_cluster(
                work.program,
                futures,
                client=self.client,
                pack=work.pack,
                # Rows sent from here are cut for the ranks already, in the same way wherever these run.
                cut=work.cut if self.resend is None else None,
                args=work.args,
                n_ranks=self.n_ranks,
                ranks_per_worker=self.ranks_per_worker,
                block_rows=[s.rows for s in self.summaries],
                block_nbytes=[s.nbytes for s in self.summaries],
                reload=resend,
                # The memory of workers is asked for what they will pack.
                demand=None if is_packed else work.demand,
                mail=work.mail,
                given=work.given,
                packed_as=PackedAs(name, self.packed.anchors) if self.packed is not None and name else None,
                on_event=terms.on_event,
                transport=terms.transport,
                on_failure=terms.on_failure,
                elastic=terms.elastic,
                title=terms.title,
            )
        if self.packed is not None and name:
            self.packed.add(name)
        return result

    def _name_packed(self, work: Work) -> tuple[str, bool]:
        """Return the name by which workers keep what they pack, if they do, and whether they have it."""
        if self.packed is None or work.numbered:  # numbers make other blocks of them at every fit
            return "", False
        from dsgd.runtime.worker.member import forget_packed

        name = self.packed.name_of(work.pack)
        for gone in self.packed.make_room(name):
            self.client.run(forget_packed, gone)
        return name, name in self.packed

    def is_there(self, client: Client) -> bool:
        """Return whether these are blocks of that client, and none is lost."""
        return self.client is client and all(future.status == "finished" for future in self.futures)

    def _numbered(self, held: list[Future]) -> tuple[Sequence[Future], Callable[[int], Future] | None]:
        """Return blocks that know the number of their first row, and what sends one again; `held` gets all of them."""
        starts = np.cumsum([0, *(s.rows for s in self.summaries)])[:-1].tolist()
        futures = self.client.map(_number, self.futures, starts, pure=False)
        held += futures
        resend = self.resend
        if resend is None:
            return futures, None

        def resend_numbered(k: int) -> Future:
            held.append(self.client.submit(_number, resend(k), starts[k], pure=False))
            return held[-1]

        return futures, resend_numbered


class _LeftOut:
    """Stands for the ledger where an estimator has none, and says why; one that it has comes first."""

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


class AbstractClusterEstimator(BaseEstimator):
    """An estimator with a parameter ``client``: a live client is carried by reference and never pickled.

    Nor is the ledger, which tells of the training and not of the model.
    """

    client: Any  # set by the final classes' __init__
    verbose: int | bool
    ledger_: Any = _LeftOut()

    #: Fitted attributes that tell of the training and stay behind when a model travels to where it predicts.
    _of_training: ClassVar[tuple[str, ...]] = ("ledger_", "_ledger_is_elsewhere", "fit_report_")

    #: What to do with rows that are more than the memory of the workers.
    _if_too_large: ClassVar[str] = MemoryDemand.advice

    #: Whether training takes `Rows` as they are, or what they hold.
    _reuses_rows: ClassVar[bool] = False

    #: Who listens to the fit that runs.
    _audience: Audience | None = None

    # What every estimator has; docstrings of its own methods are completed by these (`inherit_method_docs`).

    @abstractmethod
    def fit(self, X: Any, y: Any = None) -> Self:
        """Train.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, dask array or dataframe, list of delayed blocks, or svmlight file(s)
            Rows, shape (n_samples, n_features). A delayed block is a tuple (X, y) or (X, y, sample_weight).
        y : array-like or dask collection, shape (n_samples,)
            Targets; None where blocks or files hold them.

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
        X : array, sparse matrix, DataFrame, dask array or dataframe, shape (n, n_features)
            Rows; dask input gives a lazy result.

        Returns
        -------
        array, shape (n,)
            Predicted values.
        """

    def set_callbacks(self, *callbacks: Any) -> Self:
        """Set who is told how ``fit`` gets on, in place of those that were set before.

        Parameters
        ----------
        *callbacks : dsgd.progress.Callback, or callback of scikit-learn 1.9 and newer
            Instances; none to take all of them away. A clone has the same ones.

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
        """Return what takes the events of the fit that runs, if anybody listens."""
        return None if self._audience is None else self._audience.tell

    def _n_epochs_at_most(self) -> int:
        """Return the epochs that scikit-learn's callbacks have as tasks; 0 where training has none."""
        return 0

    # -- training ------------------------------------------------------------------------------------------------

    def _uses_cluster(self, X: Any) -> bool:
        """Return whether X is trained on by worker processes; warn where something asks for them in vain."""
        if is_distributed(X) or self.client is not None or (isinstance(X, Rows) and X.uses_cluster):
            return True
        if getattr(self, "_lost_client", False):
            warnings.warn(
                f"this {type(self).__name__} has lost its client because it was pickled: it trains on arrays in this "
                "process. In cross_validate and similar functions leave n_jobs at None, so that every fit runs on the "
                "whole cluster; elsewhere call set_params(client=...).",
                UserWarning,
                stacklevel=4,
            )
        idle = [name for name, default in _OF_CLUSTERS.items() if getattr(self, name, default) != default]
        if idle:
            said = ", ".join(f"{name}={getattr(self, name)!r}" for name in idle)
            warnings.warn(
                f"{type(self).__name__}({said}) has an effect on worker processes only, but arrays are trained on in "
                "this process. Pass client=..., or dask collections.",
                UserWarning,
                stacklevel=4,
            )
        return False

    def _terms(self, on_event: Callable[[Mapping[str, Any]], None] | None) -> Terms:
        """Return on what terms a gang works for this estimator, and who hears of it."""
        of_cluster: dict[str, Any] = {name: getattr(self, name, default) for name, default in _OF_CLUSTERS.items()}
        return Terms(**of_cluster, on_event=on_event, title=type(self).__name__)

    def _take_report(self, gang: GangResult, **more: Any) -> None:
        """Set what every fit tells of its gang and its stages, and what else an estimator tells."""
        stages = [*recorded("client"), *gang.stages]
        self.ledger_ = replace(gang.ledger, stages=stages)
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
        """Yield the rows as blocks on the workers, looked at and fit to train on; they are released at the end.

        Parameters
        ----------
        X, y, sample_weight : object
            As passed to ``fit``.
        check : callable
            Called for arrays of this process only: validates them and returns (X, y, sample_weight).
        expected : Expected
            What rows and targets must be.
        spread : Spread
            How many ranks there are, and how rows get to them.
        first : bool, default True
            Whether the number of features is learned or must be that of before.

        Raises
        ------
        InvalidDataError
            A block cannot be trained on, or blocks do not fit each other.
        DiskSpaceError
            A disk has too little room for the blocks of its worker.
        VersionMismatchError
            A worker, or the scheduler, has no dsgd or another version.
        ClusterError
            The cluster was restarted, or its scheduler went away (`ClusterUnreachableError`), before the rows were
            there.
        """
        kept = X if isinstance(X, Rows) else None
        if kept is not None:
            X, y, sample_weight = kept.X, kept.y, kept.sample_weight
        if isinstance(self.client, SimulatedCluster):
            yield self._simulated(X, check, expected, spread)
            return
        from dsgd.runtime import client_for
        from dsgd.runtime.gang.versions import check_versions

        if is_distributed(X):
            # Before worker processes are started for it.
            check_targets(X, y, sample_weight, supervised=expected.supervised)
        with client_for(self._client_of(kept)) as client, _released([]) as held:
            # Looking at blocks already runs code of dsgd on the workers, so ask before the gang does.
            with stage("connect"):
                check_versions(client)

            def place(held: list[Any]) -> ClusterBlocks:
                return self._placed(client, (X, y, sample_weight), check, expected, spread, held)

            blocks = place(held) if kept is None else _kept_blocks(kept, client, place, expected, spread)
            if is_distributed(X):
                self._check_width(blocks.summaries, feature_names(X), first=first)
            elif kept is not None:
                kept.show(self, first=first)
            yield blocks

    def _client_of(self, rows: Rows | None) -> Any:
        """Return the client to train on, that of the rows where the estimator has none."""
        if rows is None or rows.client is None:
            return self.client
        if self.client is not None and self.client is not rows.client:
            raise InvalidParameterError(
                f"{type(self).__name__}(client={self.client!r}) cannot train on rows of another cluster: {rows!r} were "
                f"made with client={rows.client!r}."
            )
        return rows.client

    def _placed(
        self,
        client: Client,
        given: tuple[Any, Any, Any],
        check: Callable[[], Block],
        expected: Expected,
        spread: Spread,
        held: list[Any],
    ) -> ClusterBlocks:
        """Return (X, y, sample_weight) as blocks on the workers, fit to train on; `held` gets all futures."""
        resend: Callable[[int], Future] | None = None
        if is_distributed(given[0]):
            if not spread.on_disk:
                check_room(client, given[0], self._if_too_large)
            with stage("hand over"):
                futures = _computed(client, *given, expected, spread)
            held += futures
        else:
            futures, resend = _scattered(client, check(), spread, held)
            expected = replace(expected, rows_are_checked=True)
        with stage("look") as it:
            looks = _looks(client, futures, expected, on_disk=spread.on_disk)
            held += looks
            summaries: list[BlockSummary] = _gathered(client, looks)
            it.nbytes = sum(s.nbytes for s in summaries)
        check_summaries(summaries)
        return ClusterBlocks(client, futures, summaries, spread.n_ranks, spread.ranks_per_worker, resend)

    def _simulated(self, X: Any, check: Callable[[], Block], expected: Expected, spread: Spread) -> SimulatedBlocks:
        """Return the rows as blocks of a simulated cluster."""
        if is_distributed(X):
            raise InvalidDataError(
                f"client={self.client!r} trains on arrays of this process, X is a {type(X).__name__}: load it first."
            )
        blocks = cut_rows(self.client, check(), expected, spread)
        check_summaries(blocks.summaries)
        return blocks

    def _check_width(self, summaries: Sequence[BlockSummary], names: Any, *, first: bool) -> None:
        """Take the number of features from the blocks, or hold them to that of the first call."""
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
        return lazy.apply(self._without_client(), method, X, n_columns, np.dtype(dtype))

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
        """Clone with the client carried by reference: a live client cannot be copied."""
        without = type(self).__new__(type(self))
        without.__dict__.update(self.__dict__, client=None)
        # What else a clone has (metadata requests, callbacks) is scikit-learn's affair.
        fresh: Self = BaseEstimator.__sklearn_clone__(without)
        fresh.client = self.client
        if hasattr(self, "_lost_client"):
            fresh._lost_client = self._lost_client
        return fresh

    def set_params(self, **params: Any) -> Self:
        """Set parameters; see `sklearn.base.BaseEstimator.set_params`."""
        if "client" in params:
            self.__dict__.pop("_lost_client", None)
        super().set_params(**params)
        return self

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if self.client is not None and not isinstance(self.client, SimulatedCluster):
            state["client"], state["_lost_client"] = None, True
        if state.pop("ledger_", None) is not None:
            state["_ledger_is_elsewhere"] = True
        return state


def count_threads(n_jobs: int | None, n_rows: int | None = None, least_rows: int = 1) -> int:
    """Return the threads that ``n_jobs`` asks for: None is 1, −1 one per core.

    Parameters
    ----------
    n_jobs : int or None
        The parameter, not zero.
    n_rows : int or None, default None
        Rows to be dealt to them: a thread without any would only be waited for. Where more threads than rows were
        asked for by their number, or many more are returned than there are cores, that is said in a warning.
    least_rows : int, default 1
        Rows that each thread is to have where there is more than one.
    """
    cores = count_cores()
    n = 1 if n_jobs is None else n_jobs if n_jobs > 0 else max(1, cores + 1 + n_jobs)
    if n_rows is None:
        return n
    useful = max(1, min(n, n_rows // least_rows))
    if n_jobs is not None and n_jobs > max(1, n_rows):
        warnings.warn(
            f"n_jobs={n_jobs} is more than the {n_rows} rows: trained on {useful} rank(s).",
            UserWarning,
            stacklevel=5,
        )
    if useful > max(_CROWD, _CROWD_PER_CORE * cores):
        warnings.warn(
            f"n_jobs={n_jobs} makes {useful} ranks share {cores} cores, and at every synchronisation each waits for "
            "all others: n_jobs=-1 is faster. To see what so many ranks would do, pass client=SimulatedCluster(...).",
            UserWarning,
            stacklevel=5,
        )
    return useful


def ranks_asked(n_jobs: int | None) -> int | None:
    """Return the ranks on a cluster that ``n_jobs`` asks for: its number, or None for all that there can be."""
    return n_jobs if n_jobs is not None and n_jobs > 0 else None


def _kept_blocks(
    rows: Rows, client: Client, place: Callable[[list[Any]], ClusterBlocks], expected: Expected, spread: Spread
) -> ClusterBlocks:
    """Return the blocks that rows keep on the workers, which are placed there where they are not yet."""

    def make() -> tuple[ClusterBlocks, Callable[[], object]]:
        held: list[Any] = []
        try:
            blocks = place(held)
        except BaseException:
            _release(held)
            raise
        anchors = {
            address: client.submit(_anchor, workers=[address], allow_other_workers=False, pure=False)
            for address in client.nthreads()
        }
        held += anchors.values()
        settle(client, list(anchors.values()))
        packs = KeptPacks(rows.keep, {address: future.key for address, future in anchors.items()})
        return replace(blocks, packed=packs), partial(_release, held)

    # Rows of the cluster stay where they are; those of this process are cut for its ranks, by a seed.
    where = (spread.on_disk,) if is_distributed(rows.X) else (spread, tuple(sorted(client.nthreads().items())))
    return rows.opened((expected, *where), make, lambda blocks: blocks.is_there(client))


def _anchor() -> str:
    return "packed rows stay as long as this"


def _computed(client: Client, X: Any, y: Any, sample_weight: Any, expected: Expected, spread: Spread) -> list[Future]:
    """Have Dask compute the blocks of a collection."""
    parts = to_delayed_blocks(
        X,
        y,
        sample_weight,
        supervised=expected.supervised,
        build=make_spooled_block if spread.on_disk else make_block,
        compute=lambda values: _gathered(client, client.compute(values)),
    )
    futures: list[Future] = client.compute(parts)
    return futures


def _scattered(
    client: Client, rows: Block, spread: Spread, held: list[Future]
) -> tuple[list[Future], Callable[[int], Future]]:
    """Send arrays of this process; return the blocks, and what sends one of them again. `held` gets all of them."""
    futures, partition = scatter_rows(client, *rows, spread)
    held += futures

    def send_again(k: int) -> Future:
        held.append(scatter_block(client, *rows, partition, k, on_disk=spread.on_disk))
        return held[-1]

    return futures, send_again


def _looks(client: Client, futures: Sequence[Future], expected: Expected, *, on_disk: bool) -> list[Future]:
    """Have a look at each block where it lies."""
    if not on_disk:
        return list(client.map(look, futures, expected=expected, pure=False))
    # Dask takes a block on disk for a small object and would carry it to whichever worker is idle.
    settle(client, futures)
    holders = client.who_has(futures)
    return [
        client.submit(
            look,
            future,
            expected,
            workers=list(holders[future.key]) or None,
            allow_other_workers=bool(holders[future.key]),
            pure=False,
        )
        for future in futures
    ]


def _number(block: Block, first: int) -> tuple[Any, Any, Any, int]:
    return (*block, first)


def _gathered(client: Client, futures: Sequence[Future]) -> Any:
    """Return the results of futures; a cluster that goes meanwhile raises what it raises during the job."""
    from distributed import CancelledError

    try:
        return client.gather(list(futures))
    except CancelledError as error:
        if client.status != "running":
            raise ClusterUnreachableError(f"the scheduler of {client!r} does not answer any more: {error}") from error
        raise ClusterError(
            f"the cluster gave up computing the rows ({error}): it was restarted, or a user or another program "
            "cancelled them. Load the data again."
        ) from error


@contextlib.contextmanager
def _released(held: list[Any]) -> Iterator[list[Any]]:
    """Release futures when the block ends, however it ends."""
    try:
        yield held
    finally:
        _release(held)


def _release(held: Sequence[Any]) -> None:
    for future in held:
        future.release()
