"""Which features each column becomes, and rows of them in CSR.

Features are in groups, as if a `ColumnTransformer` had one transformer for each: numbers and dates, one-hot categories,
hashed categories, which share theirs, and texts, each with its own. Within a group columns keep their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

import numpy as np
import scipy.sparse as sp

from dsgd.errors import InvalidDataError
from dsgd.inputs.frames import batches, categories, utf8
from dsgd.inputs.tables import Coded, Kind, Table
from dsgd.preprocessing.statistics import days_of, hash_strings, hashed_texts, missing_text, write_rows
from dsgd.types import AnyArray

#: Rows that are encoded at once: what is made of their columns stays in the caches, and calls cost nothing.
_BATCH_ROWS: Final = 65_536
#: So many rows with unknown categories are no accident.
_SEVERAL: Final = 10
_OF_DATES: Final = ("time", "day_sin", "day_cos", "week_sin", "week_cos", "year_sin", "year_cos")


@dataclass(frozen=True)
class Numbers:
    """A column of numbers or dates."""

    name: Any
    mean: float
    scale: float
    says_missing: bool
    is_date: bool = False
    is_whole: bool = False
    limit: float = math.inf

    def rows(self, table: Table) -> AnyArray:
        """Return the numbers of its features, shape (n_numbers, n)."""
        if not self.is_date:
            values = table.numbers(self.name)
            return values[None, :]
        days = days_of(table, self.name)
        whole = np.floor(np.nan_to_num(days))
        year = (
            whole.astype(np.int64)
            .astype("datetime64[D]")
            .astype("datetime64[Y]")
            .astype("datetime64[D]")
            .astype(np.float64)
        )
        # The first day of 1970 was a Thursday; weeks begin with Monday.
        turns = 2 * math.pi * np.stack([days % 1.0, ((days + 3) % 7) / 7, (days - year) / 365.2425])
        waves = np.stack([np.sin(turns), np.cos(turns)], axis=1).reshape(6, -1)
        return np.concatenate([days[None, :], waves])

    def names(self) -> list[str]:
        """Return the names of its numbers."""
        return [f"{self.name}_{part}" for part in _OF_DATES] if self.is_date else [str(self.name)]


@dataclass(frozen=True)
class OneHot:
    """A column of categories with a feature each."""

    name: Any
    categories: list[Any]
    infrequent: frozenset[Any]
    says_missing: bool
    refuses: bool
    kind: Kind | None = None

    @property
    def width(self) -> int:
        """How many features there are."""
        return len(self.categories) + bool(self.infrequent) + self.says_missing

    def places(self, first: int) -> dict[Any, int]:
        """Return the feature of each category, if the first one has this number."""
        places = {value: first + k for k, value in enumerate(self.categories)}
        places |= dict.fromkeys(self.infrequent, first + len(self.categories))
        return places

    def codes(self, table: Table, first: int, places: dict[Any, int]) -> tuple[AnyArray, int, int, int]:
        """Return the feature of each row, -1 for none, and the rows with a category, a known one, a number for text."""
        coded = categories(table, self.name, self.kind)
        values = coded.listed()
        is_retyped = self.kind == "category" and table.value_kind(self.name) == "number"
        if is_retyped:
            values = [str(v) if isinstance(v, (int, float)) else v for v in values]
        # Infrequent values stand for unknown ones too, as in scikit-learn.
        other = first + len(self.categories) if self.infrequent and not self.refuses else -1
        known = np.fromiter(map(places.__contains__, values), np.bool_, len(values))
        rows = np.bincount(coded.codes + 1, minlength=len(values) + 1)[1:]
        features = np.empty(len(values) + 1, np.int32)
        features[:-1] = np.fromiter(map(places.get, values, repeat(other)), np.int32, len(values))
        features[-1] = first + self.width - 1 if self.says_missing else -1
        # The code -1 of a missing one is the last place.
        found: AnyArray = features[coded.codes]
        if self.refuses and (found < 0).any():
            row = int(np.argmax(found < 0))
            value = None if coded.codes[row] < 0 else values[coded.codes[row]]
            raise InvalidDataError(f"column {self.name!r} has the unknown category {value!r} (handle_unknown='error').")
        return found, int(rows.sum()), int(rows[known].sum()), int(rows.sum()) * is_retyped

    def names(self) -> list[str]:
        """Return the names of the features."""
        names = list(map(str, self.categories))
        for mark in ["infrequent"] * bool(self.infrequent) + ["missing"] * self.says_missing:
            while mark in names:  # a category is called so
                mark += "_"
            names.append(mark)
        return [f"{self.name}_{name}" for name in names]


@dataclass(frozen=True)
class Layout:
    """The features of all columns."""

    numbers: tuple[Numbers, ...]
    onehot: tuple[OneHot, ...]
    hashed: tuple[Any, ...]
    texts: tuple[Any, ...]
    n_hashed: int
    ngram_range: tuple[int, int]
    kinds: tuple[tuple[Any, Kind], ...] = ()

    def names(self) -> list[str]:
        """Return the names of all features, in order."""
        names: list[str] = []
        for number in self.numbers:
            names += number.names() + [f"{number.name}_missing"] * number.says_missing
        for column in self.onehot:
            names += column.names()
        names += [f"hash{k}" for k in range(self.n_hashed if self.hashed else 0)]
        for text in self.texts:
            names += [f"{text}_hash{k}" for k in range(self.n_hashed)]
        return names

    def columns(self) -> list[Any]:
        """Return the column of each feature, None of those that hashed columns share."""
        found: list[Any] = []
        for number in self.numbers:
            found += [number.name] * (len(number.names()) + number.says_missing)
        for column in self.onehot:
            found += [column.name] * column.width
        found += [None] * (self.n_hashed if self.hashed else 0)
        for text in self.texts:
            found += [text] * self.n_hashed
        return found

    def widths(self) -> dict[Any, str]:
        """Return how many features each column has, as text that says which are shared."""
        widths = {number.name: str(len(number.names()) + number.says_missing) for number in self.numbers}
        widths |= {column.name: str(column.width) for column in self.onehot}
        widths |= dict.fromkeys(self.hashed, f"{self.n_hashed} shared")
        return widths | dict.fromkeys(self.texts, str(self.n_hashed))

    @property
    def is_sparse(self) -> bool:
        """Whether rows are CSR; of numbers alone they are dense."""
        return bool(self.onehot or self.hashed or self.texts)

    @property
    def width(self) -> int:
        """How many features there are."""
        return self.n_before_texts + len(self.texts) * self.n_hashed

    @property
    def n_before_hashed(self) -> int:
        """How many features are before the hashed ones."""
        numbers = sum(len(number.names()) + number.says_missing for number in self.numbers)
        return numbers + sum(column.width for column in self.onehot)

    @property
    def n_before_texts(self) -> int:
        """How many features are before those of texts."""
        return self.n_before_hashed + (self.n_hashed if self.hashed else 0)

    @property
    def most_entries(self) -> int:
        """The most entries of a row, texts left out."""
        return sum(len(number.names()) for number in self.numbers) + len(self.onehot) + len(self.hashed)


class RowWriter:
    """Writes encoded rows, part by part."""

    def __init__(self, layout: Layout, dtype: Any) -> None:
        self._layout, self._dtype = layout, np.dtype(dtype)
        at = sum(len(number.names()) + number.says_missing for number in layout.numbers)
        self._onehot = []
        for column in layout.onehot:
            self._onehot.append((column, at, column.places(at)))
            at += column.width
        self._places, self._scaling = _placed(layout)
        self._kinds = dict(layout.kinds)
        # Rows with a category, with a known one, and with a number in place of text, of each one-hot column.
        self._seen = np.zeros((len(layout.onehot), 3), np.int64)

    @property
    def knows_its_size(self) -> bool:
        """Whether the most entries of a row are known; of texts they are not."""
        return not self._layout.texts

    def rows_of(
        self,
        tables: Iterable[Table],
        n_rows: int,
        empty: Callable[[Any, Any], AnyArray] = np.empty,
        written: Callable[[], object] | None = None,
    ) -> Any:
        """Return the rows of tables as one matrix."""
        layout = self._layout
        parts = (part for table in tables for part in batches(table, _BATCH_ROWS))
        if layout.texts:
            blocks = [self._with_texts(part) for part in parts]
            blocks = blocks or [sp.csr_array((0, layout.width), dtype=self._dtype)]
            return blocks[0] if len(blocks) == 1 else sp.vstack(blocks, format="csr")
        if not layout.is_sparse:
            dense = empty((n_rows, layout.width), self._dtype)
            row = 0
            for part in parts:
                dense[row : row + len(part)] = self._sparse(part).toarray()
                row += len(part)
                if written is not None:
                    written()
            return dense
        most = n_rows * layout.most_entries
        whole = np.int32 if most < 2**31 else np.int64
        out = empty(n_rows + 1, whole), empty(most, whole), empty(most, self._dtype)
        out[0][0] = row = entry = 0
        for part in parts:
            entry = self._write(part, (row, entry), out)
            row += len(part)
            if written is not None:
                written()
        indptr, indices, values = out
        return sp.csr_array((values[:entry], indices[:entry], indptr), shape=(n_rows, layout.width))

    def unseen(self) -> list[str]:
        """Return a sentence for each one-hot column whose categories, in the rows that were written, are others."""
        found = []
        for column, (rows, known, retyped) in zip(self._layout.onehot, self._seen, strict=True):
            if rows >= _SEVERAL and retyped and known < rows:
                found.append(
                    f"column {column.name!r} was text in fit and has numbers here, some of them unknown (02134 read as "
                    "2134?)."
                )
            elif rows >= _SEVERAL and not known:
                found.append(f"no value of column {column.name!r} was there in fit.")
        return found

    def most_bytes(self, n_rows: int) -> tuple[int, int, int]:
        """Return the bytes of indptr, indices and values, or of a dense array in place of these."""
        if not self._layout.is_sparse:
            return 0, 0, n_rows * self._layout.width * self._dtype.itemsize
        most = n_rows * self._layout.most_entries
        whole = 4 if most < 2**31 else 8
        return (n_rows + 1) * whole, most * whole, most * self._dtype.itemsize

    def _sparse(self, part: Table) -> Any:
        n, most = len(part), len(part) * self._layout.most_entries
        out = np.zeros(n + 1, np.int32), np.empty(most, np.int32), np.empty(most, self._dtype)
        end = self._write(part, (0, 0), out)
        return sp.csr_array((out[2][:end], out[1][:end], out[0]), shape=(n, self._layout.n_before_texts))

    def _with_texts(self, part: Table) -> Any:
        layout = self._layout
        texts = [
            hashed_texts(
                categories(part, name, self._kinds.get(name)), layout.n_hashed, layout.ngram_range, self._dtype
            )
            for name in layout.texts
        ]
        return sp.hstack([self._sparse(part), *texts], format="csr")

    def _write(self, part: Table, first: tuple[int, int], out: tuple[AnyArray, AnyArray, AnyArray]) -> int:
        """Write some rows behind those that are there; return the end of their entries."""
        n, layout = len(part), self._layout
        numbers = np.empty((self._scaling.shape[1], n))
        at = 0
        for number in layout.numbers:
            rows = number.rows(part)
            if np.isinf(rows).any():
                raise InvalidDataError(f"column {number.name!r} has infinite values. Replace them, or make them NaN.")
            if number.is_whole and np.isnan(rows).any():
                raise InvalidDataError(missing_text(number.name))
            numbers[at : at + len(rows)] = rows
            at += len(rows)
        codes = np.empty((len(layout.onehot), n), np.int32)
        for k, (column, start, places) in enumerate(self._onehot):
            codes[k], *seen = column.codes(part, start, places)
            self._seen[k] += seen
        hashes = np.empty((len(layout.hashed), n), np.int32)
        for k, name in enumerate(layout.hashed):
            hashes[k] = _hashes(name, categories(part, name, self._kinds.get(name)))
        hashed = (layout.n_before_hashed, layout.n_hashed)
        end = int(write_rows(numbers, self._scaling, self._places, codes, hashes, hashed, first, out))
        if not np.isfinite(out[2][first[1] : end]).all():
            raise InvalidDataError(f"X has numbers that are infinite in {self._dtype}. Scale them.")
        return end


def _placed(layout: Layout) -> tuple[AnyArray, AnyArray]:
    """Return the features of all numbers and of what says that they are missing, and how they are scaled."""
    places: list[tuple[int, int]] = []
    scaling: list[tuple[float, float, float]] = []
    at = 0
    for number in layout.numbers:
        n = len(number.names())
        indicator = at + n if number.says_missing else -1
        # That a date is missing is said once, and behind its numbers: indices of a row are sorted.
        places += [(at + k, indicator if k == n - 1 else -1) for k in range(n)]
        scaling += [(number.mean, number.scale, number.limit), *((0.0, 1.0, math.inf) for _ in range(n - 1))]
        at += n + number.says_missing
    return np.array(places, np.int32).reshape(-1, 2).T.copy(), np.array(scaling, np.float64).reshape(-1, 3).T.copy()


def _hashes(name: Any, coded: Coded) -> AnyArray:
    """Return the hash of ``name=value`` of each row, that of ``name`` where it is missing."""
    prefix = f"{name}=".encode()
    values = coded.values
    data, offsets = utf8(values)
    scratch = np.zeros(len(prefix) + int(np.diff(offsets).max(initial=0)), np.uint8)
    scratch[: len(prefix)] = np.frombuffer(prefix, np.uint8)
    hashes = np.empty(len(values) + 1, np.int32)
    hash_strings(data, offsets, scratch, len(prefix), hashes[:-1])
    alone = prefix[:-1]
    hash_strings(scratch[:0], np.zeros(2, np.int64), np.frombuffer(alone, np.uint8).copy(), len(alone), hashes[-1:])
    found: AnyArray = hashes[coded.codes]
    return found
