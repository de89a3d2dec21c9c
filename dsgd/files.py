"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

__all__ = ["replacing"]


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path to write to, whose file takes the place of another once the block has ended without an error.

    Whatever happens, the other file is the old one or the new one, never half of one, and nothing is left beside it.

    Parameters
    ----------
    path : path
        The file that is replaced, or made.

    Yields
    ------
    Path
        In the same folder, with the same suffixes.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    path = Path(path)
    aside = path.with_name(f".{uuid4().hex}.{path.name}")
    try:
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
