"""Detached fits: starting, finding and collecting them.

The jobs of a scheduler: which there are, what they do, and how to stop one.

Fits that outlive the process that submits them.
"""

from __future__ import annotations

import time
import uuid
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dsgd.errors import ClusterError, GangError, InvalidDataError, InvalidParameterError
from dsgd.inputs.rows import Rows
from dsgd.jobs.driver import FitOutcome, error_of, packed, run_fit, unpacked
from dsgd.runtime.gang.client import call_scheduler, client_of, owner_here, require_cluster
from dsgd.runtime.gang.cluster import Cluster, check_scheduler
from dsgd.runtime.scheduler.detached import result_of, rows_of
from dsgd.runtime.scheduler.plugin import SCHEDULER_PLUGIN
from dsgd.runtime.timeouts import Timeouts, as_policy
from dsgd.validation import check_number

if TYPE_CHECKING:
    from distributed import Client, Future


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
        ``"queued"``, ``"running"`` or ``"stopping"``; of a detached fit also ``"done"``, ``"failed"`` or
        ``"cancelled"``.
    detached : bool
        Whether it outlives its process; then the fields from `place` to `workers` are those of its present gang.
    owner : str
        Who started it: user, host and process.
    submitted : float
        When, in seconds since 1970.
    started : float or None
        When it began to run.
    elapsed_s : float
        Seconds since it was submitted, or until it ended.
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
    attempts : int or None
        How often a detached fit has begun.
    failure : str or None
        Why it failed, or stops.
    kept_until : float or None
        Until when the result of a detached fit stays, in seconds since 1970.
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
    attempts: int | None
    failure: str | None
    kept_until: float | None


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
            f"the scheduler of {client!r} has no job {job_id!r}: it has ended, was forgotten, or another scheduler "
            "has it."
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
    return bool(call_scheduler(client, "dsgd_cancel", _patience_s(), job_id=job_id, reason=reason))


def _patience_s() -> float:
    return Timeouts().seconds("scheduler")


# Larger data are sent to a worker; smaller ones travel with the task, through the scheduler, and outlive any worker.
_SMALL_BYTES: Final = 1 << 20
_SLICE_S: Final = 5.0

# As ranks: before ordinary tasks that wait on the same worker.
_PRIORITY: Final = 100


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
        self._patience_s = Timeouts().seconds("scheduler")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @property
    def status(self) -> str:
        """``"queued"``, ``"running"``, ``"done"``, ``"failed"``, ``"cancelled"``, or ``"unknown"`` once forgotten."""
        return str(self._watch(0.0)["state"])

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
            The error that ``fit`` raised on the cluster, of the same type and with its cause; a note has the traceback.
        WorkerLostError
            The worker that drove the fit left the cluster, and the estimator's ``on_failure`` does not allow a restart.
        GangError
            The cluster was restarted, or the worker that held the fitted estimator left.
        concurrent.futures.CancelledError
            The fit was cancelled.
        TimeoutError
            It has not ended within `timeout`.
        ClusterError
            The scheduler does not know the fit, or no longer knows it; the message gives the reason if it is known.
        ClusterUnreachableError
            The scheduler does not answer.
        """
        return unpacked(self._outcome(timeout).value, self._client)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error that `result` would raise, or None; waits like `result`.

        Raises
        ------
        TimeoutError
            It has not ended within `timeout`.
        """
        status = self._await_end(timeout)
        try:
            self._raise_failure(status)
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
        call_scheduler(self._client, "dsgd_fit_forget", self._patience_s, fit_id=self.id, why="it was forgotten")

    # ---- inside

    def _watch(self, wait_s: float) -> dict[str, Any]:
        status: dict[str, Any] = call_scheduler(
            self._client, "dsgd_fit_watch", wait_s + self._patience_s, fit_id=self.id, wait_s=wait_s
        )
        return status

    def _await_end(self, timeout: float | None) -> dict[str, Any]:
        if timeout is not None:
            check_number(f"{type(self).__name__}.result(timeout=...)", timeout, low=0)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE_S if deadline is None else deadline - time.monotonic()
            status = self._watch(max(0.0, min(left, _SLICE_S)))
            if status["state"] not in ("queued", "running"):
                return status
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"fit {self.id} has not ended within {timeout:g} s: it is {status['state']}.")

    def _outcome(self, timeout: float | None) -> FitOutcome:
        status = self._await_end(timeout)
        self._raise_failure(status)
        problem: BaseException | None = None
        try:
            future = self._client.get_dataset(result_of(self.id))
            outcome: FitOutcome = future.result()
        except Exception as error:
            problem = error
        if problem is not None:
            # Its worker has just left, or somebody has just forgotten it.
            self._raise_failure(self._watch(0.0))
            raise problem
        if outcome.failure is not None:
            # A task that Dask has run again, because its worker had left, knows only that it came too late.
            self._raise_failure(self._watch(0.0))
            self._raise_failure({"state": "failed", "failure": outcome.failure})
        return outcome

    def _raise_failure(self, status: dict[str, Any]) -> None:
        if status["state"] == "unknown":
            why = status["why"] or "it was started by another scheduler, or forgotten long ago"
            raise ClusterError(f"the scheduler of {self._client!r} does not have a detached fit {self.id!r}: {why}.")
        failure = status["failure"]
        if failure is None:
            return
        if status["state"] == "cancelled":
            raise CancelledError(f"fit {self.id} was stopped: {failure['text']}.")
        raise error_of(failure) or GangError(f"fit {self.id} failed: {failure['text']}")


def submit(
    estimator: Any, X: Any, y: Any = None, *, client: Any = None, keep_s: float = 86_400.0, **fit_params: Any
) -> DetachedFit:
    """Start ``estimator.fit(X, y)`` on a cluster and return at once; the fit outlives this process.

    A worker of the cluster drives it in place of this process: it calls ``fit`` of a copy of the estimator, in which
    every estimator of dsgd trains on this cluster. The result is that of ``fit`` here, bit for bit.

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
    keep_s : float, default 86400
        How long the result stays on the cluster after the end of the fit, in seconds.
    **fit_params
        Further arguments of ``fit``.

    Returns
    -------
    DetachedFit
        The fit; in another process, `attach` returns it for its `id`.

    Raises
    ------
    InvalidParameterError
        The estimator has no ``fit`` or another client, or `keep_s` is not positive.
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
    check_number("submit(keep_s=...)", keep_s, low=0, open_low=True)
    client = _client_of(estimator, client)
    data, futures = packed((estimator, (X,) if y is None else (X, y), fit_params), on_cluster=True)
    policy = as_policy("on_failure", getattr(estimator, "on_failure", "raise"))
    fit_id = uuid.uuid4().hex
    cluster = Cluster(client, getattr(estimator, "timeouts", None), getattr(estimator, "workers", None))
    call_scheduler(
        client,
        "dsgd_fit_announce",
        Timeouts().seconds("scheduler"),
        fit_id=fit_id,
        title=type(estimator).__name__,
        owner=owner_here(),
        submitter=client.id,
        keep_s=float(keep_s),
        restarts=0 if policy is None else policy.at_most,
    )
    fit = DetachedFit(fit_id, client)
    try:
        if futures:
            cluster.ask(lambda: client.publish_dataset(futures, name=rows_of(fit_id)))
        sent = data if len(data) <= _SMALL_BYTES else _sent(cluster, data)
        task = cluster.submit(run_fit, fit_id, sent, len(futures), key=result_of(fit_id), priority=_PRIORITY)
        # Dask answers when it has all that was submitted before: from now on this process may end.
        cluster.ask(lambda: client.publish_dataset(task, name=result_of(fit_id)))
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


def _sent(cluster: Cluster, data: bytes) -> Future:
    """Send the estimator and its rows to a worker."""
    [sent] = cluster.scatter([data], [[]])
    if isinstance(sent, OSError):
        raise ClusterError(f"no worker of the cluster takes the estimator and its rows: {sent}.") from sent
    future: Future = sent
    return future


def _client_of(estimator: Any, client: Any) -> Client:
    own = client_of(getattr(estimator, "client", None))
    if client is not None and getattr(estimator, "client", None) not in (None, client):
        raise InvalidParameterError(
            f"submit(client={client!r}): the estimator has another client, {own!r}. Leave one of them out."
        )
    return require_cluster(client if client is not None else own)
