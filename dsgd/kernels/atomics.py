"""Atomic loads, stores and additions on memory that several threads or processes share.

Problem: ranks that share memory use a counter to announce data. Compilers and processors may reorder plain reads and
writes (ARM does, LLVM does everywhere), so a peer could see the counter before the data.

Memory is addressed by number, since Numba has neither pointers nor atomic access through them; words are 64 bits wide
and aligned. A release write is visible only after all writes before it, and no read after an acquire read is done
before it; on x86 both are plain moves.

Source: C11 (ISO/IEC 9899:2011), 5.1.2.4 and 7.17.3.
"""

from __future__ import annotations

import socket
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dsgd.kernels.jit import scalar
from dsgd.types import AnyArray

#: ``memcpy(target, source, n_bytes)`` of the C library.
copy_bytes = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))
#: Lets another thread that wants this core have it.
yield_core = types.ExternalFunction("sched_yield", types.int32())


@intrinsic
def _load(context: Any, address: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, ordering="acquire", align=8)

    return types.int64(types.int64), generate


@intrinsic
def _store(context: Any, address: Any, value: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store_atomic(arguments[1], pointer, ordering="release", align=8)
        return target.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _barrier(context: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return target.get_dummy_value()

    return types.void(), generate


@intrinsic
def _pointer_like(context: Any, address: Any, array: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], target.get_value_type(signature.return_type))

    return types.CPointer(array.dtype)(types.int64, array), generate


@scalar
def load(address: int) -> Any:
    """Read a 64-bit word after which later reads happen later."""
    return _load(address)


@scalar
def store(address: int, value: int) -> None:
    """Write a 64-bit word after all earlier writes."""
    _store(address, value)


@scalar
def barrier() -> None:
    """Let no read pass an earlier write."""
    _barrier()


@scalar
def pointer_like(address: int, array: AnyArray) -> Any:
    """Return a pointer to entries of the dtype of `array`, for ``numba.carray``."""
    return _pointer_like(address, array)


_send = types.ExternalFunction("send", types.intp(types.int32, types.intp, types.uintp, types.int32))
_DONT_WAIT: Final = int(socket.MSG_DONTWAIT) | int(getattr(socket, "MSG_NOSIGNAL", 0))


@scalar
def ring_if_asleep(flag: int, bell: int, message: int) -> None:
    """Wake a sleeping peer by a byte, after a write that it waits for.

    - `flag`: address of a word that is not zero while the other side sleeps, or is about to: after it has set the
      word and a `barrier`, it checks once more whether it must wait.
    - `bell`: descriptor of a socket that it sleeps on.
    """
    barrier()
    if load(flag) != 0:
        store(flag, 0)
        _send(np.int32(bell), message, np.uint64(1), np.int32(_DONT_WAIT))
