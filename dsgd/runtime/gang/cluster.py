"""A cluster as jobs use it: the workers that can run ranks, their versions, and calls that all have a deadline.

Problem: most calls of a Dask client wait without end where a worker is stopped, or cut off, but still connected. And a
cluster may have workers for other purposes, without dsgd.

Method: every call waits in slices of a second, after each of which the scheduler is asked for how long the workers that
matter were not heard of. The wait ends with an error once that is too long. Calls run on the event loop of the client
and outside the context of the caller. If that is a task on a worker, Dask would otherwise keep what it is asked to send
there, as it is.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

from distributed import CancelledError
from distributed.comm import CommClosedError

from dsgd.errors import ClusterError, ClusterUnreachableError, GangTimeoutError, VersionMismatchError
from dsgd.runtime.dask_internals import BlockedCall, blocked_call, event_loop, make_scheduler_probe
from dsgd.runtime.deployment import Gang, meant_workers
from dsgd.runtime.gang.client import LoopCall, call_scheduler, guarded
from dsgd.runtime.messages import local_versions
from dsgd.runtime.scheduler.plugin import SCHEDULER_PLUGIN, GangSchedulerPlugin
from dsgd.runtime.timeouts import Timeouts
from dsgd.validation import warn_user

if TYPE_CHECKING:
    from distributed import Client, Future


# Calls of Dask that start a job; a cluster may block some of them for its clients.
_NEEDED: Final = {"Scheduler": "run_function and register_scheduler_plugin", "Worker": "plugin-add"}


def prepare_scheduler(client: Client, timeout_s: float) -> None:
    """Compare the versions of the scheduler with those of this process, and install its plugin unless it is there."""
    if SCHEDULER_PLUGIN in check_scheduler(client, timeout_s):
        return

    async def register() -> None:
        await client.register_plugin(GangSchedulerPlugin())

    with code_allowed():
        guarded(client, register, timeout_s=timeout_s)


def check_scheduler(client: Client, timeout_s: float) -> frozenset[str]:
    """Compare the versions of the scheduler with those of this process; return the names of its plugins.

    Raises as `prepare_scheduler`.
    """

    async def look() -> Mapping[str, Any]:
        found: Mapping[str, Any] = await client.run_on_scheduler(make_scheduler_probe(_make_probe()))
        return found

    with code_allowed():
        there = guarded(client, look, timeout_s=timeout_s)
    found, wanted = there["versions"], local_versions()
    if "error" in found:
        raise VersionMismatchError(wanted_text(f"the scheduler cannot import dsgd ({found['error']})"))
    other = [f"{name} {found.get(name)}" for name, number in wanted.items() if found.get(name) != number]
    if other:
        raise VersionMismatchError(wanted_text(f"the scheduler has {', '.join(other)}"))
    return frozenset(there["plugins"])


def wanted_text(problems: str) -> str:
    """Return what to say of other versions elsewhere."""
    mine = ", ".join(f"{name} {number}" for name, number in local_versions().items())
    return f"this client has {mine}, but {problems}. Install the same versions everywhere."


def refused_call(blocked: BlockedCall) -> ClusterError:
    """Return the error of a cluster that blocks a call which starts a job."""
    where = blocked.where.lower()
    return ClusterError(
        f"the {where} blocks {blocked.call!r} for its clients, but a job needs it: ranks find each "
        "other through a plugin of the scheduler and of each worker. The administrator of the cluster must remove "
        f"{_NEEDED[blocked.where]} from distributed.{where}.blocked-handlers. Without a cluster, "
        "client=None trains on threads of this process."
    )


@contextmanager
def code_allowed() -> Iterator[None]:
    """Translate refused calls of Dask to an error that says what the cluster must allow."""
    try:
        yield
    except Exception as error:
        if isinstance(error, CommClosedError):
            cause = str(error) or "it closed the connection"
            raise ClusterUnreachableError(f"the scheduler does not answer any more: {cause}.") from error
        blocked = blocked_call(error)
        if blocked is None:
            raise
        raise refused_call(blocked) from error


def _make_probe() -> Callable[[], dict[str, str]]:
    """Return a function for the versions of the process in which it runs."""

    # A nested function is pickled by value, so it also runs where dsgd is not installed.
    def probe() -> dict[str, str]:
        import importlib

        try:
            importlib.import_module("dsgd.runtime.scheduler.plugin")
            found: dict[str, str] = importlib.import_module("dsgd.runtime.messages").local_versions()
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return found

    return probe


T = TypeVar("T")
_LOOK_S: Final = 1.0

# How long Dask looks for a worker that takes what it is sent: one that has left or is paused takes nothing.
_TAKE_S: Final = 3.0

#: For each client, the workers that it was told cannot run ranks.
_TOLD: Final[WeakKeyDictionary[Any, set[str]]] = WeakKeyDictionary()


class Cluster:
    """A cluster whose scheduler takes jobs, and those of its workers that can run ranks."""

    def __init__(self, client: Client, gang: Gang | None = None) -> None:
        gang = gang or Gang()
        self.client = client
        self.limits = (gang.timeouts or Timeouts()).settled()
        self._names, self.resources = meant_workers(gang.workers)
        self.threads: dict[str, int] = {}
        self._turns = itertools.count()
        self.only: list[str] | None = None
        self._idle_since: float | None = None
        prepare_scheduler(client, self.limits.seconds("scheduler"))
        found = self.survey([])
        if not found["n_meant"] and self._names is None and not self.resources:
            most_s = self.limits.seconds("queue")
            warn_user(f"the cluster has no workers: the fit waits for one, at most {most_s:g} s.", RuntimeWarning)
            # As all of Dask does. A cluster that scales starts a worker where there is a task.
            self.settle([self.submit(int)], "waiting for a worker")
            found = self.survey([])
        self._check(found)

    def survey(self, keys: Sequence[Any]) -> dict[str, Any]:
        """Return the workers, and size and holders of blocks with these keys; see `GangSchedulerPlugin.survey`."""
        at_most_s = self.limits.seconds("peer")
        found: dict[str, Any] = call_scheduler(
            self.client,
            "dsgd_survey",
            at_most_s + self.limits.seconds("scheduler"),
            keys=list(keys),
            hung_s=self.limits.seconds("hung"),
            at_most_s=at_most_s,
            names=self._names,
            resources=self.resources,
        )
        usable = [*found["workers"], *found["paused"]]
        self.threads = {worker["address"]: worker["nthreads"] for worker in found["workers"]}
        is_whole = self._names is None and not self.resources and len(usable) == found["n_meant"]
        self.only = None if is_whole else [worker["address"] for worker in usable]
        self._tell(found["left_out"])
        return found

    def _check(self, found: Mapping[str, Any]) -> None:
        """Raise if there are workers, and none of them can run ranks."""
        left_out = found["left_out"]
        if found["workers"] or found["paused"]:
            return
        if not found["n_meant"]:
            if self._names is not None or self.resources:
                raise ClusterError(
                    f"no worker of the cluster is meant by workers={self._names or self.resources!r}: these are names, "
                    "addresses or hosts of workers, or resources that they were started with."
                )
            return  # a plan says what is missing
        for problem in left_out.values():
            blocked = blocked_call(Exception(problem))
            if blocked is not None:
                raise refused_call(blocked)
        if left_out:
            each = "; ".join(f"worker {address} {problem}" for address, problem in sorted(left_out.items()))
            raise VersionMismatchError(wanted_text(each))
        raise GangTimeoutError(
            f"none of the {found['n_meant']} workers has answered within {self.limits.seconds('hung'):g} s: they are "
            "stopped, cut off or busy. See timeouts=Timeouts(hung=...)."
        )

    def _tell(self, left_out: Mapping[str, str]) -> None:
        """Warn of workers that cannot run ranks, once."""
        told = _TOLD.setdefault(self.client, set())
        new = {address: problem for address, problem in left_out.items() if address not in told}
        told.update(new)
        if new and self.threads:
            which = "; ".join(f"worker {address} {problem}" for address, problem in sorted(new.items()))
            warn_user(f"{which}: left out, as it cannot run ranks. The fit uses the other workers.", RuntimeWarning)

    # ---- calls

    def wait(
        self,
        make: Callable[[], Awaitable[T]],
        doing: str,
        *,
        workers: Sequence[str] = (),
        pending: Callable[[], Sequence[Any]] = tuple,
        limit: str = "hung",
        at_most_s: float = float("inf"),
    ) -> T:
        """Wait for something on the cluster, as long as the workers that it needs are heard of."""
        deadline = time.monotonic() + at_most_s
        # Without the context of the caller, which on a worker says that this is a task of it.
        work = Context().run(LoopCall, event_loop(self.client), partial(_outcome, make))
        try:
            while True:
                try:
                    value, error = work.result(_LOOK_S)
                    break
                except TimeoutError:
                    pass
                self.check_silence(doing, workers, pending(), limit)
                if time.monotonic() >= deadline:
                    raise GangTimeoutError(
                        f"{doing}: not done after {at_most_s:g} s, though the workers are heard of. Can this process "
                        "reach them? timeouts=Timeouts(peer=...) sets how long to wait."
                    )
        finally:
            work.cancel()
        if error is not None:
            raise error
        return cast(T, value)

    def check_silence(
        self, doing: str, workers: Sequence[str] = (), keys: Sequence[Any] = (), limit: str = "hung"
    ) -> None:
        """Raise if a worker that is needed, for itself or for some keys, is silent for too long or has left.

        Or if there has been none for the keys for as long as a job waits for workers.
        """
        silent_s, worker, host = self.silence(workers, keys)
        self._idle_since = (self._idle_since or time.monotonic()) if keys and not worker else None
        if self._idle_since and time.monotonic() - self._idle_since > self.limits.seconds("queue"):
            raise GangTimeoutError(
                f"{doing}: no worker has begun with it within {self.limits.seconds('queue'):g} s. Are there any "
                "that are free? timeouts=Timeouts(queue=...) sets how long to wait."
            )
        if silent_s == inf:
            raise ClusterError(f"{doing}: worker {worker}, which was to do it, has left the cluster. Fit again.")
        if silent_s > self.limits.seconds(limit):
            raise GangTimeoutError(
                f"{doing}: worker {worker} (host {host}) was not heard of for {silent_s:.0f} s. It is stopped, cut "
                "off, or busy in code that holds the interpreter lock. "
                f"timeouts=Timeouts({limit}=...) sets how long to wait."
            )

    def silence(self, workers: Sequence[str] = (), keys: Sequence[Any] = ()) -> tuple[float, str, str]:
        """Return for how long one that is needed was not heard of; see `GangSchedulerPlugin.silence`."""
        call_s = self.limits.seconds("scheduler")
        silent_s, worker, host = call_scheduler(
            self.client, "dsgd_silence", call_s, workers=list(workers), keys=list(keys)
        )
        return float(silent_s), str(worker), str(host)

    def run(self, function: Callable[..., Any], *args: Any, workers: Sequence[str] | None = None) -> dict[str, Any]:
        """Call a function on workers, by default on all that can run ranks; answers that are errors come as such."""
        where = list(self.threads) if workers is None else list(workers)

        def call() -> Awaitable[dict[str, Any]]:
            answers: Awaitable[dict[str, Any]] = self.client.run(function, *args, workers=where, on_error="return")
            return answers

        return self.wait(call, f"asking workers ({function.__name__})", workers=where) if where else {}

    def submit(
        self, function: Callable[..., Any], *args: Any, workers: Sequence[str] | None = None, **options: Any
    ) -> Future:
        """Submit a task, to these workers or to any that can run ranks."""
        where = self.only if workers is None else list(workers)
        future: Future = self.client.submit(function, *args, workers=where, pure=False, **options)
        return future

    def map(self, function: Callable[..., Any], *values: Sequence[Any], **options: Any) -> list[Future]:
        """Submit a task for each of some values, to workers that can run ranks."""
        futures: list[Future] = self.client.map(function, *values, workers=self.only, pure=False, **options)
        return futures

    def compute(self, values: Sequence[Any]) -> list[Future]:
        """Compute delayed values on workers that can run ranks."""
        futures: list[Future] = self.client.compute(list(values), workers=self.only)
        return futures

    def scatter(self, values: Sequence[Any], workers: Sequence[Sequence[str]]) -> list[Any]:
        """Send objects to workers at the same time, as each takes round trips."""
        # A cluster in this process or on this host is reachable; through a gateway or proxy only the scheduler is.
        direct = not type(self.client.cluster).__name__.startswith("Gateway")

        async def send(value: Any, home: list[str]) -> Any:
            # Keys by content would cost a pass over all rows, and equal blocks would share one.
            try:
                sent = await self.client.scatter([value], workers=home, direct=direct, hash=False, timeout=_TAKE_S)
            except KeyError as error:
                if error.args[0] not in home:
                    raise
                # The scheduler does not know a worker that took the value and has left since.
                raise OSError(f"worker {error} has left") from error
            return sent[0]

        async def send_all() -> list[Any]:
            sends = (send(value, home) for value, home in zip(values, homes, strict=True))
            return await asyncio.gather(*sends, return_exceptions=True)

        if not all(workers):
            self.survey([])  # some may have left since
            if not self.threads:
                return [OSError("there are no workers")] * len(values)
        anywhere = sorted(self.threads)
        homes = [list(home) or [anywhere[next(self._turns) % len(anywhere)]] for home in workers]
        everywhere = sorted({address for home in homes for address in home})
        found = self.wait(send_all, "handing rows to workers", workers=everywhere) if values else []
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, OSError):
                raise each
        return found

    def settle(self, futures: Sequence[Future], doing: str, limit: str = "hung") -> None:
        """Wait until futures are done, successfully or not."""

        # Not distributed.wait, which raises if one was cancelled.
        async def settled() -> None:
            await asyncio.gather(*(future.exception() for future in futures), return_exceptions=True)

        self.wait(settled, doing, pending=lambda: [f.key for f in futures if not f.done()], limit=limit)

    def gather(self, futures: Sequence[Future], doing: str, limit: str = "hung") -> list[Any]:
        """Return the results of futures."""

        async def gathered() -> list[Any]:
            values: list[Any] = await self.client.gather(list(futures))
            return values

        self.settle(futures, doing, limit)
        keys = [future.key for future in futures]
        try:
            # They are there: what is left is to bring them here.
            return self.wait(gathered, doing, pending=lambda: keys, at_most_s=self.limits.seconds("peer"))
        except (CancelledError, asyncio.CancelledError) as error:
            if self.client.status != "running":
                raise ClusterUnreachableError(
                    f"the scheduler of {self.client!r} does not answer any more: the client is {self.client.status}."
                ) from error
            raise ClusterError(
                f"the cluster gave up {doing} ({error}): it was restarted, or a user or another program cancelled it. "
                "Load the data again."
            ) from error

    def ask(self, op: Callable[[], Awaitable[T]]) -> T:
        """Call the scheduler through the client; as long as a call may take."""

        async def call() -> T:
            return await asyncio.wait_for(op(), self.limits.seconds("scheduler"))

        try:
            return self.wait(call, "asking the scheduler")
        except TimeoutError as error:
            raise ClusterUnreachableError(
                f"the scheduler of {self.client!r} does not answer any more: nothing for "
                f"{self.limits.seconds('scheduler'):g} s."
            ) from error


async def _outcome(make: Callable[[], Awaitable[T]]) -> tuple[Any, BaseException | None]:
    """Return the value or the error: a loop takes errors about cancelled futures for its own."""
    try:
        return await make(), None
    except BaseException as error:
        return None, error
