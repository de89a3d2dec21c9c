"""Calls of machine code by its address, from kernels that were compiled before that code was.

A kernel must not be compiled again for each function that a user brings, and lose its place on disk with that. So what
changes is a number: the address of a table of two addresses, of functions of two floats. The calls are marked as ones
that neither read nor write memory, so that kernels keep in registers what they would keep without them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def call_at(typing_context: Any, table: Any, place: Any, y: Any, p: Any) -> Any:
    """Return f(y, p), where f is the function at a place of a table of addresses.

    - `table`: address of an array of addresses of C functions, ``double f(double, double)``.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table, place, y, p = arguments
        number = ir.DoubleType()
        function = ir.FunctionType(number, [number, number]).as_pointer()
        address = builder.gep(builder.inttoptr(table, function.as_pointer()), [place])
        return builder.call(builder.load(address), [y, p], attrs=("nounwind", "readnone"))

    return types.float64(types.int64, types.int64, types.float64, types.float64), generate
