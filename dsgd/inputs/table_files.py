"""Tables in files: Parquet, CSV and Arrow, read piece by piece, each by whoever trains on it.

Problem: a file of CSV has no types, and files of one table may each have types of their own. Guessed file by file, a
column is numbers in one and names in the next.

Method: text is read as text, with what pandas takes for missing; what a column holds is learned over all rows of all
files, once, and whoever reads says what it wants of each column. What cannot become that is an error that names file
and column. Folders named ``column=value`` are columns of text as well.

Not with ``pyarrow.dataset``: it types CSV by its first rows and partitions by the paths at hand, and fills a column
that a file lacks with missing values.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, final

import numpy as np

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.inputs import table_pieces
from dsgd.inputs.tables import ArrowTable, Kind, State, joined, kind_of_type, pyarrow_for, saved_index

_KINDS: Final[Mapping[State, Kind]] = {
    "null": "number",
    "bool": "number",
    "plain": "number",
    "number": "number",
    "date": "date",
    "text": "category",
}


def are_table_files(X: Any) -> bool:
    """Return whether X is a path, or several, of tables: by its name, or a folder with such files."""
    if isinstance(X, TableFiles):
        return True
    if isinstance(X, (list, tuple)) and X:
        return all(are_table_files(each) for each in X)
    if not isinstance(X, (str, os.PathLike)):
        return False
    path = os.fspath(X)
    return isinstance(path, str) and (table_pieces.format_of(path) is not None or table_pieces.is_folder(path))


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
        found = [pair for path in given for pair in table_pieces.expanded(os.fspath(path))]
        self._files = [file for file, _ in found]
        kinds = {table_pieces.format_of(file) for file in self._files}
        if len(kinds) > 1:
            raise InvalidParameterError(f"files of several formats: {', '.join(sorted(map(str, kinds)))}. Give one.")
        self._format = kinds.pop() or "parquet"
        pyarrow_for(f"reading {self._format} files")
        self.pieces: list[table_pieces.Piece] = []
        self._schemas: list[Any] = []
        self._states: dict[tuple[str, bool], State] = {}
        for file, partitions in found:
            schema, counts = table_pieces.surveyed(file, self._format)
            self._schemas.append(schema)
            self.pieces += [table_pieces.Piece(file, k, n, reading, partitions) for k, n in enumerate(counts) if n != 0]

    def __repr__(self) -> str:
        more = f" and {len(self._files) - 1} more" if len(self._files) > 1 else ""
        return f"TableFiles({self._files[0]!r}{more})"

    @cached_property
    def names(self) -> list[str]:
        """Columns of all files, in the order of the first one."""
        hidden = {""}.union(*(saved_index(schema) for schema in self._schemas if schema is not None))
        return [name for name in self.all_names if name not in hidden]

    @cached_property
    def all_names(self) -> list[str]:
        """The same, with what is none."""
        if self._format == "csv":
            found = [name for piece in self.pieces for name in table_pieces.names_of_csv(piece)]
            first = table_pieces.names_of_csv(self.pieces[0])
            twice = sorted({name for name in first if name and first.count(name) > 1})
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
        known = {*self.all_names, *(name for piece in self.pieces for name, _, _ in piece.partitions)}
        gone = [name for name in columns if name not in known]
        if gone:
            raise InvalidDataError(table_pieces.no_columns(self._files[0], gone, self.names))

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
                raise InvalidDataError(table_pieces.no_columns(path, [name], schema.names))
            if found is None or pa.types.is_null(found):
                found, first = kind, path
            elif not pa.types.is_null(kind) and (one := kind_of_type(found)) != (other := kind_of_type(kind)):
                raise InvalidDataError(
                    f"column {name!r} holds {table_pieces.PLURAL[one]} in {first} and "
                    f"{table_pieces.PLURAL[other]} in {path}. Write it alike, or leave it out."
                )
            elif pa.types.is_dictionary(kind) and not pa.types.is_dictionary(found):
                found = kind
        return found


def with_files_opened(X: Any) -> Any:
    """Return the `TableFiles` of files of tables; anything else as it is."""
    return TableFiles(X) if are_table_files(X) and not isinstance(X, TableFiles) else X


def _checked(sep: str | None, na_values: Sequence[str], encoding: str) -> table_pieces.Reading:
    """Return the options for reading."""
    import codecs

    if sep is not None and (not isinstance(sep, str) or len(sep) != 1):
        raise InvalidParameterError(f"TableFiles(sep=...) must be one character, such as ';'. Got {sep!r}.")
    if isinstance(na_values, str) or not all(isinstance(each, str) for each in na_values):
        raise InvalidParameterError(f"TableFiles(na_values=...) must be a list of strings. Got {na_values!r}.")
    try:
        codecs.lookup(encoding)
    except (LookupError, TypeError) as error:
        raise InvalidParameterError(f"TableFiles(encoding=...): {error}. Such as 'utf8' or 'latin-1'.") from error
    return table_pieces.Reading(sep, tuple(na_values), encoding)


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
