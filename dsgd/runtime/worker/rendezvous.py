"""The rendezvous: how the members of a gang find each other and connect.

A member opens its data socket once, on the host part of its worker's own address (the address by which the cluster
already reaches it) and on a port the system picks, tells the scheduler, and gets the addresses of all members when the
last one has registered: one question and one answer, unless that takes long. So no port needs to be agreed on, and none
can be taken by another program in between. Strangers that connect are refused, and the port is closed as soon as all
members are connected with each other; in a large gang that is when it ends (`dsgd.comm.sockets.mesh`).

Ranks of a worker are threads, and in collectives one of them speaks for all (`dsgd.comm.wires.inproc`). By post each
speaks for itself: every rank, and every server, has connections of its own to others, those of its own process
among them. The members of the gang tell each other over the wire between them where their ranks listen; then each rank
joins the mesh in its own thread, by the handshake of every other connection: encrypted where the cluster is, through
the ports of the workers where no other can be reached.

Servers are threads beside the ranks of a worker: server k runs on member k modulo their number.

Cost: a connection for each two ranks or servers between which there is mail, beside those of the collectives; in a
small gang for each two.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from distributed.comm import get_address_host

from dsgd.collectives.group import Group
from dsgd.comm.base import AbstractMailbox, AbstractTransport
from dsgd.comm.frames import job_code
from dsgd.comm.sockets.listener import Listener, Wrap
from dsgd.comm.sockets.mesh import Detour, explained_file_limit
from dsgd.comm.wires import shm, tcp
from dsgd.comm.wires.mailboxes import connect_links, connect_threads
from dsgd.errors import AbortedError, ClusterError, GangTimeoutError
from dsgd.ledger import RankLedger
from dsgd.runtime.dask_internals import ask_scheduler, cpu_count, event_loop, tell_scheduler
from dsgd.runtime.messages import MEMBER_END, MEMBER_EVENT, MemberCredentials, read_table
from dsgd.runtime.rank import Mail
from dsgd.runtime.worker.plugin import store_of
from dsgd.runtime.worker.store import JobState
from dsgd.runtime.worker.wires import WireOptions, open_listener, open_relay

if TYPE_CHECKING:
    from distributed import Worker


_log: Final = logging.getLogger("dsgd.runtime")

#: How long the scheduler may leave a member's question for the others open; then it is asked again.
JOIN_S: Final = 10.0

# Before a scheduler that could not be reached is asked again.
_RETRY_S: Final = 0.5
_CLIENT_FIRST_S: Final = 5.0

# How often strangers on the data port are looked at meanwhile: they are to be gone within a second.
_LOOK_S: Final = 0.2
_CALL_S: Final = 10.0

# All listeners are open by then, so this is a matter of the network alone.
_CONNECT_S: Final = 30.0


class SchedulerLink:
    """A member's line to the scheduler, used from the threads of its ranks."""

    def __init__(self, worker: Worker, credentials: MemberCredentials, patience_s: float) -> None:
        self._worker = worker
        self._credentials = credentials
        self._patience_s = patience_s

    def started(self) -> None:
        """Say that this member has begun; does not wait."""
        self._tell(None)

    def publish(self, event: Mapping[str, Any]) -> None:
        """Send a progress event; does not wait."""
        self._tell(dict(event))

    def join(self, address: str, wait_s: float, idle: Callable[[], object]) -> dict[str, Any]:
        """Give this member's data address; see `Registry.join` for the answer. Calls `idle` now and then meanwhile."""
        mine = {"address": address, "n_cores": cpu_count()}
        answer: dict[str, Any] = self._call("dsgd_join", wait_s + self._patience_s, idle, **mine, wait_s=wait_s)
        return answer

    def missing(self) -> list[str]:
        """Return the names of the members that have not given their addresses."""
        names: list[str] = self._call("dsgd_missing", self._patience_s)
        return names

    def finish(self, failure: Mapping[str, Any] | None) -> None:
        """Say how this member ended: a failure before its sockets close, since its peers would tell of that first.

        Nobody waits for the news that all is well. What the scheduler is too slow for goes over the stream of messages
        that tells of tasks, too, which brings everything in the end; the scheduler listens once.
        """
        told = None if failure is None else dict(failure)
        try:
            if told is not None:
                self._call("dsgd_finish", min(self._patience_s, _CALL_S), failure=told)
                return
        except (OSError, GangTimeoutError) as problem:
            _log.warning("the scheduler will learn later that a rank of job %s failed: %s", self._job_id, problem)
        self._send(MEMBER_END, failure=told)

    @property
    def _job_id(self) -> str:
        return self._credentials.job_id

    def _tell(self, event: dict[str, Any] | None) -> None:
        self._send(MEMBER_EVENT, event=event)

    def _send(self, op: str, **fields: Any) -> None:
        tell_scheduler(self._worker, {"op": op, **self._credentials.as_message(), **fields})

    def _call(self, op: str, timeout_s: float, idle: Callable[[], object] | None = None, **arguments: Any) -> Any:
        call = ask_scheduler(self._worker, op, **self._credentials.as_message(), **arguments)
        return on_loop(self._worker, call, timeout_s, f"the scheduler did not answer {op}", idle)


def on_loop(
    worker: Worker,
    call: Coroutine[Any, Any, Any],
    timeout_s: float,
    problem: str,
    idle: Callable[[], object] | None = None,
) -> Any:
    """Run a coroutine on the worker's event loop and return its result."""
    loop = event_loop(worker)
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


@dataclass(frozen=True)
class MemberContext:
    """A member on its worker: its identity, and how it connects to the others."""

    worker: Worker
    job: JobState
    credentials: MemberCredentials
    wires: WireOptions
    timeout_s: float

    def settings(self, ledger: RankLedger) -> dict[str, Any]:
        """Return what all connections of the job have in common, in the words of `dsgd.comm.wires.tcp.Entrance`."""
        return {
            "job_id": self.credentials.job_id,
            "epoch": self.credentials.epoch,
            "token": self.credentials.token,
            "ledger": ledger,
            "abort": self.job.abort,
            "timeout_s": self.timeout_s,
            "connect_timeout_s": min(self.timeout_s, _CONNECT_S),
        }

    @property
    def is_encrypted(self) -> bool:
        """Whether this is a cluster with TLS."""
        address: str = self.worker.address
        return address.startswith("tls://")

    def wrap(self) -> Wrap | None:
        """Return what encrypts a data socket with the worker's own certificates, or None on a plain cluster.

        Both sides must show a certificate of the cluster's authority, as Dask's own connections do.
        """
        if not self.is_encrypted:
            return None
        context = store_of(self.worker).tls_context
        assert context is not None  # the plugin of a worker has given it

        def wrap(sock: socket.socket, server_side: bool) -> socket.socket:
            tls = context(server_side=server_side)
            return tls.wrap_socket(sock, server_side=server_side, do_handshake_on_connect=False)

        return wrap

    def detour(self, door: int, doors: Sequence[int], workers: Sequence[str]) -> Detour | None:
        """Return the way to peers to whom no connection can be opened: through the ports of their workers."""
        if self.wires.transport == "tcp":
            return None
        as_door = replace(self.credentials, member=door)

        def through_worker(peer: int) -> socket.socket:
            call = open_relay(self.worker, self.job.relays, as_door, doors[peer], workers[peer])
            problem = f"worker {workers[peer]} did not connect"
            sock: socket.socket = on_loop(self.worker, call, _CALL_S, problem)
            return sock

        return Detour(through_worker, always=self.wires.transport == "rpc")


class GangConnection(NamedTuple):
    """What a rendezvous leads to."""

    transport: AbstractTransport
    refused: dict[str, int]


def join_gang(context: MemberContext, link: SchedulerLink, ledger: RankLedger) -> GangConnection:
    """Wait until all members are there, and connect with them."""
    relays, member = context.job.relays, context.credentials.member
    with explained_file_limit(member), open_listener(context.worker, context.wires) as listener:
        relays.open_door(member, listener.address)
        try:
            transport = _connect(context, listener, _wait_for_all(context, listener, link), ledger)
        finally:
            # Where peers may still come, the end of the job closes it.
            if not listener.is_kept:
                relays.close_door(member)
        return GangConnection(transport, dict(listener.refused + relays.refused))


def _wait_for_all(context: MemberContext, listener: Listener, link: SchedulerLink) -> dict[str, Any]:
    """Return where all members are when the last has registered; see `read_table`."""
    code, wrap = job_code(context.credentials.job_id), context.wrap()

    def send_strangers_away() -> None:
        listener.look(wrap, code, context.credentials.epoch)
        context.job.abort.check()

    # The client waits as long for members to start, and knows what to do about those that do not: it speaks first.
    deadline = time.monotonic() + context.timeout_s + _CLIENT_FIRST_S
    while True:
        context.job.abort.check()
        try:
            wait_s = min(max(deadline - time.monotonic(), 0.0), JOIN_S)
            answer = link.join(listener.address, wait_s, send_strangers_away)
        except OSError as problem:
            # A scheduler that stands still for long takes no new connections either.
            if time.monotonic() >= deadline:
                raise GangTimeoutError(f"the scheduler could not be reached to join the gang: {problem}") from problem
            time.sleep(_RETRY_S)
            continue
        state = answer["join_state"]
        if state == "ready":
            return read_table(answer["table"])
        if state == "stopped":
            raise AbortedError(answer["reason"])
        if state == "stale":
            raise AbortedError(
                f"job {context.credentials.job_id} no longer knows this task of member {context.credentials.member}"
            )
        if time.monotonic() >= deadline:
            raise GangTimeoutError(
                f"the worker waited {context.timeout_s:g} s for {', '.join(link.missing())} to start. "
                "The worker may be busy with other tasks, paused for memory, or still reading its rows."
            )


def _connect(
    context: MemberContext, listener: Listener, answer: Mapping[str, Any], ledger: RankLedger
) -> AbstractTransport:
    """Connect with all members over the transport that the user chose."""
    workers: Sequence[str] = answer["workers"]
    addresses: Sequence[str] = answer["addresses"]
    asked, member = context.wires.transport, context.credentials.member
    settings, wrap = context.settings(ledger), context.wrap()
    if context.wires.is_foreign:
        context.wires.check_cluster(context.worker.address)
        return context.wires.load()(listener, member, addresses, **settings)
    settings |= {"wrap": wrap, "detour": context.detour(member, range(len(workers)), workers)}
    if asked in ("tcp", "rpc"):
        return tcp.connect(listener, member, addresses, **settings)
    wait: shm.Wait = "spin" if asked == "spin" else "sleep"
    # Processes of one host that have a core each may look for a moment before they sleep.
    on_one_host = len({get_address_host(address) for address in workers}) == 1
    window = wait == "spin" or (on_one_host and len(workers) <= answer["n_cores"])
    near = shm.connect(listener, member, addresses, wait=wait, window=window, **settings)
    if asked == "shm" and near.size > 1 and near.wire != "shm":
        near.close()
        raise ClusterError(
            f"the worker cannot share memory with all others: there are {len(set(near.hosts))} hosts, or "
            'the shared folder has no room (see the log of the worker). Use transport="auto".'
        )
    return near


def wants_mailboxes(mail: Mail | None, ranks_of: Sequence[int]) -> bool:
    """Return whether the ranks of a gang whose members run so many ranks get mailboxes."""
    return mail is not None and not (mail.in_pairs and (len(ranks_of) == 1 or max(ranks_of) == 1))


def servers_of(mail: Mail | None, member: int, ranks_of: Sequence[int]) -> range:
    """Return the numbers of the servers that a member runs."""
    first, n_servers = sum(ranks_of), 0 if mail is None else mail.n_servers
    return range(first + member, first + n_servers, len(ranks_of))


class MemberMailboxes:
    """Where the ranks and servers of one member get their mailboxes; made by all members at once."""

    def __init__(self, context: MemberContext, between: AbstractTransport, ledgers: dict[int, RankLedger]) -> None:
        self._context, self._ledgers, self._n_members = context, ledgers, between.size
        worker, job = context.worker, context.job
        self._listeners: dict[int, Listener] = {}
        self._boxes: dict[int, AbstractMailbox] = {}
        if between.size == 1:
            boxes = connect_threads(list(ledgers.values()), [job.abort] * len(ledgers), context.timeout_s)
            self._boxes = dict(zip(ledgers, boxes, strict=True))
            return
        with contextlib.ExitStack() as cleanup:
            for number in ledgers:
                self._listeners[number] = cleanup.enter_context(open_listener(worker, context.wires))
                job.relays.open_door(self._door(number), self._listeners[number].address)
            mine = {number: (listener.address, worker.address) for number, listener in self._listeners.items()}
            told = Group(between).allgatherv(np.frombuffer(json.dumps(mine).encode(), dtype=np.uint8))
            self._listening = cleanup.pop_all()
        places = {int(number): place for part in told for number, place in json.loads(part.tobytes()).items()}
        self._addresses = [places[number][0] for number in range(len(places))]
        self._workers = [places[number][1] for number in range(len(places))]

    def open(self, number: int) -> AbstractMailbox:
        """Return the mailbox of a rank or server once it is connected with others; called in its thread."""
        if self._boxes:
            return self._boxes[number]
        doors = [self._door(peer) for peer in range(len(self._workers))]
        settings = self._context.settings(self._ledgers[number]) | {
            "job_id": f"{self._context.credentials.job_id}/post",
            "wrap": self._context.wrap(),
            "detour": self._context.detour(doors[number], doors, self._workers),
        }
        return connect_links(self._listeners[number], number, self._addresses, **settings)

    def close(self) -> None:
        """Stop listening."""
        if self._listeners:
            for number in self._listeners:
                self._context.job.relays.close_door(self._door(number))
            self._listening.close()

    def _door(self, number: int) -> int:
        # The first numbers are those of the members themselves.
        return self._n_members + number
