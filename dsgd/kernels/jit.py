"""Compiling kernels: in turn, and kept on disk under stamps of what they are made from.

**Stamps.** Machine code that is kept on disk must be thrown away when anything that it was made of changes, in whatever
file, and by nothing else: not by a comment, the time of a file, or where it lies.

Python has compiled each module already. The stamp of a kernel covers the byte code, without line numbers and
docstrings, of its module and of those of the functions, classes and types that it names, and so on for the functions.
With a module come its decorators, and so the options of the compiler and what it is extended by there. Numbers and
texts that a function finds elsewhere are covered by their values.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import importlib.util
import logging
import os
import pickle
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from inspect import isfunction, ismodule
from pathlib import Path
from types import CodeType
from typing import IO, Any, Final

import llvmlite
import numba
import numpy as np
from numba import njit
from numba.core import config, event
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompileResult
from numba.core.runtime.nrt import rtsys
from numba.core.serialize import dumps
from numba.extending import register_jitable
from numba.misc.appdirs import user_cache_dir

from dsgd.stages import pass_aside, stage

_OURS: Final = "dsgd"


@cache
def stamp_of(function: Any) -> str:
    """Return a text that changes where the machine code of a function may."""
    return hashlib.sha256("\n".join(sorted(_covered(function))).encode()).hexdigest()


def _covered(function: Any) -> set[str]:
    """Return the modules of a function and of all that it calls, with digests of their code, and constants."""
    ours = {_OURS, _package(function.__module__)}
    covered, found, ahead = set(), {function}, [function]
    while ahead:
        naming = ahead.pop()
        covered.add(_code_of(naming.__module__) or _digest(naming.__code__))
        for name, value in _named(naming):
            value = getattr(value, "py_func", None) or getattr(value, "_defn", None) or value
            origin = getattr(value, "__module__", None)
            if not isinstance(origin, str) or _package(origin) not in ours:
                covered.add(f"{name} {_text(value)}")
            elif not isfunction(value):
                covered.add(_code_of(origin))
            elif value not in found:
                found.add(value)
                ahead.append(value)
    return covered


def _package(module: str) -> str:
    return module.partition(".")[0]


def _named(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function, and those inside it, know from outside: names and values."""
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
        for name in code.co_names:
            value = function.__globals__.get(name)
            yield name, value
            if ismodule(value) and _package(value.__name__) == _OURS:
                yield from ((member, getattr(value, member, None)) for member in code.co_names)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell.cell_contents
    yield from ((str(n), value) for n, value in enumerate(function.__defaults__ or ()))


def _text(value: Any) -> str:
    """Return a constant as text; nothing for what other libraries define."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    return repr(value) if isinstance(value, (bool, int, float, complex, str, bytes, np.generic)) else ""


@cache
def _code_of(module: str) -> str:
    """Return a text for the code of a module, an empty one where it has no file."""
    try:
        spec = importlib.util.find_spec(module)
        code = spec.loader.get_code(module)  # type: ignore[union-attr]
    except (AttributeError, ImportError, ValueError):
        code = None
    return "" if code is None else f"{module} {_digest(code)}"


def _digest(code: CodeType) -> str:
    texts = [code.co_code.hex(), str((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))]
    consts = code.co_consts
    is_documented = code.co_names[:1] == ("__doc__",) if code.co_name == "<module>" else code.co_name != "<lambda>"
    if is_documented and consts and isinstance(consts[0], str):
        consts = consts[1:]
    texts += [_digest(const) if isinstance(const, CodeType) else _text(const) for const in consts]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


_SUFFIX: Final = ".kernel"

# What a wheel carries kernels for (``make wheel KERNELS=1``), as the compiler names it, and the processors that run it.
_PORTABLE: Final = ("x86_64-unknown-linux-gnu", "x86-64-v3", "+avx2")
_PORTABLE_NEEDS: Final = frozenset({"+avx", "+avx2", "+bmi", "+bmi2", "+f16c", "+fma", "+lzcnt", "+movbe"})
_DIGEST: Final = hashlib.sha256().digest_size

# After how long a kernel that nobody has used is removed.
_UNUSED_S: Final = 90 * 86400.0


@cache
def kernel_folder() -> Path | None:
    """Return where kernels are kept: ``NUMBA_CACHE_DIR``, the user's caches, or beside this file; None if nowhere."""
    given = [Path(config.CACHE_DIR) / "dsgd"] if config.CACHE_DIR else []
    for folder in (*given, Path(user_cache_dir("dsgd", False)) / "kernels", Path(__file__).parent / "__pycache__"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            continue
        return folder
    logging.getLogger("dsgd").warning(
        "kernels of dsgd cannot be kept on disk, and every process compiles them again, which takes seconds: no folder "
        "can be written to. Set NUMBA_CACHE_DIR to one that can."
    )
    return None


class KernelCache:
    """The compiled forms of one function, in the place of Numba's own cache of it.

    Numba keeps machine code alongside each file, under its line number and age, so that every checkout, image, wheel
    and environment compiles all again. Here a kernel is kept under a digest of what it was made of (`stamp_of`), the
    types of its arguments, the options and version of the compiler and the processor, in a folder of the user. Nothing
    there is ever out of date; what nobody has used for months is removed. A package can carry kernels for a kind of
    processors.
    """

    def __init__(self, function: Any, options: Mapping[str, Any]) -> None:
        self._function, self._options = function, sorted(options.items())

    @property
    def cache_path(self) -> str:
        """The folder, as Numba calls it."""
        return str(kernel_folder() or "")

    @property
    def lock_path(self) -> Path | None:
        """The file that is locked by who compiles; see `dsgd.kernels.jit`."""
        folder = kernel_folder()
        return None if folder is None else folder / f"{self._function.__module__.rpartition('.')[0]}.lock"

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the kernel for these types, None if it has to be compiled: a file that was damaged is none.

        Numba would load the types and lowering of all of numpy first, which takes longer than the kernels of a fit.
        """
        target = context.codegen().magic_tuple()
        places = [(kernel_folder(), target)]
        if _runs_portable(target):
            places.append((_carried(), _PORTABLE))
        for folder, made_for in places:
            name = self._name(signature, made_for)
            data = None if folder is None or name is None else _read(folder / name)
            if data is not None:
                rtsys.initialize(context)  # arrays are counted by it; all that a compiled kernel needs
                return CompileResult._rebuild(context, *pickle.loads(data))
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep a kernel that has been compiled, where that can be done."""
        folder, name = kernel_folder(), self._name(signature, compiled.codegen.magic_tuple())
        if folder is None or name is None or compiled.lifted or compiled.library.has_dynamic_globals:
            return
        data = dumps(compiled._reduce())
        aside = folder / f".{os.getpid()}.{name}"
        with suppress(OSError):
            aside.write_bytes(hashlib.sha256(data).digest() + data)
            aside.replace(folder / name)
            _remove_unused(folder)
        with suppress(OSError):
            aside.unlink(missing_ok=True)  # where the disk was full

    def enable(self) -> None:
        """Do nothing: it is."""

    disable = flush = enable

    def _name(self, signature: Any, target: tuple[str, ...]) -> str | None:
        """Return the name of the file for these types and a processor; None if it could mean something else."""
        # Of a call it is the types of the arguments alone.
        types = [_described(argument) for argument in getattr(signature, "args", signature)]
        # A function of the user as an argument is told by its address, which says nothing to another process.
        if " at 0x" in str(types):
            return None
        made_of = stamp_of(self._function), types, self._options, target, _compiler()
        name = re.sub(r"[^\w.]", "", f"{self._function.__module__}.{self._function.__qualname__}")
        return f"{name}-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:24]}{_SUFFIX}"


def _read(path: Path) -> bytes | None:
    try:
        kept = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(kept[_DIGEST:]).digest() != kept[:_DIGEST]:
        return None
    with suppress(OSError):
        os.utime(path)
    return kept[_DIGEST:]


@cache
def _carried() -> Path | None:
    """Return the folder of kernels that came with the package, if some did."""
    folder = Path(__file__).with_name("carried")
    return folder if folder.is_dir() else None


@cache
def _runs_portable(target: tuple[str, ...]) -> bool:
    """Return whether a processor runs what is compiled for `_PORTABLE`."""
    return target[0] == _PORTABLE[0] and set(target[2].split(",")) >= _PORTABLE_NEEDS


def _described(argument: Any) -> str:
    """Return a type as a text; Numba leaves out the names of the fields of tuples."""
    inside = [_described(item) for item in getattr(argument, "types", ())]
    return f"{argument} {getattr(argument, 'fields', '')} {inside}"


@cache
def _compiler() -> tuple[Any, ...]:
    settings = config.OPT, config.BOUNDSCHECK, config.DEBUGINFO_DEFAULT, config.LOOP_VECTORIZE, config.SLP_VECTORIZE
    return numba.__version__, llvmlite.__version__, sys.version_info[:2], config.DISABLE_INTEL_SVML, *map(str, settings)


@cache
def _remove_unused(folder: Path) -> None:
    """Remove what nobody has used for months, once in a process."""
    for path in folder.glob(f"*{_SUFFIX}"):
        if time.time() - path.stat().st_mtime > _UNUSED_S:
            path.unlink(missing_ok=True)


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
    """What is linked into kernels: a library of code that ends there.

    Numba would turn every function that a kernel calls into machine code by itself, then link it and optimise once
    more, which takes a fifth of compiling. Kernels are as fast without, and their sums the same to the bit.
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

    Sixteen processes on two cores that compiled the same kernels side by side took two minutes for what takes one of
    them ten seconds. So who misses a kernel locks a file alongside the cache and looks once more; the lock is kept
    until the kernel is saved or cannot be compiled, and dies with its process. Who finds it locked waits and then looks
    again. Who waits for longer than `_PATIENCE_S`, or cannot lock files, compiles by itself: that costs time and
    nothing else. Only the outermost kernel of a process locks, so processes cannot wait for each other in a circle.
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
    """Says, once in a process, that a kernel is not on disk yet; meanwhile no garbage of the compiler is collected."""

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
    """Takes the seconds in which a thread compiles, or waits for the compiler, off its work clock."""

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
    """Return `function` as a `kernel` that allocates nothing and counts no references, which would outlast a step."""
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
