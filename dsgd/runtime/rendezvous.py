"""How the ranks of a gang find each other.

A rank opens its data socket once, on the host part of its worker's own address (the address by which the cluster
already reaches it) and on a port the system picks, tells the scheduler, and gets the addresses of all ranks when the
last has come. There is no port to agree on and none that is probed, released and taken by somebody else.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from distributed.comm import get_address_host, parse_address

from dsgd.comm import shm, tcp
from dsgd.comm.base import AbortFlag, AbstractTransport, TransportName
from dsgd.comm.tcp import Listener, Wrap
from dsgd.errors import AbortedError, ClusterError, GangTimeoutError
from dsgd.ledger import RankLedger
from dsgd.runtime.plugins import RANK_EVENT

if TYPE_CHECKING:
    from distributed import Worker

__all__ = ["Fence", "SchedulerLink", "data_host", "data_wrap", "meet"]

# One slice of waiting for the others; between slices the abort flag is read.
_SLICE_S: Final = 0.5
_CALL_S: Final = 10.0
# All listeners are open by then, so this is a matter of the network alone.
_CONNECT_S: Final = 30.0


@dataclass(frozen=True)
class Fence:
    """What every message of a rank shows, so that one of a job that is over is turned away.

    Parameters
    ----------
    job_id : str
        The job.
    epoch : int
        Which start of it.
    token : bytes
        32 secret bytes, known to the members of the gang alone.
    rank : int
        The rank.
    """

    job_id: str
    epoch: int
    token: bytes
    rank: int

    def as_message(self) -> dict[str, Any]:
        """Return the fields as message arguments."""
        return {"job_id": self.job_id, "epoch": self.epoch, "token": self.token, "rank": self.rank}


class SchedulerLink:
    """A rank's line to the scheduler, used from the thread of its task."""

    def __init__(self, worker: Worker, fence: Fence) -> None:
        self._worker = worker
        self._fence = fence

    def started(self) -> None:
        """Say that this rank has begun; does not wait."""
        self._tell(None)

    def publish(self, event: Mapping[str, Any]) -> None:
        """Send a progress event; does not wait."""
        self._tell(dict(event))

    def join(self, address: str, wait_s: float) -> dict[str, Any]:
        """Give this rank's data address; see `Registry.join` for the answer."""
        answer: dict[str, Any] = self._call("dsgd_join", wait_s + _CALL_S, address=address, wait_s=wait_s)
        return answer

    def finish(self, failure: Mapping[str, Any] | None) -> None:
        """Say how this rank ended."""
        self._call("dsgd_finish", _CALL_S, failure=None if failure is None else dict(failure))

    def _tell(self, event: dict[str, Any] | None) -> None:
        message = {"op": RANK_EVENT, **self._fence.as_message(), "event": event}
        self._worker.loop.add_callback(self._worker.batched_send, message)

    def _call(self, op: str, timeout_s: float, **arguments: Any) -> Any:
        call = getattr(self._worker.scheduler, op)(**self._fence.as_message(), **arguments)
        loop = self._worker.loop.asyncio_loop
        future = asyncio.run_coroutine_threadsafe(call, loop)
        deadline = time.monotonic() + timeout_s
        try:
            # In slices: a worker that closes stops its loop, and nothing would ever answer.
            while time.monotonic() < deadline and loop.is_running():
                with contextlib.suppress(concurrent.futures.TimeoutError):
                    return future.result(_SLICE_S)
        finally:
            future.cancel()
        if not loop.is_running():
            raise AbortedError(f"worker {self._worker.address} is closing")
        raise GangTimeoutError(
            f"rank {self._fence.rank} on worker {self._worker.address}: the scheduler did not answer {op} "
            f"within {timeout_s:g} s."
        )


def data_host(address: str) -> str:
    """Return the host on which a rank listens for its peers: that of its Dask worker.

    Parameters
    ----------
    address : str
        Address of the worker.

    Raises
    ------
    ClusterError
        The workers talk over something beside which no socket can be opened.
    """
    scheme, _ = parse_address(address)
    if scheme == "inproc":
        return "127.0.0.1"
    if scheme in ("tcp", "tls"):
        host: str = get_address_host(address)
        return host
    raise ClusterError(f"worker {address} uses {scheme}://; ranks need workers on tcp://, tls:// or inproc://.")


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
        return context.wrap_socket(sock, server_side=server_side)

    return wrap


def meet(
    link: SchedulerLink,
    fence: Fence,
    listener: Listener,
    *,
    ledger: RankLedger,
    abort: AbortFlag,
    timeout_s: float,
    wrap: Wrap | None = None,
    transport: TransportName = "auto",
) -> AbstractTransport:
    """Wait until all ranks are there, and connect with them.

    Parameters
    ----------
    link : SchedulerLink
        This rank's line to the scheduler.
    fence : Fence
        Which job this is.
    listener : Listener
        The open data socket of this rank.
    ledger : RankLedger
        The account of this rank.
    abort : AbortFlag
        Read between slices of the wait.
    timeout_s : float
        Longest wait for the others, and for anything the transport waits for later.
    wrap : callable, optional
        Encrypts the sockets.
    transport : {"auto", "spin", "shm", "tcp"}, default "auto"
        See `run_on_cluster`.

    Returns
    -------
    AbstractTransport
        Connected with every peer.

    Raises
    ------
    AbortedError
        The job stopped, or this task does not belong to it.
    GangTimeoutError
        Some ranks did not come in time; names them.
    ClusterError
        Not all ranks can share memory, with ``transport="shm"``.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        abort.check()
        answer = link.join(listener.address, _SLICE_S)
        state = answer["join_state"]
        if state == "ready":
            break
        if state == "stopped":
            raise AbortedError(answer["reason"])
        if state == "stale":
            raise AbortedError(f"job {fence.job_id} no longer knows this task of rank {fence.rank}")
        if time.monotonic() >= deadline:
            raise GangTimeoutError(
                f"rank {fence.rank} waited {timeout_s:g} s for {', '.join(answer['missing'])} to start. "
                "The worker may be busy with other tasks, paused for memory, or still reading its rows."
            )
    options: dict[str, Any] = {
        "job_id": fence.job_id,
        "epoch": fence.epoch,
        "token": fence.token,
        "ledger": ledger,
        "abort": abort,
        "timeout_s": timeout_s,
        "connect_timeout_s": min(timeout_s, _CONNECT_S),
        "wrap": wrap,
    }
    if transport == "tcp":
        return tcp.connect(listener, fence.rank, answer["addresses"], **options)
    wait: shm.Wait = "spin" if transport == "spin" else "sleep"
    joined = shm.connect(listener, fence.rank, answer["addresses"], wait=wait, **options)
    if transport == "shm" and joined.size > 1 and joined.wire != "shm":
        joined.close()
        raise ClusterError(
            f"rank {fence.rank} cannot share memory with all other ranks: there are {len(set(joined.hosts))} hosts, or "
            'the shared folder has no room (see the log of the worker). Use transport="auto".'
        )
    return joined
