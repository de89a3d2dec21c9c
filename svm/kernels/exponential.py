"""A vectorised exponential of numbers that are not positive, for rbf kernels.

Problem: where a processor has no 512-bit vectors, numpy computes exp in float64 one number at a time, which takes
longer than the product of two rows.

Method: x = k ln 2 + r, r being at most ½ ln 2 on either side of zero; e^r by its Taylor polynomial, 2^k by writing k
into the bits of the exponent. k comes from adding a number so large that only integers are left behind, whose low bits
are then k. There is no branch and no table, so a compiler makes vectors of it.

Accuracy: within 0.7 units in the last place. Below the smallest normal number the result is zero; NaN stays NaN. A
positive exponent, which only rounding makes of −γ‖x − z‖², counts as zero: no value of the kernel is above one.

Source: Cody and Waite 1980 (the split of ln 2).
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numba import types
from numba.extending import intrinsic

from dsgd.kernels.jit import kernel, part
from dsgd.types import AnyArray, FloatVector

# Products may be fused with sums; the order of operations is what the split of ln 2 lives on.
_fused = part(fastmath={"contract"})


@intrinsic
def _bits(typing_context: Any, number: Any) -> Any:
    """Return the bits of a float as an integer of its size."""
    integer = {types.float64: types.int64, types.float32: types.int32}[number]
    return integer(number), _recast


@intrinsic
def _float(typing_context: Any, word: Any) -> Any:
    """Return the float that an integer has the bits of."""
    number = {types.int64: types.float64, types.int32: types.float32}[word]
    return number(word), _recast


def _recast(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))


_D, _S = np.float64, np.float32
# 1 / ln 2; what leaves only integers behind; ln 2 as a number of few bits, whose products with k are exact, and a rest.
_BY_LN2: Final = _D(1.0 / math.log(2.0))
_INTEGERS: Final = _D(1.5 * 2.0**52)
_LN2_HIGH, _LN2_LOW = _D(0.6931471803691238), _D(1.9082149292705877e-10)
_LEAST: Final = _D(-708.0)
_BY_LN2_S, _INTEGERS_S = _S(1.0 / math.log(2.0)), _S(1.5 * 2.0**23)
_LN2_HIGH_S, _LN2_LOW_S = _S(0.693359375), _S(-2.12194440e-4)
_LEAST_S, _ZERO_S, _ONE_S = _S(-87.0), _S(0.0), _S(1.0)
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = (_D(1.0 / math.factorial(k)) for k in range(2, 14))
_S2, _S3, _S4, _S5, _S6, _S7 = (_S(1.0 / math.factorial(k)) for k in range(2, 8))


@_fused
def _exp(x: float) -> float:
    # Written so that NaN, for which every comparison fails, goes through.
    y = _LEAST if x < _LEAST else (0.0 if x > 0.0 else x)
    shifted = y * _BY_LN2 + _INTEGERS
    k = shifted - _INTEGERS
    r = (y - k * _LN2_HIGH) - k * _LN2_LOW
    p = (((((_C13 * r + _C12) * r + _C11) * r + _C10) * r + _C9) * r + _C8) * r + _C7
    p = ((((((p * r + _C6) * r + _C5) * r + _C4) * r + _C3) * r + _C2) * r + 1.0) * r + 1.0
    return 0.0 if x < _LEAST else p * _float((_bits(shifted) + 1023) << 52)


@_fused
def _exp_single(x: np.float32) -> np.float32:
    y = _LEAST_S if x < _LEAST_S else (_ZERO_S if x > _ZERO_S else x)
    shifted = y * _BY_LN2_S + _INTEGERS_S
    k = shifted - _INTEGERS_S
    r = (y - k * _LN2_HIGH_S) - k * _LN2_LOW_S
    p = ((((((_S7 * r + _S6) * r + _S5) * r + _S4) * r + _S3) * r + _S2) * r + _ONE_S) * r + _ONE_S
    return _ZERO_S if x < _LEAST_S else p * _float(np.int32((_bits(shifted) + np.int32(127)) << np.int32(23)))


@kernel
def exp_double(values: FloatVector) -> None:
    """Replace each float64 by its exp."""
    for i in range(len(values)):
        values[i] = _exp(values[i])


@kernel
def exp_single(values: AnyArray) -> None:
    """Replace each float32 by its exp."""
    for i in range(len(values)):
        values[i] = _exp_single(values[i])


def exponentials(values: AnyArray) -> None:
    """Replace exponents that are not positive, but for rounding, by their exp."""
    if not values.flags.c_contiguous:
        raise ValueError("exponentials(values) needs a contiguous array: one in any other order would be copied.")
    if values.dtype == np.float32:
        exp_single(values.reshape(-1))
    else:
        exp_double(values.reshape(-1))
