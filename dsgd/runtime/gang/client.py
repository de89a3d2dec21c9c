"""The Dask client on which a job runs, and calls on its event loop.

**A coroutine on the event loop of a client, for whose outcome another thread waits, however often that is interrupted**

Problem: a future of `concurrent.futures` has a lock that both threads take in Python. An interrupt that comes when it
is taken and nobody has noted that yet leaves it locked: the loop waits for it for ever, and the lease of a job with it.

Method: the outcome comes through a queue that is written in C, where no interrupt can intervene.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import getpass
import logging
import multiprocessing
import os
import platform
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Final, Generic, TypeVar

from distributed import Client, LocalCluster, get_worker, rejoin, secede, worker_client

from dsgd.errors import ClusterError, ClusterUnreachableError, InvalidParameterError
from dsgd.runtime.dask_internals import QUIET_HEARTBEATS, ask_scheduler, event_loop, open_client, stop_loop
from dsgd.stages import stage

T = TypeVar("T")


class LoopCall(Generic[T]):
    """Runs what `make` returns on a loop, from now on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Awaitable[T]]) -> None:
        self._loop, self._is_cancelled = loop, False
        self._task: asyncio.Task[None] | None = None
        self._outcome: queue.SimpleQueue[tuple[T, None] | tuple[None, BaseException]] = queue.SimpleQueue()
        loop.call_soon_threadsafe(self._begin, make)

    def result(self, timeout_s: float) -> T:
        """Return the result, or raise the error; TimeoutError if neither is there in time."""
        try:
            value, error = self._outcome.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def cancel(self) -> None:
        """Cancel it if it has not ended; does not wait."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end)

    # ---- on the loop

    def _begin(self, make: Callable[[], Awaitable[T]]) -> None:
        if not self._is_cancelled:
            self._task = asyncio.ensure_future(self._run(make))

    def _end(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self, make: Callable[[], Awaitable[T]]) -> None:
        try:
            self._outcome.put((await make(), None))
        except BaseException as error:
            is_cancelled = isinstance(error, asyncio.CancelledError)
            self._outcome.put((None, concurrent.futures.CancelledError() if is_cancelled else error))
            if not isinstance(error, Exception):
                raise


_log = logging.getLogger("dsgd.runtime")

#: Code that our own worker processes run first, so that none prints a needless traceback. A terminal sends ctrl-C to
#: every process of the command, but only the client handles it and closes its workers in order.
QUIET_WORKER: Final = f"""\
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
{QUIET_HEARTBEATS}"""


def client_of(client: Any = None) -> Client | None:
    """Return the client given, else the current one, else None.

    Parameters
    ----------
    client : distributed.Client or None
        What the user passed.

    Raises
    ------
    InvalidParameterError
        `client` is something else, or an asynchronous client.
    ClusterUnreachableError
        The client is closed.
    """
    if client is None:
        try:
            client = Client.current()
        except ValueError:
            return None
    if not isinstance(client, Client):
        raise InvalidParameterError(
            f"client=... must be a distributed.Client or None, got {type(client).__name__}. "
            "Pass Client(address), not the address or the cluster."
        )
    if client.asynchronous:
        raise InvalidParameterError(
            "client=... is asynchronous (or was called from its own event loop); fit blocks until it is done. "
            "Use a Client(asynchronous=False), from another thread if need be."
        )
    if client.status not in ("running", "connecting"):
        raise ClusterUnreachableError(
            f"client=... is {client.status}: it has no scheduler any more. Make a new Client."
        )
    return client


class _OwnCluster:
    """The cluster that this process starts when a fit needs one and there is none; kept for the next fit.

    Starting and ending worker processes takes seconds, as long as many fits.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: ExitStack | None = None
        self._client: Client | None = None
        self._pid = 0

    def client(self) -> Client:
        """Return its client; start the cluster if there is none, or if it was closed."""
        with self._lock:
            is_ours = (
                self._pid == os.getpid()
            )  # a forked process has the record of its parent's cluster, but not the cluster
            if self._client is None or not is_ours or self._client.status != "running":
                if is_ours:
                    self._close()
                held = ExitStack()
                with stage("connect"):
                    self._client = held.enter_context(_started())
                self._held, self._pid = held, os.getpid()
                _log.warning(
                    "no client=...: started %d worker processes on this machine. They serve every fit without a client "
                    "until this process ends, or dsgd.runtime.close_own_cluster() is called.",
                    len(self._client.nthreads()),
                )
            return self._client

    def close(self) -> None:
        """End its worker processes, if there are any."""
        with self._lock:
            if self._pid == os.getpid():
                self._close()

    def _close(self) -> None:
        held, client = self._held, self._client
        self._held = self._client = None
        if held is not None and client is not None:
            held.close()
            # A client that lost its scheduler is already closed, but the thread of its event loop still runs.
            stop_loop(client)


_own_cluster: Final = _OwnCluster()

# Before the exit handler of distributed, which was registered earlier, closes the cluster under its client.
atexit.register(_own_cluster.close)


def close_own_cluster() -> None:
    """End the worker processes that a fit without a client has started; the next such fit starts new ones.

    Does nothing if there are none.
    """
    _own_cluster.close()


@contextmanager
def client_for(client: Any = None, *, n_workers: int | None = None) -> Iterator[Client]:
    """Give a client for the length of a ``with`` block: the one passed, the current one, or one of a new cluster.

    Inside a Dask task the default is the worker's client. The task leaves the thread pool meanwhile, whatever client it
    uses, so that its thread is free for the tasks that it starts. A cluster started with `n_workers` is closed at the
    end in any case; one without is kept for later calls (`close_own_cluster`).

    Parameters
    ----------
    client : distributed.Client or None, default None
        What the user passed.
    n_workers : int or None, default None
        Worker processes of a cluster started here; None takes one per core.

    Yields
    ------
    distributed.Client
        Synchronous and connected.

    Raises
    ------
    InvalidParameterError, ClusterUnreachableError
        See `client_of`.
    """
    if client is None and _in_task():
        with worker_client() as inner:
            yield inner
        return
    found = client_of(client)
    if found is not None:
        with out_of_pool():
            yield found
    elif n_workers is None:
        yield _own_cluster.client()
    else:
        with _started(n_workers) as own:
            yield own


@contextmanager
def _started(n_workers: int | None = None) -> Iterator[Client]:
    """Start a cluster on this machine; it is closed at the end."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # This is a worker process that is starting and has run the script that started it up to this line: see below.
        raise SystemExit(1)
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(
                LocalCluster(
                    n_workers=n_workers,
                    # Only processes run the Python code that reads and prepares rows in parallel.
                    threads_per_worker=1,
                    processes=True,
                    dashboard_address="127.0.0.1:0",
                    scheduler_kwargs={"dashboard": False},
                    preload=[QUIET_WORKER],
                )
            )
        except RuntimeError as error:
            raise ClusterError(
                f"no worker processes could be started on this machine ({error}). Each of them begins by running the "
                "script that starts them: put what the script does under `if __name__ == '__main__':`."
            ) from error
        yield stack.enter_context(Client(cluster, set_as_default=False))


def connect_client(address: str, timeout_s: float = 5.0) -> Client:
    """Connect to a running scheduler.

    Parameters
    ----------
    address : str
        ``tcp://host:port`` of the scheduler.
    timeout_s : float, default 5
        How long to wait for it.

    Returns
    -------
    distributed.Client
        The caller closes it.

    Raises
    ------
    ClusterUnreachableError
        No scheduler answers there.
    """
    try:
        return open_client(address, timeout_s)
    except (OSError, ValueError) as error:
        raise ClusterUnreachableError(
            f"no Dask scheduler answers at {address!r} within {timeout_s:g} s ({error}). "
            "Check the address, and that `dask scheduler` runs there."
        ) from error


def guarded(client: Client, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, timeout_s: float) -> T:
    """Run a coroutine on the event loop of a client, and wait for it in this thread."""
    # Not client.sync: interrupted by ctrl-C at the wrong moment, it prints its own tracebacks.
    call = LoopCall(event_loop(client), partial(function, *args))
    try:
        return call.result(timeout_s)
    except (OSError, TimeoutError) as error:
        # Errors of a lost connection and of a deadline mostly say nothing.
        cause = str(error) or (f"nothing for {timeout_s:g} s" if isinstance(error, TimeoutError) else "it is not there")
        raise ClusterUnreachableError(f"the scheduler of {client!r} does not answer any more: {cause}.") from error
    finally:
        call.cancel()


def call_scheduler(client: Client, op: str, timeout_s: float, /, **arguments: Any) -> Any:
    """Call a handler of the scheduler by its name, and wait up to `timeout_s` for its answer; see `guarded`."""

    async def call() -> Any:
        return await ask_scheduler(client, op, **arguments)

    return guarded(client, call, timeout_s=timeout_s)


def owner_here() -> str:
    """Return whose process this is, for the lists of jobs: user, host and process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user that has no name
        user = str(os.getuid())
    return f"{user}@{platform.node()}:{os.getpid()}"


def require_cluster(client: Any) -> Client:
    """Return the client given or the current one; raise `ClusterError` when there is none."""
    found = client_of(client)
    if found is None:
        raise ClusterError("there is no Dask client: pass client=Client(...).")
    return found


@contextmanager
def out_of_pool() -> Iterator[None]:
    """Leave the thread pool of the worker in a ``with`` block, where this is a task on one that is still in it.

    Its thread would be missing for the tasks that it waits for.
    """
    with ExitStack() as stack:
        # No task, one that has left already, or one without a thread of its own.
        with suppress(ValueError, KeyError, AttributeError):
            secede()
            stack.callback(rejoin)
        yield


def _in_task() -> bool:
    try:
        get_worker()
    except ValueError:
        return False
    return True
