"""Letting peers in, in a thread of its own.

Problem: a rank that connects to one peer, packs rows or runs a kernel must not keep another one waiting that connects
to it; and strangers are to be gone within a second whatever the rank does.

The thread answers the records of guests (`dsgd.comm.sockets.listener`), checks who they are (`handshake`) and hands
over the connections. It sleeps while nobody is there.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from dsgd.comm.sockets import handshake
from dsgd.comm.sockets.handshake import Credentials, Record, refusal_kind, refusal_text
from dsgd.comm.sockets.link import Link, LinkTable, measure_latency
from dsgd.comm.sockets.listener import Guest, Listener, Wrap
from dsgd.errors import DsgdError, ProtocolError

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
