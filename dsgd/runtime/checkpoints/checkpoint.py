"""Checkpoints in a folder or an object store: atomic, versioned and checksummed.

Problem: a job of hours must survive the loss of the whole cluster; a file half written, damaged or of another job must
never be taken for its state.

Format (version 1), all numbers little-endian::

    offset  0  magic      8 bytes   b"DSGDCKPT"
    offset  8  version    uint32    1
    offset 12  header     uint32    length of the JSON header
    offset 16  digest     32 bytes  SHA-256 of all that follows
    offset 48  JSON       version of dsgd, world size, position, configuration and id of the job, time
               npz        the arrays, uncompressed; never pickled

Files are named by their position, ``checkpoint-EPOCH-ROUND.dsgd``, so that names sort by age. A local file is written
beside its place, flushed to the disk and renamed; in an object store one object is put, which is atomic there. Last,
``newest.json`` lists the files that count, newest first, with the job that wrote each and how often its gang had been
formed; older files go. A gang that was given up, but still runs somewhere, finds a later one of its job, or the fit
that resumed from it, at the head of the list and writes nothing.

Cost: one gathered state per checkpoint, written by rank 0 while the others wait in their next round.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib.metadata import version
from pathlib import Path
from time import time
from typing import Any, Final

import numpy as np

from dsgd.errors import CheckpointError, InvalidParameterError
from dsgd.types import AnyArray
from dsgd.validation import check_bool, check_number

__all__ = [
    "AUTO",
    "Checkpoint",
    "SavedState",
    "SupersededError",
    "as_checkpoint",
    "check_configuration",
    "check_vacant",
    "describe",
    "is_empty",
    "read_newest",
    "read_own",
    "same_place",
    "write",
]

#: As `resume_from`: go on from what is in the folder of the checkpoints, if anything is.
AUTO: Final = "auto"

_MAGIC: Final = b"DSGDCKPT"
_VERSION: Final = 1
_PREFIX: Final = struct.Struct("<8sII32s")
_LIST: Final = "newest.json"
# What a list may name: a file of this folder that we have written, and no other one.
_FILE: Final = re.compile(r"checkpoint-\d{8,}-\d{8,}\.dsgd")


class SupersededError(CheckpointError):
    """A gang that was given up would write, though a later one, or another fit, does."""


@dataclass(frozen=True)
class Checkpoint:
    """Where the state of training is written, and how often.

    Parameters
    ----------
    path : str or os.PathLike
        A folder, or the URL of one that fsspec can open (``"s3://bucket/job"``). On a cluster it is rank 0 that
        writes, so the folder should be shared by the workers. One job, one folder: one that holds checkpoints of
        another fit is refused, unless this fit goes on from them (``resume_from``).
    every_s : float, default 30
        Seconds between two checkpoints; 0 writes one at every point where ranks agree, which is for tests.
    keep : int, default 2
        How many are kept: the newest, and those it falls back on when that one is damaged.
    overwrite : bool, default False
        Whether checkpoints of other fits in the folder may be replaced.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    path: str | os.PathLike[str]
    every_s: float = 30.0
    keep: int = 2
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be written."""
        if not isinstance(self.path, (str, os.PathLike)) or not str(self.path):
            raise InvalidParameterError(f"Checkpoint(path=...) must be a folder or a URL. Got {self.path!r}.")
        check_number("Checkpoint(every_s=...)", self.every_s, low=0)
        check_number("Checkpoint(keep=...)", self.keep, low=1, integer=True)
        check_bool("Checkpoint(overwrite=...)", self.overwrite)


def as_checkpoint(given: Checkpoint | str | os.PathLike[str] | None) -> Checkpoint | None:
    """Return what a user means by a checkpoint: a folder or a URL alone has the defaults."""
    return Checkpoint(given) if isinstance(given, (str, os.PathLike)) else given


@dataclass(frozen=True)
class SavedState:
    """What a checkpoint holds.

    Parameters
    ----------
    position : tuple of (int, int)
        Epoch and round that come next.
    world_size : int
        Ranks of the job that wrote it.
    configuration : mapping
        What was trained, as `describe` puts it.
    arrays : mapping of str to array
        The state.
    note : str, default ""
        What the user should know about how it was read.
    job_id : str, default ""
        Of the job that wrote it.
    formed : int, default 0
        How many times the gang of that job had been formed before.
    """

    position: tuple[int, int]
    world_size: int
    configuration: Mapping[str, Any]
    arrays: Mapping[str, AnyArray]
    note: str = ""
    job_id: str = ""
    formed: int = 0


def is_empty(path: str | os.PathLike[str]) -> bool:
    """Return whether a place, as in `Checkpoint`, holds no checkpoint.

    Raises
    ------
    CheckpointError
        It cannot be read.
    """
    try:
        return not _listed(_folder(path))
    except OSError as error:
        raise CheckpointError(f"checkpoint={str(path)!r} cannot be read: {error}.") from error


def same_place(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> bool:
    """Return whether two places, as in `Checkpoint`, are one."""
    return _folder(a).path == _folder(b).path


def check_vacant(target: Checkpoint) -> None:
    """Refuse a place that holds what another fit has written, before training begins.

    Raises
    ------
    CheckpointError
        It does, and `Checkpoint.overwrite` is off; or it cannot be read.
    """
    if target.overwrite or is_empty(target.path):
        return
    place = str(target.path)
    raise CheckpointError(
        f"checkpoint={place!r} holds checkpoints of another fit. To go on from them, pass resume_from='auto'; to "
        f"replace them, checkpoint=Checkpoint({place!r}, overwrite=True); else choose another folder."
    )


def write(target: Checkpoint, state: SavedState) -> str:
    """Write a checkpoint, list it as the newest, and remove those that are too many; returns its name.

    Parameters
    ----------
    target : Checkpoint
        Where.
    state : SavedState
        What.

    Raises
    ------
    CheckpointError
        It cannot be written; with the reason of the file system.
    SupersededError
        Another job, or a later gang of the same one, has written there since.
    """
    folder = _folder(target.path)
    name = _name(state.position)
    try:
        listed = _listed(folder)
        own = {other: formed for other, (job_id, formed) in listed.items() if job_id == state.job_id}
        # A fit may begin where others have been; once it has written there, whoever is newer has taken the folder over.
        if own and (next(iter(listed)) not in own or any(formed > state.formed for formed in own.values())):
            raise SupersededError(
                f"checkpoint={str(target.path)!r}: another fit or a later gang of this one writes there. Let that one "
                "end, or give each fit a folder of its own."
            )
        folder.put(name, _encode(state))
        own[name] = state.formed
        newest_first = sorted(own, key=lambda other: (own[other], other), reverse=True)
        kept = [*newest_first, *(other for other in listed if other not in own)][: target.keep]
        authors = {other: [state.job_id, own[other]] if other in own else listed[other] for other in kept}
        folder.put(_LIST, json.dumps({"version": _VERSION, "names": kept, "written_by": authors}).encode())
        for other in folder.names():
            # Also what a process that was killed left: a file that was never listed, or one half written.
            if other.lstrip(".").startswith("checkpoint-") and other not in kept:
                folder.remove(other)
    except OSError as error:
        raise CheckpointError(f"checkpoint={str(target.path)!r} cannot be written: {error}.") from error
    return name


def read_newest(path: str | os.PathLike[str], configuration: Mapping[str, Any]) -> SavedState:
    """Read the newest checkpoint that is whole.

    Parameters
    ----------
    path : str or os.PathLike
        As in `Checkpoint`.
    configuration : mapping
        That of the job that goes on.

    Returns
    -------
    SavedState
        Its configuration is that of the job. Its note tells of newer ones that are damaged.

    Raises
    ------
    CheckpointError
        There is none, none is whole, or it belongs to another job: names the differences.
    """
    folder = _folder(path)
    try:
        names = _listed(folder)
    except OSError as error:
        raise CheckpointError(f"resume_from={str(path)!r} cannot be read: {error}.") from error
    if not names:
        raise CheckpointError(f"resume_from={str(path)!r} holds no checkpoint.")
    damages = []
    for name in names:
        try:
            state = _decode(folder.get(name))
        except (OSError, _DamagedError) as damage:
            damages.append(f"{name}: {damage}")
            continue
        check_configuration(state.configuration, configuration, f"{path}: {name}")
        if not damages:
            return state
        trouble = f"what is newer cannot be used ({'; '.join(damages)})"
        return replace(state, note=f"resume_from={str(path)!r}: training went on from {name}; {trouble}.")
    raise CheckpointError(f"resume_from={str(path)!r}: no checkpoint there is intact ({'; '.join(damages)}).")


def read_own(path: str | os.PathLike[str], job_id: str, since: tuple[int, int]) -> SavedState | None:
    """Read the newest whole checkpoint that a job itself has written; None if it has written none that is new enough.

    Parameters
    ----------
    path : str or os.PathLike
        As in `Checkpoint`.
    job_id : str
        The job.
    since : tuple of (int, int)
        The oldest position that is of use; older files are not read.

    Raises
    ------
    CheckpointError
        The folder cannot be read. Without it nobody knows whether there is one.
    """
    folder = _folder(path)
    damages = []
    try:
        for name in _listed(folder):
            if name < _name(since):
                break
            try:
                state = _decode(folder.get(name))
            except (FileNotFoundError, _DamagedError) as damage:
                damages.append(f"{name}: {damage}")
                continue
            if state.job_id != job_id:
                break  # what an earlier fit has left
            trouble = f"training went on from {name}; what is newer cannot be used ({'; '.join(damages)})."
            return replace(state, note=f"checkpoint={str(path)!r}: {trouble}" if damages else "")
    except OSError as error:
        raise CheckpointError(
            f"checkpoint={str(path)!r} cannot be read: {error}. The new gang would resume from it."
        ) from error
    return None


def check_configuration(saved: Mapping[str, Any], ours: Mapping[str, Any], where: str) -> None:
    """Raise `CheckpointError` that names every difference between what was trained and what is to be trained."""
    differences = _differences("", saved, ours)
    if differences:
        more = f" and {len(differences) - 5} more" if len(differences) > 5 else ""
        raise CheckpointError(
            f"{where} belongs to another job: {'; '.join(differences[:5])}{more}. Fit with the same parameters, or "
            "without resume_from. (A random_state of None draws another seed in every fit.)"
        )


def describe(value: Any) -> Any:
    """Return a value as JSON can hold it, so that equal values give equal descriptions.

    Arrays are described by dtype, shape and digest; records by their fields.
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
        return f"{value.__module__}.{value.__qualname__}"
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)


class _DamagedError(Exception):
    """A file is not a whole checkpoint of a version we know."""


def _name(position: tuple[int, int]) -> str:
    return "checkpoint-{:08d}-{:08d}.dsgd".format(*position)


def _encode(state: SavedState) -> bytes:
    header = json.dumps(
        {
            "dsgd": version("dsgd"),
            "written_at": time(),
            "world_size": state.world_size,
            "position": list(state.position),
            "configuration": state.configuration,
            "job_id": state.job_id,
            "formed": state.formed,
        }
    ).encode()
    buffer = io.BytesIO()
    objects = [name for name, array in state.arrays.items() if array.dtype.hasobject]
    if objects:
        raise CheckpointError(f"checkpoints hold numbers only, but {', '.join(objects)} hold Python objects.")
    arrays: dict[str, Any] = dict(state.arrays)
    # Not allow_pickle=False: numpy before 2.1 saves an array of that name.
    np.savez(buffer, **arrays)
    body = header + buffer.getvalue()
    return _PREFIX.pack(_MAGIC, _VERSION, len(header), hashlib.sha256(body).digest()) + body


def _decode(content: bytes) -> SavedState:
    if len(content) < _PREFIX.size:
        raise _DamagedError(f"it has {len(content)} bytes, which is less than a header")
    magic, number, n_header, digest = _PREFIX.unpack_from(content)
    if magic != _MAGIC:
        raise _DamagedError("it is not a checkpoint of dsgd")
    if number != _VERSION:
        raise _DamagedError(f"it has format {number}; this version of dsgd reads format {_VERSION}")
    body = memoryview(content)[_PREFIX.size :]
    if hashlib.sha256(body).digest() != digest:
        raise _DamagedError("its checksum is wrong")
    header = json.loads(bytes(body[:n_header]))
    try:
        with np.load(io.BytesIO(body[n_header:]), allow_pickle=False) as archive:
            arrays = dict(archive.items())
    except (ValueError, zipfile.BadZipFile) as error:
        raise _DamagedError(str(error)) from error
    epoch, number = header["position"]
    by = {"job_id": header.get("job_id", ""), "formed": header.get("formed", 0)}
    return SavedState((epoch, number), header["world_size"], header["configuration"], arrays, **by)


def _differences(where: str, saved: Any, ours: Any) -> list[str]:
    if isinstance(saved, Mapping) and isinstance(ours, Mapping):
        names = [*saved, *(name for name in ours if name not in saved)]
        return [
            difference
            for name in names
            for difference in _differences(f"{where}.{name}" if where else name, saved.get(name), ours.get(name))
        ]
    # By their JSON text: a NaN equals itself, and what the header has been through does not matter.
    return [] if json.dumps(saved) == json.dumps(ours) else [f"{where} was {saved!r} there and is {ours!r} here"]


def _listed(folder: _LocalFolder | _RemoteFolder) -> dict[str, tuple[str, int]]:
    """Return the names of the checkpoints, newest first, each with its job and how often that had been formed.

    Where the list itself is lost they are those of all files, and nobody knows of which job they are.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        content = json.loads(folder.get(_LIST))
        authors = content.get("written_by", {})
        names = [str(name) for name in content["names"] if _FILE.fullmatch(str(name))]
        return {name: (str(authors.get(name, ("", 0))[0]), int(authors.get(name, ("", 0))[1])) for name in names}
    names = sorted((name for name in folder.names() if _FILE.fullmatch(name)), reverse=True)
    return dict.fromkeys(names, ("", 0))


class _LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).absolute()

    def put(self, name: str, content: bytes) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        # Beside its place, so that the rename stays inside one file system and replaces the file as a whole.
        temporary = self.path / f".{name}.{secrets.token_hex(4)}"
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path / name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def get(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def names(self) -> list[str]:
        return [path.name for path in self.path.iterdir()] if self.path.is_dir() else []

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)


class _RemoteFolder:
    """A folder behind a URL."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.system, self.path = fsspec.core.url_to_fs(url)

    def put(self, name: str, content: bytes) -> None:
        self.system.makedirs(self.path, exist_ok=True)
        self.system.pipe_file(f"{self.path}/{name}", content)

    def get(self, name: str) -> bytes:
        content: bytes = self.system.cat_file(f"{self.path}/{name}")
        return content

    def names(self) -> list[str]:
        if not self.system.exists(self.path):
            return []
        # Object stores remember listings; what another process has written since must be seen.
        self.system.invalidate_cache()
        return [str(entry).rsplit("/", 1)[-1] for entry in self.system.ls(self.path, detail=False)]

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.system.rm_file(f"{self.path}/{name}")


def _folder(path: str | os.PathLike[str]) -> _LocalFolder | _RemoteFolder:
    text = os.fspath(path)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    return _RemoteFolder(text) if "://" in text else _LocalFolder(text)
