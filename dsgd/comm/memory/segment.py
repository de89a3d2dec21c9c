"""Segments of shared memory, arrays in them, and windows that ranks of one machine share."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import math
import mmap
import os
import platform
import re
import secrets
import select
import socket
import stat
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, final

import numpy as np

from dsgd.comm.frames import AbortFlag
from dsgd.comm.memory.cores import current_core, leave_core
from dsgd.errors import AbortedError, GangTimeoutError, ProtocolError
from dsgd.kernels.atomics import make_bed
from dsgd.kernels.rounds import BROKEN, CORE_AT, GONE_AT, LATE_AT, PUBLISHED_AT, SLOT_BYTES, TURN, box_bytes
from dsgd.types import AnyArray, IntVector

_PREFIX: Final = "dsgd-"
_SUFFIX: Final = ".sock"
_NAME: Final = re.compile(r"[0-9a-f]{32}")
NAME_BYTES: Final = 32
_ORPHAN_AGE_S: Final = 60.0

# A process looks for them no more often: each of P processes makes log P segments when a gang meets, and would look at
# all P log P of them every time.
_SWEEP_S: Final = 10.0

#: When this process last looked into a folder.
_swept: Final[dict[Path, float]] = {}
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def shared_folder() -> Path:
    """Return the folder in which segments are made: memory where the system has such a folder."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else Path(tempfile.gettempdir())


def host_identity() -> bytes:
    """Return 32 bytes, equal for processes which can probably share memory; the proof is a number in a segment."""
    boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else f"{platform.node()} {uuid.getnode()}"
    try:
        where = shared_folder().stat()
        place = f"{where.st_dev} {where.st_ino}"
    except OSError:
        place = secrets.token_hex()
    return hashlib.sha256(f"{boot} {place} {os.geteuid()}".encode()).digest()


def socket_path(name: str) -> Path:
    """Return where the local socket that belongs to a segment is bound for a moment."""
    return shared_folder() / f"{_PREFIX}{name}{_SUFFIX}"


class Segment:
    """Shared memory of a fixed size; made by `create` in one process and by `open` in the other.

    A file in ``/dev/shm`` outlives the process that made it. So a segment has a random name only until the one peer it
    is for has opened it; from then on the system frees it with the last of the two processes, SIGKILL included. Until
    then its maker holds a lock on it: the next process that makes a segment removes all names without such a lock. Its
    pages are reserved when it is made, so that a lack of space is an error then, and not a signal later. Without
    ``/dev/shm`` (macOS) a file in the folder for temporary files does the same through the page cache.
    """

    def __init__(self, name: str, fd: int, size: int) -> None:
        self.name = name
        self._fd = fd
        self._map = mmap.mmap(fd, size)
        self.array: AnyArray = np.frombuffer(self._map, dtype=np.uint8)

    @classmethod
    def create(cls, size: int) -> Self:
        """Make a segment of `size` bytes, all zero, with every page reserved."""
        _remove_orphans()
        name = secrets.token_hex(NAME_BYTES // 2)
        path = _path(name)
        # Everybody may write into the folder: a link that somebody else has put there is not followed.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _reserve(fd, size)
            return cls(name, fd, size)
        except BaseException:
            os.close(fd)
            _unlink(path)
            raise

    @classmethod
    def open(cls, name: str, size: int) -> Self:
        """Open the segment of a peer."""
        if not _NAME.fullmatch(name):
            raise OSError(f"{name!r} is not the name of a segment")
        fd = os.open(_path(name), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_size != size or found.st_uid != os.geteuid():
                raise OSError(f"segment {name} is not a file of {size} bytes of this user")
            return cls(name, fd, size)
        except BaseException:
            os.close(fd)
            raise

    def unlink(self) -> None:
        """Take the name away: nothing is left to clean up. May be called by both, and more than once."""
        if self._fd >= 0:
            _unlink(_path(self.name))
            _unlink(socket_path(self.name))
            self.close()

    def close(self) -> None:
        """Let go of the file, for one of several that open a segment: its maker takes the name away."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _path(name: str) -> Path:
    return shared_folder() / f"{_PREFIX}{name}"


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _reserve(fd: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    os.ftruncate(fd, size)
    # A file that was only made longer has no pages yet.
    os.pwrite(fd, bytes(size), 0)


def _remove_orphans() -> None:
    """Remove the segments of processes that died before they could; soon after the last call, do nothing."""
    folder, now = shared_folder(), time.monotonic()
    if now - _swept.get(folder, -math.inf) < _SWEEP_S:
        return
    _swept[folder] = now
    for path in folder.glob(f"{_PREFIX}*"):
        if not _NAME.fullmatch(path.name.removeprefix(_PREFIX)):
            continue
        with suppress(OSError):
            # One that was made just now may not be locked yet.
            if time.time() - path.lstat().st_mtime < _ORPHAN_AGE_S:
                continue
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _unlink(path)
                _unlink(path.with_name(path.name + _SUFFIX))
            finally:
                os.close(fd)


@final
class SharedArray:
    """Where the ranks of a process leave an array for each other; see `dsgd.collectives.Group.share`."""

    def __init__(self) -> None:
        self.array: AnyArray | None = None


#: How long a rank sleeps before it checks whether the job was stopped; peers ring long before.
NAP_S: Final = 0.05
_ALIGNMENT: Final = 128

# Two vectors have the same sum in any order, so those of two threads need not be short.
_SLOT_BYTES_OF_TWO: Final = 4 * 1024 * 1024


class Window:
    """The boxes of a gang as one of its ranks sees them, for the rounds of `dsgd.kernels.rounds`.

    A rank that waits keeps its core for as long as a wake-up takes, and then sleeps until a peer rings: a wait costs at
    most twice what the better of the two would (Karlin, Manasse, McGeoch and Owicki 1994, for locks). A peer that went
    away, that lets its deadline pass, and a job that has stopped become the errors that they are on any other wire. Of
    two ranks that wait for each other on one core, one moves to another core. The name is MPI's (shared-memory
    windows).
    """

    def __init__(
        self,
        rank: int,
        outgoing: Sequence[int],
        incoming: Sequence[int],
        bells: Sequence[int],
        peers: Sequence[str],
        *,
        abort: AbortFlag,
        nap: Callable[[float], int | None],
        memory: Any,
        slot_bytes: int = SLOT_BYTES,
        bed: int = 0,
    ) -> None:
        self.rank = rank
        self.bed = bed
        self.slot_bytes = slot_bytes
        self.outgoing: IntVector = np.array(outgoing, dtype=np.int64)
        self.incoming: IntVector = np.array(incoming, dtype=np.int64)
        self.bells: IntVector = np.array(bells, dtype=np.int64)
        self.abort_word: IntVector = np.zeros(1, dtype=np.int64)
        self.published = 0
        self._peers = peers
        self._abort = abort
        self._nap = nap
        self._memory = memory
        # A flag outlives the gang, and must not keep its memory.
        abort.on_set(partial(self.abort_word.fill, 1))

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.incoming)

    def wait(self, peer: int, since: float, deadline_s: float) -> None:
        """Sleep until a peer rings, or leave the core to it, between two looks for one that does not come."""
        self._abort.check()
        if self._leaves_core_to(peer):
            return
        idle_s = time.monotonic() - since
        gone = self._nap(min(NAP_S, max(deadline_s - idle_s, 0.0)))
        self._abort.check()
        if self._word(peer, GONE_AT):
            gone = peer
        if gone is not None:
            raise AbortedError(f"{self._peers[gone]} went away while rank {self.rank} waited for it.")
        if idle_s >= deadline_s:
            raise GangTimeoutError(
                f"rank {self.rank} waited {deadline_s:g} s for {self._peers[peer]}. "
                "It hangs or is overloaded; raise the timeout if its work takes longer."
            )

    def refuse(self, code: int, peer: int) -> None:
        """Raise the error that a code of `run_rounds` stands for."""
        self._abort.check()
        if code == BROKEN:
            raise ProtocolError(
                f"{self._peers[peer]} says in shared memory that it has published {self._word(peer, PUBLISHED_AT)} "
                f"vectors where rank {self.rank} has published {self.published}."
            )

    def close(self) -> None:
        """Tell peers that wait for this rank that it has gone. The memory is freed with the last reference."""
        for box in self.outgoing.tolist():
            _words(box)[GONE_AT // 8] = 1

    def _leaves_core_to(self, peer: int) -> bool:
        """Say where this rank waits; move it if the peer has just waited on the same core. One of them has to stay."""
        core = current_core()
        for box in self.outgoing.tolist():
            _words(box)[CORE_AT // 8], _words(box)[LATE_AT // 8] = core, self.published
        late = self._word(peer, LATE_AT)
        if core < 0 or peer > self.rank or not late or self.published - late > TURN:
            return False
        return self._word(peer, CORE_AT) == core and leave_core(core)

    def _word(self, peer: int, place: int) -> int:
        return int(_words(int(self.incoming[peer]))[place // 8])


def _words(box: int) -> Any:
    return (ctypes.c_int64 * (_ALIGNMENT // 8)).from_address(box)


class _Bell:
    """What a rank that is a thread sleeps on: a pair of sockets."""

    def __init__(self) -> None:
        ends = [end.detach() for end in socket.socketpair()]
        self.inside, self.outside = ends
        os.set_blocking(self.inside, False)
        # Peers may ring until the last of them is gone.
        for end in ends:
            weakref.finalize(self, os.close, end)
        #: What compiled code sleeps on.
        self.bed = make_bed(self.inside)

    def nap(self, limit_s: float) -> None:
        """Sleep until somebody rings."""
        poller = select.poll()
        poller.register(self.inside, select.POLLIN)
        if poller.poll(limit_s * 1000):
            os.read(self.inside, 4096)


def inproc_windows(aborts: Sequence[AbortFlag]) -> list[Window]:
    """Return a window for each rank of a gang of threads, over memory of this process."""
    size = len(aborts)
    slot_bytes = _SLOT_BYTES_OF_TWO if size == 2 else SLOT_BYTES
    # Zeros of the system, not of an allocator that clears used memory: no page is touched before a vector comes to it.
    memory: AnyArray = np.frombuffer(mmap.mmap(-1, size * box_bytes(slot_bytes) + _ALIGNMENT), dtype=np.uint8)
    first = -(-memory.ctypes.data // _ALIGNMENT) * _ALIGNMENT
    boxes = [first + rank * box_bytes(slot_bytes) for rank in range(size)]
    peers = [f"rank {rank} (a thread of this process)" for rank in range(size)]
    bells = [_Bell() for _ in range(size)]
    return [
        Window(
            rank,
            [boxes[rank]],
            boxes,
            [-1 if peer == rank else bell.outside for peer, bell in enumerate(bells)],
            peers,
            abort=abort,
            nap=bells[rank].nap,
            memory=(memory, bells),
            slot_bytes=slot_bytes,
            bed=bells[rank].bed.ctypes.data,
        )
        for rank, abort in enumerate(aborts)
    ]
