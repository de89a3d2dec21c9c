"""Files of arrays and JSON, never of code, and descriptions of what a fit is given.

Problem: a file that is half written, damaged, of another kind or of a later version must be told from a good one, and
reading it must run nothing that it says.

Format, all numbers little-endian::

    offset  0  magic      8 bytes   which kind of file
    offset  8  version    uint32    of the format of that kind
    offset 12  header     uint32    length of the JSON header
    offset 16  digest     32 bytes  SHA-256 of all that follows
    offset 48  JSON       the header
               npz        the arrays, uncompressed; never pickled

A local file is written beside its place, flushed to the disk and renamed; in an object store one object is put, which
is atomic there.

Cost: the file twice in memory, and one pass for its digest.

Descriptions of what a fit is given: equal in two processes where the values are, and as JSON can hold them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import numpy as np

from dsgd.files import read_arrays, regular, replacing
from dsgd.types import AnyArray

_PREFIX: Final = struct.Struct("<8sII32s")


class DamagedError(Exception):
    """A file is not a whole one of its kind, of a version we know."""


@dataclass(frozen=True)
class Container:
    """A kind of file."""

    noun: str
    magic: bytes
    version: int

    def is_begun(self, content: bytes) -> bool:
        """Return whether a file that begins like this is meant to be of this kind."""
        return content.startswith(self.magic)

    def pack(self, header: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> bytes:
        """Return the content of a file."""
        said = json.dumps(header).encode()
        buffer = io.BytesIO()
        given: dict[str, Any] = dict(arrays)
        # Not allow_pickle=False: numpy before 2.1 saves an array of that name.
        np.savez(buffer, **given)
        body = said + buffer.getvalue()
        return _PREFIX.pack(self.magic, self.version, len(said), hashlib.sha256(body).digest()) + body

    def unpack(self, content: bytes) -> tuple[dict[str, Any], dict[str, AnyArray]]:
        """Return header and arrays of a file."""
        if not self.is_begun(content) and len(content) >= len(self.magic):
            raise DamagedError(f"it is not {self.noun} of dsgd")
        if len(content) < _PREFIX.size:
            raise DamagedError(f"it has {len(content)} bytes, which is less than a header")
        _, number, n_header, digest = _PREFIX.unpack_from(content)
        if not 1 <= number <= self.version:
            raise DamagedError(f"it has format {number}; this version of dsgd reads format {self.version}")
        body = memoryview(content)[_PREFIX.size :]
        if hashlib.sha256(body).digest() != digest:
            raise DamagedError("its checksum is wrong")
        try:
            header = json.loads(bytes(body[:n_header]))
            # We compress nothing; a few bytes might stand for a thousand times as many.
            arrays = read_arrays(io.BytesIO(body[n_header:]), len(body) - n_header, compressed=False)
        except (ValueError, RecursionError) as error:
            raise DamagedError(str(error)) from error
        if not isinstance(header, dict):
            raise DamagedError(f"its header is a {type(header).__name__}")
        return header, arrays


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).absolute()

    def put(self, name: str, content: bytes, mode: int = 0o666) -> None:
        """Write a file, whole or not at all; make the folder if there is none. `mode` is that of a new file."""
        self.path.mkdir(parents=True, exist_ok=True)
        with replacing(self.path / name, mode) as aside, aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def get(self, name: str) -> bytes:
        """Return what a file holds."""
        regular(self.path / name)
        return (self.path / name).read_bytes()

    def head(self, name: str, n: int) -> bytes | None:
        """Return the first `n` bytes of a file, fewer if it has no more; None if there is no regular file."""
        path = self.path / name
        if not path.is_file() or path.is_symlink():
            return None
        with path.open("rb") as file:
            return file.read(n)

    def names(self) -> list[str]:
        """Return the names of all files; none if there is no folder."""
        return [path.name for path in self.path.iterdir()] if self.path.exists() else []

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        (self.path / name).unlink(missing_ok=True)


class RemoteFolder:
    """A folder behind a URL."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.system, self.path = fsspec.core.url_to_fs(url)

    def put(self, name: str, content: bytes, mode: int = 0o666) -> None:
        """Write a file, whole or not at all; make the folder if there is none. Who may read it, the store says."""
        self.system.makedirs(self.path, exist_ok=True)
        self.system.pipe_file(f"{self.path}/{name}", content)

    def get(self, name: str) -> bytes:
        """Return what a file holds."""
        content: bytes = self.system.cat_file(f"{self.path}/{name}")
        return content

    def head(self, name: str, n: int) -> bytes | None:
        """Return the first `n` bytes of a file, fewer if it has no more; None if there is no file."""
        path = f"{self.path}/{name}"
        if not self.system.isfile(path):
            return None
        content: bytes = self.system.cat_file(path, start=0, end=n)
        return content

    def names(self) -> list[str]:
        """Return the names of all files; none if there is no folder."""
        if not self.system.exists(self.path):
            return []
        # Object stores remember listings; what another process has written since must be seen.
        self.system.invalidate_cache()
        found = (str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in self.system.ls(self.path, detail=False))
        return [name for name in found if name]

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.system.rm_file(f"{self.path}/{name}")


def folder_of(path: str | os.PathLike[str]) -> LocalFolder | RemoteFolder:
    """Return the folder of a path, or of a URL that fsspec can open."""
    text = os.fspath(path)
    text = text.removeprefix("file://").removeprefix("local://")
    return RemoteFolder(text) if "://" in text else LocalFolder(text)


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
        if function is None:
            return name
        return f"{name} {hashlib.sha256(repr(_content(function, ())).encode()).hexdigest()[:16]}"
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)


def _content(function: FunctionType, callers: tuple[FunctionType, ...]) -> list[Any]:
    """Return the code of a function and what it refers to; of functions of other modules the code alone."""
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
