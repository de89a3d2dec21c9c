"""How kernels are compiled: with a cache on disk, so that new processes load machine code.

Processes that share the cache compile in turns (`dsgd.kernels.turns`).
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from numba import njit
from numba.core import config, event
from numba.extending import register_jitable

from dsgd.kernels.cache import KernelCache, kernel_folder
from dsgd.kernels.embedded import PartCompiler
from dsgd.kernels.turns import Turns
from dsgd.stages import stage

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
#: a tenth of all compiling, or machine code (`dsgd.kernels.embedded`): there it runs as it is written.
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


_turns = Turns()
event.register("numba:compile", _FirstUse())


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
