"""Shared memory of two processes of one host, which disappears with them.

Problem: a file in ``/dev/shm`` outlives the process that made it, and if ``/dev/shm`` is full, touching a page that
cannot be allocated kills the process.

A segment is made under a random name, opened by the one peer it is for, and loses its name at once; from then on the
system frees it with the last of the two processes, SIGKILL included. Between the two moments its maker holds a lock on
it that dies with the process: the next process that makes a segment removes all names without such a lock. Its pages
are reserved when it is made, so that a lack of space is an error then, and not a signal later.

Where there is no ``/dev/shm`` (macOS) a file in the folder for temporary files does the same through the page cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import mmap
import os
import platform
import re
import secrets
import stat
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import numpy as np

from dsgd.types import AnyArray

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
    """Return 32 bytes that are equal for processes which can probably share memory.

    They identify this boot of the machine, this mount of the shared folder and this user; containers that share neither
    get different numbers. It is a hint: the proof is that a peer finds in a segment the number written there.
    """
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
    """Shared memory of a fixed size; made by `create` in one process and by `open` in the other."""

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
