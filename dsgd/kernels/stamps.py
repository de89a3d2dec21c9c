"""What the machine code of a kernel was made of, as a text.

Problem: machine code that is kept on disk must be thrown away when anything that it was made of changes, in whatever
file, and by nothing else: not by a comment, the time of a file, or where it lies.

Method: Python has compiled each module already. The stamp of a kernel covers the byte code, without line numbers and
docstrings, of its module and of those of the functions, classes and types that it names, and so on for the functions.
With a module come its decorators, and so the options of the compiler and what is taught to it there. Numbers and texts
that a function finds elsewhere are covered by their values.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator
from functools import cache
from inspect import isfunction, ismodule
from types import CodeType
from typing import Any, Final

import numpy as np

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
