"""Rows that are kept in 16 bits an entry and computed with in float32.

Problem: an epoch over dense rows with many columns takes as long as memory takes to deliver them.

Method: rows are rounded once, to nearest and ties to even, and kept as words of 16 bits: float16 (11 bits of precision,
up to 65504) or bfloat16 (8 bits, the range of float32). A kernel widens some rows at a time into scratch memory, which
is exact, and reads them there as it reads float32 rows: every sum is that of float32 rows of these values, to the bit.

Numba has neither type, so kernels are given the words as uint16, and a code that names the format. Where a kernel takes
the entries of all rows, it takes for such rows a tuple: the words, scratch memory for as many float32 as
`scratch_entries` says, and the code. Some thousand entries are widened in one loop: a loop over each narrow row would
hardly begin before it ends.

Machines that do not convert float16 themselves do it in ten instructions instead of one. bfloat16 is the upper half of
float32, so any machine widens it in one, and sooner than float16.

Left out: widening inside the loops of products and updates, which would widen a row twice, and in which LLVM may add
up in another order than in loops over float32.

Cost: half of the memory; one more pass over a row in the first cache.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic, overload

from dsgd.kernels.embedded import PartCompiler
from dsgd.kernels.jit import kernel, scalar
from dsgd.kernels.prefetch import prefetch
from dsgd.types import AnyArray, FloatVector, PointerVector

__all__ = ["BFLOAT16", "FLOAT16", "entries_of", "open_row", "round_rows", "scratch_entries", "widen", "words_of"]

FLOAT16, BFLOAT16 = range(2)

# Entries that are widened in one loop. Four times as many take 15 % more of an epoch over 2,000 columns of bfloat16.
_TOGETHER: Final = 1024
# Rows from anywhere are asked for so many visits ahead.
_AHEAD, _LINE_BYTES = np.uint64(16), 64
_OPTIONS: Final = {"nogil": True, "error_model": "numpy", "forceinline": True, "pipeline_class": PartCompiler}
_ONE = np.uint64(1)
_ZERO = np.uint64(0)
_HALF_OF_LAST, _SIXTEEN, _LAST = np.uint32(0x7FFF), np.uint32(16), np.uint32(1)


def scratch_entries(n_features: int) -> int:
    """Return how many float32 the scratch memory for rows with so many columns has."""
    return max(_TOGETHER, n_features)


def _converts(target: Any) -> bool:
    """Return whether the machine for which code is generated converts float16 itself: x86 of 2012 and later, ARM."""
    triple, _, features = target.codegen().magic_tuple()
    return "+f16c" in features.split(",") or triple.startswith(("aarch64", "arm64"))


@intrinsic
def _from_float16(context: Any, word: Any) -> Any:
    """Return the number that a word of float16 stands for, if it is finite."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        single, word32 = ir.FloatType(), ir.IntType(32)
        if _converts(target):
            return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), single)
        wide = builder.zext(arguments[0], word32)
        size, sign = builder.and_(wide, word32(0x7FFF)), builder.shl(builder.and_(wide, word32(0x8000)), word32(16))
        normal = builder.add(builder.shl(size, word32(13)), word32(112 << 23))
        # Subnormal numbers of float16, which are none of float32, are multiples of 2^-24.
        small = builder.bitcast(builder.fmul(builder.uitofp(size, single), single(2.0**-24)), word32)
        is_small = builder.icmp_unsigned("<", size, word32(0x400))
        return builder.bitcast(builder.or_(builder.select(is_small, small, normal), sign), single)

    return types.float32(types.uint16), generate


@intrinsic
def _to_float16(context: Any, value: Any) -> Any:
    """Return the word of the float16 that is nearest to a float32, if that is finite."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        single, word16, word32 = ir.FloatType(), ir.IntType(16), ir.IntType(32)
        if _converts(target):
            return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), word16)
        bits = builder.bitcast(arguments[0], word32)
        size, sign = builder.and_(bits, word32(0x7FFFFFFF)), builder.lshr(bits, word32(31))
        last = builder.and_(builder.lshr(size, word32(13)), word32(1))
        nearest = builder.add(builder.add(size, word32(0xFFF)), last)
        normal = builder.lshr(builder.sub(nearest, word32(112 << 23)), word32(13))
        # The last bit of numbers from 0.5 on is 2^-24, so that adding them rounds to its multiples.
        small = builder.fadd(builder.bitcast(size, single), single(0.5))
        small = builder.sub(builder.bitcast(small, word32), word32(0x3F000000))
        found = builder.select(builder.icmp_unsigned("<", size, word32(113 << 23)), small, normal)
        return builder.trunc(builder.or_(found, builder.shl(sign, word32(15))), word16)

    return types.uint16(types.float32), generate


@intrinsic
def _bits(context: Any, value: Any) -> Any:
    """Return the bits of a float32."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@intrinsic
def _from_bits(context: Any, bits: Any) -> Any:
    """Return the float32 with these bits."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


def _to_single(value: float) -> np.float32:
    """Return a number as float32; one that lies between two of them as that whose last bit is set.

    Rounding to fewer bits is then that of the number itself: no tie is made by rounding twice.
    """
    raise NotImplementedError  # compiled code alone calls this, and gets what the overload below gives


@overload(_to_single, strict=False, jit_options=_OPTIONS)
def _to_single_of(value: Any) -> Any:
    if value == types.float32:
        return lambda value: value

    def odd(value: Any) -> Any:
        nearest = np.float32(value)
        back = np.float64(nearest)
        bits = _bits(nearest)
        if back != value:
            if abs(back) > abs(value):
                bits -= _LAST
            bits |= _LAST
        return _from_bits(bits)

    return odd


@scalar
def _to_bfloat16(value: np.float32) -> np.uint16:
    """Return the word of the bfloat16 that is nearest to a float32."""
    bits = _bits(value)
    return np.uint16((bits + _HALF_OF_LAST + ((bits >> _SIXTEEN) & _LAST)) >> _SIXTEEN)


@scalar
def _widen(words: AnyArray, first: np.uint64, n_entries: np.uint64, code: int, out: FloatVector) -> None:
    """Write into `out` the numbers that some words stand for."""
    if code == FLOAT16:
        for j in range(n_entries):
            out[j] = _from_float16(words[first + j])
    else:
        for j in range(n_entries):
            out[j] = _from_bits(np.uint32(words[first + j]) << _SIXTEEN)


@kernel
def round_rows(block: AnyArray, source: AnyArray, place: AnyArray, out: AnyArray, code: int, limit: float) -> int:
    """Write row ``source[v]`` of `block`, rounded, to row ``place[v]`` of `out`, for every v.

    Parameters
    ----------
    block : array of float32 or float64, shape (n_rows, n_features)
        Rows.
    source, place : array of int64, shape (n_visits,)
        Numbers of rows.
    out : array of uint16, shape (n, n_features)
        Words.
    code : int
        Their format.
    limit : float
        The least number that rounds to infinity.

    Returns
    -------
    int
        How many entries do, or are none.
    """
    n_visits, n_features = np.uint64(source.shape[0]), np.uint64(block.shape[1])
    n_over, most, values = 0, block.dtype.type(limit), block.reshape(-1)
    step = np.uint64(_LINE_BYTES // block.itemsize)
    for v in range(n_visits):
        if v + _AHEAD < n_visits:
            ahead = np.uint64(source[v + _AHEAD]) * n_features
            for j in range(ahead, ahead + n_features, step):
                prefetch(values, j)
        row, target = np.uint64(source[v]), np.uint64(place[v])
        if code == FLOAT16:
            for j in range(n_features):
                n_over += not abs(block[row, j]) < most
                out[target, j] = _to_float16(_to_single(block[row, j]))
        else:
            for j in range(n_features):
                n_over += not abs(block[row, j]) < most
                out[target, j] = _to_bfloat16(_to_single(block[row, j]))
    return n_over


@kernel
def widen(words: AnyArray, code: int, out: FloatVector) -> None:
    """Write into `out` the numbers that words stand for.

    Parameters
    ----------
    words : array of uint16, shape (n,)
        Words.
    code : int
        Their format.
    out : array of float32, shape (n,)
        Overwritten.
    """
    _widen(words, _ZERO, np.uint64(words.shape[0]), code, out)


@intrinsic
def words_of(context: Any, values: Any) -> Any:
    """Return what lies in memory, in a kernel: the entries of all rows, or their words."""
    return _part(values, 0)


@intrinsic
def entries_of(context: Any, values: Any) -> Any:
    """Return where the entries of an open row are, in a kernel: among those of all rows, or in scratch memory."""
    return _part(values, 1)


def _part(values: Any, number: int) -> Any:
    """Return type and code of a part of a tuple, or of an array itself; a function could not return it in a leaf."""
    is_tuple = isinstance(values, types.BaseTuple)
    kind = values.types[number] if is_tuple else values

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = builder.extract_value(arguments[0], number) if is_tuple else arguments[0]
        return impl_ret_borrowed(target, builder, kind, found)

    return kind(values), generate


def open_row(
    values: Any,
    indptr: PointerVector | None,
    row: int | np.uint64,
    end: np.uint64,
    n_features: np.uint64,
    held: np.uint64,
    end_held: np.uint64,
) -> Any:
    """Return where a row begins and ends in `entries_of`, in a kernel, and the rows that scratch memory holds then.

    Parameters
    ----------
    values : array, shape (nnz,) or (n_rows * n_features,), or a tuple
        Entries of all rows; or, of dense rows, what the module says.
    indptr : array of uint64, shape (n_rows + 1,), or None
        Row starts; None for dense rows.
    row, end : uint64
        The row, and the end of the rows that come next, one after another, as far as that is known.
    n_features : uint64
        Columns.
    held, end_held : uint64
        The rows that scratch memory holds: what the last call has returned; none at first.
    """
    raise NotImplementedError  # compiled code alone calls this, and gets what the overload below gives


@scalar
def _widen_ahead(
    words: AnyArray, scratch: FloatVector, code: int, row: np.uint64, end: np.uint64, n_features: np.uint64
) -> np.uint64:
    """Widen a row and those that follow it into scratch memory; return the end of them."""
    end = max(row + _ONE, min(end, row + np.uint64(_TOGETHER) // max(n_features, _ONE)))
    _widen(words, row * n_features, (end - row) * n_features, code, scratch)
    return end


@overload(open_row, strict=False, jit_options=_OPTIONS)
def _open_row(values: Any, indptr: Any, row: Any, end: Any, n_features: Any, held: Any, end_held: Any) -> Any:
    if isinstance(values, types.BaseTuple):

        def widened(values: Any, indptr: Any, row: Any, end: Any, n_features: Any, held: Any, end_held: Any) -> Any:
            if not held <= row < end_held:
                held, end_held = row, _widen_ahead(values[0], values[1], values[2], row, end, n_features)
            first = (row - held) * n_features
            return first, first + n_features, held, end_held

        return widened
    if isinstance(indptr, types.NoneType):
        return lambda values, indptr, row, end, n_features, held, end_held: (
            row * n_features,
            (row + _ONE) * n_features,
            held,
            end_held,
        )
    return lambda values, indptr, row, end, n_features, held, end_held: (
        indptr[row],
        indptr[row + _ONE],
        held,
        end_held,
    )
