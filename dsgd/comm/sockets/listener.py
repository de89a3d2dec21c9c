"""The port on which a rank accepts its peers and refuses other connections, and the thread that lets peers in.

A port is open to anyone who can reach it, from before the first peer may come until the last has joined. A stranger
that sends nothing, sends slowly or sends something else must be dropped within a second, delay no peer and take no
memory; and a rank that connects to one peer, packs rows or runs a kernel must not keep another one waiting.

Connections are read without ever waiting: `Listener.look` accepts new ones, continues the TLS handshake and the first
record of each, and drops those that make no progress. A rank calls it now and then while it waits for the rendezvous,
and a thread does while peers may come (`Acceptor`) or kernels are loaded (`Listener.attended`). The port is closed as
soon as the last peer has joined.

A process that may open no more files lets strangers go until it can accept again; it is the one that connects who is
told (`dsgd.comm.sockets.mesh`).
"""

from __future__ import annotations

import errno
import os
import re
import select
import socket
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Self, TypeAlias

from dsgd.comm.sockets import handshake
from dsgd.comm.sockets.handshake import OK, RECORD_BYTES, Credentials, Record, check_job, refusal_kind, refusal_text
from dsgd.comm.sockets.link import Link, measure_latency
from dsgd.comm.sockets.table import LinkTable
from dsgd.errors import ClusterError, DsgdError, InvalidParameterError, ProtocolError

#: Encrypts a socket: takes (socket, server_side), returns the socket to use, on which no handshake has been made yet.
Wrap: TypeAlias = Callable[[socket.socket, bool], socket.socket]

#: How long a guest may take for each of its records. Ranks send theirs in one piece and at once.
GUEST_S: Final = 0.75
# A guest that has shown the job is most likely a peer, whose process may share its core with many others.
_PEER_S: Final = 5.0
# Together with the time a guest may take, this is still below a second.
_ATTEND_S: Final = 0.1
_BACKLOG: Final = 128
_KEPT_REFUSALS: Final = 8
# So many guests may be here that have shown nothing; more than that are let go, the oldest first.
_MAX_GUESTS: Final = 256
# What a process runs into that may open no more files, or a system without memory for a socket.
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# How long nobody is accepted then.
_FULL_S: Final = 0.1
_LAST_PORT: Final = 65_535
_PORTS: Final = re.compile(r"(\d{1,5})(?:\s*-\s*(\d{1,5}))?", re.ASCII)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``"host:port"`` or ``"[v6]:port"``, with or without ``tcp://`` before it."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not host or not port.isdigit():
        raise InvalidParameterError(f"The address of a rank must read 'host:port'. Got {address!r}.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_ports(ports: str | int | None, name: str = "ports") -> tuple[int, int] | None:
    """Return first and last port of ``"40000-40100"`` or ``40000``; None for None."""
    if ports is None:
        return None
    found = _PORTS.fullmatch(str(ports))
    if found is None:
        raise InvalidParameterError(f"{name} must read '40000-40100' or 40000. Got {ports!r}.")
    first, last = int(found[1]), int(found[2] or found[1])
    if not 1 <= first <= last <= _LAST_PORT:
        raise InvalidParameterError(
            f"{name} must be ports from 1 to {_LAST_PORT}, the first not above the last. Got {ports!r}."
        )
    return first, last


@dataclass
class Guest:
    """A connection that has not proved yet that it belongs here."""

    sock: socket.socket
    peer: str
    until: float
    record: Record | None = None
    hello: Record | None = None
    welcome: Record | None = None
    fits: bool = False
    _data: bytes = field(default=b"", init=False)
    _is_secure: bool = field(default=False, init=False)

    def read(self) -> None:
        """Read what is there of the next record."""
        try:
            if not self._is_secure:
                if isinstance(self.sock, ssl.SSLSocket):
                    self.sock.do_handshake()
                self._is_secure = True
            while self.record is None:
                more = self.sock.recv(RECORD_BYTES - len(self._data))
                if not more:
                    raise ConnectionResetError("it left without joining")
                self._data += more
                # Strangers show at the first bytes; waiting for a whole record of theirs would keep them here.
                if not Record.may_start(self._data):
                    raise ProtocolError("it does not speak the handshake of dsgd")
                if len(self._data) == RECORD_BYTES:
                    self.record, self._data = Record.unpack(self._data), b""
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass  # the rest is still on its way

    def answered(self) -> None:
        """Note that the last record has been answered, and wait for the next."""
        self.record = None
        self.until = time.monotonic() + _PEER_S


class Listener:
    """A listening socket, bound to one host only; a context manager."""

    def __init__(self, host: str = "127.0.0.1", port_range: tuple[int, int] | None = None) -> None:
        first, last = (0, 0) if port_range is None else port_range
        if port_range is not None and not 1 <= first <= last <= _LAST_PORT:
            raise InvalidParameterError(
                f"Listener(port_range=...) must be (first, last) with 1 <= first <= last <= 65535. Got {port_range}."
            )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock: socket.socket | None = None
        problem: OSError | None = None
        for port in range(first, last + 1):
            try:
                sock = socket.create_server((host, port), family=family, backlog=_BACKLOG)
                break
            except OSError as error:
                problem = error
        if sock is None:
            where = "any port" if port_range is None else f"a port from {first} to {last}"
            raise ClusterError(
                f"A rank cannot listen on {where} of host {host!r}: {problem}. Give a host address of this machine, "
                "or a range with free ports."
            ) from problem
        sock.setblocking(False)
        self.sock = sock
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        self.address = f"{shown}:{sock.getsockname()[1]}"
        self.guests: list[Guest] = []
        self.refused: Counter[str] = Counter()
        self.refusals: deque[str] = deque(maxlen=_KEPT_REFUSALS)
        self.is_kept = False
        self._is_full = False

    def look(self, wrap: Wrap | None, job: int, epoch: int) -> list[Guest]:
        """Accept new connections and drop those that make no progress; never waits."""
        self._take_in(wrap)
        now = time.monotonic()
        for guest in list(self.guests):
            try:
                guest.read()
            except (ProtocolError, ssl.SSLError) as error:
                self.refuse(guest, "stranger", str(error))
                continue
            except OSError as error:
                self.refuse(guest, "left", str(error))
                continue
            guest.fits = guest.fits or (guest.record is not None and check_job(guest.record, job, epoch) == OK)
            if guest.record is not None and guest.fits:
                continue
            if now > guest.until:
                kind, reason = (
                    ("silent", "it said too little") if guest.record is None else ("job", "it waits for another job")
                )
                self.refuse(guest, kind, reason)
        return [guest for guest in self.guests if guest.record is not None]

    @contextmanager
    def attended(self, wrap: Wrap | None, job: int, epoch: int) -> Iterator[None]:
        """Let a thread call `look` now and then, as long as the context lasts; do not call it meanwhile."""
        is_over = threading.Event()

        def attend() -> None:
            while not is_over.wait(_ATTEND_S):
                self.look(wrap, job, epoch)

        thread = threading.Thread(target=attend, name="dsgd-listener", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def wait(self, limit_s: float, bell: int) -> bool:
        """Wait until somebody comes or says something, `limit_s` seconds at most; return whether `bell` can be read."""
        poller = select.poll()
        # Nobody can be accepted for now: whoever waits at the port would wake this thread again and again.
        for sock in (*([] if self._is_full else [self.sock]), *(guest.sock for guest in self.guests)):
            poller.register(sock, select.POLLIN)
        poller.register(bell, select.POLLIN)
        return bell in dict(poller.poll(min(limit_s, _FULL_S if self._is_full else limit_s) * 1000))

    def refuse(self, guest: Guest, kind: str, reason: str) -> None:
        """Close a connection that does not belong here, and remember why."""
        with suppress(ValueError):
            self.guests.remove(guest)
        self.count(kind, f"{guest.peer}: {reason}")
        guest.sock.close()

    def count(self, kind: str, text: str) -> None:
        """Remember that a connection was turned away."""
        self.refused[kind] += 1
        self.refusals.append(text)

    def close(self) -> None:
        """Stop listening, and turn away who waits, unless it is kept; may be called more than once."""
        if self.is_kept:
            return
        self.sock.close()
        for guest in list(self.guests):
            self.refuse(guest, "silent", "it came too late")

    def _take_in(self, wrap: Wrap | None) -> None:
        self._is_full = False
        for _ in range(_MAX_GUESTS):
            try:
                sock, name = self.sock.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                # Strangers are gone within a second, and peers wait at the port.
                self._is_full = True
                return
            guest = Guest(sock, f"{name[0]}:{name[1]}", time.monotonic() + GUEST_S)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if wrap is not None:
                    guest.sock = wrap(sock, True)
            except OSError as error:
                self.refuse(guest, "left", str(error))
                continue
            strangers = [other for other in self.guests if not other.fits]
            if len(strangers) >= _MAX_GUESTS:
                self.refuse(strangers[0], "crowd", "too many came at once")
            self.guests.append(guest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


# While guests are there; a listener is looked at by itself now and then, in case nothing wakes the thread.
_LOOK_UP_S: Final = 0.1
_IDLE_S: Final = 2.0


class Acceptor:
    """The thread that lets peers in; runs from `start` to `stop`."""

    def __init__(
        self,
        listener: Listener,
        credentials: Credentials,
        wrap: Wrap | None,
        table: LinkTable,
        settle: Callable[[Link], Link],
        limit_s: float,
        opened: set[socket.socket],
    ) -> None:
        self._listener, self._credentials, self._wrap, self._table = listener, credentials, wrap, table
        self._settle, self._limit_s, self._opened = settle, limit_s, opened
        self._is_over = False
        self._lock = threading.Lock()
        self._woken, self._waking = os.pipe()
        os.set_blocking(self._waking, False)
        self._thread = threading.Thread(target=self._run, name=f"dsgd-acceptor-{credentials.rank}", daemon=True)

    def start(self) -> None:
        """Begin to let peers in."""
        self._thread.start()

    def wake(self) -> None:
        """Let the thread look at once: at its end, or at guests that may be let in now. May be called from any."""
        with self._lock, suppress(OSError):
            os.write(self._waking, b"\0")

    def end(self) -> None:
        """Let the thread end soon; does not wait for it. May be called from any."""
        self._is_over = True
        self.wake()

    def stop(self) -> None:
        """End the thread, and wait for it; may be called more than once."""
        self.end()
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock:
            for end in (self._woken, self._waking):
                if end >= 0:
                    os.close(end)
            self._woken = self._waking = -1

    def _run(self) -> None:
        job, epoch = self._credentials.job, self._credentials.epoch
        try:
            while not self._is_over:
                for guest in self._listener.look(self._wrap, job, epoch):
                    self._answer(guest)
                if self._listener.wait(_LOOK_UP_S if self._listener.guests else _IDLE_S, self._woken):
                    os.read(self._woken, 4096)
        except BaseException as error:
            self._table.fail(error)

    def _answer(self, guest: Guest) -> None:
        """Answer the record of a guest, and take over the connection of a peer. A guest turned away is closed."""
        record = guest.record
        assert record is not None  # of a guest that is due an answer
        peer = record.rank
        try:
            if guest.hello is None or guest.welcome is None:
                if self._table.awaits(peer):
                    self._welcome(guest, record)
                return
            if not self._judge(guest, record, guest.hello, guest.welcome):
                return
        except OSError as error:
            self._listener.refuse(guest, "left", f"{error}")
            return
        peer = guest.hello.rank
        self._listener.guests.remove(guest)
        sock = guest.sock
        self._opened.add(sock)
        try:
            sock.settimeout(self._limit_s)
            self._table.put(self._settle(self._link(guest, guest.hello)), called=False)
        except (OSError, DsgdError) as error:
            # The peer will say why, or come again; if it died the rank learns of that where it needs it.
            sock.close()
            self._table.drop(peer, called=False)
            self._listener.count("left", f"{guest.peer}: {error}")
        finally:
            self._opened.discard(sock)

    def _welcome(self, guest: Guest, hello: Record) -> None:
        status = handshake.check_job(hello, self._credentials.job, self._credentials.epoch)
        welcome = self._credentials.sign(self._credentials.hello(hello.rank, status), b"accept", hello)
        guest.sock.sendall(welcome.pack())
        if status != handshake.OK:
            self._refuse(guest, status)
        guest.hello, guest.welcome = hello, welcome
        guest.answered()

    def _refuse(self, guest: Guest, status: int) -> None:
        self._listener.refuse(guest, refusal_kind(status), refusal_text(status))

    def _judge(self, guest: Guest, proof: Record, hello: Record, welcome: Record) -> bool:
        sock, rank = guest.sock, hello.rank
        if not self._credentials.verifies(proof, b"connect", hello, welcome):
            with suppress(OSError):
                sock.sendall(self._credentials.hello(rank, handshake.WRONG_TOKEN).pack())
            self._refuse(guest, handshake.WRONG_TOKEN)
            return False
        status = self._credentials.compare(hello)
        is_let_in = status == handshake.OK
        if is_let_in:
            status = self._table.let_in(rank)
            is_let_in = status == handshake.OK
        try:
            verdict = self._credentials.sign(self._credentials.hello(rank, status), b"verdict", hello, welcome, proof)
            sock.sendall(verdict.pack())
        except OSError:
            if is_let_in:
                self._table.drop(rank, called=False)
            raise
        if status == handshake.CROSSED:
            self._listener.guests.remove(guest)
            sock.close()
        elif status != handshake.OK:
            self._refuse(guest, status)
            raise ProtocolError(
                f"rank {rank} at {guest.peer} does not fit rank {self._credentials.rank}: {refusal_text(status)}."
            )
        return is_let_in

    def _link(self, guest: Guest, hello: Record) -> Link:
        latency_s = measure_latency(guest.sock, is_first=False)
        job, epoch, way = self._credentials.job, self._credentials.epoch, "rpc" if hello.relayed else "tcp"
        return Link(guest.sock, hello.rank, guest.peer, job=job, epoch=epoch, latency_s=latency_s, way=way)
