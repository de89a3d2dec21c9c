"""Words that threads and processes share: atomic operations, sleep, and memory of other processes.

**Atomic operations.** Ranks that share memory use a counter to announce data. Compilers and processors may reorder
plain reads and writes (ARM does, LLVM does everywhere), so a peer could see the counter before the data.

Memory is addressed by number, since Numba has neither pointers nor atomic access through them; words are 64 bits wide
and aligned. A release write is visible only after all writes before it, and no read after an acquire read is done
before it; on x86 both are plain moves. Source: C11 (ISO/IEC 9899:2011), 5.1.2.4 and 7.17.3.

**Sleep.** A thread that leaves a kernel to sleep has to wait for the interpreter lock before it can go on. If fifteen
wait for one, all of them leave; the next time it is another that comes last to the lock, and all wait for that one: a
round of a hundred microseconds takes milliseconds. So threads sleep, and move, without the interpreter.

A bed is memory of `BED_WORDS` words of 64 bits: a ``struct pollfd`` for a socket that does not block, its descriptor
once more, and room for what is read or asked. The peer that rings is `ring_if_asleep`. Cost: a
wake-up, some tens of microseconds; a move about ten.

**Memory of another process** of the same user. Data that passes through shared memory of two processes is copied in and
out again. Linux can copy it once, straight from source to destination, if it lets one process read the memory of the
other. Debuggers do that too, so a hardened system (Yama's ``ptrace_scope``), another user namespace or a filter of
system calls may forbid it.

Cost: one system call and, per page of 4 KB, a lookup in the page table of the other process. Source:
``process_vm_readv(2)``, the cross memory attach of Linux 3.2.
"""

from __future__ import annotations

import ctypes
import select
import socket
import struct
import sys
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dsgd.kernels.jit import kernel, scalar
from dsgd.types import AnyArray, IntVector

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

    `flag` is the address of a word that is not zero while the peer sleeps, or is about to: it sets it, and after a
    `barrier` checks once more whether it must wait. `bell` is the socket that it sleeps on.
    """
    barrier()
    if load(flag) != 0:
        store(flag, 0)
        _send(np.int32(bell), message, np.uint64(1), np.int32(_DONT_WAIT))


_DESCRIPTOR_AT: Final = 8
_SCRATCH_AT: Final = 16

# As many cores as the masks of glibc have bits.
_MASK_WORDS: Final = 16

#: Words of a bed.
BED_WORDS: Final = 2 + _MASK_WORDS
_poll = types.ExternalFunction("poll", types.int32(types.intp, types.uint64, types.int32))
_read = types.ExternalFunction("read", types.intp(types.int32, types.intp, types.uintp))


def make_bed(descriptor: int) -> IntVector:
    """Return the memory of a bed whose bell is heard on a descriptor, shape (BED_WORDS,)."""
    bed = np.zeros(BED_WORDS, dtype=np.int64)
    bed[0] = int.from_bytes(struct.pack("=ihh", descriptor, select.POLLIN, 0), sys.byteorder, signed=True)
    bed[_DESCRIPTOR_AT // 8] = descriptor
    return bed


@scalar
def sleep_in(bed: int, milliseconds: int) -> Any:
    """Sleep in the bed at an address until somebody rings, so long at most; return whether somebody has rung."""
    if _poll(bed, np.uint64(1), np.int32(milliseconds)) <= 0:
        return False
    _read(np.int32(load(bed + _DESCRIPTOR_AT)), bed + _SCRATCH_AT, np.uint64(8))
    return True


if sys.platform == "linux":
    _getcpu = types.ExternalFunction("sched_getcpu", types.int32())
    _getaffinity = types.ExternalFunction("sched_getaffinity", types.int32(types.int32, types.uintp, types.intp))
    _setaffinity = types.ExternalFunction("sched_setaffinity", types.int32(types.int32, types.uintp, types.intp))

    @scalar
    def core_of() -> Any:
        """Return the core that this thread runs on, or -1 where the system does not tell."""
        return _getcpu()

    @scalar
    def leave_core_in(bed: int, core: int) -> Any:
        """Move this thread off a core if it may run on others; return whether it was moved.

        Nothing that is allowed is taken away; see `dsgd.comm.memory.cores`.
        """
        mask, n_bytes = bed + _SCRATCH_AT, np.uint64(8 * _MASK_WORDS)
        if not 0 <= core < 64 * _MASK_WORDS or _getaffinity(np.int32(0), n_bytes, mask) != 0:
            return False
        word, bit = mask + 8 * (core >> 6), np.int64(1) << np.int64(core & 63)
        if load(word) & bit == 0:
            return False
        store(word, load(word) ^ bit)
        n_others = 0
        for k in range(_MASK_WORDS):
            n_others += load(mask + 8 * k) != 0
        if n_others == 0 or _setaffinity(np.int32(0), n_bytes, mask) != 0:
            return False
        store(word, load(word) ^ bit)
        _setaffinity(np.int32(0), n_bytes, mask)
        return True

else:

    @scalar
    def core_of() -> Any:
        """Return -1: the system does not tell."""
        return -1

    @scalar
    def leave_core_in(bed: int, core: int) -> Any:
        """Return that this thread was not moved."""
        return False


#: Whether this system has such a call at all; whether it may be used shows when it is.
CAN_READ: Final = hasattr(ctypes.CDLL(None), "process_vm_readv")

#: Words of scratch that a read needs: two pairs of address and length.
N_WORDS: Final = 4
_readv = types.ExternalFunction(
    "process_vm_readv", types.intp(types.int32, types.intp, types.uintp, types.intp, types.uintp, types.uintp)
)


@scalar
def read_process(pid: int, target: int, source: int, n_bytes: int, words: int) -> Any:
    """Copy from address `source` of a process to `target` of this one; returns the bytes copied, −1 for none."""
    store(words, target)
    store(words + 8, n_bytes)
    store(words + 16, source)
    store(words + 24, n_bytes)
    return _readv(np.int32(pid), words, np.uint64(1), words + 16, np.uint64(1), np.uint64(0))


@kernel
def read_into(pid: int, source: int, target: AnyArray, words: IntVector) -> int:
    """Fill `target` from address `source` of a process; returns the bytes copied, −1 for none."""
    copied: int = read_process(pid, target.ctypes.data, source, target.nbytes, words.ctypes.data)
    return copied
