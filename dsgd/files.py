"""Files: written whole or not at all, and arrays in ``.npz`` archives of whoever: read as they are, or refused.

An archive is a zip file of headers that each say how large an array is. A few bytes may claim more than there is
memory, compressed ones stand for a thousand times as many, entries may lie over one another, and a pickle runs code. So
what an entry claims is held against the bytes that it has before memory is taken for it; numpy's own reader takes the
memory first. Memory: the arrays, at most as many bytes as the archive; or, where compressed entries are read,
`MOST_INFLATED` times as many, which no deflate stream exceeds.
"""

from __future__ import annotations

import errno
import io
import math
import os
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final
from uuid import uuid4

import numpy as np

from dsgd.types import AnyArray

#: How many bytes a byte of a deflate stream stands for at most.
MOST_INFLATED: Final = 1032
_HEADERS: Final[dict[tuple[int, int], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_MOST_HEADER_BYTES: Final = 100_000
_PIECE_BYTES: Final = 1 << 20


class ArchiveError(ValueError):
    """An archive, or an array in it, is damaged or refused; the text says why."""


def read_arrays(stream: IO[bytes], n_bytes: int, *, compressed: bool = True) -> dict[str, AnyArray]:
    """Return the arrays of an archive by name."""
    try:
        with zipfile.ZipFile(stream) as archive:
            entries = archive.infolist()
            _check_sizes(entries, n_bytes, compressed)
            return {entry.filename.removesuffix(".npy"): _read_array(archive, entry) for entry in entries}
    except ArchiveError:
        raise
    except Exception as error:  # zipfile and numpy raise errors of a dozen types over what is no archive
        raise ArchiveError(f"no whole archive of arrays ({type(error).__name__}: {error})") from error


def _check_sizes(entries: list[zipfile.ZipInfo], n_bytes: int, compressed: bool) -> None:
    kinds = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED} if compressed else {zipfile.ZIP_STORED}
    if any(entry.compress_type not in kinds for entry in entries):
        raise ArchiveError("it holds arrays that are compressed in another way" if compressed else "compressed arrays")
    if sum(entry.compress_size for entry in entries) > n_bytes:
        raise ArchiveError("its entries have more bytes than it has")
    for entry in entries:
        most = MOST_INFLATED if entry.compress_type == zipfile.ZIP_DEFLATED else 1
        if entry.file_size > most * entry.compress_size:
            raise ArchiveError(f"{entry.filename!r} claims {entry.file_size} bytes and has {entry.compress_size}")


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> AnyArray:
    with archive.open(entry) as stream:
        head = io.BytesIO(stream.read(min(entry.file_size, _MOST_HEADER_BYTES)))
        shape, by_column, dtype = _HEADERS[np.lib.format.read_magic(head)](head)
        if dtype.hasobject:
            raise ArchiveError(f"{entry.filename!r} holds Python objects, which are read with allow_pickle alone")
        n_values, n_left = math.prod(shape), entry.file_size - head.tell()
        if (
            n_values * dtype.itemsize != n_left
            or min(shape, default=0) < 0
            or (not dtype.itemsize and n_values > n_left)
        ):
            raise ArchiveError(f"{entry.filename!r} claims an array {dtype}{list(shape)} and has {n_left} bytes for it")
        array = np.empty(shape, dtype, order="F" if by_column else "C")
        if array.nbytes:
            # A copy of which it is the only one: compiled code wants arrays that are aligned and can be written.
            view = array.reshape(-1, order="A").view(np.uint8).data
            done = head.readinto(view)
            while done < n_left:
                piece = stream.read(min(_PIECE_BYTES, n_left - done))
                if not piece:
                    raise ArchiveError(f"{entry.filename!r} is cut off")
                view[done : done + len(piece)] = piece
                done += len(piece)
        stream.read(1)  # which compares the checksum
        return array


def regular(path: Path) -> os.stat_result:
    """Return what the system says of a file; folders, devices and pipes, which need not end, are an `OSError`."""
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "this is no regular file: name another", str(path))
    return found


@contextmanager
def replacing(path: str | os.PathLike[str], mode: int = 0o666) -> Iterator[Path]:
    """Give a path to write to, whose file takes the place of another once the block has ended without an error.

    The other file is the old one or the new one, never half of one, and nothing is left beside it. Links stay, and the
    file that they lead to is replaced. The new file may be read and written by whom the old one could, at no moment by
    more.
    """
    path = Path(os.path.realpath(path))
    old = regular(path) if path.exists() else None
    aside = path.with_name(f".{uuid4().hex}.{path.name}")
    os.close(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode if old is None else 0o600))
    try:
        yield aside
        if old is not None:
            with suppress(PermissionError):  # of another owner, which only root can give it
                os.chown(aside, old.st_uid, old.st_gid)
            os.chmod(aside, stat.S_IMODE(old.st_mode))
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
