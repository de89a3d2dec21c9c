"""Whether two processes may read each other's memory directly.

Problem: systems forbid it for many reasons (`dsgd.kernels.processes`), and the rank that sends must know what the one
that receives can do.

Over the local socket between them each says where it keeps a random number, tries to read that of the other, and says
whether it found it. The system itself names the process at the other end of a local socket, so none can be made up.

Cost: two short messages each way, once.
"""

from __future__ import annotations

import secrets
import socket
import struct
from typing import Final, NamedTuple

import numpy as np

from dsgd.comm.sockets.handshake import receive_exactly
from dsgd.kernels.processes import CAN_READ, N_WORDS, read_into

_LAYOUT: Final = struct.Struct("<Q32s")
_PROOF_BYTES: Final = 32
_CREDENTIALS: Final = struct.Struct("3i")


class Pulling(NamedTuple):
    """Who may read whose memory."""

    peer: int = 0
    is_read: bool = False


NEITHER: Final = Pulling()


def agree_on_pulling(sock: socket.socket, *, wanted: bool = True) -> Pulling:
    """Find out together with the process at the other end of a local socket; both call it at once."""
    proof = np.frombuffer(secrets.token_bytes(_PROOF_BYTES), dtype=np.uint8)
    sock.sendall(_LAYOUT.pack(proof.ctypes.data, proof.tobytes()))
    address, due = _LAYOUT.unpack(_receive(sock, _LAYOUT.size))
    peer = _process_of(sock) if wanted else 0
    found = np.zeros(_PROOF_BYTES, dtype=np.uint8)
    if peer and address < 2**63:
        read_into(peer, address, found, np.zeros(N_WORDS, dtype=np.int64))
    can_read = found.tobytes() == due
    sock.sendall(bytes([can_read]))
    is_read = _receive(sock, 1) == b"\1"
    return Pulling(peer if can_read else 0, is_read)


def _receive(sock: socket.socket, n_bytes: int) -> bytes:
    data = receive_exactly(sock, n_bytes)
    if len(data) < n_bytes:
        raise ConnectionResetError("it closed the connection")
    return data


def _process_of(sock: socket.socket) -> int:
    """Return the number of the process at the other end; zero where the system cannot say or read it."""
    if not CAN_READ or not hasattr(socket, "SO_PEERCRED"):
        return 0
    number: int = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0]
    return number
