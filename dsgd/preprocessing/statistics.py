"""Statistics of columns, advice from them, and the kernels of encoding, which allocate nothing.

Texts become hashed counts of their words and n-grams, of length one, as by scikit-learn's `HashingVectorizer` with its
defaults: words of two and more letters, digits and ``_``, in lower case; MurmurHash3 of each n-gram says its feature
and sign.

**What an encoder has to know of all rows** must be the same however they are cut, so statistics of parts are merged.
Sums of numbers and of their squares are kept in twice the precision, and mean and variance follow from them in exact
rational arithmetic: but for rare ties of rounding, they are those of all rows to the last bit. Categories are counted
until there are more than a limit; a column that exceeds it in all rows is the same one however they are cut.

Advice is of columns whose roles nobody chose, and none of a small table.

Source: T. J. Dekker, "A floating-point technique for extending the available precision", 1971.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import scipy.sparse as sp

from dsgd.errors import InvalidDataError
from dsgd.inputs.frames import categories, utf8
from dsgd.inputs.tables import Coded, Kind, Table
from dsgd.kernels.jit import kernel, scalar
from dsgd.types import FloatVector

_MASK = np.uint64(0xFFFFFFFF)
_C1, _C2 = np.uint64(0xCC9E2D51), np.uint64(0x1B873593)
_FIVE, _ADDED = np.uint64(5), np.uint64(0xE6546B64)
_MIX1, _MIX2 = np.uint64(0x85EBCA6B), np.uint64(0xC2B2AE35)
_S8, _S10, _S13, _S15, _S16, _S17, _S19, _S24, _S32 = (np.uint64(s) for s in (8, 10, 13, 15, 16, 17, 19, 24, 32))

# Splits a double into two halves of 26 bits, whose products are exact (Dekker 1971).
_SPLIT = 134217729.0


@scalar
def _rotated(x, left, right):  # type: ignore[no-untyped-def]
    return ((x << left) | (x >> right)) & _MASK


@scalar
def _murmur(data, start, stop):  # type: ignore[no-untyped-def]
    """Return MurmurHash3 (x86, 32 bits, seed 0) of some bytes as a signed number; the one of `FeatureHasher`."""
    h = np.uint64(0)
    i = start
    while i + 4 <= stop:
        k = np.uint64(data[i]) | (np.uint64(data[i + 1]) << _S8)
        k |= (np.uint64(data[i + 2]) << _S16) | (np.uint64(data[i + 3]) << _S24)
        k = (_rotated((k * _C1) & _MASK, _S15, _S17) * _C2) & _MASK
        h = (_rotated(h ^ k, _S13, _S19) * _FIVE + _ADDED) & _MASK
        i += 4
    if i < stop:
        k = np.uint64(data[i])
        if i + 1 < stop:
            k |= np.uint64(data[i + 1]) << _S8
        if i + 2 < stop:
            k |= np.uint64(data[i + 2]) << _S16
        h ^= (_rotated((k * _C1) & _MASK, _S15, _S17) * _C2) & _MASK
    h ^= np.uint64(stop - start) & _MASK
    h = ((h ^ (h >> _S16)) * _MIX1) & _MASK
    h = ((h ^ (h >> _S13)) * _MIX2) & _MASK
    h ^= h >> _S16
    return np.int64(np.int32(np.uint32(h)))


@kernel
def hash_strings(data, offsets, scratch, n_prefix, out):  # type: ignore[no-untyped-def]
    """Write the hash of every string, after a prefix."""
    for s in range(out.shape[0]):
        n = offsets[s + 1] - offsets[s]
        for i in range(n):
            scratch[n_prefix + i] = data[offsets[s] + i]
        # The least number stands for no string at all.
        out[s] = max(_murmur(scratch, 0, n_prefix + n), -2147483647)


@scalar
def _is_of_word(byte):  # type: ignore[no-untyped-def]
    """Return whether a byte belongs to a word: a letter, a digit, ``_``, or part of a character beyond ASCII."""
    # Texts are in lower case already, and what is no letter beyond ASCII is a blank.
    return byte >= 128 or (byte >= 97 and byte <= 122) or (byte >= 48 and byte <= 57) or byte == 95


@kernel
def count_words(data, offsets, out):  # type: ignore[no-untyped-def]
    """Write the number of words of two characters and more of every document, as `hash_documents` finds them."""
    for d in range(out.shape[0]):
        n_words, n_characters = 0, 0
        for i in range(offsets[d], offsets[d + 1]):
            byte = data[i]
            if _is_of_word(byte):
                n_characters += 1 if byte < 128 or byte >= 192 else 0
            else:
                n_words += 1 if n_characters > 1 else 0
                n_characters = 0
        out[d] = n_words + (1 if n_characters > 1 else 0)


@kernel
def hash_documents(data, offsets, lengths, n_features, words, indptr, indices, values):  # type: ignore[no-untyped-def]
    """Write the hashed n-grams of documents as rows of CSR, in the order of the text, with duplicates."""
    text, begins, ends = words
    p = 0
    indptr[0] = 0
    for d in range(offsets.shape[0] - 1):
        n_words, n_bytes, n_characters, begin = 0, 0, 0, 0
        for i in range(offsets[d], offsets[d + 1] + 1):
            byte = data[i] if i < offsets[d + 1] else np.uint8(32)
            if _is_of_word(byte):
                text[n_bytes] = byte
                n_bytes += 1
                n_characters += 1 if byte < 128 or byte >= 192 else 0
                continue
            if n_characters > 1:
                begins[n_words], ends[n_words] = begin, n_bytes
                n_words += 1
                text[n_bytes] = 32
                n_bytes += 1
                begin = n_bytes
            else:
                n_bytes = begin
            n_characters = 0
        for n in range(lengths[0], lengths[1] + 1):
            for w in range(n_words - n + 1):
                h = _murmur(text, begins[w], ends[w + n - 1])
                indices[p] = abs(h) % n_features
                values[p] = 1.0 if h >= 0 else -1.0
                p += 1
        indptr[d + 1] = p


@scalar
def _two_sum(a, b):  # type: ignore[no-untyped-def]
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@scalar
def _square(x):  # type: ignore[no-untyped-def]
    product = x * x
    high = _SPLIT * x
    high = high - (high - x)
    low = x - high
    return product, ((high * high - product) + 2.0 * high * low) + low * low


@kernel
def add_moments(values, sums):  # type: ignore[no-untyped-def]
    """Add numbers and their squares to `sums`, high and low parts of both (Dekker 1971; Knuth 1969)."""
    s, s_low, q, q_low = sums[0], sums[1], sums[2], sums[3]
    n, n_infinite = 0, 0
    for i in range(values.shape[0]):
        x = values[i]
        if x != x:
            continue
        n += 1
        if x - x != 0.0:
            n_infinite += 1
            continue
        s, rest = _two_sum(s, x)
        s_low += rest
        square, square_low = _square(x)
        q, rest = _two_sum(q, square)
        q_low += rest + square_low
    sums[0], sums[1] = _two_sum(s, s_low)
    sums[2], sums[3] = _two_sum(q, q_low)
    return n, n_infinite


@kernel
def write_rows(numbers, scaling, places, codes, hashes, hashed, first, out):  # type: ignore[no-untyped-def]
    """Write rows of CSR, with sorted indices, behind those that are there.

    - `scaling`, shape (3, d_numbers): what is subtracted from each, what it is then divided by, and the largest
      that it may then be.
    - `places`, shape (2, d_numbers): the feature of each, and the one that says that it is missing, -1 if none
      does.
    - `hashes`, shape (d_hashed, n): signed hashes of the columns that share hashed features; the least number
      stands for none.
    """
    indptr, indices, values = out
    row, p = first
    for r in range(numbers.shape[1]):
        for j in range(numbers.shape[0]):
            x = numbers[j, r]
            if x != x:
                if places[1, j] >= 0:
                    indices[p], values[p] = places[1, j], 1.0
                    p += 1
                continue
            x = min(max((x - scaling[0, j]) / scaling[1, j], -scaling[2, j]), scaling[2, j])
            if x != 0.0:
                indices[p], values[p] = places[0, j], x
                p += 1
        for j in range(codes.shape[0]):
            if codes[j, r] >= 0:
                indices[p], values[p] = codes[j, r], 1.0
                p += 1
        begin = p
        for j in range(hashes.shape[0]):
            h = np.int64(hashes[j, r])
            if h == -2147483648:
                continue
            feature = hashed[0] + abs(h) % hashed[1]
            at = p
            while at > begin and indices[at - 1] > feature:
                at -= 1
            if at > begin and indices[at - 1] == feature:
                values[at - 1] += 1.0 if h >= 0 else -1.0
                continue
            for k in range(p, at, -1):
                indices[k], values[k] = indices[k - 1], values[k - 1]
            indices[at], values[at] = feature, 1.0 if h >= 0 else -1.0
            p += 1
        row += 1
        indptr[row] = p
    return p


_NOT_OF_WORDS: Final = re.compile(r"[^\w]+")


def hashed_texts(texts: Coded, n_features: int, ngram_range: tuple[int, int], dtype: Any) -> Any:
    """Return hashed n-grams of texts."""
    # What is a letter beyond ASCII, and its lower case, Python says; compiled code takes all of it for letters then.
    data, offsets = utf8([_NOT_OF_WORDS.sub(" ", str(text).lower()) for text in texts.listed()])
    n = len(offsets) - 1
    n_words = np.empty(n, np.int64)
    count_words(data, offsets, n_words)
    # There are none longer than the longest text.
    high = min(ngram_range[1], int(n_words.max(initial=0)))
    low = min(ngram_range[0], high + 1)
    n_grams = sum(np.maximum(n_words - k + 1, 0) for k in range(low, high + 1))
    n_entries = int(np.sum(n_grams))
    longest = int(np.diff(offsets).max(initial=0))
    words = np.empty(longest + 2, np.uint8), np.empty(longest + 1, np.int64), np.empty(longest + 1, np.int64)
    indptr, indices, values = np.empty(n + 1, np.int64), np.empty(n_entries, np.int32), np.empty(n_entries)
    hash_documents(data, offsets, (low, high), n_features, words, indptr, indices, values)
    rows = sp.csr_array((values, indices, indptr), shape=(n, n_features))
    rows.sum_duplicates()
    norms = np.sqrt(rows.multiply(rows).sum(axis=1))
    rows.data /= np.repeat(np.where(norms == 0, 1.0, norms), np.diff(rows.indptr))
    if (texts.codes < 0).any():
        rows = sp.vstack([rows, sp.csr_array((1, n_features))], format="csr")
    found = rows[texts.codes] if n else sp.csr_array((len(texts.codes), n_features))
    return found.astype(dtype)


#: What becomes of a column; "auto" is one-hot or hashed, as it has few or many categories.
Role: TypeAlias = Literal["numeric", "passthrough", "auto", "onehot", "hash", "text", "date", "drop"]

#: Roles of columns whose values are names.
CATEGORICAL: Final = frozenset({"auto", "onehot", "hash", "text"})
_US_PER_DAY = 86_400_000_000

#: So large may sums of parts be, of which many are added up.
_LARGEST_SUM = 1e298

#: So many values are kept of a column that has too many, to be shown.
_STATISTICS_SHOWN = 100


@dataclass
class Moments:
    """Moments of a column of numbers."""

    n: int = 0
    n_missing: int = 0
    sums: FloatVector = field(default_factory=lambda: np.zeros(4))
    low: float = np.inf
    high: float = -np.inf

    def add(self, values: FloatVector, name: object) -> None:
        """Add numbers; NaN is missing."""
        n, n_infinite = add_moments(values, self.sums)
        if n_infinite:
            raise InvalidDataError(f"column {name!r} has infinite values. Replace them, or make them missing (NaN).")
        self.n, self.n_missing = self.n + n, self.n_missing + len(values) - n
        self.low = float(np.fmin.reduce(values, initial=self.low))
        self.high = float(np.fmax.reduce(values, initial=self.high))

    def merge(self, other: Moments) -> None:
        """Add those of other rows."""
        self.n, self.n_missing = self.n + other.n, self.n_missing + other.n_missing
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        for k in (0, 2):
            total = Fraction(self.sums[k]) + Fraction(self.sums[k + 1])
            total += Fraction(other.sums[k]) + Fraction(other.sums[k + 1])
            self.sums[k] = float(total)
            self.sums[k + 1] = float(total - Fraction(self.sums[k]))

    def mean_and_scale(self) -> tuple[float, float]:
        """Return the mean and the standard deviation, 1 in place of 0, as `StandardScaler` does."""
        if not self.n:
            return 0.0, 1.0
        total, squares = (Fraction(self.sums[k]) + Fraction(self.sums[k + 1]) for k in (0, 2))
        mean = total / self.n
        variance = float(max(squares / self.n - mean * mean, Fraction(0)))
        # What rounding leaves of equal numbers is no variance.
        floor = (self.n * np.finfo(np.float64).eps ** 2) * float(mean) ** 2
        return float(mean), float(np.sqrt(variance)) if variance > floor else 1.0


@dataclass
class Categories:
    """Distinct values of a column."""

    n_most: int | None
    counts: dict[Any, int] | None = field(default_factory=dict)
    n_missing: int = 0
    kind: Kind | None = None
    some: frozenset[str] = frozenset()

    def add(self, table: Table, name: Any) -> None:
        """Add the values of a column."""
        coded = categories(table, name, self.kind)
        counts = np.bincount(coded.codes + 1, minlength=1)
        self.n_missing += int(counts[0])
        if self.counts is None:
            return
        mine = self.counts
        if self._are_too_many(int(np.count_nonzero(counts[1:]))):
            self._give_up([*mine, *coded.listed()])
            return
        for value, n in zip(coded.listed(), counts[1:].tolist(), strict=False):
            if n:
                mine[value] = mine.get(value, 0) + n
        if self._are_too_many(len(mine)):
            self._give_up(mine)

    def merge(self, other: Categories) -> None:
        """Add those of other rows."""
        self.n_missing += other.n_missing
        if self.counts is None or other.counts is None:
            self._give_up([*(self.counts or self.some), *(other.counts or other.some)])
            return
        for value, n in other.counts.items():
            self.counts[value] = self.counts.get(value, 0) + n
        if self._are_too_many(len(self.counts)):
            self._give_up(self.counts)

    def _give_up(self, values: Iterable[Any]) -> None:
        self.counts, self.some = None, frozenset(sorted(set(map(str, values)))[:_STATISTICS_SHOWN])

    def _are_too_many(self, n: int) -> bool:
        return self.n_most is not None and n > self.n_most


class Statistics:
    """Statistics of the columns of some rows."""

    def __init__(self, roles: Mapping[Any, Role], n_most: int, kinds: Mapping[Any, Kind]) -> None:
        self.roles, self.n_most, self.kinds = dict(roles), n_most, dict(kinds)
        self.n_rows = 0
        self.moments = {
            name: Moments() for name, role in self.roles.items() if role in {"numeric", "date", "passthrough"}
        }
        limits = {
            name: n_most if role == "auto" else None for name, role in self.roles.items() if role in {"auto", "onehot"}
        }
        self.categories = {name: Categories(limit, kind=self.kinds[name]) for name, limit in limits.items()}

    @property
    def columns(self) -> list[Any]:
        """Names of the columns that are looked at; of all, one says how many rows there are."""
        return [*self.moments, *self.categories] or [name for name, role in self.roles.items() if role != "drop"][:1]

    def empty(self) -> Statistics:
        """Return the statistics of no rows, for the same columns."""
        return Statistics(self.roles, self.n_most, self.kinds)

    def add(self, table: Table) -> Statistics:
        """Add the rows of a table; return these statistics."""
        self.n_rows += len(table)
        for name, moments in self.moments.items():
            moments.add(days_of(table, name) if self.roles[name] == "date" else table.numbers(name), name)
            if self.roles[name] == "passthrough":
                if moments.n_missing:
                    raise InvalidDataError(missing_text(name))
                moments.sums[:] = 0.0  # which nobody asks for, and which may overflow
            elif not (np.abs(moments.sums) <= _LARGEST_SUM).all():
                raise InvalidDataError(f"column {name!r} has numbers whose squares overflow. Scale it.")
        for name, found in self.categories.items():
            found.add(table, name)
        return self

    def merge(self, other: Statistics) -> Statistics:
        """Add those of other rows; return these statistics."""
        self.n_rows += other.n_rows
        for name, moments in self.moments.items():
            moments.merge(other.moments[name])
        for name, found in self.categories.items():
            found.merge(other.categories[name])
        return self


def wanted_of(roles: Mapping[Any, Role], kinds: Mapping[Any, Kind]) -> dict[Any, Kind]:
    """Return what files are to make of columns with some roles; names stay text, which `categories` reads further."""
    return {
        name: "date" if "date" in (role, kinds.get(name)) else "category" if role in CATEGORICAL else "number"
        for name, role in roles.items()
        if role != "drop"
    }


def missing_text(name: object) -> str:
    """Return what an error says about a missing number that may not be missing."""
    return (
        f"column {name!r} has missing values, and is taken as it is ('passthrough'). Standardised ('numeric', or "
        "encoder='auto' of an estimator) it may miss some."
    )


def days_of(table: Table, name: Any) -> FloatVector:
    """Return a column of dates as days since 1970, NaN where one is missing."""
    us, missing = table.microseconds(name)
    return np.where(missing, np.nan, us / _US_PER_DAY)


_LEAST_ROWS: Final = 100

#: A share of the rows with different values that is nearly all of them, and one of values that are nearly all alike.
_NEARLY_ALL: Final = 0.9

#: Of so many values it can be said what they look like.
_LEAST_VALUES: Final = 20

#: A number so many standard deviations from the mean moves the mean of all gradients.
_EXTREME: Final = 50.0
_NUMBER: Final = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_DATE: Final = re.compile(r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d\d))([ T].*)?")
_ADVICE_SHOWN: Final = 8


def stands_out(statistics: Statistics, *, given: Mapping[Any, Any], clips: bool) -> list[str]:
    """Return a sentence for each way in which columns stand out."""
    n = statistics.n_rows
    if n < _LEAST_ROWS:
        return []
    numbers = {name: found for name, found in statistics.moments.items() if name not in given}
    names = {name: found for name, found in statistics.categories.items() if name not in given}
    constant = [name for name, found in numbers.items() if not found.n or (found.low == found.high and found.n == n)]
    constant += [name for name, f in names.items() if f.counts is not None and len(f.counts) + (f.n_missing > 0) <= 1]
    texts: list[str] = []
    dates: list[str] = []
    unique: list[str] = []
    for name, found in names.items():
        values = _values(found)
        if len(values) >= _LEAST_VALUES and _share(_DATE, values) >= _NEARLY_ALL:
            dates.append(repr(name))
        elif len(values) >= _LEAST_VALUES and _NEARLY_ALL <= _share(_NUMBER, values) < 1:
            texts.append(f"{name!r} ({', '.join(repr(v) for v in values if not _NUMBER.fullmatch(v))[:40]})")
        elif found.counts is not None and len(values) > _NEARLY_ALL * (n - found.n_missing):
            unique.append(f"{name!r} ({len(values)} of {n})")
    extreme = [
        f"{name!r} ({size:.0f})" for name, size in _extremes(statistics, numbers) if size > _EXTREME and not clips
    ]
    return [
        *_said("is different in nearly every row", unique, "Drop what identifies rows: columns={...: 'drop'}."),
        *_said(
            "looks like numbers but for some texts",
            texts,
            "Name these in TableFiles(..., na_values=...), or convert it.",
        ),
        *_said(
            "looks like dates and is taken for names",
            dates,
            "Dates by ISO 8601 are read with columns={...: 'date'}; convert others.",
        ),
        *_said("is constant", [repr(name) for name in constant], ""),
        *_said(
            f"has values more than {_EXTREME:.0f} standard deviations from the mean",
            extreme,
            "Look at them, or limit them: ColumnEncoder(clip=10).",
        ),
    ]


def _said(what: str, columns: list[str], advice: str) -> list[str]:
    if not columns:
        return []
    more = f" and {len(columns) - _ADVICE_SHOWN} more" if len(columns) > _ADVICE_SHOWN else ""
    noun = "Column" if len(columns) == 1 else "Each of the columns"
    return [f"{noun} {', '.join(columns[:_ADVICE_SHOWN])}{more} {what}. {advice}".strip()]


def _values(found: Categories) -> list[str]:
    """Return the texts of a column, some of them where there are too many; none if its values are no texts."""
    values = list(found.counts if found.counts is not None else found.some)
    return values if found.kind == "category" and all(isinstance(value, str) for value in values) else []


def _share(pattern: re.Pattern[str], values: list[str]) -> float:
    return sum(pattern.fullmatch(value) is not None for value in values) / len(values)


def _extremes(statistics: Statistics, numbers: Mapping[Any, Moments]) -> Iterable[tuple[Any, float]]:
    """Yield how far the farthest number of each column is from the mean, in standard deviations."""
    for name, found in numbers.items():
        if found.n and statistics.roles[name] == "numeric":
            mean, scale = found.mean_and_scale()
            yield name, max(found.high - mean, mean - found.low) / scale
