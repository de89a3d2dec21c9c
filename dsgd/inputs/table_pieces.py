"""Files of tables: which paths are meant, and the pieces that are read one at a time.

Which files a path names, what format they have, and which columns are in the names of their folders.

Parts of files of tables that can be read by themselves.

A piece is a row group of Parquet, a record batch of Arrow IPC, or a file of CSV. It knows its file and its number, so
it can be sent to a worker in place of its rows; only the columns asked for are read. Parquet hands out strings as
codes, as it stores them, CSV text, and no string is made of a row.
"""

from __future__ import annotations

import io
import os
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.inputs.tables import (
    ArrowTable,
    Kind,
    State,
    as_numbers,
    dates_of_text,
    is_text,
    kind_of_type,
    numbers_of_text,
    pyarrow_for,
    state_of_text,
)
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


_CSV_BYTES: Final = 8 << 20
_HEADER_BYTES: Final = 1 << 20

#: What pandas takes for a missing value, beside an empty field.
_MISSING: Final = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"),
    *("NULL", "NaN", "None", "n/a", "nan", "null"),
)

#: How Hive names the folder of missing values.
#: Names of kinds in errors.
PLURAL: Final[Mapping[Kind, str]] = {
    "number": "numbers",
    "category": "strings",
    "date": "dates",
    "unknown": "values of another type",
}


@dataclass(frozen=True)
class Reading:
    """How files are read; the keywords of `TableFiles`."""

    sep: str | None = None
    na_values: tuple[str, ...] = ()
    encoding: str = "utf8"
    required: tuple[str, ...] = ()


@dataclass(frozen=True)
class Piece:
    """A part of a file that can be read by itself."""

    path: str
    part: int
    n_rows: int | None
    reading: Reading = Reading()
    partitions: tuple[tuple[str, str | None, bool], ...] = ()

    def tables(self, columns: Iterable[str], kinds: Mapping[str, Kind] | None = None) -> Iterator[ArrowTable]:
        """Yield the rows of the piece, with some columns."""
        kind = format_of(self.path) or "parquet"
        names = list(dict.fromkeys(columns))
        pa = pyarrow_for(f"reading {kind} files")
        import pyarrow.compute as pc

        file, ended = opened(self.path), False
        try:
            for table in self._read(file, kind, list(dict.fromkeys([*names, *self.reading.required]))):
                for name in self.reading.required:
                    table = table.filter(pc.invert(pc.is_null(table.column(name), nan_is_null=True)))
                found = [
                    _imposed(table.column(name), (kinds or {}).get(name), f"{self.path}: column {name!r}")
                    for name in names
                ]
                yield ArrowTable(pa.table(found, names=names))
            ended = True
        except pa.ArrowException as error:
            raise InvalidDataError(_told(self.path, error, self.reading)) from error
        finally:
            # A reader of CSV that did not come to its end still reads ahead: from whatever has the number of the file
            # next, if it were closed. Without a reference Arrow closes it when it is done.
            if ended or not isinstance(file, pa.NativeFile):
                file.close()

    def states(self, columns: Sequence[str], as_categories: Iterable[str]) -> dict[str, State]:
        """Return what all values of columns of text are, by name."""
        found: dict[str, State] = dict.fromkeys(columns, "null")
        as_categories = frozenset(as_categories)
        for table in self.tables(columns):
            for name in columns:
                values = table.columns.column(name)
                found[name] = state_of_text(values, found[name], asks_plain=name in as_categories)
        return found

    def _read(self, file: Any, kind: str, names: list[str]) -> Iterator[Any]:
        """Yield pyarrow tables with columns of the file and of its folders."""
        import pyarrow as pa

        counts = {name: value for name, value, always in self.partitions if always and name in names}
        wanted = [name for name in names if name not in counts]
        if kind == "csv":
            header = names_of_csv(self) if self.partitions and wanted else wanted
        elif kind == "parquet":
            parquet = _parquet(file)
            header = parquet.schema_arrow.names
        else:
            ipc = pa.ipc.open_file(file)
            header = ipc.schema.names
        gone = [name for name in wanted if name not in header]
        outside = {name: value for name, value, _ in self.partitions}
        if any(name not in outside for name in gone):
            raise InvalidDataError(no_columns(self.path, [name for name in gone if name not in outside], header))
        counts |= {name: outside[name] for name in gone}
        wanted = [name for name in wanted if name in header]
        if kind == "csv":
            tables: Iterable[Any] = self._csv_tables(file, wanted)
        elif kind == "parquet":
            tables = [parquet.read_row_group(self.part, columns=wanted)]
        else:
            tables = [pa.Table.from_batches([ipc.get_batch(self.part)]).select(wanted)]
        for table in tables:
            for name, value in counts.items():
                # Codes, so that no string is made of a row.
                codes = pa.DictionaryArray.from_arrays(
                    np.zeros(table.num_rows, np.int32), pa.array([value], pa.string())
                )
                table = table.append_column(name, codes)
            yield table

    def _csv_tables(self, file: Any, wanted: list[str]) -> Iterator[Any]:
        import pyarrow as pa

        try:
            # Of no column it would not say how many rows there are.
            reader = _csv(file, self, wanted or names_of_csv(self)[:1])
        except (pa.ArrowKeyError, pa.ArrowInvalid) as error:
            header = names_of_csv(self)
            if gone := [name for name in wanted if name not in header]:
                raise InvalidDataError(no_columns(self.path, gone, header)) from None
            if "Empty CSV" not in str(error):
                raise
            # A header without a line break, as with pandas.
            yield pa.table({name: pa.array([], pa.string()) for name in wanted})
            return
        # Also where there are no rows.
        yield reader.schema.empty_table()
        for batch in reader:
            yield pa.Table.from_batches([batch])


def names_of_csv(piece: Piece) -> list[str]:
    """Return the names of the columns of a CSV file."""
    import csv

    # Not by a reader of Arrow, which reads ahead.
    with opened(piece.path) as file:
        data = file.read(_HEADER_BYTES)
    try:
        utf8 = piece.reading.encoding.lower().replace("-", "").replace("_", "") == "utf8"
        decoder = getincrementaldecoder("utf-8-sig" if utf8 else piece.reading.encoding)()
        rows = csv.reader(io.StringIO(decoder.decode(data), newline=""), delimiter=_separator(piece))
        names = next((row for row in rows if row), None)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidDataError(_told(piece.path, error, piece.reading)) from error
    if names is None:
        raise InvalidDataError(f"{piece.path}: no header, and no rows.")
    return names


def surveyed(path: str, kind: str) -> tuple[Any, list[int | None]]:
    """Return the schema of a file, None of CSV, and the numbers of rows of its pieces."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if kind == "csv":
        return None, [None]
    try:
        with opened(path) as file:
            if kind == "parquet":
                parquet = pq.ParquetFile(file)
                groups = [parquet.metadata.row_group(k).num_rows for k in range(parquet.metadata.num_row_groups)]
                return _schema_as_written(parquet), list(groups)
            reader = pa.ipc.open_file(file)
            return reader.schema, [reader.get_batch(k).num_rows for k in range(reader.num_record_batches)]
    except pa.ArrowException as error:
        raise InvalidDataError(f"{path}: {error}") from error


def no_columns(path: str, gone: Sequence[str], names: Sequence[str]) -> str:
    """Return what is said of a file without some columns."""
    return f"{path} has no column {', '.join(map(repr, gone))}. It has {', '.join(names)}."


def _imposed(values: Any, kind: Kind | None, where: str) -> Any:
    """Return a column as what is wanted of it."""
    import pyarrow as pa

    if kind is None:
        return values
    if pa.types.is_null(values.type):
        return values.cast({"number": pa.float64(), "date": pa.timestamp("us")}.get(kind, pa.string()))
    if kind == "category":
        return values
    if is_text(values.type):
        read = numbers_of_text if kind == "number" else dates_of_text
        try:
            return read(values)
        except pa.ArrowException:
            bad = next(value for value in values.unique().to_pylist() if value is not None and not _reads(read, value))
            raise InvalidDataError(
                f"{where} was taken for {PLURAL[kind]}, and has the value {bad!r}. If that stands for a missing one, "
                f"name it in TableFiles(..., na_values=...)."
            ) from None
    if kind_of_type(values.type) != kind:
        raise InvalidDataError(f"{where} was taken for {PLURAL[kind]}, and holds {values.type}. Convert it.")
    return as_numbers(values) if kind == "number" else values


def _reads(read: Callable[[Any], Any], value: str) -> bool:
    import pyarrow as pa

    try:
        read(pa.chunked_array([[value]]))
    except pa.ArrowException:
        return False
    return True


def _told(path: str, error: Exception, reading: Reading) -> str:
    """Return what is said of an error of pyarrow."""
    text = str(error)
    if "UTF8" in text or isinstance(error, UnicodeDecodeError):
        return (
            f"{path}: not in the encoding {reading.encoding!r}: name its own, as TableFiles(..., encoding='latin-1')."
        )
    if "straddling" in text:
        return f"{path}: a quote that does not end, or a row of more than {_CSV_BYTES >> 20} MiB."
    return f"{path}: {text}"


def _parquet(file: Any) -> Any:
    """Return an open Parquet file whose strings are read as codes."""
    import pyarrow.parquet as pq

    schema = pq.read_schema(file)
    strings = [field.name for field in schema if is_text(field.type)]
    file.seek(0)
    return pq.ParquetFile(file, read_dictionary=strings)


def _csv(file: Any, piece: Piece, columns: list[str]) -> Any:
    """Return a reader of the record batches of a CSV file, as text."""
    import pyarrow as pa
    from pyarrow import csv

    return csv.open_csv(
        file,
        read_options=csv.ReadOptions(block_size=_CSV_BYTES, encoding=piece.reading.encoding),
        parse_options=csv.ParseOptions(delimiter=_separator(piece), newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            include_columns=columns,
            column_types=dict.fromkeys(columns, pa.string()),
            null_values=[*_MISSING, *piece.reading.na_values],
            strings_can_be_null=True,
        ),
    )


def _separator(piece: Piece) -> str:
    path = piece.path.lower()
    return piece.reading.sep or ("\t" if path.removesuffix(packing_of(path)).endswith(".tsv") else ",")


def _schema_as_written(parquet: Any) -> Any:
    """Return the schema of a Parquet file, in which categories of numbers are what they were when they were written."""
    import base64

    import pyarrow as pa

    schema = parquet.schema_arrow
    written = (parquet.metadata.metadata or {}).get(b"ARROW:schema")
    if written is None:
        return schema
    original = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(written)))
    for k, field in enumerate(schema):
        if field.name in original.names and pa.types.is_dictionary(kind := original.field(field.name).type):
            schema = schema.set(k, field.with_type(kind))
    return schema
