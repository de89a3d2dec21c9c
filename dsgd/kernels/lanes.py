"""A vector of the processor as a value of compiled code: load it, multiply and add, store it.

LLVM makes vectors of loops, but it keeps what a loop adds up in memory when the loop around it is the one that adds. A
product of matrices wants the opposite: sums that stay in registers over all features while rows and columns pass by.
Here `load`, `zeros`, `multiply_add` and `store` are single instructions, written in ordinary compiled Python::

    total = zeros(weights)
    for j in range(d):
        total = multiply_add(x[j], load(weights, j * stride), total)

A value is `LANE_BYTES` wide: 8 numbers in float64, 16 in float32. Processors with narrower registers take two or four.
A pair is two of them, for which a number is spread over a register once: reading it would else cost as much as the
product.

Source: outer products in registers as the inner kernel of a product of matrices (Goto and van de Geijn 2008).
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

#: Bytes of one value: a line of the cache.
LANE_BYTES: Final = 64


class _Lanes(types.Type):
    """Numba's type of a vector of floats, `n` times `LANE_BYTES` wide."""

    def __init__(self, dtype: Any, n: int = 1) -> None:
        self.dtype, self.n = dtype, n
        super().__init__(name=f"Lanes({dtype}, {n})")


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    """In LLVM it is a vector."""

    def __init__(self, manager: Any, lanes: _Lanes) -> None:
        super().__init__(manager, lanes, _vector(lanes))


def _vector(lanes: _Lanes) -> Any:
    """Return LLVM's type of a value."""
    number = ir.DoubleType() if lanes.dtype.bitwidth == 64 else ir.FloatType()
    return ir.VectorType(number, lanes.n * LANE_BYTES * 8 // lanes.dtype.bitwidth)


def _pointer(context: Any, builder: Any, kind: Any, array: Any, place: Any, vector: Any) -> Any:
    """Return a pointer to the vector that begins at a place of a flat array."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [place]), vector.as_pointer())


def _spread(builder: Any, number: Any, vector: Any) -> Any:
    """Return a vector with a number at every place."""
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None))


def _load(array: Any, n: int) -> Any:
    """Return the typing of an intrinsic that reads a value, n times as wide as `LANE_BYTES`, from a flat array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place = arguments
        kind, vector = signature.args[0], _vector(signature.return_type)
        pointer = _pointer(context, builder, kind, array, place, vector)
        return builder.load(pointer, align=kind.dtype.bitwidth // 8)

    return _Lanes(array.dtype, n)(array, types.uint64), generate


@intrinsic
def load(typing_context: Any, array: Any, place: Any) -> Any:
    """Return the numbers of a flat array from a place on."""
    return _load(array, 1)


@intrinsic
def load_pair(typing_context: Any, array: Any, place: Any) -> Any:
    """Do what `load` does for a pair."""
    return _load(array, 2)


@intrinsic
def without_first(typing_context: Any, lanes: Any, n: Any) -> Any:
    """Return a value with zeros in place of its first n numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, n = arguments
        kind = ir.VectorType(ir.IntType(64), value.type.count)
        places = ir.Constant(kind, list(range(kind.count)))
        is_kept = builder.icmp_unsigned(">=", places, _spread(builder, n, kind))
        return builder.select(is_kept, value, ir.Constant(value.type, None))

    return lanes(lanes, types.uint64), generate


@intrinsic
def store(typing_context: Any, array: Any, place: Any, lanes: Any) -> Any:
    """Write numbers to a flat array from a place on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place, value = arguments
        kind = signature.args[0]
        pointer = _pointer(context, builder, kind, array, place, value.type)
        builder.store(value, pointer, align=kind.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.uint64, lanes), generate


def _zeros(array: Any, n: int) -> Any:
    """Return the typing of an intrinsic that makes a value of zeros, n times as wide as `LANE_BYTES`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(_vector(signature.return_type), None)

    return _Lanes(array.dtype, n)(array), generate


@intrinsic
def zeros(typing_context: Any, array: Any) -> Any:
    """Return zeros of the dtype of an array."""
    return _zeros(array, 1)


@intrinsic
def zeros_pair(typing_context: Any, array: Any) -> Any:
    """Do what `zeros` does for a pair."""
    return _zeros(array, 2)


@intrinsic
def multiply_add(typing_context: Any, factor: Any, lanes: Any, total: Any) -> Any:
    """Return ``factor * lanes + total`` for a number: rounded once where the processor can, as in any loop here."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, value, start = arguments
        spread = _spread(builder, number, value.type)
        return builder.fadd(builder.fmul(spread, value, flags=("contract",)), start, flags=("contract",))

    return lanes(lanes.dtype, lanes, total), generate


@intrinsic
def multiply_add_each(typing_context: Any, factors: Any, lanes: Any, total: Any) -> Any:
    """Return ``factors * lanes + total`` for factors of each place."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        factors, value, start = arguments
        return builder.fadd(builder.fmul(factors, value, flags=("contract",)), start, flags=("contract",))

    return lanes(factors, lanes, total), generate


@intrinsic
def add_up(typing_context: Any, lanes: Any) -> Any:
    """Return the sum of the numbers of a value, of halves, quarters and so on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,) = arguments
        n = value.type.count
        while n > 1:
            n //= 2
            nothing, kind = ir.Constant(value.type, ir.Undefined), ir.VectorType(ir.IntType(32), n)
            low = builder.shuffle_vector(value, nothing, ir.Constant(kind, list(range(n))))
            high = builder.shuffle_vector(value, nothing, ir.Constant(kind, list(range(n, 2 * n))))
            value = builder.fadd(low, high)
        return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))

    return lanes.dtype(lanes), generate


@intrinsic
def has_many_registers(typing_context: Any) -> Any:
    """Return whether eight values and more fit into registers: a constant of the machine for which code is made."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, _, features = context.codegen().magic_tuple()
        return ir.Constant(ir.IntType(1), "+avx512f" in features.split(","))

    return types.boolean(), generate
