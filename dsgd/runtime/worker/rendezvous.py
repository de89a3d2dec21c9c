"""The rendezvous: how the members of a gang find each other and connect.

A member opens its data socket once, on the host part of its worker's own address (the address by which the cluster
already reaches it) and on a port the system picks, tells the scheduler, and gets the addresses of all members when the
last has come. There is no port to agree on and none that is probed, released and taken by somebody else. Strangers that
find it are sent away while the member waits, and it is closed as soon as all have joined.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dask.system import CPU_COUNT
from distributed.comm import get_address_host

from dsgd.comm.base import AbstractTransport, TransportName
from dsgd.comm.frames import job_code
from dsgd.comm.sockets.listener import Listener, Wrap
from dsgd.comm.sockets.mesh import Detour
from dsgd.comm.wires import shm, tcp
from dsgd.errors import AbortedError, ClusterError, GangTimeoutError
from dsgd.ledger import RankLedger
from dsgd.runtime.credentials import MemberCredentials
from dsgd.runtime.messages import MEMBER_EVENT
from dsgd.runtime.worker.relays import open_relay
from dsgd.runtime.worker.store import JobState
from dsgd.runtime.worker.wires import WireOptions, open_listener

if TYPE_CHECKING:
    from distributed import Worker

__all__ = ["GangConnection", "SchedulerLink", "connection_settings", "data_wrap", "detour", "join_gang", "on_loop"]

# One slice of waiting for the others; between slices the abort flag is read.
_SLICE_S: Final = 0.5
# How often strangers on the data port are looked at meanwhile: they are to be gone within a second.
_LOOK_S: Final = 0.2
_CALL_S: Final = 10.0
# All listeners are open by then, so this is a matter of the network alone.
_CONNECT_S: Final = 30.0


class SchedulerLink:
    """A member's line to the scheduler, used from the threads of its ranks."""

    def __init__(self, worker: Worker, credentials: MemberCredentials) -> None:
        self._worker = worker
        self._credentials = credentials

    def started(self) -> None:
        """Say that this member has begun; does not wait."""
        self._tell(None)

    def publish(self, event: Mapping[str, Any]) -> None:
        """Send a progress event; does not wait."""
        self._tell(dict(event))

    def join(self, address: str, wait_s: float, idle: Callable[[], object]) -> dict[str, Any]:
        """Give this member's data address; see `Registry.join` for the answer. Calls `idle` now and then meanwhile."""
        mine = {"address": address, "n_cores": CPU_COUNT}
        answer: dict[str, Any] = self._call("dsgd_join", wait_s + _CALL_S, idle, **mine, wait_s=wait_s)
        return answer

    def finish(self, failure: Mapping[str, Any] | None) -> None:
        """Say how this member ended."""
        self._call("dsgd_finish", _CALL_S, failure=None if failure is None else dict(failure))

    def _tell(self, event: dict[str, Any] | None) -> None:
        message = {"op": MEMBER_EVENT, **self._credentials.as_message(), "event": event}
        self._worker.loop.add_callback(self._worker.batched_send, message)

    def _call(self, op: str, timeout_s: float, idle: Callable[[], object] | None = None, **arguments: Any) -> Any:
        call = getattr(self._worker.scheduler, op)(**self._credentials.as_message(), **arguments)
        return on_loop(self._worker, call, timeout_s, f"the scheduler did not answer {op}", idle)


def on_loop(
    worker: Worker,
    call: Coroutine[Any, Any, Any],
    timeout_s: float,
    problem: str,
    idle: Callable[[], object] | None = None,
) -> Any:
    """Return what a coroutine returns on the worker's event loop."""
    loop = worker.loop.asyncio_loop
    future = asyncio.run_coroutine_threadsafe(call, loop)
    deadline = time.monotonic() + timeout_s
    try:
        # In slices: a worker that closes stops its loop, and nothing would ever answer.
        while time.monotonic() < deadline and loop.is_running():
            if idle is not None:
                idle()
            with contextlib.suppress(concurrent.futures.TimeoutError):
                return future.result(_LOOK_S)
    finally:
        future.cancel()
    if not loop.is_running():
        raise AbortedError(f"worker {worker.address} is closing")
    raise GangTimeoutError(f"worker {worker.address}: {problem} within {timeout_s:g} s.")


def connection_settings(
    credentials: MemberCredentials, job: JobState, ledger: RankLedger, timeout_s: float
) -> dict[str, Any]:
    """Return what the connections of a job have in common, in the words of `dsgd.comm.wires.tcp.Entrance`."""
    return {
        "job_id": credentials.job_id,
        "epoch": credentials.epoch,
        "token": credentials.token,
        "ledger": ledger,
        "abort": job.abort,
        "timeout_s": timeout_s,
        "connect_timeout_s": min(timeout_s, _CONNECT_S),
    }


def detour(
    worker: Worker,
    job: JobState,
    credentials: MemberCredentials,
    doors: Sequence[int],
    workers: Sequence[str],
    transport: TransportName,
) -> Detour | None:
    """Return the way to peers to whom no connection can be opened: through the ports of their workers.

    Parameters
    ----------
    worker, job : Worker and JobState
        The worker, and what it keeps of the job.
    credentials : MemberCredentials
        The job, and as which member this end is known to the relays.
    doors : sequence of int
        As which member each peer is known to them.
    workers : sequence of str
        The worker of each peer.
    transport : str
        What the user asked for; over ``"tcp"`` alone there is no other way.
    """
    if transport == "tcp":
        return None

    def through_worker(peer: int) -> socket.socket:
        call = open_relay(worker, job.relays, credentials, doors[peer], workers[peer])
        sock: socket.socket = on_loop(worker, call, _CALL_S, f"worker {workers[peer]} did not connect")
        return sock

    return Detour(through_worker, always=transport == "rpc")


def data_wrap(worker: Worker) -> Wrap | None:
    """Return what encrypts a data socket with the worker's own certificates, or None on a plain cluster.

    Both sides must show a certificate of the cluster's authority, as Dask's own connections do.
    """
    if not worker.address.startswith("tls://"):
        return None
    security = worker.security

    def wrap(sock: socket.socket, server_side: bool) -> socket.socket:
        settings = security.get_listen_args("worker") if server_side else security.get_connection_args("worker")
        context: ssl.SSLContext = settings["ssl_context"]
        return context.wrap_socket(sock, server_side=server_side, do_handshake_on_connect=False)

    return wrap


class GangConnection(NamedTuple):
    """What a rendezvous leads to.

    Parameters
    ----------
    transport : AbstractTransport
        Connected with every peer.
    refused : dict of str to int
        Connections and messages that were turned away meanwhile, by what was wrong with them.
    """

    transport: AbstractTransport
    refused: dict[str, int]


def join_gang(
    worker: Worker,
    job: JobState,
    link: SchedulerLink,
    credentials: MemberCredentials,
    options: WireOptions,
    *,
    ledger: RankLedger,
    timeout_s: float,
) -> GangConnection:
    """Wait until all members are there, and connect with them.

    Parameters
    ----------
    worker : Worker
        The worker that runs this member.
    job : JobState
        What it keeps of the job; its abort flag is read between slices of the wait.
    link : SchedulerLink
        This member's line to the scheduler.
    credentials : MemberCredentials
        Which job this is.
    options : WireOptions
        What to talk over and where to listen.
    ledger : RankLedger
        The account of the first rank of this member, which is the one that talks to the others.
    timeout_s : float
        Longest wait for the others, and for anything the transport waits for later.

    Returns
    -------
    GangConnection
        The transport, which connects the members by their numbers.

    Raises
    ------
    AbortedError
        The job stopped, or this task does not belong to it.
    GangTimeoutError
        Some members did not come in time; names them.
    ClusterError
        Not all members can share memory, with ``transport="shm"``, or no port can be listened on.
    """
    with open_listener(worker, options) as listener:
        arrival = _Arrival(worker, job, credentials, options, listener, data_wrap(worker), timeout_s)
        job.relays.open_door(credentials.member, listener.address)
        try:
            transport = arrival.connect(arrival.wait_for_all(link), ledger)
        finally:
            job.relays.close_door(credentials.member)
        return GangConnection(transport, dict(listener.refused + job.relays.refused))


@dataclass(frozen=True)
class _Arrival:
    """A member on its way into the gang: who it is, where its peers find it, and how long it waits for them."""

    worker: Worker
    job: JobState
    credentials: MemberCredentials
    options: WireOptions
    listener: Listener
    wrap: Wrap | None
    timeout_s: float

    def wait_for_all(self, link: SchedulerLink) -> dict[str, Any]:
        """Return what the scheduler answers when the last member has come."""
        code = job_code(self.credentials.job_id)

        def send_strangers_away() -> None:
            self.listener.look(self.wrap, code, self.credentials.epoch)

        deadline = time.monotonic() + self.timeout_s
        while True:
            self.job.abort.check()
            answer = link.join(self.listener.address, _SLICE_S, send_strangers_away)
            state = answer["join_state"]
            if state == "ready":
                return answer
            if state == "stopped":
                raise AbortedError(answer["reason"])
            if state == "stale":
                raise AbortedError(
                    f"job {self.credentials.job_id} no longer knows this task of member {self.credentials.member}"
                )
            if time.monotonic() >= deadline:
                raise GangTimeoutError(
                    f"the worker waited {self.timeout_s:g} s for {', '.join(answer['missing'])} to start. "
                    "The worker may be busy with other tasks, paused for memory, or still reading its rows."
                )

    def connect(self, answer: Mapping[str, Any], ledger: RankLedger) -> AbstractTransport:
        """Connect with all members over what the user has asked for."""
        workers: Sequence[str] = answer["workers"]
        addresses: Sequence[str] = answer["addresses"]
        asked, member = self.options.transport, self.credentials.member
        settings = connection_settings(self.credentials, self.job, ledger, self.timeout_s)
        if asked in ("gloo", "mpi", "ucx"):
            if self.wrap is not None:
                raise ClusterError(
                    f"transport={asked!r} does not encrypt, and the workers of this cluster talk over TLS. "
                    'Use transport="auto", "tcp" or "rpc".'
                )
            library = importlib.import_module(f"dsgd.comm.wires.{asked}")
            joined: AbstractTransport = library.connect(self.listener, member, addresses, **settings)
            return joined
        way_round = detour(self.worker, self.job, self.credentials, range(len(workers)), workers, asked)
        settings |= {"wrap": self.wrap, "detour": way_round}
        if asked in ("tcp", "rpc"):
            return tcp.connect(self.listener, member, addresses, **settings)
        wait: shm.Wait = "spin" if asked == "spin" else "sleep"
        # Processes of one host that have a core each may look for a moment before they sleep.
        on_one_host = len({get_address_host(address) for address in workers}) == 1
        window = wait == "spin" or (on_one_host and len(workers) <= answer["n_cores"])
        near = shm.connect(self.listener, member, addresses, wait=wait, window=window, **settings)
        if asked == "shm" and near.size > 1 and near.wire != "shm":
            near.close()
            raise ClusterError(
                f"the worker cannot share memory with all others: there are {len(set(near.hosts))} hosts, or "
                'the shared folder has no room (see the log of the worker). Use transport="auto".'
            )
        return near
