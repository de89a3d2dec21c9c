"""Tables in files: Parquet, CSV and Arrow, read piece by piece, each by whoever trains on it.

Problem: a file of CSV has no types, and files of one table may each have types of their own. Guessed file by file, a
column is numbers in one and names in the next.

Method: text is read as text, with what pandas takes for missing; what a column holds is learned over all rows of all
files, once, and whoever reads says what it wants of each column. What cannot become that is an error that names file
and column. Folders named ``column=value`` are columns of text as well.

A piece is what can be read without reading what is before it: a row group of Parquet, a record batch of Arrow IPC, a
file of CSV. A piece knows its file and its number, so it can be sent to a worker in place of its rows; only the columns
asked for are read. Parquet hands out strings as codes, as it stores them, and no string is made of a row.

Not with ``pyarrow.dataset``: it types CSV by its first rows and partitions by the paths at hand, and fills a column
that a file lacks with missing values.
"""

from __future__ import annotations

import io
import os
import warnings
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, final
from urllib.parse import unquote

import numpy as np

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.inputs.tables import (
    ArrowTable,
    Kind,
    State,
    as_numbers,
    dates_of_text,
    is_text,
    joined,
    kind_of_type,
    numbers_of_text,
    pyarrow_for,
    saved_index,
    state_of_text,
)

__all__ = ["Piece", "Reading", "TableFiles", "are_table_files", "with_files_opened"]

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
_CSV_BYTES: Final = 8 << 20
_HEADER_BYTES: Final = 1 << 20
#: What pandas takes for a missing value, beside an empty field.
_MISSING: Final = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"),
    *("NULL", "NaN", "None", "n/a", "nan", "null"),
)
#: How Hive names the folder of missing values.
_HIVE_MISSING: Final = "__HIVE_DEFAULT_PARTITION__"
_KINDS: Final[Mapping[State, Kind]] = {
    "null": "number",
    "bool": "number",
    "plain": "number",
    "number": "number",
    "date": "date",
    "text": "category",
}


def are_table_files(X: Any) -> bool:
    """Return whether X is a path, or several, of tables: by its name, or a folder with such files.

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
class Reading:
    """How files are read; the keywords of `TableFiles`.

    Parameters
    ----------
    sep : str or None
        Between fields of CSV.
    na_values : tuple of str
        Fields of CSV that are missing, beside those of pandas.
    encoding : str
        Of CSV.
    required : tuple of str
        Columns without missing values: rows that have one there are left out.
    """

    sep: str | None = None
    na_values: tuple[str, ...] = ()
    encoding: str = "utf8"
    required: tuple[str, ...] = ()


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
        Its rows; None where that is known only after reading.
    reading : Reading
        How it is read.
    partitions : tuple
        Columns and values that names of folders say, and whether the column counts even if the file has one so called.
    """

    path: str
    part: int
    n_rows: int | None
    reading: Reading = Reading()
    partitions: tuple[tuple[str, str | None, bool], ...] = ()

    def tables(self, columns: Iterable[str], kinds: Mapping[str, Kind] | None = None) -> Iterator[ArrowTable]:
        """Yield the rows of the piece, with some columns.

        Parameters
        ----------
        columns : iterable of str
            Names of the columns to read.
        kinds : mapping or None, default None
            What is wanted of columns; what is not here is handed out as the file holds it, CSV as text.

        Raises
        ------
        InvalidDataError
            The file is not of its format, lacks a column, or has one that is not what is wanted.
        """
        kind = _format_of(self.path) or "parquet"
        names = list(dict.fromkeys(columns))
        pa = pyarrow_for(f"reading {kind} files")
        import pyarrow.compute as pc

        file, ended = _opened(self.path), False
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
        """Return what all values of columns of text are, by name.

        Parameters
        ----------
        columns : sequence of str
            Their names.
        as_categories : iterable of str
            Those of which it is asked whether numbers are written plainly.
        """
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
            header = _names_of_csv(self) if self.partitions and wanted else wanted
        elif kind == "parquet":
            parquet = _parquet(file)
            header = parquet.schema_arrow.names
        else:
            ipc = pa.ipc.open_file(file)
            header = ipc.schema.names
        gone = [name for name in wanted if name not in header]
        outside = {name: value for name, value, _ in self.partitions}
        if any(name not in outside for name in gone):
            raise InvalidDataError(_no_columns(self.path, [name for name in gone if name not in outside], header))
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
            reader = _csv(file, self, wanted or _names_of_csv(self)[:1])
        except pa.ArrowKeyError:
            header = _names_of_csv(self)
            gone = [name for name in wanted if name not in header]
            raise InvalidDataError(_no_columns(self.path, gone, header)) from None
        # Also where there are no rows.
        yield reader.schema.empty_table()
        for batch in reader:
            yield pa.Table.from_batches([batch])


@final
class TableFiles:
    """Files of one format, with the same columns: what ``fit`` and ``predict`` take, with options for reading them.

    A path by itself is enough where none is needed.

    Parameters
    ----------
    paths : str, path, or sequence of them
        Files, globs, folders, URLs. Folders named ``column=value`` are columns; in folders, what has a name that begins
        with ``.`` or ``_`` is left out.
    sep : str or None, default None
        The character between fields of CSV; by default a comma, and a tab in ``.tsv`` files.
    na_values : sequence of str, default ()
        Fields of CSV that are missing, beside those that pandas takes for that, such as ``""``, ``NA`` and ``None``.
    dtype : mapping or None, default None
        Types of columns of CSV and of folders, by name: ``str``, ``float`` or ``"datetime64[us]"``, say. All others are
        learned from all rows of ``fit``.
    encoding : str, default "utf8"
        Encoding of CSV, such as ``"latin-1"``.
    drop_missing_target : bool, default False
        Whether rows without a target or weight are left out, instead of being an error.

    Attributes
    ----------
    names : list of str
        Columns of all files, in the order of the first one. The index that pandas saved is none, nor is a column of CSV
        without a name.
    pieces : list of Piece
        In the order of the files, which are sorted where a glob or folder names them.

    Raises
    ------
    FileNotFoundError
        A path matches no file.
    InvalidParameterError
        Files are of several formats, or an option is none.
    InvalidDataError
        A file is not of its format.
    MissingPackageError
        pyarrow is not installed.

    Examples
    --------
    >>> from dsgd import SGDClassifier, TableFiles
    >>> files = TableFiles("sales-*.csv", sep=";", dtype={"zip": str})  # doctest: +SKIP
    >>> SGDClassifier(encoder="auto").fit(files, "sold")  # doctest: +SKIP
    """

    def __init__(
        self,
        paths: Any,
        *,
        sep: str | None = None,
        na_values: Sequence[str] = (),
        dtype: Mapping[str, Any] | None = None,
        encoding: str = "utf8",
        drop_missing_target: bool = False,
    ) -> None:
        reading, self._drops = _checked(sep, na_values, encoding), bool(drop_missing_target)
        self._given: dict[str, Kind] = {name: _kind_of_dtype(name, each) for name, each in (dtype or {}).items()}
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        found = [pair for path in given for pair in _expanded(os.fspath(path))]
        self._files = [file for file, _ in found]
        kinds = {_format_of(file) for file in self._files}
        if len(kinds) > 1:
            raise InvalidParameterError(f"files of several formats: {', '.join(sorted(map(str, kinds)))}. Give one.")
        self._format = kinds.pop() or "parquet"
        pyarrow_for(f"reading {self._format} files")
        self.pieces: list[Piece] = []
        self._schemas: list[Any] = []
        self._states: dict[tuple[str, bool], State] = {}
        for file, partitions in found:
            schema, counts = _surveyed(file, self._format)
            self._schemas.append(schema)
            self.pieces += [Piece(file, k, n, reading, partitions) for k, n in enumerate(counts) if n != 0]

    def __repr__(self) -> str:
        more = f" and {len(self._files) - 1} more" if len(self._files) > 1 else ""
        return f"TableFiles({self._files[0]!r}{more})"

    @cached_property
    def names(self) -> list[str]:
        """Columns of all files, in the order of the first one."""
        hidden = {""}.union(*(saved_index(schema) for schema in self._schemas if schema is not None))
        return [name for name in self._all_names if name not in hidden]

    @cached_property
    def _all_names(self) -> list[str]:
        if self._format == "csv":
            found = [name for piece in self.pieces for name in _names_of_csv(piece)]
            first = _names_of_csv(self.pieces[0])
            twice = sorted({name for name in first if first.count(name) > 1})
            if twice:
                raise InvalidDataError(
                    f"{self._files[0]} has several columns of one name: {', '.join(map(repr, twice))}. Rename them."
                )
        else:
            found = [name for schema in self._schemas for name in schema.names]
        return list(dict.fromkeys([*found, *self._partitions]))

    @cached_property
    def _partitions(self) -> list[str]:
        names = (name for piece in self.pieces for name, _, always in piece.partitions if always)
        return list(dict.fromkeys(names))

    @property
    def n_rows(self) -> int | None:
        """How many rows there are; None where only reading says it."""
        counts = [piece.n_rows for piece in self.pieces]
        return None if None in counts else sum(n or 0 for n in counts)

    def kinds(
        self, columns: Iterable[str], as_categories: Iterable[str] = (), over: Callable[..., Iterable[Any]] = map
    ) -> dict[str, Kind]:
        """Return what columns hold, learned over all rows of all files.

        Parameters
        ----------
        columns : iterable of str
            Their names.
        as_categories : iterable of str, default ()
            Those to be taken for categories: they hold numbers only if these are written as Python writes them, so
            that 02134 is text.
        over : callable, default map
            Applies a function to every piece of the files, as on workers.

        Raises
        ------
        InvalidDataError
            A column is not there, or numbers in one file and strings in another.
        """
        columns, as_categories = list(columns), frozenset(as_categories)
        self.check(columns)
        texts = [name for name in columns if name not in self._given and self._is_of_text(name)]
        new = [name for name in texts if (name, name in as_categories) not in self._states]
        if new:
            found: dict[str, State] = dict.fromkeys(new, "null")
            for states in over(lambda piece: piece.states(new, as_categories), self.pieces):
                found = {name: joined(found[name], state) for name, state in states.items()}
            self._states |= {(name, name in as_categories): state for name, state in found.items()}
        kinds: dict[str, Kind] = {}
        for name in columns:
            if name in self._given:
                kinds[name] = self._given[name]
            elif name in texts:
                state = self._states[name, name in as_categories]
                is_name = name in as_categories and state in ("number", "null")
                kinds[name] = "category" if is_name else _KINDS[state]
            else:
                kinds[name] = kind_of_type(self._type(name))
        return kinds

    def head(self, kinds: Mapping[str, Kind | None]) -> ArrowTable:
        """Return a table without rows, whose columns hold what those of all files do.

        Parameters
        ----------
        kinds : mapping
            The columns, from `kinds`; None of one that nobody reads.
        """
        import pyarrow as pa

        types = {"number": pa.float64(), "date": pa.timestamp("us"), "category": pa.string(), None: pa.string()}
        columns = [
            pa.array([], types[kind]) if kind is None or self._is_of_text(name) else pa.array([], self._type(name))
            for name, kind in kinds.items()
        ]
        return ArrowTable(pa.table(columns, names=list(kinds)))

    def tables(self, columns: Iterable[str], kinds: Mapping[str, Kind] | None = None) -> Iterator[ArrowTable]:
        """Yield all rows, piece by piece, with some columns; see `Piece.tables`."""
        columns = list(columns)
        for piece in self.pieces:
            yield from piece.tables(columns, kinds)

    def with_targets(self, names: Iterable[str]) -> TableFiles:
        """Return these files without the rows that lack a target or weight, if such rows are to be left out."""
        names = tuple(names)
        if not self._drops or not names:
            return self
        files = copy(self)
        files.pieces = [
            replace(piece, n_rows=None, reading=replace(piece.reading, required=names)) for piece in self.pieces
        ]
        return files

    def check(self, columns: Iterable[str]) -> None:
        """Raise `InvalidDataError` where a column is not there."""
        known = {*self._all_names, *(name for piece in self.pieces for name, _, _ in piece.partitions)}
        gone = [name for name in columns if name not in known]
        if gone:
            raise InvalidDataError(_no_columns(self._files[0], gone, self.names))

    def _is_of_text(self, name: str) -> bool:
        """Return whether a column has no type of its own: of CSV, or of the names of folders."""
        return (
            self._format == "csv" or name in self._partitions or not any(name in each.names for each in self._schemas)
        )

    def _type(self, name: str) -> Any:
        """Return the type of a column that all files have in common."""
        import pyarrow as pa

        found, first = None, ""
        for path, schema in zip(self._files, self._schemas, strict=True):
            kind = schema.field(name).type if name in schema.names else None
            if kind is None:
                raise InvalidDataError(_no_columns(path, [name], schema.names))
            if found is None or pa.types.is_null(found):
                found, first = kind, path
            elif not pa.types.is_null(kind) and (one := kind_of_type(found)) != (other := kind_of_type(kind)):
                raise InvalidDataError(
                    f"column {name!r} holds {_PLURAL[one]} in {first} and {_PLURAL[other]} in {path}. Write it alike, "
                    "or leave it out."
                )
            elif pa.types.is_dictionary(kind) and not pa.types.is_dictionary(found):
                found = kind
        return found


_PLURAL: Final[Mapping[Kind, str]] = {
    "number": "numbers",
    "category": "strings",
    "date": "dates",
    "unknown": "values of another type",
}


def with_files_opened(X: Any) -> Any:
    """Return the `TableFiles` of files of tables; anything else as it is.

    Parameters
    ----------
    X : object
        Anything that ``fit`` takes.
    """
    return TableFiles(X) if are_table_files(X) and not isinstance(X, TableFiles) else X


def _checked(sep: str | None, na_values: Sequence[str], encoding: str) -> Reading:
    """Return the options for reading.

    Raises
    ------
    InvalidParameterError
        One is none.
    """
    import codecs

    if sep is not None and (not isinstance(sep, str) or len(sep) != 1):
        raise InvalidParameterError(f"TableFiles(sep=...) must be one character, such as ';'. Got {sep!r}.")
    if isinstance(na_values, str) or not all(isinstance(each, str) for each in na_values):
        raise InvalidParameterError(f"TableFiles(na_values=...) must be a list of strings. Got {na_values!r}.")
    try:
        codecs.lookup(encoding)
    except (LookupError, TypeError) as error:
        raise InvalidParameterError(f"TableFiles(encoding=...): {error}. Such as 'utf8' or 'latin-1'.") from error
    return Reading(sep, tuple(na_values), encoding)


def _kind_of_dtype(name: str, dtype: Any) -> Kind:
    """Return what a column of some dtype of numpy or pandas holds."""
    known: dict[Any, Kind] = {"string": "category", "category": "category", "date": "date", "datetime": "date"}
    if isinstance(dtype, str) and dtype.lower() in known:
        return known[dtype.lower()]
    try:
        kind: str = np.dtype(dtype.lower() if isinstance(dtype, str) else dtype).kind
    except TypeError:
        kind = ""
    found: Kind | None = (
        "number" if kind in "fiub" else "category" if kind in "OUS" else "date" if kind == "M" else None
    )
    if found is None or not kind:
        raise InvalidParameterError(
            f"TableFiles(dtype=...) of {name!r} must be str, float or 'datetime64[us]', say. Got {dtype!r}."
        )
    return found


def _imposed(values: Any, kind: Kind | None, where: str) -> Any:
    """Return a column as what is wanted of it.

    Raises
    ------
    InvalidDataError
        It is something else.
    """
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
                f"{where} was taken for {_PLURAL[kind]}, and has the value {bad!r}. If that stands for a missing one, "
                f"name it in TableFiles(..., na_values=...)."
            ) from None
    if kind_of_type(values.type) != kind:
        raise InvalidDataError(f"{where} was taken for {_PLURAL[kind]}, and holds {values.type}. Convert it.")
    return as_numbers(values) if kind == "number" else values


def _reads(read: Callable[[Any], Any], value: str) -> bool:
    import pyarrow as pa

    try:
        read(pa.chunked_array([[value]]))
    except pa.ArrowException:
        return False
    return True


def _no_columns(path: str, gone: Sequence[str], names: Sequence[str]) -> str:
    return f"{path} has no column {', '.join(map(repr, gone))}. It has {', '.join(names)}."


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


def _format_of(path: str) -> str | None:
    """Return the format that the name of a file or glob says, None for any other name."""
    name = path.lower().partition("?")[0] if "://" in path else path.lower()
    return _FORMATS.get(os.path.splitext(name.removesuffix(_packing_of(name)))[1])


def _packing_of(name: str) -> str:
    return next((packing for packing in _PACKINGS if name.lower().endswith(packing)), "")


def _is_folder(path: str) -> bool:
    if "://" in path or not os.path.isdir(path):
        return False
    for _, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        if any(_format_of(name) for name in files if not _is_hidden(name)):
            return True
    return False


def _expanded(path: str) -> list[tuple[str, tuple[tuple[str, str | None, bool], ...]]]:
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
        files += sorted(file for file in inside if _format_of(file))
    if not files:
        raise FileNotFoundError(2, "no such file of a table", path)
    # Names of a remote system lose its scheme.
    return [(system.unstrip_protocol(file) if "://" in path else file, _partitions_of(file, base)) for file in files]


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
        warnings.warn(
            f"{path} is a Delta table with deleted files, and all of its Parquet files are read. Pass "
            "deltalake.DeltaTable(path).file_uris().",
            UserWarning,
            stacklevel=4,
        )


def _opened(path: str) -> Any:
    """Open a file for reading, unpacked if its name says that it is packed, and its first bytes do not deny it."""
    import fsspec

    pa = pyarrow_for("reading tables")
    packing = _packing_of(path)
    if packing and _format_of(path) != "csv":
        # pandas writes x.parquet.gzip for Parquet that is packed inside.
        with fsspec.open(path, "rb") as file:
            packing = "" if file.read(6).startswith((b"PAR1", b"ARROW1")) else packing
    if "://" not in path and not packing:
        # Of Arrow a map is the table; of other files its pages would count as memory of the process.
        return pa.memory_map(path) if _format_of(path) == "arrow" else pa.OSFile(path)
    return fsspec.open(path, "rb", compression=_PACKINGS.get(packing), expand=False).open()


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


def _names_of_csv(piece: Piece) -> list[str]:
    """Return the names of the columns of a CSV file.

    Raises
    ------
    InvalidDataError
        It is none.
    """
    import csv

    # Not by a reader of Arrow, which reads ahead.
    with _opened(piece.path) as file:
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


def _separator(piece: Piece) -> str:
    path = piece.path.lower()
    return piece.reading.sep or ("\t" if path.removesuffix(_packing_of(path)).endswith(".tsv") else ",")


def _surveyed(path: str, kind: str) -> tuple[Any, list[int | None]]:
    """Return the schema of a file, None of CSV, and the numbers of rows of its pieces.

    Raises
    ------
    InvalidDataError
        It is not of its format.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if kind == "csv":
        return None, [None]
    try:
        with _opened(path) as file:
            if kind == "parquet":
                parquet = pq.ParquetFile(file)
                groups = [parquet.metadata.row_group(k).num_rows for k in range(parquet.metadata.num_row_groups)]
                return _schema_as_written(parquet), list(groups)
            reader = pa.ipc.open_file(file)
            return reader.schema, [reader.get_batch(k).num_rows for k in range(reader.num_record_batches)]
    except pa.ArrowException as error:
        raise InvalidDataError(f"{path}: {error}") from error


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
