"""Jobs of a cluster: fits that outlive the process that submits them, and the list of all that run.

A detached fit is a task of a Dask worker that calls ``fit``: it plans the gangs, renews the leases of their workers and
takes the model home, as the process of the user would. Its gangs are ordinary ones. Two published datasets hold the
task, with what it returns, and the rows that it trains on, whatever clients do; Dask runs the task again elsewhere if
its worker is lost.

What is sent to the task is a pickle in which a client is written as the mark of "the client of whoever reads this", and
a future as its number in a list: a pickled estimator of dsgd loses its client and its ledger, as is right for a file,
and a future knows its client only by chance.
"""

from __future__ import annotations

import io
import pickle
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import cloudpickle
import dask
from distributed import Client, Future, get_worker, secede

from dsgd.errors import ClusterError, GangError, InvalidDataError, InvalidParameterError
from dsgd.inputs.estimator import AbstractClusterEstimator
from dsgd.inputs.rows import Rows
from dsgd.runtime.dask_internals import open_client_beside
from dsgd.runtime.deployment import as_gang
from dsgd.runtime.gang.client import call_scheduler, client_of, owner_here, require_cluster
from dsgd.runtime.gang.cluster import Cluster, check_scheduler
from dsgd.runtime.logs import working_for
from dsgd.runtime.messages import FIT_PREFIX
from dsgd.runtime.scheduler.plugin import SCHEDULER_PLUGIN
from dsgd.runtime.timeouts import Timeouts
from dsgd.sim import SimulatedCluster
from dsgd.validation import check_number

__all__ = ["DetachedFit", "JobInfo", "attach", "cancel", "find_job", "list_jobs", "submit"]

# Larger data are sent to a worker; smaller ones travel with the task, through the scheduler, and outlive any worker.
_SMALL_BYTES: Final = 1 << 20

# As ranks: before ordinary tasks that wait on the same worker.
_PRIORITY: Final = 100

_CLIENT: Final = "client"
_FUTURE: Final = "future"

#: What a pickle of an estimator leaves out, and how it says so; see `AbstractClusterEstimator.__getstate__`.
_LEFT_OUT: Final = {"client": "_lost_client", "ledger_": "_ledger_is_elsewhere"}


@dataclass(frozen=True)
class JobInfo:
    """What a scheduler knows about a job: a fit whose process waits for it, or a detached one.

    Parameters
    ----------
    id : str
        Its identity.
    title : str
        What is fitted.
    state : str
        ``"queued"``, ``"running"`` or ``"stopping"``; of a detached fit also ``"done"`` or ``"failed"``.
    detached : bool
        Whether it outlives its process; then the fields from `place` to `workers` are those of its present gang.
    owner : str
        Who started it: user, host and process.
    submitted : float
        When, in seconds since 1970.
    started : float or None
        When its gang began to run.
    elapsed_s : float
        Seconds since it was submitted.
    place : int or None
        Its place in the queue, from 1; None if it does not wait.
    ranks : int or None
        Number of its ranks.
    strategy : str
        When and what they exchange, once they train.
    epoch, max_iter : int or None
        The epoch it is in, and how many there are at most.
    train_loss : float or None
        The training loss of this epoch.
    workers : tuple of str
        The workers of its ranks.
    driver : str
        The worker that drives a detached fit.
    failure : str or None
        Why it failed, or stops.
    """

    id: str
    title: str
    state: str
    detached: bool
    owner: str
    submitted: float
    started: float | None
    elapsed_s: float
    place: int | None
    ranks: int | None
    strategy: str
    epoch: int | None
    max_iter: int | None
    train_loss: float | None
    workers: tuple[str, ...]
    driver: str
    failure: str | None


def list_jobs(client: Any = None) -> list[JobInfo]:
    """Return the jobs of a scheduler, and its detached fits until they are forgotten, of all users, newest first.

    Parameters
    ----------
    client : distributed.Client or None, default None
        A client of the scheduler; None takes the current client.

    Raises
    ------
    ClusterError
        There is no client.
    VersionMismatchError
        The scheduler has no dsgd, or another version.
    """
    client = require_cluster(client)
    if SCHEDULER_PLUGIN not in check_scheduler(client, _patience_s()):
        return []  # nobody has trained here
    return [JobInfo(**job) for job in call_scheduler(client, "dsgd_jobs", _patience_s())]


def find_job(job_id: str, client: Any = None) -> JobInfo:
    """Return the job whose identity begins with some digits.

    Raises
    ------
    ClusterError
        There is none, or several.
    """
    client = require_cluster(client)
    found = [job for job in list_jobs(client) if job.id.startswith(job_id)]
    if len(found) > 1:
        raise ClusterError(f"{len(found)} jobs begin with {job_id!r}: {', '.join(job.id for job in found)}.")
    if not found:
        raise ClusterError(
            f"the scheduler of {client!r} has no job {job_id!r}: it has ended, was cancelled or forgotten, or another "
            "scheduler has it."
        )
    return found[0]


def cancel(job_id: str, client: Any = None) -> bool:
    """Stop a job of any user; return whether it had not ended yet.

    A job that is not detached raises `GangError` in its process. Whatever its ``on_failure`` says, it does not begin
    again.

    Parameters
    ----------
    job_id : str
        Its identity, in full.
    client : distributed.Client or None, default None
        A client of the scheduler; None takes the current client.
    """
    client = require_cluster(client)
    reason = f"it was cancelled by {owner_here()}"
    stopped = bool(call_scheduler(client, "dsgd_cancel", _patience_s(), job_id=job_id, reason=reason))
    if stopped:
        _release(client, f"{FIT_PREFIX}{job_id}", _rows_of(job_id))
    return stopped


def _patience_s() -> float:
    return Timeouts().seconds("scheduler")


class DetachedFit:
    """A fit that runs on a cluster whether or not any process waits for it; `submit` and `attach` return it.

    It has the methods of a future. Any number of processes may hold one for the same fit.

    Parameters
    ----------
    fit_id : str
        Its identity.
    client : distributed.Client
        A client of its cluster.

    Attributes
    ----------
    id : str
        Its identity, for `attach` and ``dsgd jobs``.
    """

    def __init__(self, fit_id: str, client: Client) -> None:
        self.id, self._client = fit_id, client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @property
    def status(self) -> str:
        """``"queued"``, ``"running"``, ``"done"``, ``"failed"``, or ``"unknown"`` once cancelled or forgotten."""
        return next((job.state for job in list_jobs(self._client) if job.id == self.id), "unknown")

    def info(self) -> JobInfo:
        """Return what the scheduler knows about it.

        Raises
        ------
        ClusterError
            The scheduler does not know the fit.
        """
        return find_job(self.id, self._client)

    def done(self) -> bool:
        """Return whether it has ended, successfully or not."""
        return self.status not in ("queued", "running")

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the fit and return the fitted estimator, with the client of this process.

        The result stays on the cluster until it is forgotten.

        Parameters
        ----------
        timeout : float or None, default None
            How long to wait, in seconds; None waits without a limit.

        Raises
        ------
        Exception
            The error that ``fit`` raised on the cluster; a note says on which worker.
        concurrent.futures.CancelledError
            The fit was cancelled meanwhile, the cluster was restarted, or the worker that held rows left.
        distributed.KilledWorker
            Worker after worker that drove the fit was lost.
        TimeoutError
            It has not ended within `timeout`.
        ClusterError
            The scheduler does not know the fit: it was cancelled or forgotten.
        """
        if timeout is not None:
            check_number(f"{type(self).__name__}.result(timeout=...)", timeout, low=0)
        try:
            task = self._client.get_dataset(f"{FIT_PREFIX}{self.id}")
        except KeyError:
            raise ClusterError(
                f"the scheduler of {self._client!r} does not have a detached fit {self.id!r}: it was cancelled or "
                "forgotten, or another scheduler has it."
            ) from None
        try:
            value = task.result(timeout)
        finally:
            task.release()  # the traceback of an error would hold it
        return _unpacked(value, self._client)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error that `result` would raise, or None; waits like `result`.

        Raises
        ------
        TimeoutError
            It has not ended within `timeout`.
        """
        try:
            self.result(timeout)
        except TimeoutError:
            raise
        except Exception as error:
            return error
        return None

    def cancel(self) -> bool:
        """Stop the fit; return whether it had not ended yet.

        Its ranks stop like those of any job. Work of its driver between two gangs is not interrupted, but gets no more
        workers.
        """
        return cancel(self.id, self._client)

    def forget(self) -> None:
        """Release the result on the cluster; a fit that has not ended is cancelled."""
        self.cancel()
        _release(self._client, f"{FIT_PREFIX}{self.id}", _rows_of(self.id))


def submit(estimator: Any, X: Any, y: Any = None, *, client: Any = None, **fit_params: Any) -> DetachedFit:
    """Start ``estimator.fit(X, y)`` on a cluster and return at once; the fit outlives this process.

    A worker of the cluster drives it in place of this process: it calls ``fit`` of a copy of the estimator, in which
    every estimator of dsgd trains on this cluster. The result is that of ``fit`` here, bit for bit. If that worker is
    lost, another one calls ``fit`` again, which goes on from the newest checkpoint with ``resume_from="auto"``.

    When this returns, the cluster has everything that the fit needs. Futures in dask collections stay where they are,
    and are held until the fit ends. Lazy collections and files are read by the workers. Arrays of this process are sent
    to one worker, which forwards them like ``fit`` and needs memory for two copies.

    Parameters
    ----------
    estimator : estimator
        An estimator of dsgd, or a pipeline or search that contains some. It is copied; the object itself is not fitted.
    X, y : object
        Data as for its ``fit``; not `Rows`, which belong to this process.
    client : distributed.Client or None, default None
        The cluster; None uses the client of the estimator, or else the current client.
    **fit_params
        Further arguments of ``fit``.

    Returns
    -------
    DetachedFit
        The fit; in another process, `attach` returns it for its `id`.

    Raises
    ------
    InvalidParameterError
        The estimator has no ``fit`` or another client.
    InvalidDataError
        X is `Rows`.
    ClusterError
        There is no client.
    VersionMismatchError
        A worker, or the scheduler, has no dsgd or another version.
    """
    if not callable(getattr(estimator, "fit", None)):
        raise InvalidParameterError(f"submit(estimator, ...) takes an estimator with a method fit. Got {estimator!r}.")
    if isinstance(X, Rows):
        raise InvalidDataError(
            f"submit(estimator, X): {X!r} belong to this process, and end with it. Pass arrays or dask collections."
        )
    gang = as_gang(getattr(estimator, "client", None))
    own = client_of(gang.client)
    if client is not None and gang.client not in (None, client):
        raise InvalidParameterError(
            f"submit(client={client!r}): the estimator has another client, {own!r}. Leave one of them out."
        )
    client = require_cluster(client if client is not None else own)
    data, futures = _packed((estimator, (X,) if y is None else (X, y), fit_params), on_cluster=True)
    fit_id = uuid.uuid4().hex
    cluster = Cluster(client, gang)
    sent: Any = data
    if len(data) > _SMALL_BYTES:
        [sent] = cluster.scatter([data], [[]])
        if isinstance(sent, OSError):
            raise ClusterError(f"no worker of the cluster takes the estimator and its rows: {sent}.") from sent
    fit = DetachedFit(fit_id, client)
    try:
        if futures:
            cluster.ask(lambda: client.publish_dataset(futures, name=_rows_of(fit_id)))
        with dask.annotate(dsgd=(type(estimator).__name__, owner_here(), time.time())):
            task = cluster.submit(_run, fit_id, sent, len(futures), key=f"{FIT_PREFIX}{fit_id}", priority=_PRIORITY)
        # Dask answers when it has all that was submitted before: from now on this process may end.
        cluster.ask(lambda: client.publish_dataset(task, name=f"{FIT_PREFIX}{fit_id}"))
    except BaseException:
        fit.forget()
        raise
    return fit


def attach(fit_id: str, *, client: Any = None) -> DetachedFit:
    """Return a detached fit that any process has submitted.

    Parameters
    ----------
    fit_id : str
        Its `id`, or the first digits of it; `list_jobs` and ``dsgd jobs list`` show them.
    client : distributed.Client or None, default None
        A client of its cluster; None takes the current client.

    Raises
    ------
    ClusterError
        The scheduler does not know it, or knows several fits whose `id` begins like this.
    """
    client = require_cluster(client)
    found = find_job(fit_id, client)
    if not found.detached:
        raise ClusterError(f"job {found.id} is no detached fit: its process ({found.owner}) gets its result.")
    return DetachedFit(found.id, client)


def _release(client: Client, *names: str) -> None:
    for name in set(names) & set(client.list_datasets()):
        with suppress(KeyError):  # of older versions of Dask, where nothing of the dataset is held any more
            client.unpublish_dataset(name)


def _rows_of(fit_id: str) -> str:
    """Return the name of the dataset that holds what a fit trains on until it ends."""
    return f"dsgd-rows-{fit_id}"


def _run(fit_id: str, data: bytes, n_futures: int) -> bytes:
    """Drive a detached fit on a worker, outside of Dask's thread pool, with a client of its own.

    By the name of that client the scheduler knows the gangs of the fit, and when it closes, all that the fit held is
    released.
    """
    worker = get_worker()
    secede()
    with open_client_beside(worker, f"{FIT_PREFIX}{fit_id}") as client, working_for(fit_id):
        try:
            rows = client.get_dataset(_rows_of(fit_id)) if n_futures else []
            estimator, arguments, keywords = _unpacked(data, client, rows)
            fitted = estimator.fit(*arguments, **keywords)
        except BaseException as error:
            error.add_note(f"raised on worker {worker.address}, which drove the fit")
            if isinstance(error, Exception):
                raise
            raise GangError(f"{type(error).__name__}: {error}") from error
        finally:
            if n_futures:
                _release(client, _rows_of(fit_id))
    return _packed(estimator if fitted is None else fitted)[0]


def _packed(value: Any, *, on_cluster: bool = False) -> tuple[bytes, list[Future]]:
    """Return a value as bytes, and the futures in it."""
    stream = io.BytesIO()
    pickler = _Pickler(stream, on_cluster)
    pickler.dump(value)
    return stream.getvalue(), pickler.futures


def _unpacked(data: bytes, client: Client, futures: Sequence[Future] = ()) -> Any:
    """Return the value that `_packed` was given, with a client of this process and futures of this client."""
    return _Unpickler(io.BytesIO(data), client, futures).load()


class _ReadersClient:
    """Stands for the client of whoever reads."""


class _Pickler(cloudpickle.Pickler):
    def __init__(self, stream: io.BytesIO, on_cluster: bool) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._on_cluster = on_cluster
        self.futures: list[Future] = []
        self._numbers: dict[Any, int] = {}

    def persistent_id(self, obj: Any) -> tuple[str, int] | None:
        if isinstance(obj, Client | _ReadersClient):
            return _CLIENT, 0
        if isinstance(obj, Future):
            if obj.key not in self._numbers:
                self._numbers[obj.key] = len(self.futures)
                self.futures.append(obj)
            return _FUTURE, self._numbers[obj.key]
        return None

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, AbstractClusterEstimator):
            return super().reducer_override(obj)
        state = obj.__getstate__()
        for name, mark in _LEFT_OUT.items():
            if name in vars(obj):
                state[name] = vars(obj)[name]
                if mark not in vars(obj):
                    state.pop(mark, None)
        gang = as_gang(obj.client)
        if self._on_cluster and not isinstance(gang.client, SimulatedCluster):
            state["client"] = replace(gang, client=_ReadersClient()).plain()
            state.pop("_lost_client", None)
        return _restored, (type(obj), state)


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, client: Client, futures: Sequence[Future]) -> None:
        super().__init__(stream)
        self._client, self._futures = client, futures

    def persistent_load(self, mark: tuple[str, int]) -> Any:
        kind, number = mark
        return self._client if kind == _CLIENT else self._futures[number]


def _restored(kind: type[AbstractClusterEstimator], state: dict[str, Any]) -> AbstractClusterEstimator:
    estimator = kind.__new__(kind)
    estimator.__setstate__(state)
    return estimator
