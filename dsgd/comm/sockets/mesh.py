"""The connections of a rank to its peers: each by its port or a detour, a few at once, others when they are needed.

P ranks that are all connected with each other hold P - 1 connections each, which no process of hundreds may have, and
few of which are ever used: a sum takes log2 P of them, a ring two. So a rank joins its `first_peers` and is then
connected with any other one when the two first exchange something. In a small gang these are all. In a larger one they
are its neighbours in a hypercube, by which short vectors are summed (`dsgd.collectives.algorithms.rings`): every rank
is connected with every other one through some others, so that ranks which do not fit are found before work starts.

Of two first peers the higher rank connects. Later either may, the higher at once and the lower a moment later, since
usually both need the connection; `LinkTable` says whose holds. A thread lets peers in (`Acceptor`), so a rank waits for
no other one but for its answers. The port is closed when the last peer has come: at once in a small gang, with the
transport in a larger one.

A peer whose port is closed or filtered is reached by a detour, where there is one: through the port on which its
process is reached anyway (`dsgd.comm.wires.carried`). That is decided for each pair by the rank that connects.

Cost: four records of 128 bytes per connection, and a few round trips to measure the latency.
"""

from __future__ import annotations

import errno
import logging
import os
import platform
import socket
import ssl
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dsgd.comm.frames import AbortFlag
from dsgd.comm.sockets import handshake
from dsgd.comm.sockets.handshake import RECORD_BYTES, Credentials, Record, receive_exactly, refusal_text
from dsgd.comm.sockets.link import Link, measure_latency, shut_down
from dsgd.comm.sockets.listener import Acceptor, Listener, Wrap, split_address
from dsgd.comm.sockets.table import LinkTable
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


#: Up to so many ranks are all connected with each other from the start.
FULL_MESH: Final = 8
_SLICE_S: Final = 0.1
# For so long a rank waits for the call of a higher one before it calls itself.
_COURTESY_S: Final = 0.05


def first_peers(rank: int, size: int) -> tuple[int, ...]:
    """Return the ranks that `rank` is connected with at first: all others, or beyond `FULL_MESH` its `hypercube`."""
    if size <= FULL_MESH:
        return tuple(peer for peer in range(size) if peer != rank)
    folded, steps = hypercube(rank, size)
    return tuple(sorted([*folded, *steps]))


def hypercube(rank: int, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the neighbours of `rank` among the 2**q first ranks, and for ranks beyond the one they are paired with."""
    core = 1 << (size.bit_length() - 1)
    n_folded = size - core
    folded = (rank ^ 1,) if rank < 2 * n_folded else ()
    if folded and rank % 2:
        return folded, ()
    number = rank // 2 if folded else rank - n_folded
    others = [number ^ (1 << k) for k in range(core.bit_length() - 1)]
    return folded, tuple(2 * other if other < n_folded else other + n_folded for other in others)


class Mesh:
    """The connections of one rank; `join` makes the first."""

    def __init__(
        self,
        listener: Listener,
        addresses: Sequence[str],
        credentials: Credentials,
        abort: AbortFlag,
        limit_s: float,
        wrap: Wrap | None,
        detour: Detour | None,
        first: Collection[int],
    ) -> None:
        self._listener, self._addresses, self._abort, self._limit_s = listener, addresses, abort, limit_s
        self.rank, self._first = credentials.rank, first
        self._table = LinkTable(self.rank, credentials.size, first, self._ring)
        self.links = self._table.links
        # Shutting a socket down is how a flag that is set wakes the thread that waits for an answer on it.
        self._opened: set[socket.socket] = set()
        self._settle_late: Callable[[Link], Link] = lambda link: link
        self._connector = Connector(credentials, abort, wrap, detour, self._opened)
        self._acceptor = Acceptor(listener, credentials, wrap, self._table, self._settled, limit_s, self._opened)
        self._bell: tuple[int, int] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether this rank is connected with all others."""
        return self._table.is_complete

    def join(self) -> None:
        """Connect with the first peers; see `dsgd.comm.wires.tcp.connect` for the errors."""
        self._abort.on_set(self.wake)
        deadline = Deadline(self._limit_s)
        try:
            check_room(self.rank, len(self._first))
            if len(self._addresses) > 1:
                self._acceptor.start()
            for peer in self._first:
                if peer < self.rank and self._table.call(peer):
                    self._call(peer, deadline)
            while missing := self._table.wait_for(self._first, min(_SLICE_S, deadline.left_s())):
                self._abort.check()
                if deadline.is_over:
                    raise self._not_joined(missing)
            self._abort.check()
        except BaseException:
            self._hang_up()
            self._abort.check()
            raise
        if self.is_complete:
            self._acceptor.stop()
            self._listener.close()

    def open_to_all(self, settle: Callable[[Link], Link]) -> None:
        """Let peers come that are not among the first, from now on and as long as the transport lives."""
        if not self.is_complete:
            self._settle_late = settle
            self._listener.is_kept = True
            self._table.open_to_all()
            self._acceptor.wake()

    def reach(self, peers: Collection[int], limit_s: float, *, at_once: bool = False) -> None:
        """Connect with peers where there is no connection yet."""
        missing = self._table.missing(peers)
        if not missing:
            return
        deadline = Deadline(min(limit_s, self._limit_s))
        for peer in missing:
            if (at_once or peer < self.rank) and self._table.call(peer):
                self._call(peer, deadline)
        for peer in self._table.wait_for(missing, _COURTESY_S):
            if self._table.call(peer):
                self._call(peer, deadline)
        while late := self._table.wait_for(missing, min(_SLICE_S, deadline.left_s())):
            self._abort.check()
            if deadline.is_over:
                raise self._not_joined(late)
            for peer in late:
                # A call of that peer, which this rank had waited for, has failed.
                if self._table.call(peer):
                    self._call(peer, deadline)

    def arrivals(self) -> int:
        """Return the descriptor of a pipe that can be read once another peer has come since `heed_arrivals`."""
        if self._bell is None:
            self._bell = os.pipe()
            for end in self._bell:
                os.set_blocking(end, False)
        return self._bell[0]

    def heed_arrivals(self) -> None:
        """Empty that pipe."""
        with suppress(BlockingIOError):
            os.read(self.arrivals(), 4096)

    def wake(self) -> None:
        """Let this rank see that its job has stopped; may be called from any thread."""
        for link in list(self.links.values()):
            shut_down(link.sock)
        for sock in list(self._opened):
            shut_down(sock)
        self._acceptor.end()

    def close(self) -> None:
        """Close all connections and the port; may be called more than once."""
        self._hang_up()
        if self._listener.is_kept:
            self._listener.is_kept = False
            self._listener.close()
        bell, self._bell = self._bell, None
        for end in bell or ():
            os.close(end)

    def _hang_up(self) -> None:
        for sock in list(self._opened):
            shut_down(sock)
        self._acceptor.stop()
        for sock in [*self._opened, *(link.sock for link in self.links.values())]:
            sock.close()

    def _call(self, peer: int, deadline: Deadline) -> None:
        """Connect to a peer, unless that calls itself at the same time."""
        try:
            link = self._connector.connect(peer, self._addresses[peer], deadline)
            with self._connector.holding(link.sock):
                self._table.put(self._settled(link), called=True)
        except BaseException as error:
            self._table.drop(peer, called=True)
            if not isinstance(error, CrossedError):
                raise

    def _settled(self, link: Link) -> Link:
        """Return the link to use for one that was just made."""
        return link if link.rank in self._first else self._settle_late(link)

    def _ring(self) -> None:
        bell = self._bell
        if bell is not None:
            with suppress(BlockingIOError):
                os.write(bell[1], b"\0")

    def _not_joined(self, missing: Sequence[int]) -> GangTimeoutError:
        refusals = self._listener.refusals
        refused = f" Turned away meanwhile: {'; '.join(refusals)}." if refusals else ""
        return GangTimeoutError(
            f"rank {self.rank} at {self._listener.address} waited {self._limit_s:g} s for rank(s) "
            f"{', '.join(map(str, missing))} to join.{refused} Check that their workers run and can reach this address."
        )
