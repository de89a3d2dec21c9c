"""Descriptions of what a fit is given: equal in two processes where the values are, and as JSON can hold them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import CodeType, FunctionType
from typing import Any

import numpy as np

__all__ = ["describe"]


def describe(value: Any) -> Any:
    """Return a value as JSON can hold it, so that equal values give equal descriptions.

    Arrays are described by dtype, shape and digest; records by their fields; functions by their names, and lambdas and
    functions of functions, whose names are those of others too, by a digest of their code as well.
    """
    if is_dataclass(value) and not isinstance(value, type):
        described = {field.name: describe(getattr(value, field.name)) for field in fields(value)}
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
        function = getattr(value, "py_func", value)  # of one that numba compiles
        is_one_of_many = isinstance(function, FunctionType) and "<" in value.__qualname__
        return f"{name} {_digest_of_function(function)}" if is_one_of_many else name
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)


def _digest_of_function(function: FunctionType) -> str:
    """Return a digest of the code of a function and the values that it holds, where many functions have one name."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    named = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    # Of functions that it calls the code is enough: they may call each other.
    held = [
        _code(value.__code__) if isinstance(value, FunctionType) else describe(value)
        for value in (*cells, *named.values())
        if isinstance(value, (bool, int, float, str, np.ndarray, np.generic, FunctionType))
    ]
    content = repr((_code(function.__code__), describe(function.__defaults__), held))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _code(code: CodeType) -> list[Any]:
    """Return what a code does, without where it stands."""
    constants = [_code(value) if isinstance(value, CodeType) else value for value in code.co_consts]
    return [code.co_code, code.co_names, constants]
