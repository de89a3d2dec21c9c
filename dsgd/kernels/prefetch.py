"""Asking for memory ahead of its use."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dsgd.kernels.jit import scalar
from dsgd.types import AnyArray


@intrinsic
def _prefetch(context: Any, array: Any, place: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = target.make_array(signature.args[0])(target, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, word(0), word(3), word(1)])
        return target.get_dummy_value()

    return types.void(array, types.uint64), generate


@scalar
def prefetch(array: AnyArray, place: int) -> None:
    """Ask for the cache line of entry `place` of a vector, without waiting for it."""
    _prefetch(array, place)
