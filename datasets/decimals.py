"""Decimal text to float64, correctly rounded, inside compiled code.

A parser that rounds like Python's ``float`` is what makes two readers of one file agree to the last bit. Three ways,
the cheap ones first:

1. at most 53 bits of digits and a power of ten up to 22: one exact multiplication or division (Clinger 1990);
2. at most 19 digits: one or two 64 x 64 bit products with a table of 128-bit powers of five (Eisel-Lemire);
3. anything else (20 digits and more, subnormal results, overflow): left to Python by the caller. In real files this
   is a handful of tokens.

Sources: W. Clinger, "How to read floating point numbers accurately" (1990); D. Lemire, "Number parsing at a gigabyte
per second" (2021), for the product, its error bound and ties.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dsgd.kernels.jit import kernel

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
    """Return the powers of ten and of five that `scan_number` multiplies with.

    - returned: the upper and lower half of 5**q scaled to 128 bits, q from -342 to 308; truncated for q >= 0,
      rounded up below.
    """
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
    """Read one decimal number.

    - returned: NUMBER, DEFERRED (``float(text[start:stop])`` is for Python), MALFORMED or NOT_FINITE.
    """
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
