"""Tables column by column: numbers, codes of categories, texts and dates, of arrays and in Arrow memory.

`dsgd.preprocessing` reads columns by these, and estimators the column of the target. There is a reader for pandas, one
for Arrow memory, which all other libraries hand out, and one for arrays; no library is loaded for anybody who has none
of its objects. ``__arrow_c_stream__`` gives the columns of Polars, DuckDB and others without a copy; a library without
it is asked by the data frame protocol.

**Text.** A column of CSV is what all its texts are, and text comes in parts, in any order. A part has a state, and
states of parts are joined; text is what two of them have in common, if they differ. So the state of a column is that of
all its texts, however they are cut. What is a number or a date is said by the functions that read it.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal, Protocol, Self, TypeAlias, final

import numpy as np

from dsgd.errors import InvalidDataError, MissingPackageError
from dsgd.types import AnyArray, IntVector

#: What a column holds. Strings are categories; whether they are texts is for the user to say.
Kind: TypeAlias = Literal["number", "category", "date", "unknown"]


@dataclass(frozen=True)
class Coded:
    """A column as codes."""

    codes: IntVector
    values: Any

    def listed(self) -> list[Any]:
        """Return the values as Python objects; whole numbers are integers, however the library had to store them."""
        # Not to_pylist, which takes ten times as long.
        values: list[Any] = (
            self.values if isinstance(self.values, list) else self.values.to_numpy(zero_copy_only=False).tolist()
        )
        types = set(map(type, values))
        if Decimal in types:
            values = [float(v) if isinstance(v, Decimal) else v for v in values]
        if float in types or Decimal in types:
            return [int(v) if isinstance(v, float) and v.is_integer() else v for v in values]
        return values


class Table(Protocol):
    """Named columns in memory, of whatever library: questions are about one column, and answered by arrays."""

    @property
    def names(self) -> list[Any]:
        """Names of the columns, in order."""

    def __len__(self) -> int: ...

    def kind(self, name: Any) -> Kind:
        """Return what a column holds."""

    def value_kind(self, name: Any) -> Kind:
        """Return what the values of a column are, which of categories may be numbers."""

    def numbers(self, name: Any) -> AnyArray:
        """Return a column as float64, NaN where it is missing."""

    def coded(self, name: Any) -> Coded:
        """Return a column as codes."""

    def microseconds(self, name: Any) -> tuple[AnyArray, AnyArray]:
        """Return a column of dates as int64 microseconds since 1970, and where it is missing."""

    def rows(self, start: int, stop: int) -> Self:
        """Return the rows from start up to stop, of which nothing is copied."""


def coded_one_by_one(name: object, values: list[Any]) -> Coded:
    """Return objects as codes, in which True is not 1 though Python says that they are equal."""
    found: dict[Any, int] = {}
    try:
        codes = [-1 if is_missing(v) else found.setdefault((v, isinstance(v, bool)), len(found)) for v in values]
    except (TypeError, ValueError) as error:  # a list, say, or an array
        raise InvalidDataError(f"column {name!r} has values that are no categories ({error}).") from error
    return Coded(np.array(codes, np.int32), [value for value, _ in found])


def is_missing(value: Any) -> bool:
    """Return whether a Python object stands for a missing value."""
    # The missing value of pandas neither equals itself nor does not.
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def no_categories(name: object) -> InvalidDataError:
    """Return the error of a column of durations that was taken for categories."""
    return InvalidDataError(f"column {name!r} holds durations, which are no categories. Make them numbers of seconds.")


def wrong_kind(name: object, what: str, why: object) -> InvalidDataError:
    """Return the error of a column that was taken for something else than it is."""
    return InvalidDataError(f"column {name!r} was taken for {what}, and some of its values are none ({why}).")


@final
class ArrayTable:
    """An array of two dimensions; a column of objects is what all its values are."""

    def __init__(self, array: AnyArray, names: list[Any] | None = None) -> None:
        self._array = array
        self.names: list[Any] = [f"x{k}" for k in range(array.shape[1])] if names is None else names

    def __len__(self) -> int:
        return int(self._array.shape[0])

    def kind(self, name: Any) -> Kind:
        """Return what a column holds."""
        if self._array.dtype.kind in "fiub":
            return "number"
        if self._array.dtype.kind != "O":
            return "category" if self._array.dtype.kind in "US" else "unknown"
        values = [v for v in self._column(name) if not is_missing(v)]
        return "number" if all(isinstance(v, (int, float, np.number, np.bool_)) for v in values) else "category"

    def value_kind(self, name: Any) -> Kind:
        """Return what the values of a column are."""
        return self.kind(name)

    def numbers(self, name: Any) -> AnyArray:
        """Return a column as float64, NaN where it is missing."""
        values: Any = self._column(name)
        if values.dtype.kind == "O":
            values = [np.nan if is_missing(value) else value for value in values]
        try:
            return np.asarray(values, np.float64)
        except (TypeError, ValueError) as error:
            raise wrong_kind(name, "numbers", error) from error

    def coded(self, name: Any) -> Coded:
        """Return a column as codes."""
        return coded_one_by_one(name, self._column(name).tolist())

    def microseconds(self, name: Any) -> tuple[AnyArray, AnyArray]:
        """Return a column of dates as microseconds since 1970, and where it is missing."""
        if self.kind(name) == "number" and not all(map(is_missing, self._column(name))):
            raise wrong_kind(name, "dates", "numbers")
        try:
            values = self._column(name).astype("datetime64[us]")
        except (TypeError, ValueError) as error:
            raise wrong_kind(name, "dates", error) from error
        return values.astype(np.int64), np.isnat(values)

    def named(self, names: list[Any]) -> ArrayTable:
        """Return the array with other names of its columns."""
        return ArrayTable(self._array, names)

    def rows(self, start: int, stop: int) -> ArrayTable:
        """Return the rows from start up to stop, of which nothing is copied."""
        return ArrayTable(self._array[start:stop], self.names)

    def _column(self, name: Any) -> AnyArray:
        found: AnyArray = self._array[:, self.names.index(name)]
        return found


#: What texts are; "plain" are numbers as Python writes them.
State: TypeAlias = Literal["null", "bool", "plain", "number", "date", "text"]
_TRUE: Final = ("True", "TRUE", "true")
_FALSE: Final = ("False", "FALSE", "false")
_FIRST: Final = 100
_ZONE: Final = r":\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"


def is_text(kind: Any) -> bool:
    """Return whether values of an Arrow type are strings, or codes of strings."""
    import pyarrow.types as types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def numbers_of_text(texts: Any) -> Any:
    """Return numbers and bools that are written as text, as float64."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = _plain(texts)
    try:
        return pc.cast(texts, pa.float64())
    except pa.ArrowException:
        texts = pc.utf8_trim_whitespace(texts)
    true, false = (pc.is_in(texts, value_set=pa.array(words, texts.type)) for words in (_TRUE, _FALSE))
    numbers = pc.cast(pc.if_else(pc.or_(true, false), None, texts), pa.float64())
    return pc.if_else(true, 1.0, pc.if_else(false, 0.0, numbers))


def dates_of_text(texts: Any) -> Any:
    """Return dates and times that are written by ISO 8601, with or without a time zone, as timestamps in UTC."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = _plain(texts)
    zoned = pc.match_substring_regex(texts, _ZONE)
    found = []
    for part, zone in ((pc.if_else(zoned, None, texts), None), (pc.if_else(zoned, texts, None), "UTC")):
        try:
            dates = pc.cast(part, pa.timestamp("us", zone))
        except pa.ArrowException:
            dates = pc.cast(pc.cast(part, pa.timestamp("ns", zone)), pa.timestamp("us", zone), safe=False)
        found.append(pc.cast(dates, pa.timestamp("us")))
    return pc.coalesce(*found)


def state_of_text(texts: Any, before: State = "null", *, asks_plain: bool = False) -> State:
    """Return what texts are, together with those of a state."""
    texts = _plain(texts)
    if before == "text" or texts.null_count == len(texts):
        return before
    number: State = "plain" if asks_plain and before != "number" else "number"
    states: tuple[State, ...] = ("bool", number, "date") if before == "null" else (before,)
    for state in states:
        # The first of them say cheaply what the column is not.
        if _are(texts.slice(0, _FIRST), state) and _are(texts, state):
            return state
    return "text" if before == "null" else joined(before, state_of_text(texts, asks_plain=asks_plain))


def joined(one: State, other: State) -> State:
    """Return what texts of two states are together."""
    if "null" in (one, other) or one == other:
        return other if one == "null" else one
    return "number" if {one, other} == {"plain", "number"} else "text"


def parsed(text: str) -> Any:
    """Return the bool, or number, that a text is, whole ones as integers; the text itself if it is none."""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    try:
        return int(text)
    except ValueError:
        try:
            value = float(text)
        except ValueError:
            return text
    return int(value) if value.is_integer() else value


def _are(texts: Any, state: State) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if state == "bool":
        known = pc.is_in(texts, value_set=pa.array([*_TRUE, *_FALSE], texts.type))
        return bool(pc.all(pc.or_(known, pc.is_null(texts))).as_py())
    if state == "plain":
        return all(text is None or _is_plain(text) for text in texts.unique().to_pylist())
    try:
        if state == "date":
            dates_of_text(texts)
            return True
        try:
            pc.cast(texts, pa.float64())
        except pa.ArrowException:
            pc.cast(pc.utf8_trim_whitespace(texts), pa.float64())
    except pa.ArrowException:
        return False
    return True


def _is_plain(text: str) -> bool:
    try:
        return text in (str(int(text)), repr(float(text)))
    except ValueError:
        try:
            return text == repr(float(text))
        except ValueError:
            return False


def _plain(texts: Any) -> Any:
    """Return strings that are neither codes nor views, with which Arrow computes little."""
    import pyarrow as pa

    return texts if pa.types.is_string(texts.type) else texts.cast(pa.large_string())


def is_table(X: object) -> bool:
    """Return whether X is a pandas data frame."""
    # A query of Polars warns where its dtypes are asked for.
    return hasattr(X, "iloc") and hasattr(X, "dtypes") and hasattr(X, "columns") and hasattr(X, "to_numpy")


def refuse_queries(X: object, name: str = "X") -> None:
    """Raise `InvalidDataError` if X is a query that has not run, of Polars, say."""
    if type(X).__name__ == "LazyFrame":
        raise InvalidDataError(
            f"{name} is a LazyFrame of {type(X).__module__.partition('.')[0]}: a query, whose rows are not there. Pass "
            f"{name}.collect()."
        )


def number_dtype(dtype: Any) -> np.dtype[Any] | None:
    """Return the numpy dtype of a column of numbers or bools (also of nullable ones such as Int64), else None."""
    kind = getattr(dtype, "numpy_dtype", dtype)
    if isinstance(kind, np.dtype) and kind.kind in "fiub":
        return kind
    return None


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
