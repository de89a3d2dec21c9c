"""Where a thread sleeps inside compiled code, and how it leaves a core that it shares.

Problem: a thread that leaves a kernel to sleep has to wait for the interpreter lock before it can go on. If fifteen
wait for one, all of them leave; the next time it is another that comes last to the lock, and all wait for that one: a
round of a hundred microseconds takes milliseconds. So threads sleep, and move, without the interpreter.

A bed is memory of `BED_WORDS` words of 64 bits: a ``struct pollfd`` for a socket that does not block, its descriptor
once more, and room for what is read or asked. The peer that rings is `dsgd.kernels.atomics.ring_if_asleep`.

Cost: a wake-up, some tens of microseconds; a move about ten.
"""

from __future__ import annotations

import select
import struct
import sys
from typing import Any, Final

import numpy as np
from numba import types

from dsgd.kernels.atomics import load, store
from dsgd.kernels.jit import scalar
from dsgd.types import IntVector

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
