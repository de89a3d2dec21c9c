"""Sending and receiving pieces of frames at the same time on one connection, without waiting.

A wrapped socket (TLS) has no calls that do not wait: it is asked only when the system has something for it.
`dsgd.comm.frame_exchange` moves whole frames by these.

Cost: a system call per piece, or two on a wrapped socket.
"""

from __future__ import annotations

import select
import socket

from dsgd.comm.frames import HEADER_BYTES
from dsgd.comm.sockets.link import SEGMENT_BYTES, STREAM_SEGMENT_BYTES, Link, PeerGoneError


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
    start = max(sent - HEADER_BYTES, 0)
    header = memoryview(link.header_out)[sent:]
    buffer = payload[start : start + STREAM_SEGMENT_BYTES - len(header)]
    if header:
        # Header and array in one record: a copy costs less than a second record.
        buffer = memoryview(b"".join((header, buffer)))
    try:
        link.sock.sendall(buffer)
    except OSError as error:
        raise PeerGoneError(str(error), link) from error
    return len(buffer)


def _is_ready(sock: socket.socket, event: int) -> bool:
    poller = select.poll()
    poller.register(sock, event)
    return bool(poller.poll(0))
