"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4


def regular(path: Path) -> os.stat_result:
    """Return what the file system says of a file; a folder, a device or a pipe is an `OSError`.

    A pipe may be waited for without end, and reading a device may not end.
    """
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "this is no regular file: name another", str(path))
    return found


@contextmanager
def replacing(path: str | os.PathLike[str], mode: int = 0o666) -> Iterator[Path]:
    """Give a path to write to, whose file takes the place of another once the block has ended without an error.

    Whatever happens, the other file is the old one or the new one, never half of one, and nothing is left beside it.
    Links stay, and the file that they lead to is replaced. The new file may be read and written by whom the old one
    could, at no moment by more.
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
