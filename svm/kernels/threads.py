"""The threads of a solver: a pool over slabs of columns, with BLAS limited to one thread.

Two pools that spin against each other, BLAS's and an OpenMP one, cost more than the second core brings.

A vector times a matrix is written ``np.dot(x, A)`` in what these threads run: that gives the interpreter lock away,
which ``x @ A`` keeps.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from joblib import cpu_count

from dsgd.runtime.pools import blas_threads, limit_blas
from dsgd.svm.kernels.buffers import borrow
from dsgd.types import AnyArray

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

    - `n_threads`: threads; one means the calling thread.
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
            self._lent = borrow(self, max(nbytes, _LENT_BYTES))  # pages that are not written take none
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
        """Call ``work(number, pool)`` for all numbers below n, several at once, each with a pool of one thread.

        An exception, as that of ctrl-C in the main thread, ends all of them where they next use their pools.
        """
        idle = [Pool(1, None, self) for _ in range(self.n_threads)]

        def run(number: int, _: int) -> None:
            pool = idle.pop()
            try:
                work(number, pool)
            finally:
                idle.append(pool)

        self.slabs(run, n, 1)


def _keep_quiet() -> None:
    """Say nothing of overflow in this thread: sums that are not finite are refused where they are used."""
    np.seterr(over="ignore", invalid="ignore")


@contextlib.contextmanager
def open_pool(n_threads: int, check: Callable[[], None] | None = None) -> Iterator[Pool]:
    """Yield a pool of `n_threads`, which asks `check` (see `Pool`); BLAS has one thread while it is open."""
    with limit_blas(1):
        if n_threads == 1:
            yield Pool(1, None, check=check)
            return
        with ThreadPoolExecutor(n_threads - 1, thread_name_prefix="dsgd-svm", initializer=_keep_quiet) as executor:
            yield Pool(n_threads, executor, check=check)
