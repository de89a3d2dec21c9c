"""Compiling in turns: of the processes that start together one compiles a kernel, and the others load it.

Problem: the workers of a host that begin their first fit at once all miss the same kernels in the cache on disk.
Sixteen processes on two cores that compiled them side by side took two minutes for what takes one of them ten seconds.

Method: who misses a kernel locks a file beside the cache and looks once more; the lock is kept until the kernel is
saved or cannot be compiled. It dies with its process. Who finds it locked waits and then looks again, all at once and
without a lock. Who waits for longer than `_PATIENCE_S`, or cannot lock files, compiles by itself: that costs time and
nothing else.

Numba lets one thread of a process compile at a time, and what its kernel calls inside that. Only the outermost locks,
so processes cannot wait for each other in a circle.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

_PATIENCE_S: Final = 120.0
_LOOK_S: Final = 0.02


class Turns:
    """The turn of this process to compile; used under the lock of Numba's compiler."""

    def __init__(self) -> None:
        self._compiling: list[Any] = []
        self._file: IO[bytes] | None = None

    def loading(self, dispatcher: Any, load: Callable[..., Any]) -> Callable[..., Any]:
        """Return `load`, which waits for the turn of this process where it finds nothing, and then looks again."""

        def load_in_turn(*args: Any) -> Any:
            found = load(*args)
            if found is not None:
                return found
            try:
                if not self._compiling:
                    found = self._wait(dispatcher._cache.lock_path, lambda: load(*args))
                if found is None:
                    self._compiling.append(dispatcher)
            finally:
                if not self._compiling:
                    self._end()
            return found

        return load_in_turn

    def saving(self, dispatcher: Any, save: Callable[..., Any]) -> Callable[..., Any]:
        """Return `save`, which ends the turn."""

        def save_in_turn(*args: Any) -> Any:
            try:
                return save(*args)
            finally:
                self.leave(dispatcher)

        return save_in_turn

    def leave(self, dispatcher: Any) -> None:
        """Note that a kernel is saved, or cannot be compiled."""
        if self._compiling and self._compiling[-1] is dispatcher:
            self._compiling.pop()
        if not self._compiling:
            self._end()

    def _wait(self, path: Path | None, look: Callable[[], Any]) -> Any:
        """Wait for the lock, or for what another process compiles; returns what is found at last."""
        self._file = _opened(path)
        deadline = time.monotonic() + _PATIENCE_S
        while self._file is not None and time.monotonic() < deadline:
            if _lock(self._file, fcntl.LOCK_EX):
                return look()
            while not _lock(self._file, fcntl.LOCK_SH) and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
            fcntl.flock(self._file, fcntl.LOCK_UN)
            found = look()
            if found is not None:
                return found
        self._end()
        return None

    def _end(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _opened(path: Path | None) -> IO[bytes] | None:
    """Return the file to lock; None where that cannot be."""
    if path is None:
        return None
    try:
        file = path.open("ab")
    except OSError:
        return None
    try:
        _lock(file, fcntl.LOCK_SH)
    except OSError:  # a file system without locks
        file.close()
        return None
    fcntl.flock(file, fcntl.LOCK_UN)
    return file


def _lock(file: IO[bytes], how: int) -> bool:
    """Lock a file if that can be done at once, and return whether it was."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
