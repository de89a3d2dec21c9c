"""Reading svmlight files on a cluster: one lazy block per byte range.

A plain file is cut into byte ranges. A line belongs to the range of its first byte, so each worker finds the ends of
its own part by itself, and no line is read twice or lost. A compressed file cannot be read from the middle and is one
block. If width and numbering of the columns are not given, all blocks agree on them once they are parsed: nothing is
read twice for that, and no row passes through the client or the scheduler.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike, NDArray

from dsgd.datasets.parse import LARGEST_COLUMN, RawRows, parse_bytes
from dsgd.datasets.svmlight import (
    ZeroBased,
    assemble,
    check_reading,
    column_bounds,
    compression_of,
    expand_paths,
    file_system,
    first_column,
    reading,
    resolve_width,
    whole_lines,
)
from dsgd.errors import InvalidDataError, InvalidParameterError, ParseError

if TYPE_CHECKING:
    from dask.delayed import Delayed

_SEARCH_BYTES = 1 << 16  # how much is read at a time while looking for the end of a line
_COUNT_BYTES = 16 << 20


def read_svmlight(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    n_features: int | None = None,
    zero_based: ZeroBased = "auto",
    dtype: DTypeLike = np.float64,
    blocksize: int | str | None = "64MB",
    storage_options: dict[str, Any] | None = None,
) -> list[Delayed]:
    """Read svmlight files lazily, in blocks that the workers of a Dask cluster parse.

    Parameters
    ----------
    paths : path or sequence of paths
        Files that fsspec can read (``s3://``, ``http://``, ...), under the same name on all workers; gz, bz2 and xz are
        recognised by their suffix. A ``*`` stands for all files that match.
    n_features : int or None
        Number of columns; None takes the largest column of all files. If it and zero_based are given, blocks need not
        wait for each other.
    zero_based : bool or "auto"
        Whether columns count from 0. "auto" takes them as counted from 1 if no file has a column 0.
    dtype : numpy dtype
        float32 or float64, of X.
    blocksize : int, str or None
        Bytes of plain text per block, as a number or like "64MB"; None makes each file one block.
    storage_options : dict or None
        Options of the fsspec file system.

    Returns
    -------
    list of dask.delayed.Delayed
        Each stands for a tuple (X, y): a csr_matrix of shape (rows of the block, n_features) and float64 labels of
        shape (rows of the block,). The blocks follow the order of the rows; one may be empty.

    Raises
    ------
    InvalidDataError
        A file is missing.
    InvalidParameterError
        An argument is out of range.
    ParseError
        When a block is computed: a line is malformed; names the file and the line.
    """
    import dask

    check_reading(n_features, zero_based, dtype)
    step = _block_bytes(blocksize)
    ranges = [
        (path, start, stop)
        for path in expand_paths(paths, storage_options)
        for start, stop in plan_ranges(path, step, storage_options)
    ]
    smallest, largest = column_bounds(n_features, zero_based)
    parse = dask.delayed(_parse_range, traverse=False)
    raws = [parse(path, start, stop, smallest, largest, dtype, storage_options) for path, start, stop in ranges]
    if zero_based != "auto" and n_features is not None:
        # A block need not ask the others.
        finish = dask.delayed(assemble, traverse=False)
        return [finish(raw, zero_based, n_features, dtype) for raw in raws]
    extent = dask.delayed(_extent, traverse=False)
    agree = dask.delayed(_agree)([extent(raw) for raw in raws], zero_based, n_features)
    finish = dask.delayed(_finish, traverse=False)
    return [finish(raw, agree, dtype) for raw in raws]


def plan_ranges(
    path: str, step: int | None, storage_options: dict[str, Any] | None = None
) -> list[tuple[int, int | None]]:
    """Cut a file into byte ranges.

    - returned: they cover the file; stop None means its end, and is all that can be said of a compressed file or of
      one whose server does not tell the size.
    """
    fs, name = file_system(path, storage_options)
    with reading(path):
        info = fs.info(name)
    if info.get("type") == "directory":
        raise InvalidDataError(f"{path} is a folder; pass its files, as in {path.rstrip('/')}/*")
    size = info.get("size")
    if step is None or size is None or compression_of(path) is not None:
        return [(0, None)]
    n_ranges = max(1, -(-int(size) // step))
    edges = [size * i // n_ranges for i in range(n_ranges + 1)]
    return list(pairwise(edges))


def _block_bytes(blocksize: int | str | None) -> int | None:
    """Return a block size in bytes."""
    from dask.utils import parse_bytes as parse_size

    try:
        size = None if blocksize is None else int(parse_size(blocksize))
    except (ValueError, TypeError) as error:
        raise InvalidParameterError(f"blocksize must be bytes, like 64_000_000 or '64MB', got {blocksize!r}") from error
    if size is not None and size < 1:
        raise InvalidParameterError(f"blocksize must be at least one byte, got {blocksize!r}")
    return size


def read_range(path: str, start: int, stop: int | None, storage_options: dict[str, Any] | None = None) -> bytes:
    """Return the lines of a plain file whose first byte is in [start, stop)."""
    fs, name = file_system(path, storage_options)
    with reading(path):
        # The byte before the range tells whether a line starts right at its first byte.
        data: bytes = fs.cat_file(name, start=max(0, start - 1), end=stop)
        if start > 0:
            cut = data.find(b"\n") + 1
            if cut == 0:
                return b""  # one line runs through the whole range: it belongs to an earlier one
            data = data[cut:]
        if stop is None or not data or data.endswith(b"\n"):
            return data
        size = int(fs.size(name))
        pieces = [data]
        while stop < size:
            piece: bytes = fs.cat_file(name, start=stop, end=min(size, stop + _SEARCH_BYTES))
            stop += len(piece)
            cut = piece.find(b"\n") + 1
            pieces.append(piece[:cut] if cut else piece)
            if cut or not piece:
                break
        return b"".join(pieces)


def _parse_range(
    path: str,
    start: int,
    stop: int | None,
    smallest: int,
    largest: int,
    dtype: DTypeLike,
    storage_options: dict[str, Any] | None,
) -> list[RawRows]:
    """Parse the lines of one range, or a whole file if stop is None."""
    parse = partial(parse_bytes, path=path, smallest_allowed=smallest, largest_allowed=largest, dtype=dtype)
    if stop is None:
        pieces, line = [], 1
        for piece in whole_lines(path, storage_options):
            pieces.append(parse(piece, first_line=line))
            line += pieces[-1].n_lines
        return pieces
    data = read_range(path, start, stop, storage_options)
    try:
        return [parse(data)]
    except ParseError as error:
        # Only an error is worth reading the part before, to count the line's number in the file.
        before = count_lines(path, start, storage_options)
        raise ParseError(path, before + error.line, error.problem) from None


def count_lines(path: str, start: int, storage_options: dict[str, Any] | None = None) -> int:
    """Return how many lines of a plain file start before a byte, for a range that starts there."""
    fs, name = file_system(path, storage_options)
    n_lines, position, last = 0, 0, b"\n"
    while position < start:
        piece: bytes = fs.cat_file(name, start=position, end=min(start, position + _COUNT_BYTES))
        if not piece:
            break
        n_lines += piece.count(b"\n")
        position += len(piece)
        last = piece[-1:]
    return n_lines + (last != b"\n")


def _extent(raws: list[RawRows]) -> tuple[int, int]:
    """Return the smallest and largest column of a block."""
    smallest = min((raw.smallest for raw in raws), default=LARGEST_COLUMN)
    return smallest, max((raw.largest for raw in raws), default=-1)


def _agree(extents: list[tuple[int, int]], zero_based: ZeroBased, n_features: int | None) -> tuple[bool, int]:
    """Return, for all blocks together, whether columns count from 0 and how many there are."""
    largest = max((extent[1] for extent in extents), default=-1)
    first = first_column(zero_based, min((extent[0] for extent in extents), default=LARGEST_COLUMN), largest)
    return first == 0, resolve_width(n_features, first, largest)


def _finish(
    raws: list[RawRows], agreed: tuple[bool, int], dtype: DTypeLike
) -> tuple[sp.csr_matrix, NDArray[np.float64]]:
    """Make the (X, y) of a block."""
    return assemble(raws, agreed[0], agreed[1], dtype)
