"""Connecting to a peer: through its own port or, where that is closed or filtered, by a detour."""

from __future__ import annotations

import errno
import logging
import os
import platform
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dsgd.comm.frames import AbortFlag
from dsgd.comm.sockets import handshake
from dsgd.comm.sockets.handshake import RECORD_BYTES, Credentials, Record, receive_exactly, refusal_text
from dsgd.comm.sockets.link import Link, measure_latency
from dsgd.comm.sockets.listener import Wrap, split_address
from dsgd.errors import AbortedError, ClusterError, GangTimeoutError, ProtocolError

_LOOK_UP_S: Final = 0.1
_CONNECT_SLICE_S: Final = 2.0
# If there is a detour. A filter drops the first packet and its retransmissions after 1 and 3 s.
_DIRECT_S: Final = 3.0
_FILTERED_S: Final = 0.5
# A peer may turn a rank away that stalled for the best part of a second between two records, and a proxy may accept
# every connection and then close it.
_N_TRIES: Final = 3
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE)
_UNREACHABLE: Final = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT)
_OPEN_FILES: Final = Path("/proc/self/fd")
# What a process needs beside its connections for a moment: segments, local sockets, a file of kernels.
_SPARE_FILES: Final = 16

_log = logging.getLogger("dsgd.comm.wires.rpc")


class CrossedError(Exception):
    """The peer calls this rank itself, and its call holds."""


@dataclass(frozen=True)
class Detour:
    """Another way to peers that cannot be connected to."""

    open: Callable[[int], socket.socket]
    always: bool = False


class Deadline:
    """A moment after which nobody waits any more, `limit_s` seconds from now."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._end = time.monotonic() + limit_s

    def left_s(self) -> float:
        """Return the seconds that are left, a millisecond at least."""
        return max(self._end - time.monotonic(), 1e-3)

    @property
    def is_over(self) -> bool:
        """Whether it has passed."""
        return time.monotonic() >= self._end


class Connector:
    """Connects a rank to its peers, one after the other."""

    def __init__(
        self,
        credentials: Credentials,
        abort: AbortFlag,
        wrap: Wrap | None,
        detour: Detour | None,
        opened: set[socket.socket],
    ) -> None:
        self._credentials, self._abort = credentials, abort
        self._wrap, self._detour, self._opened = wrap, detour, opened
        self._patience_s = float("inf") if detour is None else _DIRECT_S

    @contextmanager
    def holding(self, sock: socket.socket) -> Iterator[None]:
        """Count a socket among those on which this rank waits; it is closed if that fails."""
        self._opened.add(sock)
        try:
            # A flag that was set before would not wake it.
            self._abort.check()
            yield
        except BaseException:
            sock.close()
            raise
        finally:
            self._opened.discard(sock)

    def connect(self, peer: int, address: str, deadline: Deadline) -> Link:
        """Return a link to a peer that has shown that it belongs here."""
        rank, who = self._credentials.rank, f"rank {peer} at {address}"
        try:
            if self._detour is None or not self._detour.always:
                link = self._direct(peer, address, deadline)
                if link is not None:
                    return link
            return self._through_worker(peer, f"{address} (through its worker)", deadline)
        except TimeoutError as error:
            raise GangTimeoutError(
                f"rank {rank} on {platform.node()} could not connect to {who} within {deadline.limit_s:g} s: it does "
                f"not answer. {self._advice}"
            ) from error
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise ClusterError(no_room(f"rank {rank} cannot connect to {who}: {error.strerror}")) from error
            # Only a peer that was there is known to have gone.
            advice = f" If it never was reached from {platform.node()}: {self._advice}" * (error.errno in _UNREACHABLE)
            raise AbortedError(f"{who} went away while rank {rank} joined it: {error}.{advice}") from error

    @property
    def _advice(self) -> str:
        """What may help where two ranks cannot connect."""
        asks = (
            "Is there a firewall between the two? Ranks listen on any port, or on those that ports=... or the setting "
            "dsgd.comm.ports of Dask allows"
        )
        if self._detour is None:
            return f'{asks}; transport="auto" or "rpc" goes through the ports of their workers instead.'
        return (
            f"{asks}. The ports of their workers cannot be reached either, and each must be able to reach all others."
        )

    def _direct(self, peer: int, address: str, deadline: Deadline) -> Link | None:
        """Connect to a peer and greet it; None if that cannot be and there is a detour."""
        for attempt in range(_N_TRIES):
            problem: OSError
            try:
                sock = self._reach(address, deadline)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    raise
                if isinstance(error, TimeoutError):
                    self._patience_s = min(self._patience_s, _FILTERED_S)
                problem = error
                break
            try:
                return self._meet(sock, peer, address, deadline, relayed=0)
            except (ConnectionError, ssl.SSLEOFError) as error:
                self._abort.check()
                problem = error
                time.sleep(_LOOK_UP_S * attempt)
        if self._detour is None:
            raise problem
        _log.warning(
            "rank %d cannot connect to rank %d at %s (%s): the two connect through the ports of their workers, which "
            "takes about a millisecond per message. Let workers reach each other on the ports that ranks listen on.",
            self._credentials.rank,
            peer,
            address,
            str(problem) or type(problem).__name__,
        )
        return None

    def _through_worker(self, peer: int, address: str, deadline: Deadline) -> Link:
        """Connect to a peer by the detour and greet it; again if it has lost patience, as records pass busy workers."""
        assert self._detour is not None  # _direct has raised otherwise
        attempt = 0
        while True:
            try:
                return self._meet(self._detour.open(peer), peer, address, deadline, relayed=1)
            except (ConnectionError, ssl.SSLEOFError):
                self._abort.check()
                attempt += 1
                if attempt == _N_TRIES:
                    raise
                time.sleep(_LOOK_UP_S * attempt)

    def _reach(self, address: str, deadline: Deadline) -> socket.socket:
        # In slices, because nothing wakes a thread that is still connecting.
        limit = Deadline(min(self._patience_s, deadline.left_s()))
        while True:
            self._abort.check()
            try:
                return socket.create_connection(split_address(address), timeout=min(limit.left_s(), _CONNECT_SLICE_S))
            except TimeoutError:
                if limit.is_over:
                    raise

    def _meet(self, sock: socket.socket, peer: int, address: str, deadline: Deadline, *, relayed: int) -> Link:
        """Return a link over a socket once the peer at its other end has shown who it is."""
        with suppress(OSError):  # a detour is no TCP connection
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(deadline.left_s())
        if self._wrap is not None:
            sock = self._wrap(sock, False)
        who = f"rank {peer} at {address}"
        with self.holding(sock):
            if isinstance(sock, ssl.SSLSocket):
                sock.do_handshake()
            self._greet(sock, peer, who, relayed=relayed)
            latency_s = measure_latency(sock, is_first=True)
        job, epoch = self._credentials.job, self._credentials.epoch
        return Link(sock, peer, address, job=job, epoch=epoch, latency_s=latency_s, way="rpc" if relayed else "tcp")

    def _greet(self, sock: socket.socket, peer: int, who: str, *, relayed: int) -> None:
        """Exchange the four records of a handshake."""
        credentials = self._credentials
        hello = credentials.hello(peer, relayed=relayed)
        sock.sendall(hello.pack())
        welcome = _read(sock, who)
        if welcome.status != handshake.OK:
            raise ProtocolError(f"{who} turned rank {credentials.rank} away: {refusal_text(welcome.status)}.")
        is_rank = credentials.verifies(welcome, b"accept", hello)
        # Sent even if the peer fails the proof, so that it can report the error too: a proof reveals nothing.
        proof = credentials.sign(credentials.hello(peer), b"connect", hello, welcome)
        sock.sendall(proof.pack())
        if not is_rank:
            raise ProtocolError(f"{who} did not prove who it is: {refusal_text(handshake.WRONG_TOKEN)}.")
        verdict = _read(sock, who)
        if not credentials.verifies(verdict, b"verdict", hello, welcome, proof):
            reason = verdict.status or handshake.WRONG_TOKEN
            raise ProtocolError(f"{who} turned rank {credentials.rank} away: {refusal_text(reason)}.")
        if verdict.status == handshake.CROSSED:
            raise CrossedError
        if verdict.status != handshake.OK:
            raise ProtocolError(f"{who} and rank {credentials.rank} do not fit: {refusal_text(verdict.status)}.")


def _read(sock: socket.socket, who: str) -> Record:
    data = receive_exactly(sock, RECORD_BYTES)
    if not data:
        raise ConnectionResetError("it closed the connection during the handshake")
    try:
        return Record.unpack(data)
    except ProtocolError as error:
        raise ProtocolError(f"{who} does not answer as a rank: {error}") from None


def check_room(rank: int, n_links: int) -> None:
    """Raise `ClusterError` if this process may not open as many files as `n_links` connections need."""
    try:
        import resource

        n_open, limit = len(os.listdir(_OPEN_FILES)), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except (ImportError, OSError):
        return  # a system that does not say; it will when it refuses
    if limit != resource.RLIM_INFINITY and n_open + n_links + _SPARE_FILES > limit:
        problem = f"rank {rank} is about to open {n_links} connections, and its process has {n_open} files open"
        raise ClusterError(no_room(f"{problem} of the {limit} that it may"))


@contextmanager
def explained_file_limit(rank: int) -> Iterator[None]:
    """Raise `ClusterError` in place of the error of a system that opens no more files for this process."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise ClusterError(no_room(f"rank {rank} cannot connect: {error.strerror}")) from error


def no_room(problem: str) -> str:
    """Return the text of an error of a process that may open no more files."""
    return (
        f"{problem}. Raise the limit of open files where the workers are started: 'ulimit -n 65536' in a shell, "
        "LimitNOFILE=65536 in a systemd unit, --ulimit nofile=65536 of a container."
    )
