"""Compiling kernels: in turn, with the cache of this package on disk, so that new processes load machine code."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from numba import njit
from numba.core import config, event
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.extending import register_jitable

from dsgd.kernels.cache import KernelCache, kernel_folder
from dsgd.stages import pass_aside, stage


class PartCompiler(Compiler):
    """A pipeline of Numba's whose outcome is linked into kernels, and never called by itself."""

    def define_pipelines(self) -> Any:
        """Return the stages of the pipeline."""
        self.state.library = _PartLibrary(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        return super().define_pipelines()


class _NoCode:
    """Takes the place of a code generator that is asked to prepare a function for being called."""

    def set_env(self, name: str, env: Any) -> None:
        """Do nothing: parts of kernels make no Python objects."""


class _PartLibrary(JITCodeLibrary):
    """What is linked into kernels.

    Problem: Numba makes every function that a kernel calls fit to be called by itself. It is optimised and turned into
    machine code, then linked into the kernel and optimised once more with all around it. That takes a fifth of
    compiling. Method: a library of code that ends with what is linked. Kernels are as fast as before, and their sums
    the same to the bit.
    """

    @property
    def codegen(self) -> Any:
        return _NoCode()

    def get_pointer_to_function(self, name: str) -> int:
        return 0

    def _optimize_final_module(self) -> None:
        """Leave that to the kernel."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


_PATIENCE_S: Final = 120.0
_LOOK_S: Final = 0.02


class Turns:
    """The turn of this process to compile; used under the lock of Numba's compiler.

    Problem: the workers of a host that begin their first fit at once all miss the same kernels in the cache on disk.
    Sixteen processes on two cores that compiled them side by side took two minutes for what takes one of them ten
    seconds.

    Method: who misses a kernel locks a file alongside the cache and looks once more; the lock is kept until the kernel
    is saved or cannot be compiled. It dies with its process. Who finds it locked waits and then looks again, all at
    once and without a lock. Who waits for longer than `_PATIENCE_S`, or cannot lock files, compiles by itself: that
    costs time and nothing else. Numba lets one thread of a process compile at a time, and what its kernel calls inside
    that. Only the outermost locks, so processes cannot wait for each other in a circle.
    """

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


#: The environment variable of processes whose starter says by itself that kernels are compiled.
SAID: Final = "DSGD_COMPILING_SAID"

# Numba would add a wrapper for C to every function, which takes a tenth of all compiling; nothing here asks for one.
_OPTIONS: Final = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
if config.DISABLE_JIT:
    # Kernels need intrinsics that Python has not: NUMBA_DISABLE_JIT is for the user's own code.
    config.DISABLE_JIT = False
    logging.getLogger("dsgd").warning(
        "NUMBA_DISABLE_JIT is set: dsgd compiles its kernels nevertheless, and so is whatever is decorated from now on."
    )

#: ``part()`` compiles a part of a kernel, and takes options of Numba's such as ``fastmath``. It has no entry in the
#: cache of its own: a kernel's entry holds everything that it calls. Nor has it a wrapper for Python, which would take
#: a tenth of all compiling, or machine code (`_PartLibrary`): there it runs as it is written.
part: Final[Callable[..., Any]] = partial(register_jitable, pipeline_class=PartCompiler, **_OPTIONS)


def inlined(fastmath: frozenset[str] | set[str] = frozenset()) -> Callable[[Callable[..., Any]], Any]:
    """Return what compiles a small function that kernels call.

    LLVM must inline it, since whether it otherwise would depends on what else the kernel holds, and a loop that is not
    inlined takes half as long again. The rest is as of a `part`.

    - `fastmath`: what LLVM may do to sums and products, such as ``{"reassoc", "contract"}``; nothing by default.
    """
    compiled: Callable[[Callable[..., Any]], Any] = part(forceinline=True, fastmath=set(fastmath) or False)
    return compiled


#: Compiles a small function that kernels call, in the arithmetic that is written.
scalar = inlined()


class _FirstUse(event.Listener):
    """Says, once in a process, that a kernel is not on disk yet: somebody may wonder where some seconds go.

    Meanwhile no garbage is collected. The compiler makes objects by the million, and to look at them again and again,
    for a few tens of MB of garbage, takes a tenth of all compiling.
    """

    def __init__(self) -> None:
        self._is_said = False
        self._collects = False
        self._stages: list[stage] = []

    def on_start(self, event: Any) -> None:
        """Look at a kernel that is about to be compiled."""
        is_ours = str(event.data["dispatcher"].py_func.__module__).startswith("dsgd.")
        if is_ours and not self._is_said and SAID not in os.environ:
            self._is_said = True
            logging.getLogger("dsgd").warning(
                "compiling kernels of dsgd for this machine, once: 2 to 10 s of the processor for each kind of model, "
                "longer where it is busy. They are kept in %s; `dsgd warm` does it ahead.",
                kernel_folder() or "memory",
            )
        # Numba compiles one at a time, and what that calls inside it: only the outermost changes the collector.
        if not self._stages:
            self._collects = gc.isenabled()
            gc.disable()
        self._stages.append(stage("kernels").__enter__())

    def on_end(self, event: Any) -> None:
        """Look at a kernel that is compiled, or failed to be."""
        self._stages.pop().__exit__()
        if not self._stages and self._collects:
            gc.enable()
        # Not `event.is_failed`: it is true where there are no details, and the end of a compilation always has some, of
        # no exception if there was none.
        if event._exc_details is not None and event._exc_details[0] is not None:
            _turns.leave(event.data["dispatcher"])


class _Aside(threading.local, event.Listener):
    """Takes the seconds in which a thread has the lock of the compiler, or waits for it, off its work clock.

    A kernel that nobody could load ahead is loaded or compiled in the middle of a round, which did not take that long.
    """

    depth, since = 0, 0.0

    def on_start(self, event: Any) -> None:
        """Note when a thread asks for the lock."""
        if not self.depth:
            self.since = time.perf_counter()
        self.depth += 1

    def on_end(self, event: Any) -> None:
        """Note that a thread has let go of the lock."""
        self.depth -= 1
        if not self.depth:
            pass_aside(time.perf_counter() - self.since)


_turns = Turns()
event.register("numba:compile", _FirstUse())
event.register("numba:compiler_lock", _Aside())


def kernel(function: Callable[..., Any]) -> Any:
    """Return `function` compiled: cached on disk, without the interpreter lock, dividing as numpy does."""
    return _cached(function, _OPTIONS)


def leaf_kernel(function: Callable[..., Any]) -> Any:
    """Return `function` compiled as a `kernel` that allocates nothing and counts no references to arrays.

    For a kernel that another one calls for every few rows: counting up and down, atomically, for each of a dozen
    arrays would take longer than a step. Numba refuses to compile it if it makes an array.
    """
    return _cached(function, {**_OPTIONS, "_nrt": False})


def _cached(function: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Return a compiled function that is kept on disk, where there is a folder for it."""
    dispatcher = njit(**options)(function)
    dispatcher._cache = kept = KernelCache(function, options)
    kept.load_overload = _staged(_turns.loading(dispatcher, kept.load_overload))  # type: ignore[method-assign]
    kept.save_overload = _turns.saving(dispatcher, kept.save_overload)  # type: ignore[method-assign]
    return dispatcher


def _staged(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return what loads a kernel from disk, as a stage of the fit."""

    def staged(*args: Any) -> Any:
        with stage("kernels"):
            return load(*args)

    return staged
