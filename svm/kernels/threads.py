"""What a solver computes with: threads over slabs of columns, BLAS limited to one, and memory that is used again.

**Memory.** The first write to new memory costs a page fault for every few kilobytes. A process therefore keeps the
memory that caches of earlier problems have returned, never more than was lent at one time, and lends it again. Idle
memory is offered to the system, which may take its pages without a copy when they are needed; `release_memory` gives
all of it back at once.

**Threads.** Two pools that spin against each other, BLAS's and an OpenMP one, cost more than the second core brings.

A vector times a matrix is written ``np.dot(x, A)`` in what these threads run: that gives the interpreter lock away,
which ``x @ A`` keeps.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import numpy as np
from joblib import cpu_count

from dsgd.runtime.pools import blas_threads, limit_blas
from dsgd.types import AnyArray

_SMALL_BYTES = 2**20  # below, an ordinary array does as well


class _Buffer:
    """A piece of memory; pages that were never written take none.

    Pages are small ones: rows are written a kilobyte here and there, and a huge page is cleared as a whole for each.
    numpy's own arrays ask for huge pages, with which the first 370 megabytes of rows took 0.9 s instead of 0.24 s.
    """

    def __init__(self, nbytes: int) -> None:
        self._memory: Any = None
        if nbytes >= _SMALL_BYTES and hasattr(mmap, "MAP_PRIVATE") and hasattr(mmap, "MAP_ANONYMOUS"):
            self._memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.bytes: AnyArray = np.frombuffer(self._memory, dtype=np.uint8)
        else:
            self.bytes = np.empty(nbytes, dtype=np.uint8)

    def offer(self) -> None:
        """Let the system take the pages when it needs some; what was written is lost."""
        if self._memory is not None and hasattr(mmap, "MADV_FREE"):
            with contextlib.suppress(OSError):  # a system built without it
                self._memory.madvise(mmap.MADV_FREE)


class Buffers:
    """Lends memory and keeps returned memory; used by several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may run inside
        self._idle: list[_Buffer] = []
        self._lent_bytes = 0
        self._most_bytes = 0

    @property
    def idle_bytes(self) -> int:
        """Bytes kept that are not in use."""
        with self._lock:
            return sum(len(buffer.bytes) for buffer in self._idle)

    def borrow(self, owner: Any, nbytes: int) -> AnyArray:
        """Lend memory until `owner` is gone."""
        with self._lock:
            fitting = [buffer for buffer in self._idle if len(buffer.bytes) >= nbytes]
            if fitting:
                buffer = min(fitting, key=lambda b: len(b.bytes))
                self._idle.remove(buffer)
                self._lent_bytes += len(buffer.bytes)
            else:
                self._lent_bytes += nbytes
                self._most_bytes = max(self._most_bytes, self._lent_bytes)
                self._trim()
                buffer = _Buffer(nbytes)
        weakref.finalize(owner, self._take_back, buffer).atexit = False
        return buffer.bytes[:nbytes]

    def _take_back(self, buffer: _Buffer) -> None:
        buffer.offer()
        with self._lock:
            self._lent_bytes -= len(buffer.bytes)
            self._idle.append(buffer)
            self._trim()

    def _trim(self) -> None:
        """Drop the smallest idle buffers beyond what was once lent at the same time."""
        self._idle.sort(key=lambda b: len(b.bytes))
        while self._idle and self.idle_bytes + self._lent_bytes > self._most_bytes:
            del self._idle[0]

    def release(self) -> None:
        """Give idle memory back to the system; memory lent now is not kept when it is returned."""
        with self._lock:
            self._idle.clear()
            self._most_bytes = 0


_BUFFERS = Buffers()
borrow = _BUFFERS.borrow


def release_memory() -> None:
    """Return the memory that finished fits of kernel SVMs keep for later ones to the operating system."""
    _BUFFERS.release()


_LENT_BYTES = 32 * 2**20  # the largest block, and as many values of new samples
_own = threading.local()


def count_threads(n_jobs: int | None) -> int:
    """Return the threads to use: None takes what BLAS may use in this process, −1 all cores."""
    if n_jobs is None:
        return max(1, *blas_threads())
    return int(n_jobs) if n_jobs > 0 else max(1, cpu_count() + 1 + int(n_jobs))


def scratch(shape: tuple[int, ...], dtype: Any) -> AnyArray:
    """Return an array with anything in it, in memory that is this thread's own until its next call.

    A slab of kernel values is a megabyte. If the allocator returns such pieces to the system at once, as in Dask's
    workers, their pages are cleared again for each slab, which takes as long as the product.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = getattr(_own, "memory", None)
    if memory is None or len(memory) < size:
        memory = _own.memory = np.empty(size, dtype=np.uint8)
    found: AnyArray = memory[:size].view(dtype).reshape(shape)
    return found


class StoppedError(Exception):
    """What a thread does is wanted no more, as another one has failed or the user has interrupted."""


class Pool:
    """Runs a function over slabs of a range.

    - `outer`: the pool in a slab of which this one is used: when that is over, this one is.
    - `check`: raises where what is done here is wanted no more.
    """

    def __init__(
        self,
        n_threads: int,
        executor: ThreadPoolExecutor | None,
        outer: Pool | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.n_threads = n_threads
        self._executor, self._outer, self._check = executor, outer, check
        self._lent = np.empty(0, dtype=np.uint8)
        self._has_failed = False

    @property
    def is_over(self) -> bool:
        """Whether a slab has failed, or the user has interrupted, so that work under way may stop."""
        return self._has_failed or (self._outer is not None and self._outer.is_over)

    def check(self) -> None:
        """Raise `StoppedError` where the pool around this one is over, or what `check` of either raises."""
        if self._check is not None:
            self._check()
        if self._outer is not None:
            if self._outer.is_over:
                raise StoppedError
            self._outer.check()

    def lend(self, nbytes: int) -> AnyArray:
        """Return memory that is reused each time: new pages take as long as the values written there."""
        if len(self._lent) < nbytes:
            # Pages that are not written take none; of few bytes an array is made in less time.
            is_small = nbytes < _SMALL_BYTES
            self._lent = np.empty(nbytes, np.uint8) if is_small else borrow(self, max(nbytes, _LENT_BYTES))
        return self._lent[:nbytes]

    def slabs(self, work: Callable[[int, int], None], n: int, size: int, longest: int = 1) -> None:
        """Call ``work(start, stop)`` for consecutive slabs of 0..n of about `size`, several at once.

        An exception, such as that of ctrl-C in the main thread, ends it once all have finished their slab.

        - `n`, `size`: the range and the length of a slab, the last of which may be shorter.
        - `longest`: so many slabs may be given at once, where `work` does them one by one without the
          interpreter: many at first and one at a time at the end, so that all threads end together (guided
          self-scheduling, Polychronopoulos and Kuck 1987).
        """
        self._has_failed = False
        taken = self._cut(n, size, longest)
        if self._executor is None or n <= size:
            for start, stop in taken:
                self.check()
                work(start, stop)
            return

        def take() -> None:
            try:
                for start, stop in taken:  # a free thread takes the next one: cores are not equally fast
                    if self.is_over:
                        return
                    work(start, stop)
            except BaseException:
                self._has_failed = True
                raise

        futures: list[Future[None]] = []
        try:
            futures.extend(self._executor.submit(take) for _ in range(1, self.n_threads))
            take()
            for future in futures:
                future.result()
        except BaseException as error:
            self._has_failed = True
            wait(futures)
            failures = [failure for future in futures if (failure := future.exception()) is not None]
            for failure in failures if isinstance(error, StoppedError) else ():
                if not isinstance(failure, StoppedError):  # it was that one which stopped this thread
                    raise failure from None
            raise

    def _cut(self, n: int, size: int, longest: int) -> Iterator[tuple[int, int]]:
        """Return where stretches of slabs begin and end; several threads may take from it."""
        if longest == 1:
            return iter([(start, min(n, start + size)) for start in range(0, n, size)])
        found, start = [], 0
        while start < n:
            n_left = -(-(n - start) // size)
            count = min(longest, max(1, n_left // (2 * self.n_threads)) if self.n_threads > 1 else n_left)
            found.append((start, min(n, start + count * size)))
            start = found[-1][1]
        return iter(found)

    def spread(self, work: Callable[[int, Pool], None], n: int) -> None:
        """Call ``work(number, pool)`` for numbers below n, several at once, each with a pool that an exception ends."""
        idle = [Pool(1, None, self) for _ in range(self.n_threads)]

        def run(number: int, _: int) -> None:
            pool = idle.pop()
            try:
                work(number, pool)
            finally:
                idle.append(pool)

        self.slabs(run, n, 1)


@contextlib.contextmanager
def open_pool(n_threads: int, check: Callable[[], None] | None = None) -> Iterator[Pool]:
    """Yield a pool of `n_threads`, which asks `check` (see `Pool`); BLAS has one thread while it is open."""
    # Overflow is not warned of in the threads: sums that are not finite are refused where they are used.
    with limit_blas(1):
        if n_threads == 1:
            yield Pool(1, None, check=check)
            return
        with ThreadPoolExecutor(
            n_threads - 1, "dsgd-svm", partial(np.seterr, over="ignore", invalid="ignore")
        ) as executor:
            yield Pool(n_threads, executor, check=check)
