"""Frames on connections whose two directions must move at once.

Problem: a frame longer than the buffers of a connection leaves only as fast as the peer reads it; two ranks that both
send before they read would wait for each other for ever.

Both sockets are watched, and whichever is ready is served with at most one piece, straight from or to the caller's
array. A wrapped socket (TLS) has no calls that do not wait: it is asked only when the system has something for it.

Cost: two system calls per piece and one wait for both directions.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from dsgd.comm.frames import HEADER_BYTES
from dsgd.comm.sockets.link import SEGMENT_BYTES, STREAM_SEGMENT_BYTES, Link, PeerGoneError, PeerLateError

__all__ = ["duplex", "receive_some", "send_bytes", "send_some"]

_BROKEN: Final = select.POLLERR | select.POLLHUP | select.POLLNVAL


def duplex(
    out: Link,
    outgoing: memoryview,
    sent: int,
    source: Link,
    incoming: memoryview,
    timeout_s: float,
    clock: Callable[[], float] | None,
) -> float:
    """Move two frames at once, each as fast as its peer lets it.

    Parameters
    ----------
    out, source : Link
        Where the frames go and come from; may be the same.
    outgoing, incoming : memoryview of bytes
        The payloads, as `as_bytes` makes them.
    sent : int
        Bytes of the outgoing frame already sent.
    timeout_s : float
        Longest time without progress in either direction, in seconds.
    clock : callable, optional
        Returns seconds.

    Returns
    -------
    float
        What `clock` showed when the first bytes of the incoming frame were there; zero without one.

    Raises
    ------
    ProtocolError
        The frame that came is not the one due.
    PeerGoneError
        A connection broke; says which.
    PeerLateError
        Neither frame moved in time.
    """
    got, arrived_at = 0, 0.0
    out_total, in_total = HEADER_BYTES + outgoing.nbytes, HEADER_BYTES + incoming.nbytes
    out_fd, in_fd = out.sock.fileno(), source.sock.fileno()
    poller = select.poll()
    watched: tuple[bool, bool] | None = None
    while sent < out_total or got < in_total:
        sending, receiving = sent < out_total, got < in_total
        if watched != (sending, receiving):
            watched = (sending, receiving)
            for fd in {out_fd, in_fd}:
                wanted = (select.POLLOUT if sending and fd == out_fd else 0) | (
                    select.POLLIN if receiving and fd == in_fd else 0
                )
                if wanted:
                    poller.register(fd, wanted)
                else:
                    with suppress(KeyError):
                        poller.unregister(fd)
        pending = receiving and source.has_pending
        events = dict(poller.poll(0 if pending else timeout_s * 1000))
        if not events and not pending:
            raise PeerLateError("made no progress", source if receiving else out)
        if receiving and (pending or events.get(in_fd, 0) & (select.POLLIN | _BROKEN)):
            if got == 0 and clock is not None:
                arrived_at = clock()
            got += receive_some(source, incoming, got)
        if sending and events.get(out_fd, 0) & (select.POLLOUT | _BROKEN):
            sent += send_some(out, outgoing, sent)
    return arrived_at


def receive_some(link: Link, payload: memoryview, got: int) -> int:
    """Receive what is there of a frame from byte `got` on; returns the bytes received, zero if nothing is there."""
    if not link.is_plain:
        return _receive_stream(link, payload, got)
    try:
        if got < HEADER_BYTES:
            buffers = (memoryview(link.header_in)[got:], payload[:SEGMENT_BYTES])
            more = link.sock.recvmsg_into(buffers, 0, socket.MSG_DONTWAIT)[0]
        else:
            start = got - HEADER_BYTES
            more = link.sock.recv_into(payload[start : start + SEGMENT_BYTES], 0, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise PeerGoneError(str(error), link) from error
    if not more:
        raise PeerGoneError("it closed the connection", link)
    if got < HEADER_BYTES <= got + more:
        link.check_header()
    return more


def send_some(link: Link, payload: memoryview, sent: int) -> int:
    """Send what the socket takes of a frame from byte `sent` on; returns the bytes sent, zero if it takes nothing."""
    if not link.is_plain:
        return _send_stream(link, payload, sent)
    try:
        if sent < HEADER_BYTES:
            buffers = (memoryview(link.header_out)[sent:], payload[:SEGMENT_BYTES])
            return link.sock.sendmsg(buffers, (), socket.MSG_DONTWAIT)
        start = sent - HEADER_BYTES
        return link.sock.send(payload[start : start + SEGMENT_BYTES], socket.MSG_DONTWAIT)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise PeerGoneError(str(error), link) from error


def send_bytes(link: Link, data: memoryview) -> int:
    """Send what the socket takes of some bytes, header and all; returns how many, zero if it takes nothing."""
    try:
        if link.is_plain:
            return link.sock.send(data, socket.MSG_DONTWAIT)
        sent = 0
        while sent < len(data) and _is_ready(link.sock, select.POLLOUT):
            piece = data[sent : sent + STREAM_SEGMENT_BYTES]
            link.sock.sendall(piece)
            sent += len(piece)
        return sent
    except BlockingIOError:
        return 0
    except OSError as error:
        raise PeerGoneError(str(error), link) from error


def _receive_stream(link: Link, payload: memoryview, got: int) -> int:
    # A wrapped socket knows no MSG_DONTWAIT: it is asked only when it has something.
    if not link.has_pending and not _is_ready(link.sock, select.POLLIN):
        return 0
    start = got - HEADER_BYTES
    buffer = memoryview(link.header_in)[got:] if start < 0 else payload[start : start + STREAM_SEGMENT_BYTES]
    try:
        more = link.sock.recv_into(buffer)
    except OSError as error:
        raise PeerGoneError(str(error), link) from error
    if not more:
        raise PeerGoneError("it closed the connection", link)
    if got < HEADER_BYTES <= got + more:
        link.check_header()
    return more


def _send_stream(link: Link, payload: memoryview, sent: int) -> int:
    if not _is_ready(link.sock, select.POLLOUT):
        return 0
    start = sent - HEADER_BYTES
    buffer = memoryview(link.header_out)[sent:] if start < 0 else payload[start : start + STREAM_SEGMENT_BYTES]
    try:
        link.sock.sendall(buffer)
    except OSError as error:
        raise PeerGoneError(str(error), link) from error
    return len(buffer)


def _is_ready(sock: socket.socket, event: int) -> bool:
    poller = select.poll()
    poller.register(sock, event)
    return bool(poller.poll(0))
