"""Arrays in memory-mapped files, for rows that exceed memory.

The file has no name from the start (or loses it at once, where the file system knows no nameless files), so nothing is
left of it when the process is killed. Its room on disk is taken before anything is written: a full disk is an error
here, and not a bus error in the middle of an epoch.

A mapping counts as memory of the process only while its pages are in the page table, and Dask's nannies count exactly
that. `release` takes pages out of the table; the system keeps their contents and writes them to disk when it needs the
memory. A pass that releases the rows behind it needs a bounded amount of memory for a file of any size.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from typing import Any

import numpy as np

from dsgd.errors import DiskSpaceError
from dsgd.types import AnyArray

_PAGE = mmap.PAGESIZE
#: What is read or written once is released this much at a time: a call costs as much as reading some 20 kB.
STRIDE_BYTES = 8 << 20
# Not all systems have all of these.
_WILLNEED = getattr(mmap, "MADV_WILLNEED", None)
_DONTNEED = getattr(mmap, "MADV_DONTNEED", None)


class MappedFile:
    """One nameless file, mapped into this process; arrays are cut out of it and keep it alive."""

    def __init__(self, folder: str, nbytes: int) -> None:
        self.nbytes = max(nbytes, 1)
        self._taken = 0
        free = shutil.disk_usage(folder).free
        if self.nbytes > free:
            raise _no_room(folder, self.nbytes, free)
        with tempfile.TemporaryFile(dir=folder, prefix="dsgd-") as file:
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, self.nbytes)
                else:
                    file.truncate(self.nbytes)
            except OSError as error:
                raise _no_room(folder, self.nbytes, shutil.disk_usage(folder).free) from error
            self._map = mmap.mmap(file.fileno(), self.nbytes)
        self._start = np.frombuffer(self._map, np.uint8, 1).ctypes.data

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> AnyArray:
        """Cut the next array out of the file."""
        array: AnyArray = np.ndarray(shape, dtype, buffer=self._map, offset=self._taken)
        self._taken += _rounded(array.nbytes)
        return array

    def put(self, array: AnyArray) -> AnyArray:
        """Copy an array into the file, releasing it on the way; return the copy."""
        copy = self.empty(array.shape, array.dtype)
        step = max(1, STRIDE_BYTES * len(array) // max(1, array.nbytes))
        for start in range(0, len(array), step):
            copy[start : start + step] = array[start : start + step]
            self.release(copy[start : start + step])
        return copy

    def release(self, array: AnyArray | None = None) -> None:
        """Take the pages of an array, or of all, out of this process; it stays usable, and nothing is lost."""
        if _DONTNEED is not None:
            self._advise(_DONTNEED, array)

    def prefetch(self, array: AnyArray) -> None:
        """Ask the system to read an array from disk meanwhile."""
        if _WILLNEED is not None:
            self._advise(_WILLNEED, array)

    def _advise(self, advice: int, array: AnyArray | None) -> None:
        begin, nbytes = (0, self.nbytes) if array is None else (array.ctypes.data - self._start, array.nbytes)
        first = begin // _PAGE * _PAGE
        if nbytes:
            self._map.madvise(advice, first, begin + nbytes - first)


def mapped_bytes(*sizes: int) -> int:
    """Return the size of a file for arrays of these sizes in bytes, each beginning on a page of its own."""
    return sum(_rounded(size) for size in sizes)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


def _no_room(folder: str, needed: int, free: int) -> DiskSpaceError:
    return DiskSpaceError(
        f"rows that do not fit into memory need {needed:,} bytes of disk in {folder}, which has {free:,} bytes free. "
        "Make room, or give Dask a larger disk (its setting temporary-directory, or dask worker --local-directory)."
    )
