"""Compiling in turns: of the processes that start together one compiles a kernel, and the others load it.

Problem: the workers of a host that begin their first fit at once all miss the same kernels in the cache on disk.
Sixteen processes on two cores that compiled them side by side took two minutes for what takes one of them ten seconds.

Method: who misses a kernel locks a file beside the cache and looks once more; the lock is kept until the kernel is
saved or cannot be compiled. It dies with its process. Who waits for longer than `_PATIENCE_S`, or cannot lock files,
compiles by itself: that costs time and nothing else.

Numba lets one thread of a process compile at a time, and what its kernel calls inside that. Only the outermost locks,
so processes cannot wait for each other in a circle.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

try:
    import fcntl
except ImportError:  # a system without locks on files
    fcntl = None  # type: ignore[assignment]

__all__ = ["Turns"]

_LOCK: Final = "dsgd-compiling.lock"
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
                    self._file = _locked(Path(dispatcher._cache.cache_path) / _LOCK)
                    found = load(*args)
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

    def _end(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _locked(path: Path) -> IO[bytes] | None:
    """Return a file once this process has locked it; None if that cannot be."""
    if fcntl is None:
        return None
    with contextlib.ExitStack() as on_error:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = on_error.enter_context(path.open("ab"))
        except OSError:
            return None  # a folder that cannot be written to; Numba says so where it saves
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOOK_S)
            except OSError:
                return None  # a file system without locks
            else:
                on_error.pop_all()
                return file
    return None
