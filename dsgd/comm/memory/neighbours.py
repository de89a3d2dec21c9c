"""How two ranks detect that they run on one host, and move from TCP to shared memory.

Host names can be wrong (containers, clones of a virtual machine, address translation), and if one of two ranks sends
through memory and the other over TCP, both hang. Over the connection that `handshake` has opened, records of
`_LAYOUT.size` bytes go to and fro; the lower rank of a pair makes the segment::

    all    -> all      who:     my host, by `segment.host_identity`
    lower  -> higher   open:    name of a segment, or why there is none
    higher -> lower    opened:  what it found in the segment, and what it has put there, or why not
    lower  -> higher   verdict: moved, or both stay where they are

The lower rank writes a random number into the segment and must get it back from the higher one, which writes another
number for the lower one to find: this proves that both see the same memory. The same number opens the two local sockets
(frames and bell) to the one peer they are for. Every rank first sends all records of a kind, then reads those of the
others, so ranks cannot wait in a circle. A rank that cannot make or open a segment says so, and the pair stays on TCP.
Pairs that have moved then find out whether they may read each other's memory too (`pulling`).

In a gang whose ranks are not all connected from the start (`dsgd.comm.sockets.mesh`) the hosts of the others become
known by recursive doubling: in step k a rank exchanges what it knows with its neighbour number k.

Cost: four records per pair and two short messages, once. In a large gang, `_HOST_BYTES` for every rank to every rank.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from dsgd.comm.memory.segment import NAME_BYTES, Segment, socket_path
from dsgd.comm.memory.streams import Pulling, Ring, agree_on_pulling, segment_bytes
from dsgd.comm.sockets.handshake import Credentials, receive_exactly
from dsgd.comm.sockets.link import Link, measure_latency
from dsgd.comm.sockets.mesh import hypercube
from dsgd.errors import AbortedError, GangTimeoutError, ProtocolError

_MAGIC: Final = b"dsgS"
_VERSION: Final = 3
_LAYOUT: Final = struct.Struct("<4sBBxx32s32s48s")
_NONCE_BYTES: Final = 32
_WHO: Final = 1
_OPEN: Final = 2
_OPENED: Final = 3
_VERDICT: Final = 4
_FAILED: Final = 9
_NOTHING: Final = bytes(32)
_STEP_S: Final = 5.0
_FRAMES: Final = b"F"
_BELL: Final = b"B"
_TEXT_BYTES: Final = 48
# Enough to tell hosts apart; that they share memory is proved in another way.
_HOST_BYTES: Final = 8
_HOST: Final = struct.Struct(f"<I{_HOST_BYTES}s")
_COUNT: Final = struct.Struct("<I")

_log = logging.getLogger("dsgd.comm.wires.shm")


@dataclass(frozen=True)
class _Note:
    """One record; which fields count depends on its kind."""

    kind: int
    first: bytes = _NOTHING
    second: bytes = _NOTHING
    text: str = ""

    def pack(self) -> bytes:
        text = self.text.encode()[:_TEXT_BYTES]
        return _LAYOUT.pack(_MAGIC, _VERSION, self.kind, self.first, self.second, text)

    @classmethod
    def read(cls, link: Link, *kinds: int) -> _Note:
        data = receive_exactly(link.sock, _LAYOUT.size)
        if not data:
            raise ConnectionResetError("it closed the connection")
        if len(data) != _LAYOUT.size:
            raise ProtocolError(f"rank {link.rank} at {link.address} left in the middle of a record.")
        magic, version, kind, first, second, text = _LAYOUT.unpack(data)
        if magic != _MAGIC or version != _VERSION or kind not in kinds:
            raise ProtocolError(
                f"rank {link.rank} at {link.address} does not say which host it is on: expected a record of kind "
                f"{kinds}, got kind {kind} of version {version} that starts with {magic!r}."
            )
        return cls(kind, first, second, text.rstrip(b"\0").decode(errors="replace"))


@dataclass
class Neighbourhood:
    """What the ranks have found out about their hosts."""

    hosts: tuple[int, ...]
    rings: dict[int, Ring] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass
class _Offer:
    """What the lower rank of a pair has made for the higher one."""

    segment: Segment
    nonce: bytes
    listener: socket.socket

    @classmethod
    def make(cls, n_bytes: int) -> _Offer:
        nonce, listener = secrets.token_bytes(_NONCE_BYTES), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.ExitStack() as on_error:
            on_error.callback(listener.close)
            segment = Segment.create(n_bytes)
            on_error.callback(segment.unlink)
            segment.array[:_NONCE_BYTES] = np.frombuffer(nonce, np.uint8)
            listener.bind(str(socket_path(segment.name)))
            listener.listen()
            on_error.pop_all()
        return cls(segment, nonce, listener)

    def accept(self) -> tuple[socket.socket, socket.socket]:
        """Return the sockets for frames and bell, accepted only from a peer that knows the number in the segment."""
        found: dict[bytes, socket.socket] = {}
        deadline = time.monotonic() + _STEP_S
        try:
            while len(found) < 2:
                self.listener.settimeout(max(deadline - time.monotonic(), 1e-3))
                sock, _ = self.listener.accept()
                sock.settimeout(_STEP_S)
                shown = receive_exactly(sock, _NONCE_BYTES + 1)
                purpose = shown[_NONCE_BYTES:]
                known = secrets.compare_digest(shown[:_NONCE_BYTES], self.nonce)
                if known and purpose in (_FRAMES, _BELL) and purpose not in found:
                    found[purpose] = sock
                else:
                    sock.close()
        except BaseException:
            for sock in found.values():
                sock.close()
            raise
        return found[_FRAMES], found[_BELL]

    def close(self) -> None:
        self.segment.unlink()
        self.listener.close()


@dataclass
class _Shared:
    """A segment that both sides have open, with the two local sockets."""

    segment: Segment
    frames: socket.socket
    bell: socket.socket

    def close(self) -> None:
        self.segment.unlink()
        self.frames.close()
        self.bell.close()


def join_neighbours(
    links: dict[int, Link],
    credentials: Credentials,
    *,
    capacity: int,
    carries_headers: bool,
    has_boxes: bool,
    identity: bytes,
    pulls: bool = True,
) -> Neighbourhood:
    """Share memory with the peers on this host; both ranks of each link call it at once, right after it was made."""
    rank, rings = credentials.rank, dict[int, Ring]()
    meeting = _Meeting(links, rank, segment_bytes(capacity, has_boxes=has_boxes))
    try:
        identities = meeting.ask(identity)
        meeting.make_segments([peer for peer in sorted(links) if identities[peer] == identity])
        for peer, shared in sorted(meeting.moved.items()):
            meeting.link = links[peer]
            link, pulling = _move(shared, links[peer], credentials, pulls)
            parts = shared.segment, capacity, link, shared.bell
            rings[peer] = Ring(*parts, first=rank < peer, carries_headers=carries_headers, pulling=pulling)
            links[peer] = link
    except BaseException as error:
        for shared in meeting.moved.values():
            shared.close()
        who = "a peer" if meeting.link is None else f"rank {meeting.link.rank} at {meeting.link.address}"
        if isinstance(error, TimeoutError):
            raise GangTimeoutError(f"{who} did not say which host it is on while rank {rank} asked.") from error
        if isinstance(error, OSError):
            raise AbortedError(f"{who} went away while rank {rank} joined it: {error}.") from error
        raise
    finally:
        meeting.close()
    return Neighbourhood(_numbered([identities[r] for r in sorted(identities)]), rings, meeting.problems)


class _Meeting:
    """The exchange of records with all peers, and what it has opened so far."""

    def __init__(self, links: dict[int, Link], rank: int, n_bytes: int) -> None:
        self.links, self.rank, self.n_bytes = links, rank, n_bytes
        self.link: Link | None = None
        self.offers: dict[int, _Offer] = {}
        self.opened: dict[int, _Shared] = {}
        self.moved: dict[int, _Shared] = {}
        self.problems: list[str] = []

    def ask(self, identity: bytes) -> dict[int, bytes]:
        """Return what stands for the host of this rank and of each peer."""
        identities = {self.rank: identity}
        for peer in self.links:
            self._send(peer, _Note(_WHO, identity))
        for peer in self.links:
            identities[peer] = self._read(peer, _WHO).first
        return identities

    def make_segments(self, neighbours: Sequence[int]) -> None:
        """Fill `moved` with what both sides have open."""
        higher = [peer for peer in neighbours if peer > self.rank]
        lower = [peer for peer in neighbours if peer < self.rank]
        for peer in higher:
            self._send(peer, self._offer(peer))
        for peer in lower:
            self._send(peer, self._open(peer, self._read(peer, _OPEN)))
        for peer in higher:
            self._send(peer, self._judge(peer, self._read(peer, _OPENED)))
        for peer in lower:
            verdict = self._read(peer, _VERDICT)
            if verdict.kind == _VERDICT and peer in self.opened:
                self.moved[peer] = self.opened.pop(peer)
            elif peer in self.opened:
                self.problems.append(f"rank {peer}: {verdict.text}")

    def close(self) -> None:
        """Let go of everything that is not in `moved`."""
        for offer in self.offers.values():
            offer.close()
        for shared in self.opened.values():
            shared.close()

    def _send(self, peer: int, note: _Note) -> None:
        self.link = self.links[peer]
        self.link.sock.sendall(note.pack())

    def _read(self, peer: int, kind: int) -> _Note:
        self.link = self.links[peer]
        return _Note.read(self.link, kind, _FAILED)

    def _offer(self, peer: int) -> _Note:
        try:
            offer = self.offers[peer] = _Offer.make(self.n_bytes)
        except OSError as error:
            self.problems.append(f"{self.n_bytes} bytes for rank {peer}: {error}")
            return _Note(_FAILED, text=str(error))
        return _Note(_OPEN, offer.segment.name.encode())

    def _open(self, peer: int, note: _Note) -> _Note:
        if note.kind == _FAILED:
            self.problems.append(f"rank {peer}: {note.text}")
            return _Note(_FAILED)
        sockets: list[socket.socket] = []
        try:
            name = note.first[:NAME_BYTES].decode(errors="replace")
            segment = Segment.open(name, self.n_bytes)
            try:
                theirs = segment.array[:_NONCE_BYTES].tobytes()
                ours = secrets.token_bytes(_NONCE_BYTES)
                segment.array[_NONCE_BYTES : 2 * _NONCE_BYTES] = np.frombuffer(ours, np.uint8)
                for purpose in (_FRAMES, _BELL):
                    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                    sockets.append(sock)
                    sock.settimeout(_STEP_S)
                    sock.connect(str(socket_path(name)))
                    sock.sendall(theirs + purpose)
            finally:
                # Its maker removes the name too, in case one of the two has died.
                segment.unlink()
        except OSError as error:
            for sock in sockets:
                sock.close()
            self.problems.append(f"rank {peer}: {error}")
            return _Note(_FAILED, text=str(error))
        self.opened[peer] = _Shared(segment, *sockets)
        return _Note(_OPENED, theirs, ours)

    def _judge(self, peer: int, note: _Note) -> _Note:
        offer = self.offers.get(peer)
        if offer is None:
            return _Note(_FAILED)
        if note.kind == _FAILED:
            self.problems.append(f"rank {peer}: {note.text}")
            return _Note(_FAILED)
        written = offer.segment.array[_NONCE_BYTES : 2 * _NONCE_BYTES].tobytes()
        if not (secrets.compare_digest(note.first, offer.nonce) and secrets.compare_digest(note.second, written)):
            text = "it sees another memory under the same name"
            self.problems.append(f"rank {peer}: {text}")
            return _Note(_FAILED, text=text)
        try:
            self.moved[peer] = _Shared(offer.segment, *offer.accept())
        except OSError as error:
            self.problems.append(f"rank {peer}: its local sockets did not come ({error})")
            return _Note(_FAILED, text=str(error))
        return _Note(_VERDICT)


def _move(shared: _Shared, old: Link, credentials: Credentials, pulls: bool) -> tuple[Link, Pulling]:
    """Return the link over the local socket that takes the place of the one over TCP, and who pulls from whom."""
    shared.frames.settimeout(_STEP_S)
    latency_s = measure_latency(shared.frames, is_first=old.rank < credentials.rank)
    pulling = agree_on_pulling(shared.frames, wanted=pulls)
    job, epoch = credentials.job, credentials.epoch
    link = Link(shared.frames, old.rank, old.address, job=job, epoch=epoch, latency_s=latency_s, way="shm")
    old.sock.close()
    return link, pulling


def tell_hosts(links: dict[int, Link], rank: int, size: int, identity: bytes) -> tuple[int, ...]:
    """Return the host of each rank, numbered as they first occur; all ranks call it at once."""
    known = {rank: hashlib.blake2b(identity, digest_size=_HOST_BYTES).digest()}
    folded, steps = hypercube(rank, size)
    peer = rank
    try:
        for peer in (*folded, *steps, *folded):
            known |= _swap_hosts(links[peer], known, size)
    except OSError as error:
        who = f"rank {peer} at {links[peer].address}"
        if isinstance(error, TimeoutError):
            raise GangTimeoutError(f"{who} did not say which hosts it knows while rank {rank} asked.") from error
        raise AbortedError(f"{who} went away while rank {rank} joined it: {error}.") from error
    return _numbered([known[r] for r in range(size)])


def _swap_hosts(link: Link, known: Mapping[int, bytes], size: int) -> dict[int, bytes]:
    """Return which hosts a peer knows, and tell it those known here."""
    entries = b"".join(_HOST.pack(rank, host) for rank, host in known.items())
    link.sock.sendall(_COUNT.pack(len(known)) + entries)
    count = _COUNT.unpack(_receive(link, _COUNT.size))[0]
    if count > size:
        raise ProtocolError(f"rank {link.rank} at {link.address} knows of {count} ranks where there are {size}.")
    return {
        rank: host
        for rank, host in _HOST.iter_unpack(_receive(link, count * _HOST.size))
        if rank < size and rank not in known
    }


def _receive(link: Link, n_bytes: int) -> bytes:
    data = receive_exactly(link.sock, n_bytes)
    if len(data) < n_bytes:
        raise ConnectionResetError("it closed the connection")
    return data


def _numbered(hosts: Sequence[bytes]) -> tuple[int, ...]:
    """Return the host of each rank as a number, in the order in which they first occur."""
    order = {name: number for number, name in enumerate(dict.fromkeys(hosts))}
    return tuple(order[host] for host in hosts)


def warn_of(problems: Sequence[str], rank: int) -> None:
    """Log once that ranks of one host use TCP, and why."""
    if problems:
        _log.warning(
            "rank %d cannot share memory with all ranks of its host and uses TCP with them: %s. "
            "A container may need a larger /dev/shm (docker run --shm-size).",
            rank,
            "; ".join(problems),
        )
