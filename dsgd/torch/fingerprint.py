"""Whether all ranks have the same module: parameter names and shapes, and code of its classes.

Workers import the module by themselves. A worker with an older file would train another model, whose vector may even
have the same length: the means would be meaningless, without any error.

The code is that of the interpreter, so comments and line numbers do not count; between different versions of Python it
is not compared.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from dsgd.errors import VersionMismatchError


def fingerprint(module: nn.Module) -> dict[str, str]:
    """Return what two copies of a module have in common if they are the same."""
    shapes = [(name, tuple(p.shape), str(p.dtype), p.requires_grad) for name, p in module.named_parameters()]
    shapes += [(name, tuple(b.shape), str(b.dtype), False) for name, b in module.named_buffers()]
    classes = {type(part) for part in module.modules()}
    code = hashlib.sha256()
    for cls in sorted(classes, key=lambda cls: cls.__qualname__):
        if not cls.__module__.startswith("torch."):
            code.update(cls.__qualname__.encode())
            for piece in _pieces(cls):
                code.update(piece)
    return {
        "parameters": hashlib.sha256(repr(shapes).encode()).hexdigest()[:16],
        "code": code.hexdigest()[:16],
        "python": ".".join(map(str, sys.version_info[:2])),
    }


def check_same(ours: dict[str, str], theirs: dict[str, str], name: str) -> None:
    """Raise if two fingerprints are of different modules."""
    if ours["parameters"] != theirs["parameters"]:
        what = "the names, shapes or dtypes of its parameters are others"
    elif ours["python"] == theirs["python"] and ours["code"] != theirs["code"]:
        what = "the code of its classes is another"
    else:
        return
    raise VersionMismatchError(
        f"{name} on {platform.node()} is not that of the client: {what}. Bring the same version of the file to all "
        "workers, or define the module in the script itself, which then sends it."
    )


def _pieces(cls: type) -> Iterator[bytes]:
    for name, value in sorted(vars(cls).items()):
        function: Any = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if isinstance(function, property):
            function = function.fget
        if isinstance(function, FunctionType):
            yield name.encode()
            yield from _of_code(function.__code__)


def _of_code(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_code(constant)
        elif isinstance(constant, frozenset):
            # Its order is another in every process.
            yield repr(sorted(map(repr, constant))).encode()
        elif not isinstance(constant, str):
            yield repr(constant).encode()
