"""Tables in Arrow memory, which Polars, DuckDB and others hand out, read with pyarrow.

Problem: there are many such libraries, and each would want a reader of its own.

Method: ``__arrow_c_stream__`` gives the columns of any of them without a copy; a library without it is asked by the
data frame protocol. Categories are coded by Arrow's hash table. pyarrow is loaded only for those who have such a table.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Final, final

import numpy as np

from dsgd.errors import InvalidDataError, MissingPackageError
from dsgd.inputs.tables.base import Coded, Kind, dates_of_text, is_text, no_categories, numbers_of_text, wrong_kind
from dsgd.types import AnyArray

_LEVEL: Final = re.compile(r"__index_level_\d+__")


@final
class ArrowTable:
    """A table in Arrow memory."""

    def __init__(self, table: Any) -> None:
        self._table = table
        hidden = saved_index(table.schema)
        self.names: list[Any] = [name for name in table.column_names if name not in hidden]

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @property
    def columns(self) -> Any:
        """The pyarrow.Table."""
        return self._table

    def without(self, name: str) -> ArrowTable:
        """Return the table without a column."""
        return ArrowTable(self._table.drop_columns([name]))

    def rows(self, start: int, stop: int) -> ArrowTable:
        """Return the rows from start up to stop, of which nothing is copied."""
        return ArrowTable(self._table.slice(start, stop - start))

    def kind(self, name: Any) -> Kind:
        """Return what a column holds; codes of anything but dates are categories."""
        import pyarrow.types as types

        found = self.value_kind(name)
        return "category" if found == "number" and types.is_dictionary(self._table.schema.field(name).type) else found

    def value_kind(self, name: Any) -> Kind:
        """Return what the values of a column are, which of categories may be numbers."""
        return kind_of_type(self._table.schema.field(name).type)

    def numbers(self, name: Any) -> AnyArray:
        """Return a column as float64, NaN where it is missing."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = self._column(name)
        if self.kind(name) == "date":
            raise wrong_kind(name, "numbers", "dates")
        try:
            values = numbers_of_text(values) if is_text(values.type) else as_numbers(values)
            return np.asarray(pc.cast(values, pa.float64(), safe=False).to_numpy())
        except pa.ArrowException as error:
            raise wrong_kind(name, "numbers", error) from error

    def coded(self, name: Any) -> Coded:
        """Return a column as codes."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = self._column(name)
        if pa.types.is_duration(_value_type(values.type)):
            raise no_categories(name)
        if pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(values), None, values)  # missing too, as in `numbers`
        try:
            values = values.unify_dictionaries() if pa.types.is_dictionary(values.type) else values.dictionary_encode()
        except pa.ArrowException as error:
            raise InvalidDataError(f"column {name!r} has values that are no categories ({error}).") from error
        if values.num_chunks == 0:
            return Coded(np.empty(0, np.int32), [])
        coded = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
        codes = coded.indices.cast(pa.int32())
        codes = codes.fill_null(-1) if codes.null_count else codes
        return Coded(codes.to_numpy(zero_copy_only=False), coded.dictionary)

    def microseconds(self, name: Any) -> tuple[AnyArray, AnyArray]:
        """Return a column of dates as microseconds since 1970, and where it is missing."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = self._column(name)
        if pa.types.is_dictionary(values.type):
            values = pc.cast(values, values.type.value_type)
        if is_of_numbers(values.type):
            if not np.isnan(self.numbers(name)).all():
                raise wrong_kind(name, "dates", "numbers")
            return np.zeros(len(self), np.int64), np.ones(len(self), np.bool_)
        try:
            if is_text(values.type):
                values = dates_of_text(values)
            elif not pa.types.is_timestamp(values.type):
                values = pc.cast(values, pa.timestamp("us"))
            elif values.type.unit != "us":
                values = pc.cast(values, pa.timestamp("us", values.type.tz), safe=False)
        except pa.ArrowException as error:
            raise wrong_kind(name, "dates", error) from error
        whole = pc.cast(values, pa.int64()).fill_null(0).to_numpy()
        return whole, values.is_null().to_numpy()

    def _column(self, name: Any) -> Any:
        """Return a column in which strings are no views, as those of Polars are: Arrow computes little with these."""
        import pyarrow as pa

        values = self._table.column(name)
        kind = _value_type(values.type)
        if not (pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)):
            return values
        plain = pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()
        if pa.types.is_dictionary(values.type):
            return values.cast(pa.dictionary(values.type.index_type, plain, values.type.ordered))
        return values.cast(plain)


def arrow_table(X: Any) -> Any:
    """Return the Arrow table of an object that hands one out."""
    what = f"a table of {type(X).__module__.partition('.')[0]}"
    pa = pyarrow_for(what)
    if isinstance(X, pa.Table):
        return X
    if isinstance(X, pa.RecordBatch):
        return pa.Table.from_batches([X])
    polars = sys.modules.get("polars")
    if polars is not None and isinstance(X, polars.DataFrame) and polars.Object in X.dtypes:
        name = X.columns[X.dtypes.index(polars.Object)]
        raise InvalidDataError(
            f"column {name!r} has the dtype Object of Polars, whose values are addresses in memory to others. Cast it, "
            "or leave it out of X."
        )
    if hasattr(X, "__arrow_c_stream__"):
        try:
            return pa.table(X)
        except pa.ArrowException as error:
            raise InvalidDataError(f"{what} has a column that pyarrow cannot read ({error}). Cast it.") from error
    import pyarrow.interchange

    return pyarrow.interchange.from_dataframe(X)


def pyarrow_for(what: str) -> Any:
    """Return the module pyarrow."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingPackageError(f"{what} needs pyarrow: pip install 'dsgd[frames]'") from error
    return pyarrow


def utf8_buffers(values: Any) -> tuple[AnyArray, AnyArray] | None:
    """Return the buffers of an array of strings, as `utf8` does; None if it holds something else."""
    import pyarrow as pa

    wide = pa.types.is_large_string(values.type)
    if not wide and not pa.types.is_string(values.type):
        return None
    _, starts, data = values.buffers()
    offsets = np.frombuffer(starts, np.int64 if wide else np.int32)[values.offset : values.offset + len(values) + 1]
    return np.frombuffer(data if data is not None else b"", np.uint8), offsets.astype(np.int64)


def is_of_numbers(kind: Any) -> bool:
    """Return whether values of an Arrow type are numbers or bools."""
    import pyarrow.types as types

    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    return any(test(kind) for test in tests)


def as_numbers(values: Any) -> Any:
    """Return numbers or bools as floats, decimals rounded as Python rounds them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(values.type):
        values = pc.cast(values, values.type.value_type)
    if pa.types.is_floating(values.type):
        return values
    if pa.types.is_boolean(values.type):
        values = pc.cast(values, pa.int8())
    elif pa.types.is_decimal(values.type):
        values = pc.cast(values, pa.string())  # Arrow scales a rounded whole number
    return pc.cast(values, pa.float64(), safe=False)


def kind_of_type(kind: Any) -> Kind:
    """Return what values of an Arrow type are; nulls are missing numbers, as pandas reads them."""
    import pyarrow.types as types

    kind = _value_type(kind)
    if is_of_numbers(kind) or types.is_null(kind):
        return "number"
    if types.is_date(kind) or types.is_timestamp(kind):
        return "date"
    tests = (is_text, types.is_binary, types.is_binary_view, types.is_large_binary, types.is_fixed_size_binary)
    return "category" if any(test(kind) for test in tests) else "unknown"


def saved_index(schema: Any) -> set[str]:
    """Return the columns of an Arrow schema that are the index of a frame of pandas, which is no column there."""
    try:
        written = json.loads((schema.metadata or {}).get(b"pandas", b"{}")).get("index_columns", [])
    except (ValueError, AttributeError):  # of somebody else
        written = []
    names = {name for name in written if isinstance(name, str)}
    return names.intersection(schema.names) | {name for name in schema.names if _LEVEL.fullmatch(name)}


def _value_type(kind: Any) -> Any:
    """Return the Arrow type of values; of categories, that of theirs."""
    import pyarrow.types as types

    return kind.value_type if types.is_dictionary(kind) else kind
