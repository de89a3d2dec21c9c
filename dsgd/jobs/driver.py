"""The task that drives a detached fit, and what is sent to it.

Estimators and their data as bytes that another process of the cluster reads.

Problem: a pickled estimator of dsgd loses its client and its ledger, as is right for a file, and a future knows its
client only by chance. A detached fit is sent to its driver and comes back, and must find both.

Method: a client is written as the mark of "the client of whoever reads this", and a future as its number in a list.

The driver of a detached fit: a Dask task that calls ``fit`` in the place of the user's process.

It leaves Dask's thread pool at once, as ranks do, and has a client of its own: by its name the scheduler knows the
gangs of the fit, and when it closes, everything that the fit held is released. It renews a lease, as the client of a
gang does: a driver that hangs ends its fit. It never raises into Dask, which would run it again.
"""

from __future__ import annotations

import io
import logging
import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import cloudpickle
from distributed import Client, Future, get_worker, secede

from dsgd.errors import ClusterUnreachableError, WorkerLostError
from dsgd.inputs.estimator import AbstractClusterEstimator
from dsgd.runtime.dask_internals import ask_scheduler, event_loop, open_client_beside
from dsgd.runtime.gang.client import call_scheduler
from dsgd.runtime.gang.job_handle import Lease
from dsgd.runtime.logs import working_for
from dsgd.runtime.scheduler.detached import failed_with, rows_of
from dsgd.runtime.timeouts import Timeouts
from dsgd.runtime.worker.failures import pickled_error, unpickled_error
from dsgd.sim import SimulatedCluster

_CLIENT: Final = "client"
_FUTURE: Final = "future"

#: What a pickle of an estimator leaves out, and how it says so; see `AbstractClusterEstimator.__getstate__`.
_LEFT_OUT: Final = {"client": "_lost_client", "ledger_": "_ledger_is_elsewhere"}


def packed(value: Any, *, on_cluster: bool = False) -> tuple[bytes, list[Future]]:
    """Return a value as bytes."""
    stream = io.BytesIO()
    pickler = _Pickler(stream, on_cluster)
    pickler.dump(value)
    return stream.getvalue(), pickler.futures


def unpacked(data: bytes, client: Client, futures: Sequence[Future] = ()) -> Any:
    """Return the value that `packed` was given, with a client of this process and futures of this client."""
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
        if self._on_cluster and not isinstance(obj.client, SimulatedCluster):
            state["client"] = _ReadersClient()
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


_log: Final = logging.getLogger("dsgd.jobs")
_MAX_TEXT: Final = 16_384
_MAX_CAUSES: Final = 8


@dataclass(frozen=True)
class FitOutcome:
    """What a driver returns."""

    value: bytes
    failure: dict[str, Any] | None


def run_fit(fit_id: str, data: bytes, n_futures: int) -> FitOutcome:
    """Drive a detached fit. Sent to run on a worker."""
    worker = get_worker()
    secede()
    with open_client_beside(worker, f"dsgd-fit-{fit_id[:8]}") as client:
        place = {"worker": worker.address, "host": worker.ip}
        try:
            return _Driver(client, fit_id, place).run(data, n_futures)
        except BaseException as error:
            # Before it began, or a scheduler that is gone.
            return FitOutcome(b"", {**describe_error(error), **place})


class _Driver:
    """One attempt at a detached fit."""

    def __init__(self, client: Client, fit_id: str, place: dict[str, str]) -> None:
        self._client, self._fit_id, self._place = client, fit_id, place
        limits = Timeouts()
        self._patience_s, self._lease_s = limits.seconds("scheduler"), limits.seconds("lease")
        self._attempt = 0

    def run(self, data: bytes, n_futures: int) -> FitOutcome:
        """Fit, unless the fit is over already; tell the scheduler how it ended."""
        self._attempt = self._call("dsgd_fit_begin", driver=self._client.id, lease_s=self._lease_s, **self._place)
        if not self._attempt:
            return FitOutcome(b"", failed_with("stopped", "the fit was over before its driver began", **self._place))
        lease = Lease(event_loop(self._client), self._renew, self._give_up, self._lease_s)
        with lease.attended, working_for(self._fit_id):
            lease.begin()
            outcome = self._fit(data, n_futures)
            try:
                self._call("dsgd_fit_end", attempt=self._attempt, failure=outcome.failure)
            except ClusterUnreachableError as problem:
                _log.warning("the end of detached fit %s was not told: %s", self._fit_id, problem)
            lease.end(None, self._lease_s)
        return outcome

    def _fit(self, data: bytes, n_futures: int) -> FitOutcome:
        try:
            rows = self._client.get_dataset(rows_of(self._fit_id)) if n_futures else []
            estimator, arguments, keywords = unpacked(data, self._client, rows)
            fitted = estimator.fit(*arguments, **keywords)
            return FitOutcome(packed(estimator if fitted is None else fitted)[0], None)
        except BaseException as error:
            # KeyboardInterrupt and SystemExit too: whoever fetches the result must learn of anything that ended it.
            return FitOutcome(b"", {**describe_error(error), **self._place})

    def _call(self, op: str, **arguments: Any) -> Any:
        return call_scheduler(self._client, op, self._patience_s, fit_id=self._fit_id, **arguments)

    # ---- on the event loop of the worker

    async def _renew(self) -> None:
        await ask_scheduler(self._client, "dsgd_fit_renew", fit_id=self._fit_id, attempt=self._attempt)

    async def _give_up(self, reason: str) -> None:
        failure = failed_with("stopped", reason, **self._place)
        attempt = {"fit_id": self._fit_id, "attempt": self._attempt}
        await ask_scheduler(self._client, "dsgd_fit_end", **attempt, failure=failure)


def describe_error(error: BaseException) -> dict[str, Any]:
    """Turn the error of a fit into a record that travels, with its causes."""
    causes: list[bytes] = []
    cause = error.__cause__
    while cause is not None and len(causes) < _MAX_CAUSES:
        causes.append(pickled_error(cause))
        cause = cause.__cause__
    text = "".join(traceback.format_exception(error))[-_MAX_TEXT:]
    return {**failed_with("raised", text), "pickled": pickled_error(error), "causes": causes}


def error_of(failure: dict[str, Any]) -> BaseException | None:
    """Return the error that ended a fit, with its causes; None if it did not survive its way."""
    if failure["kind"] == "lost":
        worker = failure["worker"]
        return WorkerLostError(-1, worker, failure["host"], failure["text"].removeprefix(f"worker {worker} "))
    error = unpickled_error(failure["pickled"])
    if error is None:
        return None
    error.add_note(f"raised on worker {failure['worker']}, which drove the fit:\n{failure['text'].rstrip()}")
    last = error
    for pickled in failure["causes"]:
        last.__cause__ = cause = unpickled_error(pickled)
        if cause is None:
            break
        last = cause
    return error
