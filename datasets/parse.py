"""Parsing of svmlight rows, and of decimal numbers, correctly rounded, inside compiled code.

A parser that rounds like Python's ``float`` is what makes two readers of one file agree to the last bit. Three ways,
the cheap ones first:

1. at most 53 bits of digits and a power of ten up to 22: one exact multiplication or division (Clinger 1990);
2. at most 19 digits: one or two 64 x 64 bit products with a table of 128-bit powers of five (Eisel-Lemire);
3. anything else (20 digits and more, subnormal results, overflow): left to Python by the caller, for a handful of
   tokens.

Rows are ``label [qid:n] column:value column:value ... # comment``, columns strictly increasing. Blank lines and
comments are skipped, a ``qid`` is read over. One pass over the bytes, no allocation inside, the interpreter lock
released, so that threads parse side by side.

Source: W. Clinger, "How to read floating point numbers accurately" (1990); D. Lemire, "Number parsing at a gigabyte per
second" (2021), for the product, its error bound and ties.
"""

from __future__ import annotations

import codecs
import math
import re
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dsgd.errors import InvalidDataError, ParseError
from dsgd.kernels.jit import kernel
from dsgd.types import AnyArray

NUMBER = 0  # the value returned is the number
DEFERRED = 1  # the token is a number that Python has to round
MALFORMED = 2  # no number starts here
NOT_FINITE = 3  # nan or infinity, spelled out
_SMALLEST_POWER = -342
_LARGEST_POWER = 308
_MASK_32 = np.uint64(0xFFFFFFFF)
_ALL_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
_TAIL = np.uint64(0x1FF)  # the bits of the high product below the 53 of a double and its rounding bits
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_TEN = np.uint64(10)
_EXACT_DIGITS = np.uint64(1 << 53)
_IMPLICIT_BIT = np.uint64(1 << 53)  # one above the 53 bits of a mantissa


@cache
def power_tables() -> tuple[NDArray[np.float64], NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the upper and lower half of 5**q scaled to 128 bits, q from -342 to 308; rounded up where q < 0."""
    high, low = [], []
    for q in range(_SMALLEST_POWER, _LARGEST_POWER + 1):
        if q < 0:
            power = 5**-q
            bits = (power - 1).bit_length()
            scaled = 2 ** (bits + 127 if q >= -27 else 2 * bits + 128) // power + 1
            scaled >>= max(0, scaled.bit_length() - 128)
        else:
            power = 5**q
            shift = 128 - power.bit_length()
            scaled = power << shift if shift >= 0 else power >> -shift
        high.append(scaled >> 64)
        low.append(scaled & 0xFFFFFFFFFFFFFFFF)
    tens = np.array([float(10**q) for q in range(23)])
    return tens, np.array(high, dtype=np.uint64), np.array(low, dtype=np.uint64)


@kernel
def _multiply(a: np.uint64, b: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return the upper and lower 64 bits of the product of two uint64."""
    shift = np.uint64(32)
    a_low, a_high = a & _MASK_32, a >> shift
    b_low, b_high = b & _MASK_32, b >> shift
    low = a_low * b_low
    middle = a_high * b_low + (low >> shift)
    carry = a_low * b_high + (middle & _MASK_32)
    return a_high * b_high + (middle >> shift) + (carry >> shift), (carry << shift) | (low & _MASK_32)


@kernel
def _leading_zeros(value: np.uint64) -> int:
    """Return the number of zero bits above the highest set bit of a nonzero uint64."""
    n = 0
    for step in (32, 16, 8, 4, 2, 1):
        if value >> np.uint64(64 - step) == _ZERO:
            value = value << np.uint64(step)
            n += step
    return n


@kernel
def _round_product(
    digits: np.uint64, power: int, high: NDArray[np.uint64], low: NDArray[np.uint64]
) -> tuple[float, int]:
    """Return digits * 10**power rounded to float64, and NUMBER; or (0, DEFERRED) where 128 bits do not decide."""
    if power < _SMALLEST_POWER or power > _LARGEST_POWER:
        return 0.0, DEFERRED
    zeros = _leading_zeros(digits)
    digits = digits << np.uint64(zeros)
    row = power - _SMALLEST_POWER
    upper, lower = _multiply(digits, high[row])
    if upper & _TAIL == _TAIL:
        correction, _ = _multiply(digits, low[row])
        lower = lower + correction
        if lower < correction:
            upper = upper + _ONE
    if lower == _ALL_ONES:
        return 0.0, DEFERRED
    top = upper >> np.uint64(63)
    shift = top + np.uint64(9)
    mantissa = upper >> shift
    # floor(power * log2(10)) in fixed point, then the biased exponent of the result
    exponent = ((217706 * power) >> 16) + 63 + np.int64(top) - zeros + 1023
    if exponent <= 0:
        return 0.0, DEFERRED
    if lower <= _ONE and -4 <= power <= 23 and mantissa & np.uint64(3) == _ONE and (mantissa << shift) == upper:
        mantissa = mantissa & ~_ONE  # exactly half way: round to even
    mantissa = (mantissa + (mantissa & _ONE)) >> _ONE
    if mantissa >= _IMPLICIT_BIT:
        mantissa = mantissa >> _ONE
        exponent += 1
    if exponent >= 0x7FF:
        return 0.0, DEFERRED
    return math.ldexp(float(mantissa), exponent - 1075), NUMBER


@kernel
def scan_number(
    text: NDArray[np.uint8], start: int, tens: NDArray[np.float64], high: NDArray[np.uint64], low: NDArray[np.uint64]
) -> tuple[float, int, int]:
    """Read a decimal number; return NUMBER, MALFORMED, NOT_FINITE, or DEFERRED, which Python's float must read."""
    position, end = start, text.size
    negative = False
    if position < end and (text[position] == 43 or text[position] == 45):
        negative = text[position] == 45
        position += 1
    digits = _ZERO
    n_significant, n_seen, power, after_point = 0, 0, 0, False
    while position < end:
        code = np.int64(text[position])
        if 48 <= code <= 57:
            digits = digits * _TEN + np.uint64(code - 48)
            n_seen += 1
            if digits != _ZERO:
                n_significant += 1
            if after_point:
                power -= 1
        elif code == 46 and not after_point:
            after_point = True
        else:
            break
        position += 1
    if n_seen == 0:
        if position < end and (text[position] | 32 == 105 or text[position] | 32 == 110):  # inf..., nan
            return 0.0, position, NOT_FINITE
        return 0.0, position, MALFORMED
    if position < end and text[position] | 32 == 101:  # e or E
        position += 1
        sign = 1
        if position < end and (text[position] == 43 or text[position] == 45):
            sign = 1 if text[position] == 43 else -1
            position += 1
        first = position
        exponent = 0
        while position < end and 48 <= text[position] <= 57:
            exponent = min(exponent * 10 + int(text[position]) - 48, 100_000)
            position += 1
        if position == first:
            return 0.0, position, MALFORMED
        power += sign * exponent
    status = NUMBER
    if n_significant > 19:  # more digits than 64 bits hold: what was accumulated has wrapped around
        return 0.0, position, DEFERRED
    if digits == _ZERO:
        value = 0.0
    elif digits <= _EXACT_DIGITS and -22 <= power <= 22:
        value = float(digits) / tens[-power] if power < 0 else float(digits) * tens[power]
    else:
        value, status = _round_product(digits, power, high, low)
    return (-value if negative else value), position, status


LARGEST_COLUMN = 2**32 - 1
_GOOD, _BAD_LABEL, _LABEL_NOT_FINITE, _BAD_COLUMN, _NO_COLON, _BAD_VALUE, _VALUE_NOT_FINITE = range(7)
_COLUMN_TOO_SMALL, _COLUMN_TOO_LARGE, _NOT_INCREASING, _BAD_QID = range(7, 11)

# A number with a decimal comma, as a label or behind a column.
_COMMA = re.compile(rb"(\d+:)?[-+]?\d+,\d+([eE][-+]?\d+)?")

# Slots of the vector the kernel reports in.
_N_ROWS, _N_VALUES, _N_DEFERRED, _SMALLEST, _LARGEST, _PROBLEM, _POSITION = range(7)


@kernel
def _is_blank(code: int) -> bool:
    """Say whether a byte separates tokens of one line (space, tab, vertical tab, form feed, carriage return)."""
    return code == 32 or code == 9 or code == 13 or code == 11 or code == 12


@kernel
def _ends_token(text: NDArray[np.uint8], position: int) -> bool:
    """Say whether a token ends before this position."""
    return position >= text.size or _is_blank(text[position]) or text[position] == 10 or text[position] == 35


@kernel
def _skip_qid(text: NDArray[np.uint8], position: int) -> int:
    """Return the position after a ``qid:n`` token; the same position if none starts here, -1 if it is malformed."""
    if position + 4 > text.size:
        return position
    if text[position] != 113 or text[position + 1] != 105 or text[position + 2] != 100 or text[position + 3] != 58:
        return position
    first = position + 4
    if first < text.size and text[first] == 45:
        first += 1
    position = first
    while position < text.size and 48 <= text[position] <= 57:
        position += 1
    if position == first or not _ends_token(text, position):
        return -1
    return position


@kernel
def _parse_rows(  # type: ignore[no-untyped-def]
    text, smallest_allowed, largest_allowed, tens, high, low, values, columns, indptr, targets, deferred, report
):
    """Fill the arrays from the text; stop at the first problem, whose code and byte position go into the report."""
    position, end = np.int64(0), text.size  # not a literal, whose type `scan_number` would be compiled for as well
    n_rows, n_values, n_deferred = 0, 0, 0
    smallest, largest = LARGEST_COLUMN, -1
    problem = _GOOD
    indptr[0] = 0
    while position < end and problem == _GOOD:
        code = text[position]
        if code == 10 or _is_blank(code):
            position += 1
            continue
        if code == 35:
            while position < end and text[position] != 10:
                position += 1
            continue
        start = position
        number, position, status = scan_number(text, start, tens, high, low)
        if status > DEFERRED or not _ends_token(text, position):
            problem = _LABEL_NOT_FINITE if status == NOT_FINITE else _BAD_LABEL
            position = start
            break
        if status == DEFERRED:
            if n_deferred < deferred.shape[0]:
                deferred[n_deferred, 0], deferred[n_deferred, 1], deferred[n_deferred, 2] = start, position, -1 - n_rows
            n_deferred += 1
        targets[n_rows] = number
        previous, first = -1, True
        while True:
            while position < end and _is_blank(text[position]):
                position += 1
            if position >= end or text[position] == 10 or text[position] == 35:
                break
            start = position
            if first:
                first = False
                position = _skip_qid(text, start)
                if position < 0:
                    problem, position = _BAD_QID, start
                    break
                if position > start:
                    continue
            column = 0
            while position < end and 48 <= text[position] <= 57:
                column = min(column * 10 + int(text[position]) - 48, LARGEST_COLUMN + 1)
                position += 1
            if position == start or (not _ends_token(text, position) and text[position] != 58):
                problem, position = _BAD_COLUMN, start
                break
            if position >= end or text[position] != 58:
                problem, position = _NO_COLON, start
                break
            if column < smallest_allowed or column > largest_allowed or column <= previous:
                problem = _NOT_INCREASING
                if column < smallest_allowed:
                    problem = _COLUMN_TOO_SMALL
                elif column > largest_allowed:
                    problem = _COLUMN_TOO_LARGE
                position = start
                break
            previous = column
            number_start = position + 1
            number, position, status = scan_number(text, number_start, tens, high, low)
            if status > DEFERRED or not _ends_token(text, position):
                problem = _VALUE_NOT_FINITE if status == NOT_FINITE else _BAD_VALUE
                position = start
                break
            if status == DEFERRED:
                if n_deferred < deferred.shape[0]:
                    deferred[n_deferred, 0], deferred[n_deferred, 1] = number_start, position
                    deferred[n_deferred, 2] = n_values
                n_deferred += 1
            values[n_values] = number
            columns[n_values] = column
            n_values += 1
            smallest = min(smallest, column)
            largest = max(largest, column)
        n_rows += 1
        indptr[n_rows] = n_values
    report[0], report[1], report[2], report[3] = n_rows, n_values, n_deferred, smallest
    report[4], report[5], report[6] = largest, problem, position


@kernel
def _count(text: NDArray[np.uint8]) -> tuple[int, int]:
    """Return the number of newlines and of colons."""
    n_lines, n_colons = 0, 0
    for code in text:
        n_lines += code == 10
        n_colons += code == 58
    return n_lines, n_colons


Text: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, eq=False)
class RawRows:
    """Parsed rows whose columns are numbered as in the file."""

    values: AnyArray
    columns: NDArray[np.uint32]
    indptr: NDArray[np.int64]
    targets: NDArray[np.float64]
    smallest: int
    largest: int
    n_lines: int


def parse_bytes(
    data: Text,
    *,
    path: str = "<bytes>",
    first_line: int = 1,
    allowed: tuple[int, int] = (0, LARGEST_COLUMN),
    dtype: DTypeLike = np.float64,
) -> RawRows:
    """Parse whole lines of svmlight text; the columns `allowed` are the smallest and the largest."""
    text = np.frombuffer(data, dtype=np.uint8)
    tens, high, low = power_tables()
    n_lines, n_colons = _count(text)
    values, columns = np.empty(n_colons, dtype=np.float64), np.empty(n_colons, dtype=np.uint32)
    indptr, targets = np.empty(n_lines + 2, dtype=np.int64), np.empty(n_lines + 1, dtype=np.float64)
    report = np.zeros(7, dtype=np.int64)
    n_deferred = 1024
    while True:
        deferred = np.empty((n_deferred, 3), dtype=np.int64)
        _parse_rows(text, *allowed, tens, high, low, values, columns, indptr, targets, deferred, report)
        if report[_N_DEFERRED] <= n_deferred:
            break
        n_deferred = int(report[_N_DEFERRED])  # rare: parse again with room for every token that Python has to round
    if report[_PROBLEM] != _GOOD:
        _raise(data, int(report[_PROBLEM]), int(report[_POSITION]), path, first_line, allowed)
    for start, stop, slot in deferred[: report[_N_DEFERRED]].tolist():
        number = float(bytes(data[start:stop]))
        if not np.isfinite(number):
            _raise(data, _VALUE_NOT_FINITE, start, path, first_line, allowed)
        if slot < 0:
            targets[-1 - slot] = number
        else:
            values[slot] = number
    n_rows, n_values = int(report[_N_ROWS]), int(report[_N_VALUES])
    return RawRows(
        values=_cast(values[:n_values], dtype, path),
        columns=columns[:n_values],
        indptr=indptr[: n_rows + 1],
        targets=targets[:n_rows],
        smallest=int(report[_SMALLEST]),
        largest=int(report[_LARGEST]),
        n_lines=n_lines,
    )


def _cast(values: NDArray[np.float64], dtype: DTypeLike, path: str) -> AnyArray:
    """Round float64 values to `dtype`; refuse values out of its range."""
    if np.dtype(dtype) == np.float64:
        return values
    with np.errstate(over="ignore"):
        cast = values.astype(dtype)
    if not np.isfinite(cast).all():
        largest = float(np.abs(values).max())
        raise InvalidDataError(
            f"{path} holds {largest:g}, more than {np.dtype(dtype)} can hold; read it with dtype=float64"
        )
    return cast


def _raise(data: Text, problem: int, position: int, path: str, first_line: int, allowed: tuple[int, int]) -> None:
    """Raise the ParseError of a problem found at a byte position."""
    smallest, largest = allowed
    line = first_line + int(_count(np.frombuffer(data, dtype=np.uint8)[:position])[0])
    rest = bytes(data[position : position + 60]).split(b"\n", 1)[0].split()
    # What is no text at all is shown in letters that cannot upset a terminal.
    token = ascii(rest[0].decode("utf-8", "replace")) if rest else "the end of the line"
    comma = "; write decimals with a point, 0.5" if rest and _COMMA.fullmatch(rest[0]) else ""
    cut = "" if comma else "; the line may be cut off"
    if line == 1 and rest and rest[0].startswith(codecs.BOM_UTF8):
        comma = "; the file begins with a byte order mark: save it as UTF-8 without BOM (in vi, :set nobomb)"
    elif rest and rest[0].startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        comma = "; the file is UTF-16 text: save it as UTF-8 (iconv -f UTF-16 -t UTF-8)"
    most = "pass a larger n_features" if largest < LARGEST_COLUMN else "renumber the columns, or hash them to fewer"
    text = {
        _BAD_LABEL: f"expected a label (a number), got {token}{comma}",
        _LABEL_NOT_FINITE: f"the label is not finite: {token}",
        _BAD_COLUMN: f"expected column:value, got {token}",
        _NO_COLON: f"expected column:value, got {token}; the line may be cut off",
        _BAD_VALUE: f"expected a number after the colon, got {token}{comma}{cut}",
        _VALUE_NOT_FINITE: f"a number is not finite: {token}; remove or impute such values",
        _COLUMN_TOO_SMALL: f"column {token} is below the first, {smallest}; with columns from 0 pass zero_based=True",
        _COLUMN_TOO_LARGE: f"column {token} is beyond the last, {largest}; {most}",
        _NOT_INCREASING: f"columns must increase along a line, got {token}; sort and merge the columns",
        _BAD_QID: f"expected qid:n with a whole number, got {token}",
    }[problem]
    raise ParseError(path, line, text)
