"""Frames of bytes between ranks, and the flag that ends every exchange.

**The format of the frames that ranks send each other.**

Problem: two ranks that are not at the same point of the same job must notice it before they add up wrong numbers, and
nothing that arrives from a socket may be believed, let alone unpickled.

A frame is a header of `HEADER_BYTES` bytes, little-endian, and the raw bytes of one array::

    offset  0  magic     4 bytes   b"dsgd"
    offset  4  version   uint8     of this layout
    offset  5  dtype     uint8     code of the element type, `DTYPE_CODES`
    offset  6  op        uint16    code of the operation, `OP_NAMES`
    offset  8  job       uint64    hash of the job's name
    offset 16  epoch     uint32    incarnation of the gang: a restarted gang has the next one
    offset 20  flags     uint32    zero in this version
    offset 24  sequence  uint64    frames sent before this one in this direction between these two ranks
    offset 32  nbytes    uint64    bytes of the array

The receiver knows which frame is next, so it packs the header it expects and compares 40 bytes; it parses a header only
if it differs, to report the difference.

The flag that stops all waiting ranks of a gang, and their deadlines.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from dsgd.errors import AbortedError, InvalidParameterError, ProtocolError
from dsgd.types import AnyArray

MAGIC: Final = b"dsgd"
VERSION: Final = 1
_LAYOUT: Final = struct.Struct("<4sBBHQIIQQ")
HEADER_BYTES: Final = _LAYOUT.size

# A model of 2**40 bytes does not fit a worker; a length beyond it is noise read as a number.
MAX_FRAME_BYTES: Final = 2**40
_DTYPE_NAMES: Final = dict(enumerate(("float32", "float64", "int64", "int32", "uint64", "uint32", "uint8"), 1))
DTYPE_CODES: Final[dict[np.dtype[np.generic], int]] = {np.dtype(name): code for code, name in _DTYPE_NAMES.items()}
OP_SEND, OP_ALLREDUCE, OP_BROADCAST, OP_ALLGATHER, OP_BARRIER, OP_GATHER, OP_SCATTER, OP_GOSSIP, OP_POST = range(9)
OP_NAMES: Final = dict(
    enumerate(("send", "allreduce", "broadcast", "allgather", "barrier", "gather", "scatter", "gossip", "post"))
)


@dataclass(frozen=True)
class Header:
    """What the header of a frame says."""

    job: int
    epoch: int
    sequence: int
    op: int
    dtype: int
    nbytes: int
    flags: int = 0


def job_code(job_id: bytes | str) -> int:
    """Return the 64-bit code of a job's name that its frames carry."""
    name = job_id.encode() if isinstance(job_id, str) else job_id
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def op_name(op: int) -> str:
    """Return the name of an operation, or its number where it has none."""
    return OP_NAMES.get(op, f"operation {op}")


def check_array(array: AnyArray) -> int:
    """Return the dtype code of an array that can be sent without a copy."""
    code = DTYPE_CODES.get(array.dtype)
    if code is None:
        known = ", ".join(_DTYPE_NAMES.values())
        raise InvalidParameterError(f"A rank can send arrays of dtype {known}. Got {array.dtype}.")
    if not array.flags.c_contiguous:
        raise InvalidParameterError(
            f"A rank can send C-contiguous arrays only. Got strides {array.strides} for shape {array.shape}; "
            "pass numpy.ascontiguousarray(...) of it."
        )
    return code


def pack_into(
    buffer: bytearray, job: int, epoch: int, sequence: int, op: int, dtype: int, nbytes: int, flags: int = 0
) -> None:
    """Write a header over the first `HEADER_BYTES` bytes of a buffer; see `Header` for the fields."""
    _LAYOUT.pack_into(buffer, 0, MAGIC, VERSION, dtype, op, job, epoch, flags, sequence, nbytes)


def unpack_from(buffer: bytes | bytearray | memoryview) -> Header:
    """Read a header, believing nothing."""
    if len(buffer) < HEADER_BYTES:
        raise ProtocolError(f"Expected a frame header of {HEADER_BYTES} bytes, got {len(buffer)} bytes.")
    magic, version, dtype, op, job, epoch, flags, sequence, nbytes = _LAYOUT.unpack_from(buffer, 0)
    if magic != MAGIC:
        raise ProtocolError(
            f"Expected a frame that starts with {MAGIC!r}, got {magic!r}: the peer does not use the protocol of dsgd."
        )
    if version != VERSION:
        raise ProtocolError(
            f"Expected frames of version {VERSION}, got version {version}: install one dsgd everywhere."
        )
    if dtype not in _DTYPE_NAMES:
        raise ProtocolError(f"Expected a dtype code in {sorted(_DTYPE_NAMES)}, got {dtype}.")
    if nbytes > MAX_FRAME_BYTES:
        raise ProtocolError(f"Expected at most {MAX_FRAME_BYTES} bytes in a frame, got a header that claims {nbytes}.")
    return Header(job, epoch, sequence, op, dtype, nbytes, flags)


def describe_mismatch(expected: Header, got: Header) -> str:
    """Return what differs between two headers in words, empty if nothing does."""
    pairs = [
        ("job", f"{expected.job:016x}", f"{got.job:016x}"),
        ("epoch", str(expected.epoch), str(got.epoch)),
        ("frame number", str(expected.sequence), str(got.sequence)),
        ("operation", op_name(expected.op), op_name(got.op)),
        ("dtype", _DTYPE_NAMES.get(expected.dtype, "?"), _DTYPE_NAMES.get(got.dtype, "?")),
        ("size", f"{expected.nbytes} bytes", f"{got.nbytes} bytes"),
        ("flags", str(expected.flags), str(got.flags)),
    ]
    return "; ".join(f"expected {name} {want}, got {have}" for name, want, have in pairs if want != have)


def not_at_one_point(rank: int, source: int, op: int, out: AnyArray, sent_op: int, sent: AnyArray) -> ProtocolError:
    """Return the error of a rank that waited for an array like `out` and got another one, or that of another `op`."""
    expected, got = (Header(0, 0, 0, code, check_array(a), a.nbytes) for code, a in ((op, out), (sent_op, sent)))
    return ProtocolError(
        f"rank {rank} and rank {source} are not at the same point: {describe_mismatch(expected, got)}."
    )


# Eleven days; the kernel counts some deadlines in 32-bit milliseconds.
MAX_LIMIT_S: Final = 1e6


def check_limit(name: str, limit_s: float) -> None:
    """Raise `InvalidParameterError` unless a time limit in seconds can be kept."""
    if not 0 < limit_s <= MAX_LIMIT_S:
        raise InvalidParameterError(
            f"{name}=... must be a positive number of seconds, at most {MAX_LIMIT_S:g}. Got {limit_s}."
        )


class AbortFlag:
    """Tells a rank that its job has stopped; set from any thread, once.

    A rank reads it between slices of work with `check`. A transport that blocks registers a callback that wakes it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._callbacks: list[Callable[[], None]] = []

    @property
    def is_set(self) -> bool:
        """Whether the job has stopped."""
        return self._reason is not None

    @property
    def reason(self) -> str:
        """Why the job has stopped; empty while it has not."""
        return self._reason or ""

    def set(self, reason: str) -> None:
        """Stop the job. The first reason stays; later calls do nothing."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            callbacks, self._callbacks = self._callbacks, []
        # Without the lock: callbacks take locks of their own, and none is asked for while this one is held.
        for wake in callbacks:
            wake()

    def on_set(self, wake: Callable[[], None]) -> None:
        """Call `wake` when the flag is set, at once if it already is."""
        with self._lock:
            if self._reason is None:
                self._callbacks.append(wake)
                return
        wake()

    def check(self) -> None:
        """Raise `AbortedError` if the job has stopped."""
        if self._reason is not None:
            raise AbortedError(self._reason)
