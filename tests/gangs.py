"""Gangs for tests: ranks as threads over either transport, and ranks as processes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from distributed import Security

from dsgd.collectives import Cost, Group
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import AbortFlag
from dsgd.comm.sockets.listener import Wrap
from dsgd.comm.sockets.mesh import Detour
from dsgd.comm.wires import inproc, shm, tcp
from dsgd.comm.wires.carried import Switchboard
from dsgd.errors import ProtocolError
from forks import forking
from own_wire import connect as connect_files
from own_wire import make_folders_in

TOKEN = bytes(range(32))
TRANSPORTS = ("inproc", "tcp", "shm")


def two_hosts(n: int) -> list[bytes]:
    """Return host identities that make every third rank a host of its own: pairs share memory, the rest TCP."""
    return [bytes([1 + (rank % 3 == 2) * (1 + rank)]) * 32 for rank in range(n)]


class _PickySocket(socket.socket):
    """A socket that, as one under TLS, has no sendmsg, recvmsg_into or flags: calls of them must fail."""

    def sendmsg(self, *args: Any) -> int:
        raise NotImplementedError

    def recvmsg_into(self, *args: Any) -> Any:
        raise NotImplementedError


def wrap_picky(sock: socket.socket, server_side: bool) -> socket.socket:
    """Wrap as a TLS context would: another object takes the descriptor over, and keeps the deadline."""
    limit_s = sock.gettimeout()
    wrapped = _PickySocket(sock.family, sock.type, sock.proto, sock.detach())
    wrapped.settimeout(limit_s)
    return wrapped


@functools.cache
def wrap_tls() -> Wrap:
    """Return what encrypts a data socket as workers of an encrypted cluster do, with a certificate made for it."""
    pytest.importorskip("cryptography")
    security = Security.temporary()
    listens, connects = security.get_listen_args("worker"), security.get_connection_args("worker")

    def wrap(sock: socket.socket, server_side: bool) -> socket.socket:
        context = (listens if server_side else connects)["ssl_context"]
        encrypted: socket.socket = context.wrap_socket(sock, server_side=server_side, do_handshake_on_connect=False)
        return encrypted

    return wrap


#: What wraps the sockets of gangs over TCP, by their names.
WRAPS: dict[str, Callable[[], Wrap]] = {"wrapped": lambda: wrap_picky, "tls": wrap_tls}

#: Gangs that share memory, by name: what they are joined with.
SHARED: dict[str, Callable[[int], dict[str, Any]]] = {
    "shm": lambda n: {},
    "spin": lambda n: {"wait": "spin"},
    "window": lambda n: {"window": True},
    "mixed": lambda n: {"identity": two_hosts(n)},
    "mixed-spin": lambda n: {"identity": two_hosts(n), "wait": "spin"},
    "mixed-wrapped": lambda n: {"identity": two_hosts(n), "wrap": wrap_picky},
}


class _Exchange:
    """Switchboards of ranks that live in one process, on an event loop in a thread of its own."""

    def __init__(self, n: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.boards = [Switchboard() for _ in range(n)]
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def detour(self, rank: int) -> Detour:
        """Return the way of a rank to its peers; it is taken without trying to connect."""

        def open_relay(peer: int) -> socket.socket:
            return asyncio.run_coroutine_threadsafe(self._open(rank, peer), self.loop).result(10.0)

        return Detour(open_relay, always=True)

    async def _open(self, rank: int, peer: int) -> socket.socket:
        ours, theirs = socket.socketpair()

        async def ask() -> None:
            await self.boards[peer].admit(peer, rank, self._post(rank, peer, came=False))

        await self.boards[rank].call(rank, peer, theirs, self._post(peer, rank, came=True), ask)
        return ours

    def _post(self, rank: int, peer: int, *, came: bool) -> Callable[[int, bytes], Any]:
        async def post(position: int, data: bytes) -> None:
            try:
                await self.boards[rank].deliver(rank, peer, position, data, came=came)
            except ProtocolError as error:
                raise ConnectionResetError(str(error)) from None

        return post

    def close(self) -> None:
        """End all connections and the thread."""

        async def settle() -> None:
            for board in self.boards:
                board.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            if tasks:
                await asyncio.wait(tasks, timeout=10.0)

        asyncio.run_coroutine_threadsafe(settle(), self.loop).result(20.0)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10.0)
        self.loop.close()


@contextlib.contextmanager
def relayed_gang(
    n: int, timeout_s: float = 20.0, aborts: Sequence[AbortFlag] | None = None, **options: Any
) -> Iterator[tuple[list[Any], list[Switchboard]]]:
    """Give n transports whose bytes go through relays, and the switchboards; `options` are those of tcp.connect."""
    exchange = _Exchange(n)
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(exchange.close)
        listeners = [cleanup.enter_context(tcp.Listener()) for _ in range(n)]
        for rank, listener in enumerate(listeners):
            exchange.boards[rank].open_door(rank, listener.address)
        # Nothing listens there: attempts to connect fail.
        settings: dict[str, Any] = {"job_id": "test", "epoch": 0, "token": TOKEN, "timeout_s": timeout_s, **options}
        calls = [
            lambda rank=rank: tcp.connect(
                listeners[rank],
                rank,
                ["127.0.0.1:1"] * n,
                abort=None if aborts is None else aborts[rank],
                detour=exchange.detour(rank),
                **settings,
            )
            for rank in range(n)
        ]
        transports = raise_first(run_ranks(calls))
        for transport in transports:
            cleanup.callback(transport.close)
        yield transports, exchange.boards


def run_ranks(calls: Sequence[Callable[[], Any]], limit_s: float = 60.0) -> list[Any]:
    """Run each call in a thread; return what each returned, or the exception it raised."""
    results: list[Any] = [None] * len(calls)

    def run(number: int) -> None:
        try:
            results[number] = calls[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(calls))]
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results


def raise_first(results: Sequence[Any]) -> list[Any]:
    """Return the results, or raise the first exception among them."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return list(results)


def connect_tcp(
    n: int, timeout_s: float = 20.0, aborts: Sequence[AbortFlag] | None = None, **options: Any
) -> list[Any]:
    """Return n TCP transports joined over loopback, one of them or an exception per rank."""
    return connect_with(tcp.connect, n, timeout_s, aborts, **options)


def connect_shm(
    n: int, timeout_s: float = 20.0, aborts: Sequence[AbortFlag] | None = None, **options: Any
) -> list[Any]:
    """Return n transports that share memory where they can, one of them or an exception per rank."""
    return connect_with(shm.connect, n, timeout_s, aborts, **options)


def connect_with(
    connect: Callable[..., Any], n: int, timeout_s: float, aborts: Sequence[AbortFlag] | None, **options: Any
) -> list[Any]:
    """Return what `connect` returns or raises on each of n ranks; an option that is a list has one entry per rank."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(tcp.Listener()) for _ in range(n)]
        addresses = [listener.address for listener in listeners]
        settings: dict[str, Any] = {"job_id": "test", "epoch": 0, "token": TOKEN, "connect_timeout_s": 20.0, **options}

        def join(rank: int) -> Any:
            own = {name: value[rank] if isinstance(value, list) else value for name, value in settings.items()}
            abort = None if aborts is None else aborts[rank]
            return connect(listeners[rank], rank, addresses, timeout_s=timeout_s, abort=abort, **own)

        return run_ranks([lambda rank=rank: join(rank) for rank in range(n)])


@contextlib.contextmanager
def gang(
    kind: str, n: int, timeout_s: float = 20.0, aborts: Sequence[AbortFlag] | None = None
) -> Iterator[list[AbstractTransport]]:
    """Give n connected transports, closed at the end."""
    if kind == "rpc":
        with relayed_gang(n, timeout_s, aborts) as (relayed, _):
            yield relayed
        return
    with contextlib.ExitStack() as cleanup:
        if kind == "inproc":
            transports: list[Any] = list(inproc.connect(n, timeout_s=timeout_s, aborts=aborts))
        elif kind in SHARED:
            transports = raise_first(connect_shm(n, timeout_s, aborts, **SHARED[kind](n)))
        elif kind == "files":
            make_folders_in(cleanup.enter_context(tempfile.TemporaryDirectory()))
            cleanup.callback(make_folders_in, None)
            transports = raise_first(connect_with(connect_files, n, timeout_s, aborts))
        else:
            wrap = WRAPS[kind]() if kind in WRAPS else None
            transports = raise_first(connect_tcp(n, timeout_s, aborts, wrap=wrap))
        for transport in transports:
            cleanup.callback(transport.close)
        yield transports


def run_gang(
    kind: str, n: int, program: Callable[[Group], Any], algorithm: Any = "auto", timeout_s: float = 20.0
) -> list[Any]:
    """Run a program on n ranks; return what each returned, or raise the first error."""
    with gang(kind, n, timeout_s) as transports:
        groups = [Group(transport, algorithm) for transport in transports]
        return raise_first(run_ranks([lambda group=group: program(group) for group in groups]))


def spent(group: Group) -> Cost:
    """End the round; return what the rank has sent since the gang began."""
    group.ledger.end_round()
    totals = group.ledger.records().totals
    return Cost(int(totals["bytes_sent"]), int(totals["messages"]))


def _join_processes(kind: str, listener: tcp.Listener, rank: int, addresses: list[str], timeout_s: float) -> Any:
    connect: Any = tcp.connect if kind == "tcp" else shm.connect
    options = {} if kind == "tcp" else SHARED[kind](len(addresses))
    return connect(listener, rank, addresses, job_id="test", epoch=0, token=TOKEN, timeout_s=timeout_s, **options)


def _process_rank(rank: int, size: int, pipe: Connection, what: str, kind: str) -> None:
    with tcp.Listener() as listener:
        pipe.send(listener.address)
        transport = _join_processes(kind, listener, rank, pipe.recv(), 20.0)
    group = Group(transport)
    group.barrier()
    if what == "sums":
        pipe.send([sum_of(group, n, seed) for seed, n in enumerate((0, 1, 7, 1000, 100_000))])
    elif what == "rounds":
        vector = np.zeros(1_000_000)
        while True:
            group.allreduce(vector)
    elif what == "train":
        run_training(group, AbortFlag(), every=1, n_epochs=10**6)
    elif what == "mute":
        pipe.recv()
    transport.close()


def sum_of(group: Group, n: int, seed: int) -> bytes:
    """Return the bytes of an all-reduce of n random numbers."""
    vector = np.random.default_rng((seed, group.rank)).standard_normal(n)
    group.allreduce(vector)
    return vector.tobytes()


def run_training(group: Group, abort: AbortFlag, every: int, n_epochs: int) -> Any:
    """Train on a few hundred rows of this rank with an average after every few."""
    from dsgd.local import SGD, Objective, make_shard
    from dsgd.runtime.rank import Rank
    from dsgd.runtime.train import TrainData, TrainJob, train
    from dsgd.sync import LocalSGD

    rng = np.random.default_rng((7, group.rank))
    X = rng.standard_normal((400, 5))
    shard = make_shard(X, np.where(X[:, 0] > 0, 1.0, -1.0))
    optimizer = SGD(Objective("hinge", "l2", 1e-4))
    job = TrainJob(optimizer, LocalSGD(every=every), np.zeros(6), max_iter=n_epochs, tol=None, n_iter_no_change=5)
    return train(Rank(group, abort), TrainData(shard), job)


def run_job(transports: Sequence[Any], rows: Sequence[Any], job: Any, aborts: Sequence[AbortFlag] = ()) -> list[Any]:
    """Run a job on ranks over these transports, each on rows of its own; return what each returned or raised."""
    from dsgd.runtime.rank import Rank
    from dsgd.runtime.train import TrainData, train

    flags = aborts or [AbortFlag() for _ in transports]
    ranks = [Rank(Group(transport), flag) for transport, flag in zip(transports, flags, strict=True)]
    pairs = zip(ranks, map(TrainData, rows), strict=True)
    return run_ranks([lambda rank=rank, data=data: train(rank, data, job) for rank, data in pairs])


@contextlib.contextmanager
def process_gang(
    size: int, what: str, timeout_s: float = 20.0, kind: str = "tcp"
) -> Iterator[tuple[Group, list[Any], list[Connection]]]:
    """Start size - 1 processes that run as ranks 1, 2, ...; give rank 0's group, the processes and their pipes."""
    context = forking()
    pipes, processes = [], []
    transport: AbstractTransport | None = None
    try:
        for rank in range(1, size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_process_rank, args=(rank, size, theirs, what, kind), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        with tcp.Listener() as listener:
            addresses = [listener.address, *(pipe.recv() for pipe in pipes)]
            for pipe in pipes:
                pipe.send(addresses)
            transport = _join_processes(kind, listener, 0, addresses, timeout_s)
        group = Group(transport)
        group.barrier()
        yield group, processes, pipes
    finally:
        if transport is not None:
            transport.close()
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(5.0)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
