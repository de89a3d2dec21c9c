"""A vector of the processor as a value of compiled code: load it, multiply and add, store it.

LLVM makes vectors of loops, but it keeps what a loop adds up in memory when the loop around it is the one that adds. A
product of matrices wants the opposite: sums that stay in registers over all features while rows and columns pass by.
Here `load`, `zeros`, `multiply_add` and `store` are single instructions, written in ordinary compiled Python::

    total = zeros(weights)
    for j in range(d):
        total = multiply_add(x[j], load(weights, j * stride), total)

A value is `LANE_BYTES` wide: 8 numbers in float64, 16 in float32. Processors with narrower registers take two or four.

Source: outer products in registers as the inner kernel of a product of matrices (Goto and van de Geijn 2008).
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

__all__ = ["LANE_BYTES", "has_many_registers", "load", "multiply_add", "store", "zeros"]

#: Bytes of one value: a line of the cache.
LANE_BYTES: Final = 64


class _Lanes(types.Type):
    """Numba's type of a vector of floats.

    Parameters
    ----------
    dtype : numba.types.Float
        Of its numbers.
    """

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    """In LLVM it is a vector."""

    def __init__(self, manager: Any, lanes: _Lanes) -> None:
        super().__init__(manager, lanes, _vector(lanes))


def _vector(lanes: _Lanes) -> Any:
    """Return LLVM's type of a value."""
    number = ir.DoubleType() if lanes.dtype.bitwidth == 64 else ir.FloatType()
    return ir.VectorType(number, LANE_BYTES * 8 // lanes.dtype.bitwidth)


def _pointer(context: Any, builder: Any, signature: Any, array: Any, place: Any) -> Any:
    """Return a pointer to the vector that begins at a place of a flat array."""
    kind = signature.args[0]
    data = context.make_array(kind)(context, builder, array).data
    vector = _vector(_Lanes(kind.dtype))
    return builder.bitcast(builder.gep(data, [place]), vector.as_pointer())


@intrinsic
def load(typing_context: Any, array: Any, place: Any) -> Any:
    """Return the numbers of a flat array from a place on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature, *arguments)
        return builder.load(pointer, align=signature.args[0].dtype.bitwidth // 8)

    return _Lanes(array.dtype)(array, types.uint64), generate


@intrinsic
def store(typing_context: Any, array: Any, place: Any, lanes: Any) -> Any:
    """Write numbers to a flat array from a place on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place, value = arguments
        pointer = _pointer(context, builder, signature, array, place)
        builder.store(value, pointer, align=signature.args[0].dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.uint64, lanes), generate


@intrinsic
def zeros(typing_context: Any, array: Any) -> Any:
    """Return zeros of the dtype of an array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(_vector(signature.return_type), None)

    return _Lanes(array.dtype)(array), generate


@intrinsic
def multiply_add(typing_context: Any, factor: Any, lanes: Any, total: Any) -> Any:
    """Return ``factor * lanes + total`` for a number: rounded once where the processor can, as in any loop here."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, value, start = arguments
        kind = _vector(signature.args[1])
        first = builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
        places = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), None)
        spread = builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), places)
        return builder.fadd(builder.fmul(spread, value, flags=("contract",)), start, flags=("contract",))

    return lanes(lanes.dtype, lanes, total), generate


@intrinsic
def has_many_registers(typing_context: Any) -> Any:
    """Return whether eight values and more fit into registers: a constant of the machine for which code is made."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, _, features = context.codegen().magic_tuple()
        return ir.Constant(ir.IntType(1), "+avx512f" in features.split(","))

    return types.boolean(), generate
