"""Connections whose every byte is authenticated, on clusters without TLS.

Problem: the handshake shows that both ends belong to the job, but after it anything between them (a program on the
path, a faulty network card, a proxy) can change, repeat, drop or insert bytes, and a changed model looks like any
other. The checksum of TCP has 16 bits and no key.

What goes over the connection is cut into records of at most `PIECE_BYTES`::

    length   uint32, little-endian   bytes of the payload
    payload
    code     16 bytes                HMAC-SHA256(key of the direction, sequence number + length + payload), cut

The sequence number counts the records of a direction and does not travel; each direction of each connection has a key
of its own (`dsgd.comm.sockets.handshake.Credentials.secure`). So a record is accepted once, at its place, from the
other end of this connection. One that was changed, repeated, moved, sent back to where it came from, or taken from
another connection does not have the code that is due: that is a `ProtocolError`, and no byte of it reaches the caller.
A connection that is cut shows as a peer that has gone. Nothing is encrypted.

Cost: 20 bytes for each 16 KiB, 64 KiB of memory for each connection, a copy of the bytes at both ends, and the hash, of
which processors with instructions for SHA-256 do 1.7 GB/s.

Source: RFC 2104, and the record layer of TLS 1.3 (RFC 8446, section 5) without its cipher.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
from typing import Any, Final, Literal, TypeAlias

from dsgd.errors import ProtocolError

__all__ = ["OVERHEAD_BYTES", "PIECE_BYTES", "AuthenticatedSocket", "Integrity", "added_bytes"]

#: What protects frames on a connection without TLS: nothing, or a code for every piece of them.
Integrity: TypeAlias = Literal["none", "hmac"]

#: Payload of a record: what two ranks that send before they receive may have under way in any TCP.
PIECE_BYTES: Final = 16 * 1024
_LENGTH: Final = struct.Struct("<I")
_PLACE: Final = struct.Struct("<QI")  # sequence number and length
_CODE_BYTES: Final = 16
OVERHEAD_BYTES: Final = _LENGTH.size + _CODE_BYTES
_BUFFER_BYTES: Final = 4 * (PIECE_BYTES + OVERHEAD_BYTES)
_BLOCK_BYTES: Final = 64
_INNER: Final = bytes(each ^ 0x36 for each in range(256))
_OUTER: Final = bytes(each ^ 0x5C for each in range(256))


def added_bytes(n_bytes: int) -> int:
    """Return how many bytes records add to `n_bytes` that are sent piece by piece."""
    return OVERHEAD_BYTES * -(-n_bytes // PIECE_BYTES)


class _Codes:
    """The codes of one direction, in order; `hmac` would prepare the key for each of them."""

    def __init__(self, key: bytes) -> None:
        block = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner, self._outer = hashlib.sha256(block.translate(_INNER)), hashlib.sha256(block.translate(_OUTER))
        self._n = 0

    def next(self, payload: memoryview) -> bytes:
        """Return the code of the next record."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(_PLACE.pack(self._n, len(payload)))
        inner.update(payload)
        outer.update(inner.digest())
        self._n += 1
        return outer.digest()[:_CODE_BYTES]


class AuthenticatedSocket(socket.socket):
    """A connected socket that sends and takes records; it takes the place of the one given, as one under TLS does.

    Parameters
    ----------
    sock : socket
        Connected; this object takes its descriptor over, and keeps its timeout.
    key_out, key_in : bytes, length 32
        Keys of what is sent and of what comes; exchanged at the other end.
    peer : str
        Who is there, for errors.
    """

    def __init__(self, sock: socket.socket, key_out: bytes, key_in: bytes, peer: str) -> None:
        limit_s, parts = sock.gettimeout(), (sock.family, sock.type, sock.proto)
        super().__init__(*parts, fileno=sock.detach())
        self.settimeout(limit_s)
        self._out, self._in, self._peer = _Codes(key_out), _Codes(key_in), peer
        # What came, of which records begin at `_start`, and the verified bytes that nobody has read yet.
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = self._end = 0
        self._verified = self._buffer[:0]

    def pending(self) -> int:
        """Return whether something can be read without asking the system: verified bytes, or a whole record."""
        return len(self._verified) or self._whole()

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send bytes as records; ProtocolError and OSError as for any socket."""
        view = memoryview(data).cast("B")
        for first in range(0, len(view), PIECE_BYTES):
            piece = view[first : first + PIECE_BYTES]
            super().sendall(b"".join((_LENGTH.pack(len(piece)), piece, self._out.next(piece))), flags)

    def recv(self, n_bytes: int, flags: int = 0) -> bytes:
        """Return at most so many verified bytes; none at the end of the stream."""
        data = bytearray(n_bytes)
        return bytes(data[: self.recv_into(data)])

    def recv_into(self, buffer: Any, n_bytes: int = 0, flags: int = 0) -> int:
        """Receive verified bytes, at least one; zero at the end of the stream.

        Raises
        ------
        ProtocolError
            A record is not the one due.
        """
        if not self._verified and not self._next_record():
            return 0
        view = memoryview(buffer).cast("B")
        n = min(n_bytes or len(view), len(view), len(self._verified))
        view[:n] = self._verified[:n]
        self._verified = self._verified[n:]
        return n

    def _whole(self) -> int:
        """Return the length of the record at the start if all of it has come, else zero; refuse one that cannot be."""
        n_here = self._end - self._start
        if n_here < _LENGTH.size:
            return 0
        length = _LENGTH.unpack_from(self._buffer, self._start)[0]
        if not 0 < length <= PIECE_BYTES:
            raise ProtocolError(f"{self._peer} sent a record of {length} bytes: {_ALTERED}")
        n_bytes: int = length + OVERHEAD_BYTES
        return n_bytes if n_here >= n_bytes else 0

    def _next_record(self) -> bool:
        """Receive a record and verify it; returns False at the end of the stream."""
        while not (n_bytes := self._whole()):
            if self._start:
                n_here = self._end - self._start
                self._buffer[:n_here] = bytes(self._buffer[self._start : self._end])
                self._start, self._end = 0, n_here
            more = super().recv_into(self._buffer[self._end :])
            if not more:
                return False
            self._end += more
        payload = self._buffer[self._start + _LENGTH.size : self._start + n_bytes - _CODE_BYTES]
        code = self._buffer[self._start + n_bytes - _CODE_BYTES : self._start + n_bytes]
        if not hmac.compare_digest(code, self._in.next(payload)):
            raise ProtocolError(f"{self._peer} sent a record without the code that it must have: {_ALTERED}")
        self._start += n_bytes
        self._verified = payload
        return True


_ALTERED: Final = (
    "it was changed, repeated, left out, moved or put in on its way. Look for a faulty network card, and for programs "
    "between the two hosts."
)
