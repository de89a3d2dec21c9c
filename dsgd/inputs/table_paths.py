"""Which files a path names, what format they have, and which columns are in the names of their folders."""

from __future__ import annotations

import os
from typing import Any, Final
from urllib.parse import unquote

from dsgd.inputs.tables import pyarrow_for
from dsgd.validation import warn_user

_FORMATS: Final = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
_PACKINGS: Final = {".gz": "gzip", ".gzip": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
#: How Hive names the folder of missing values.
_HIVE_MISSING: Final = "__HIVE_DEFAULT_PARTITION__"


def format_of(path: str) -> str | None:
    """Return the format that the name of a file or glob says, None for any other name."""
    name = path.lower().partition("?")[0] if "://" in path else path.lower()
    return _FORMATS.get(os.path.splitext(name.removesuffix(packing_of(name)))[1])


def packing_of(name: str) -> str:
    """Return the end of a name that says how a file is packed, an empty string if none does."""
    return next((packing for packing in _PACKINGS if name.lower().endswith(packing)), "")


def is_folder(path: str) -> bool:
    """Return whether a path is a folder of this machine with files of tables, at any depth."""
    if "://" in path or not os.path.isdir(path):
        return False
    for _, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        if any(format_of(name) for name in files if not _is_hidden(name)):
            return True
    return False


def expanded(path: str) -> list[tuple[str, tuple[tuple[str, str | None, bool], ...]]]:
    """Return the files that a path, glob or folder names, sorted, and the columns in their folders."""
    from fsspec.core import url_to_fs

    system, inner = url_to_fs(path)
    base, inner = len(inner.rstrip("/")), inner.rstrip("/")
    if system.exists(inner):
        tops = [inner]
    else:
        first = min((inner.find(sign) for sign in "*?[" if sign in inner), default=-1)
        tops = sorted(system.glob(inner)) if first >= 0 else []
        base = inner.rfind("/", 0, first) if first >= 0 else base
    files = []
    for top in tops:
        if not system.isdir(top):
            files.append(top)
            continue
        _warn_of_delta(system, top, path)
        inside = (file for file in system.find(top) if not any(map(_is_hidden, file[len(top) :].strip("/").split("/"))))
        files += sorted(file for file in inside if format_of(file))
    if not files:
        raise FileNotFoundError(2, "no such file of a table", path)
    # Names of a remote system lose its scheme.
    return [(system.unstrip_protocol(file) if "://" in path else file, _partitions_of(file, base)) for file in files]


def opened(path: str) -> Any:
    """Open a file for reading, unpacked if its name says that it is packed, and its first bytes do not deny it."""
    import fsspec

    pa = pyarrow_for("reading tables")
    packing = packing_of(path)
    if packing and format_of(path) != "csv":
        # pandas writes x.parquet.gzip for Parquet that is packed inside.
        with fsspec.open(path, "rb") as file:
            packing = "" if file.read(6).startswith((b"PAR1", b"ARROW1")) else packing
    if "://" not in path and not packing:
        # Of Arrow a map is the table; of other files its pages would count as memory of the process.
        return pa.memory_map(path) if format_of(path) == "arrow" else pa.OSFile(path)
    return fsspec.open(path, "rb", compression=_PACKINGS.get(packing), expand=False).open()


def _partitions_of(file: str, base: int) -> tuple[tuple[str, str | None, bool], ...]:
    """Return column, value and whether the folder is one of the table, of each folder named ``column=value``."""
    found: dict[str, tuple[str, str | None, bool]] = {}
    at = 0
    for folder in file.split("/")[:-1]:
        name, sign, value = folder.partition("=")
        if sign and name:
            name, value = unquote(name), unquote(value)
            found[name] = (name, None if value == _HIVE_MISSING else value, at > base)
        at += len(folder) + 1
    return tuple(found.values())


def _is_hidden(name: str) -> bool:
    # As Spark has it: a column may begin so.
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _warn_of_delta(system: Any, folder: str, path: str) -> None:
    """Warn of a Delta table that lost files, whose rows are still there."""
    log = f"{folder}/_delta_log"
    if not system.isdir(log):
        return
    entries = [file for file in system.find(log) if file.endswith((".json", ".checkpoint.parquet"))]
    if any(file.endswith(".parquet") or b'"remove"' in system.cat_file(file) for file in entries):
        warn_user(
            f"{path} is a Delta table with deleted files, and all of its Parquet files are read. Pass "
            "deltalake.DeltaTable(path).file_uris().",
            UserWarning,
        )
