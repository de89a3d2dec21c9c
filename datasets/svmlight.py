"""Reading and writing svmlight (LIBSVM) files: in this process, and on a cluster by lazy blocks.

A file is decompressed and parsed piece by piece, so the text is never in memory as a whole; several pieces are parsed
at once, since the parser releases the interpreter lock. On a cluster (`dsgd.datasets.read_svmlight`) a plain file is
cut into byte ranges. A line belongs to the range of its first byte, so each worker finds the ends of its own part by
itself, and no line is read twice or lost. A compressed file cannot be read from the middle and is one block. If width
and numbering of the columns are not given, all blocks agree on them once they are parsed: nothing is read twice for
that, and no row passes through the client or the scheduler.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Any, Literal

import fsspec
import numpy as np
import scipy.sparse as sp
from fsspec.core import get_compression, url_to_fs
from numpy.typing import DTypeLike, NDArray

from dsgd.datasets.parse import LARGEST_COLUMN, RawRows, parse_bytes
from dsgd.errors import InvalidDataError, InvalidParameterError, ParseError
from dsgd.types import AnyArray
from dsgd.validation import check_choice, check_number

if TYPE_CHECKING:
    from dask.delayed import Delayed

ZeroBased = bool | Literal["auto"]
#: `parse_bytes`, told which columns may be there and the type of numbers.
Parse = Callable[..., RawRows]

_PIECE_BYTES = 8 << 20
# No published set has half as many. A file may claim 2^32 in a dozen bytes.
_MOST_FOUND = 1 << 27
_BROKEN_ARCHIVE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


def load_svmlight(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    n_features: int | None = None,
    zero_based: ZeroBased = "auto",
    dtype: DTypeLike = np.float64,
    storage_options: dict[str, Any] | None = None,
) -> tuple[sp.csr_matrix, NDArray[np.float64]]:
    """Read svmlight files into memory, one below the other.

    Parameters
    ----------
    paths : path or sequence of paths
        Files that fsspec can read; gz, bz2 and xz are recognised by their suffix. A ``*`` in a path stands for all
        files that match.
    n_features : int or None
        Number of columns; None takes the largest column found, up to 2^27. Pass it where a part may lack the last
        columns, or where there are more.
    zero_based : bool or "auto"
        Whether columns count from 0. "auto" takes them as counted from 1 if no file of this call has a column 0.
    dtype : numpy dtype
        float32 or float64, of X.
    storage_options : dict or None
        Options of the fsspec file system.

    Returns
    -------
    X : csr_matrix of shape (n_rows, n_features), dtype
        The rows; zeros that are written out in the file are kept.
    y : ndarray of shape (n_rows,), float64
        The labels as in the file.

    Raises
    ------
    ParseError
        A line is malformed; names the file and the line.
    InvalidDataError
        A file is missing or its archive is damaged, or it has more columns than n_features, or than 2^27.
    InvalidParameterError
        An argument is out of range.
    """
    check_reading(n_features, zero_based, dtype)
    parse = partial(parse_bytes, allowed=column_bounds(n_features, zero_based), dtype=dtype)
    raws: list[RawRows] = []
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1), thread_name_prefix="dsgd-svmlight") as pool:
        for path in expand_paths(paths, storage_options):
            raws.extend(_parse_file(pool, path, parse, storage_options))
    return assemble(raws, zero_based, n_features, dtype)


def _parse_file(
    pool: ThreadPoolExecutor, path: str, parse: Parse, storage_options: dict[str, Any] | None
) -> Iterator[RawRows]:
    """Yield the rows of one file, in order, while later pieces are parsed by the pool."""
    waiting: deque[Future[RawRows]] = deque()
    line = 1
    for piece in whole_lines(path, storage_options):
        waiting.append(pool.submit(parse, piece, path=path, first_line=line))
        line += piece.count(b"\n")
        if len(waiting) > 4:
            yield waiting.popleft().result()
    for future in waiting:
        yield future.result()


def whole_lines(path: str, storage_options: dict[str, Any] | None = None) -> Iterator[bytes]:
    """Yield a file, decompressed, in pieces of some megabytes that end at line ends."""
    file_system(path, storage_options)  # says it well where the path has no file system
    with reading(path), fsspec.open(path, "rb", compression="infer", **(storage_options or {})) as stream:
        begun: list[bytes] = []  # of a line that is longer than a piece, joined once
        while piece := stream.read(_PIECE_BYTES):
            cut = piece.rfind(b"\n") + 1
            if cut == 0:
                begun.append(piece)
                continue
            yield b"".join([*begun, piece[:cut]])
            begun = [piece[cut:]]
        if rest := b"".join(begun):
            yield rest


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn what goes wrong while reading a file into an InvalidDataError that names it."""
    try:
        yield
    except FileNotFoundError as error:
        raise InvalidDataError(f"no such file: {path}") from error
    except IsADirectoryError as error:
        raise InvalidDataError(f"{path} is a folder; pass its files, as in {path.rstrip('/')}/*") from error
    except (*_BROKEN_ARCHIVE, OSError) as error:
        # bz2 has no error class of its own; every other OSError already says which file and why
        if isinstance(error, _BROKEN_ARCHIVE) or str(error) == "Invalid data stream":
            raise InvalidDataError(f"{path} is cut off or damaged ({error}); fetch it again") from error
        raise


def file_system(path: str, storage_options: dict[str, Any] | None = None) -> tuple[Any, str]:
    """Return the fsspec file system of a path, and the path in it."""
    try:
        fs, name = url_to_fs(path, **(storage_options or {}))
    except (ImportError, ValueError) as error:
        raise InvalidDataError(f"{path} cannot be read: {error}") from error
    return fs, name


def expand_paths(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], storage_options: dict[str, Any] | None = None
) -> list[str]:
    """Return the paths as strings, patterns replaced by what they match, in order."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise InvalidDataError("no svmlight file was given")
    found: list[str] = []
    for path in [os.fspath(item) for item in given]:
        if "*" not in path:
            found.append(path)
            continue
        fs, pattern = file_system(path, storage_options)
        matches = sorted(fs.glob(pattern))
        if not matches:
            raise InvalidDataError(f"no file matches {path}")
        found.extend(fs.unstrip_protocol(match) if "://" in path else match for match in matches)
    return found


def compression_of(path: str) -> str | None:
    """Return the compression that a path's suffix stands for, or None."""
    name: str | None = get_compression(path, "infer")
    return name


def check_reading(n_features: int | None, zero_based: ZeroBased, dtype: DTypeLike) -> None:
    """Refuse arguments that no file can satisfy."""
    if n_features is not None:
        check_number("n_features=...", n_features, low=1, high=LARGEST_COLUMN)
    check_choice("zero_based=...", zero_based, (True, False, "auto"))
    check_choice("dtype=...", np.dtype(dtype).name, ("float32", "float64"))


def column_bounds(n_features: int | None, zero_based: ZeroBased) -> tuple[int, int]:
    """Return the smallest and largest column, as numbered in the file, that can be right."""
    if n_features is None:
        largest = LARGEST_COLUMN
    else:
        largest = n_features - 1 if zero_based is True else n_features
    return (1 if zero_based is False else 0), largest


def assemble(
    raws: Sequence[RawRows], zero_based: ZeroBased, n_features: int | None, dtype: DTypeLike
) -> tuple[sp.csr_matrix, NDArray[np.float64]]:
    """Stack parsed pieces into one matrix, columns counted from 0."""
    smallest, largest = _extent(raws)
    first = first_column(zero_based, smallest, largest)
    width = resolve_width(n_features, first, largest)
    sizes = np.array([raw.values.size for raw in raws], dtype=np.int64)
    ends = np.cumsum(sizes)
    n_values = int(ends[-1]) if len(raws) else 0
    kind = np.int32 if max(width, n_values) < 2**31 else np.int64
    columns = _stack([raw.columns for raw in raws], kind)
    columns -= kind(first)
    indptr = np.zeros(sum(raw.targets.size for raw in raws) + 1, dtype=kind)
    row = 1
    for raw, end, size in zip(raws, ends, sizes, strict=True):
        indptr[row : row + raw.targets.size] = raw.indptr[1:] + (end - size)
        row += raw.targets.size
    X = sp.csr_matrix(
        (_stack([raw.values for raw in raws], dtype), columns, indptr), shape=(indptr.size - 1, width), copy=False
    )
    X.has_sorted_indices = True
    X.has_canonical_format = True
    return X, _stack([raw.targets for raw in raws], np.float64)


def first_column(zero_based: ZeroBased, smallest: int, largest: int) -> int:
    """Return the number the file gives to the first column: 0 or 1."""
    if zero_based == "auto":
        return 1 if largest >= 0 and smallest > 0 else 0
    return 0 if zero_based else 1


def resolve_width(n_features: int | None, first: int, largest: int) -> int:
    """Return the number of columns of X."""
    found = max(largest - first, 0) + 1
    if n_features is None and found > _MOST_FOUND:
        raise InvalidDataError(
            f"the largest column is {largest}: models of so many columns take {8 * found / 2**30:.0f} GiB and more. If "
            f"no line is damaged, pass n_features={found}; else correct the line, or hash the columns to fewer"
        )
    if n_features is None:
        return found
    if found > n_features:
        raise InvalidDataError(
            f"n_features={n_features}, but the files have {found} columns (counted from {first}); "
            "pass a larger n_features, or zero_based if the count is off by one"
        )
    return n_features


def _stack(pieces: Sequence[AnyArray], dtype: DTypeLike) -> AnyArray:
    """Concatenate vectors of which there may be none."""
    if len(pieces) == 1:
        return pieces[0].astype(dtype, copy=False)
    return np.concatenate([np.empty(0, dtype=dtype), *pieces], dtype=dtype, casting="unsafe")


def write_svmlight(X: Any, y: Any, path: str | os.PathLike[str], *, zero_based: bool = False) -> None:
    """Write rows to an svmlight file, which `load_svmlight` reads back.

    Parameters
    ----------
    X : array or sparse matrix of shape (n_rows, n_features)
        The rows.
    y : array-like of shape (n_rows,)
        The labels.
    path : path
        A local file; gz, bz2 and xz are recognised by their suffix.
    zero_based : bool
        Whether to count columns from 0; LIBSVM counts from 1.
    """
    with open_for_writing(path) as stream:
        append_svmlight(X, y, stream, zero_based=zero_based)


def open_for_writing(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a local file for writing bytes, compressed as its suffix says."""
    packing = compression_of(os.fspath(path))
    if packing not in (None, "gzip", "bz2", "xz", "lzma"):
        raise InvalidParameterError(f"cannot write {path}: {packing} is not one of gz, bz2 and xz")
    opener: Any = {"gzip": gzip.open, "bz2": bz2.open, "xz": lzma.open, "lzma": lzma.open}.get(packing or "", open)
    stream: IO[bytes] = opener(path, "wb")
    return stream


def append_svmlight(X: Any, y: Any, stream: IO[bytes], *, zero_based: bool = False) -> None:
    """Write rows in svmlight format to an open stream."""
    from sklearn.datasets import dump_svmlight_file

    dump_svmlight_file(X, np.asarray(y), stream, zero_based=zero_based)


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
    parse = partial(parse_bytes, allowed=column_bounds(n_features, zero_based), dtype=dtype)
    read = dask.delayed(_parse_range, traverse=False)
    raws = [read(path, start, stop, parse, storage_options) for path, start, stop in ranges]
    agreed: Any = zero_based, n_features
    if zero_based == "auto" or n_features is None:  # else a block need not ask the others
        extent = dask.delayed(_extent, traverse=False)
        agreed = dask.delayed(_agree)([extent(raw) for raw in raws], zero_based, n_features)
    finish = dask.delayed(_finish, traverse=False)
    return [finish(raw, agreed, dtype) for raw in raws]


def plan_ranges(
    path: str, step: int | None, storage_options: dict[str, Any] | None = None
) -> list[tuple[int, int | None]]:
    """Cut a file into byte ranges; a stop of None, all that is known of compressed files, means its end."""
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
    path: str, start: int, stop: int | None, parse: Parse, storage_options: dict[str, Any] | None
) -> list[RawRows]:
    """Parse the lines of one range, or a whole file if stop is None."""
    if stop is None:
        pieces, line = [], 1
        for piece in whole_lines(path, storage_options):
            pieces.append(parse(piece, path=path, first_line=line))
            line += pieces[-1].n_lines
        return pieces
    data = read_range(path, start, stop, storage_options)
    try:
        return [parse(data, path=path)]
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


def _extent(raws: Sequence[RawRows]) -> tuple[int, int]:
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
