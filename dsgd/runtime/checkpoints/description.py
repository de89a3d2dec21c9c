"""Descriptions of what a fit is given: equal in two processes where the values are, and as JSON can hold them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import CodeType, FunctionType
from typing import Any

import numpy as np


def describe(value: Any) -> Any:
    """Return a value as JSON can hold it, so that equal values give equal descriptions.

    Arrays are described by dtype, shape and digest; records by their fields, but for those whose metadata say that they
    follow from the rows (``of_rows``), which are compared by themselves; functions by their names and a digest of
    their code, since a name stays when a function is edited, and lambdas share theirs.
    """
    if is_dataclass(value) and not isinstance(value, type):
        described = {
            each.name: describe(getattr(value, each.name)) for each in fields(value) if not each.metadata.get("of_rows")
        }
        return {"is": type(value).__name__, **described}
    if isinstance(value, np.ndarray):
        content = repr(value.tolist()).encode() if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
        return f"{value.dtype} {value.shape} {hashlib.sha256(content).hexdigest()[:16]}"
    if isinstance(value, np.generic):
        return describe(value.item())
    if isinstance(value, Mapping):
        return {str(name): describe(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    if hasattr(value, "__qualname__"):
        # The representation of a function would have its address in it, which is another in every process.
        name = f"{value.__module__}.{value.__qualname__}"
        function = _function_of(value)
        return name if function is None else f"{name} {_digest_of_function(function)}"
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)


def _digest_of_function(function: FunctionType) -> str:
    """Return a digest of the code of a function and of what it refers to."""
    return hashlib.sha256(repr(_content(function, ())).encode()).hexdigest()[:16]


def _content(function: FunctionType, callers: tuple[FunctionType, ...]) -> list[Any]:
    """Return the code of a function, and the numbers, texts, arrays and functions that it refers to.

    Of functions of other modules there is the code alone: what a library refers to has no end.
    """
    code, held = function.__code__, []
    if function in callers:  # functions may call each other
        return []
    if not callers or function.__module__ == callers[0].__module__:
        held += [cell.cell_contents for cell in function.__closure__ or ()]
        held += [function.__globals__.get(name) for name in _names(code)]
        held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
    return [_code(code), [_held(value, (*callers, function)) for value in held]]


def _held(value: Any, callers: tuple[FunctionType, ...]) -> Any:
    """Return what a function has of a value that it refers to; None for objects, of which the code alone counts."""
    if (function := _function_of(value)) is not None:
        return _content(function, callers)
    if isinstance(value, (list, tuple)):
        return [_held(item, callers) for item in value]
    return describe(value) if isinstance(value, (bool, int, float, str, np.ndarray, np.generic)) else None


def _function_of(value: Any) -> FunctionType | None:
    """Return a function in Python, or that of one which numba compiles."""
    function = getattr(value, "py_func", value)
    return function if isinstance(function, FunctionType) else None


def _names(code: CodeType) -> list[str]:
    """Return the names that a code and those in it refer to, once each."""
    inner = (name for value in code.co_consts if isinstance(value, CodeType) for name in _names(value))
    return list(dict.fromkeys((*code.co_names, *inner)))


def _code(code: CodeType) -> list[Any]:
    """Return what a code does, without where it stands."""
    return [code.co_code, code.co_names, [_constant(value) for value in code.co_consts]]


def _constant(value: Any) -> Any:
    """Return a constant of a code; those of a set in order, which is another in every process."""
    if isinstance(value, CodeType):
        return _code(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value
