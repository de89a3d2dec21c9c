"""Tables in files: Parquet, CSV and Arrow, read piece by piece, each by whoever trains on it.

A piece is what can be read without reading what is before it: a row group of Parquet, a record batch of Arrow IPC, a
file of CSV. A piece knows its file and its number, so it can be sent to a worker in place of its rows; only the columns
asked for are read. Parquet hands out strings as codes, as it stores them, and no string is made of a row.

Paths may be globs, folders of Parquet files, and URLs of any file system that fsspec has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.inputs.tables import ArrowTable, pyarrow_for

__all__ = ["Piece", "TableFiles", "are_table_files", "with_files_opened"]

_FORMATS: Final = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
_PACKINGS: Final = (".gz", ".bz2", ".xz", ".zst")
_CSV_BYTES: Final = 8 << 20


def are_table_files(X: Any) -> bool:
    """Return whether X is a path, or several, of tables: by its name, or a folder with Parquet files.

    Parameters
    ----------
    X : object
        Anything that ``fit`` takes.
    """
    if isinstance(X, TableFiles):
        return True
    if isinstance(X, (list, tuple)) and X:
        return all(are_table_files(each) for each in X)
    if not isinstance(X, (str, os.PathLike)):
        return False
    path = os.fspath(X)
    return isinstance(path, str) and (_format_of(path) is not None or _is_folder(path))


@dataclass(frozen=True)
class Piece:
    """A part of a file that can be read by itself.

    Parameters
    ----------
    path : str
        The file, or its URL.
    part : int
        The number of the row group or record batch; 0 of a file that is one piece.
    n_rows : int or None
        Its rows; None of CSV, where that is known only after reading.
    types : tuple
        Of CSV the name and type of each column in the first file, which all are read with.
    """

    path: str
    part: int
    n_rows: int | None
    types: tuple[tuple[str, Any], ...] = ()

    def tables(self, columns: Sequence[str]) -> Iterator[ArrowTable]:
        """Yield the rows of the piece, with some columns.

        Parameters
        ----------
        columns : sequence of str
            Names of the columns to read.

        Raises
        ------
        InvalidDataError
            The file is not of its format, or lacks a column.
        """
        kind, names = _format_of(self.path) or "parquet", list(columns)
        pa = pyarrow_for(f"reading {kind} files")
        try:
            with _opened(self.path) as file:
                if kind == "parquet":
                    yield ArrowTable(_parquet(file).read_row_group(self.part, columns=names))
                elif kind == "arrow":
                    batch = pa.ipc.open_file(file).get_batch(self.part)
                    yield ArrowTable(pa.Table.from_batches([batch]).select(names))
                else:
                    for batch in _csv(file, self.path, names, dict(self.types)):
                        yield ArrowTable(pa.Table.from_batches([batch]))
        except (pa.ArrowInvalid, KeyError) as error:
            raise InvalidDataError(f"{self.path}: {error}") from error


@final
class TableFiles:
    """Files of one format, with the same columns.

    Parameters
    ----------
    paths : str, path, or sequence of them
        Files, globs, folders of Parquet files, URLs.

    Attributes
    ----------
    names : list of str
        Columns of the first file.
    pieces : list of Piece
        In the order of the files, which are sorted where a glob or folder names them.

    Raises
    ------
    FileNotFoundError
        A path matches no file.
    InvalidParameterError
        Files are of several formats.
    InvalidDataError
        A file is not of its format, or has no rows.
    MissingPackageError
        pyarrow is not installed.
    """

    def __init__(self, paths: Any) -> None:
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        files = [file for path in given for file in _expanded(os.fspath(path))]
        kinds = {_format_of(file) for file in files}
        if len(kinds) > 1:
            raise InvalidParameterError(f"files of several formats: {', '.join(sorted(map(str, kinds)))}. Give one.")
        kind = kinds.pop() or "parquet"
        pa = pyarrow_for(f"reading {kind} files")
        try:
            self._schema, self.pieces = _surveyed(files, kind)
        except pa.ArrowInvalid as error:
            raise InvalidDataError(f"{files[0]}: {error}") from error
        self.names: list[str] = list(self._schema.names)
        if not self.pieces:
            raise InvalidDataError(f"{files[0]}: no rows.")

    @property
    def n_rows(self) -> int | None:
        """How many rows there are; None where only reading says it."""
        counts = [piece.n_rows for piece in self.pieces]
        return None if None in counts else sum(n or 0 for n in counts)

    def empty(self, columns: Sequence[str]) -> ArrowTable:
        """Return a table without rows, whose columns are of the types of the first file.

        Parameters
        ----------
        columns : sequence of str
            Their names.
        """
        self.check(columns)
        return ArrowTable(self._schema.empty_table().select(list(columns)))

    def tables(self, columns: Sequence[str]) -> Iterator[ArrowTable]:
        """Yield all rows, piece by piece, with some columns.

        Parameters
        ----------
        columns : sequence of str
            Their names.

        Raises
        ------
        InvalidDataError
            There is no such column.
        """
        self.check(columns)
        for piece in self.pieces:
            yield from piece.tables(columns)

    def check(self, columns: Sequence[str]) -> None:
        """Raise `InvalidDataError` where a column is not there."""
        gone = [name for name in columns if name not in self.names]
        if gone:
            raise InvalidDataError(
                f"{self.pieces[0].path} has no column {', '.join(map(repr, gone))}. It has {', '.join(self.names)}."
            )


def with_files_opened(X: Any) -> Any:
    """Return the `TableFiles` of files of tables; anything else as it is.

    Parameters
    ----------
    X : object
        Anything that ``fit`` takes.
    """
    return TableFiles(X) if are_table_files(X) and not isinstance(X, TableFiles) else X


def _format_of(path: str) -> str | None:
    """Return the format that the name of a file or glob says, None for any other name."""
    name = path.lower().partition("?")[0] if "://" in path else path.lower()
    for packing in _PACKINGS:
        name = name.removesuffix(packing)
    return _FORMATS.get(os.path.splitext(name)[1])


def _is_folder(path: str) -> bool:
    return "://" not in path and os.path.isdir(path) and any(_format_of(name) for name in os.listdir(path))


def _expanded(path: str) -> list[str]:
    """Return the files that a path, glob or folder names, sorted."""
    from fsspec.core import url_to_fs

    system, inner = url_to_fs(path)
    if any(sign in inner for sign in "*?["):
        found = sorted(system.glob(inner))
    elif system.isdir(inner):
        found = sorted(file for file in system.find(inner) if _format_of(file) and not _is_hidden(file))
    else:
        found = [inner] if system.exists(inner) else []
    if not found:
        raise FileNotFoundError(2, "no such file of a table", path)
    # Names of a remote system lose its scheme.
    return [system.unstrip_protocol(file) if "://" in path else file for file in found]


def _is_hidden(file: str) -> bool:
    return os.path.basename(file).startswith(("_", "."))


def _opened(path: str) -> Any:
    """Open a file for reading, unpacked if its name says that it is packed."""
    import fsspec

    pa = pyarrow_for("reading tables")
    packed = any(path.lower().endswith(packing) for packing in _PACKINGS)
    if "://" not in path and not packed:
        # Of Arrow a map is the table; of other files its pages would count as memory of the process.
        return pa.memory_map(path) if _format_of(path) == "arrow" else pa.OSFile(path)
    return fsspec.open(path, "rb", compression="infer" if packed else None).open()


def _parquet(file: Any) -> Any:
    """Return an open Parquet file whose strings are read as codes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pq.read_schema(file)
    strings = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    file.seek(0)
    return pq.ParquetFile(file, read_dictionary=strings)


def _csv(file: Any, path: str, columns: list[str] | None, types: dict[str, Any]) -> Any:
    """Return a reader of the record batches of a CSV file."""
    from pyarrow import csv

    tabs = any(path.lower().removesuffix(packing).endswith(".tsv") for packing in ("", *_PACKINGS))
    return csv.open_csv(
        file,
        read_options=csv.ReadOptions(block_size=_CSV_BYTES),
        parse_options=csv.ParseOptions(delimiter="\t" if tabs else ","),
        convert_options=csv.ConvertOptions(include_columns=columns, column_types=types, strings_can_be_null=True),
    )


def _surveyed(files: Sequence[str], kind: str) -> tuple[Any, list[Piece]]:
    """Return the schema of the first file, and the pieces of all."""
    look = {"parquet": _parquet_pieces, "arrow": _arrow_pieces, "csv": _csv_piece}[kind]
    schema, pieces = look(files[0])
    for path in files[1:]:
        # All files of CSV are read with the types of the first.
        pieces += [replace(pieces[0], path=path)] if kind == "csv" else look(path)[1]
    return schema, pieces


def _parquet_pieces(path: str) -> tuple[Any, list[Piece]]:
    import pyarrow.parquet as pq

    with _opened(path) as file:
        found = pq.ParquetFile(file)
        groups = [found.metadata.row_group(k).num_rows for k in range(found.metadata.num_row_groups)]
        return found.schema_arrow, [Piece(path, k, n) for k, n in enumerate(groups) if n]


def _arrow_pieces(path: str) -> tuple[Any, list[Piece]]:
    import pyarrow as pa

    with _opened(path) as file:
        reader = pa.ipc.open_file(file)
        counts = [reader.get_batch(k).num_rows for k in range(reader.num_record_batches)]
        return reader.schema, [Piece(path, k, n) for k, n in enumerate(counts) if n]


def _csv_piece(path: str) -> tuple[Any, list[Piece]]:
    import pyarrow as pa

    with _opened(path) as file:
        found = _csv(file, path, None, {}).schema
    # What is a whole number in the first rows need not be one in all, and what is empty there is text elsewhere.
    wider = [(pa.types.is_integer, pa.float64()), (pa.types.is_null, pa.string())]
    types = [(f.name, next((wide for test, wide in wider if test(f.type)), f.type)) for f in found]
    return pa.schema(types), [Piece(path, 0, None, tuple(types))]
