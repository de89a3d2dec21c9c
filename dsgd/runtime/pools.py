"""Limiting the thread pools of BLAS, OpenMP and Numba while ranks run.

Problem: BLAS, OpenMP and Numba each keep a pool of one thread per core. Four ranks on four cores that multiply matrices
would run sixteen threads, which is slower than four and takes the cores of everybody else.

The limit of a BLAS library applies to the whole process, so the limits of all gangs are counted: the lowest applies,
and after the last gang the library gets its own limit back. Limits of OpenMP and Numba apply to the thread that sets
them.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

from threadpoolctl import ThreadpoolController

_NUMBA_POOL: Final = "numba.np.ufunc.parallel"

_lock: Final = threading.Lock()
_wanted: Final[list[int]] = []  # the limits of all callers inside `limit_blas`
_before: Final[list[int]] = []  # the threads of each BLAS library before the first of them


@contextlib.contextmanager
def limit_pools(n_threads: int) -> Iterator[None]:
    """Let BLAS, OpenMP and Numba use at most `n_threads` threads for what this thread calls in a ``with`` block.

    Numba's pool is left alone unless it runs: starting it takes a tenth of a second, and no kernel here uses it.
    """
    with limit_blas(n_threads), _limit_openmp(n_threads), _limit_numba(n_threads):
        yield


@cache
def _libraries(user_api: str) -> list[Any]:
    # Looking for the libraries of the process takes ten milliseconds, more than a small fit.
    controllers: list[Any] = ThreadpoolController().select(user_api=user_api).lib_controllers
    return controllers


def blas_threads() -> list[int]:
    """Return how many threads each BLAS library may use now."""
    return [int(library.num_threads) for library in _libraries("blas")]


@contextlib.contextmanager
def limit_blas(n_threads: int) -> Iterator[None]:
    """Let BLAS use at most `n_threads` threads in a ``with`` block, and as many as before once no thread is in one.

    Several threads may be in such blocks at once, and leave them in any order: the smallest number of theirs holds.
    """
    libraries = _libraries("blas")
    with _lock:
        if not _wanted:
            _before[:] = blas_threads()
        _wanted.append(n_threads)
        _set_threads(libraries, [min(n, *_wanted) for n in _before])
    try:
        yield
    finally:
        with _lock:
            _wanted.remove(n_threads)
            _set_threads(libraries, [min([n, *_wanted]) for n in _before])


@contextlib.contextmanager
def _limit_openmp(n_threads: int) -> Iterator[None]:
    libraries = _libraries("openmp")
    before = [library.num_threads for library in libraries]
    _set_threads(libraries, [min(n, n_threads) for n in before])
    try:
        yield
    finally:
        _set_threads(libraries, before)


def _set_threads(libraries: Sequence[Any], counts: Sequence[int]) -> None:
    for library, n in zip(libraries, counts, strict=True):
        if library.num_threads == n:  # asking takes a tenth of the time
            continue
        # Since 3.8, threadpoolctl lets only one thread control a library and ignores all others. Here any caller may
        # be the first to enter and any the last to leave; an outer limit is restored at the end.
        release = getattr(library, "clear_controlling_thread", None)
        if release is not None:
            release(force=True)
        library.set_num_threads(n)
        if release is not None:
            release(force=True)


@contextlib.contextmanager
def _limit_numba(n_threads: int) -> Iterator[None]:
    pool = sys.modules.get(_NUMBA_POOL)
    if not getattr(pool, "_is_initialized", False):
        yield
        return
    import numba

    before = numba.get_num_threads()
    numba.set_num_threads(min(n_threads, before))
    try:
        yield
    finally:
        numba.set_num_threads(before)
