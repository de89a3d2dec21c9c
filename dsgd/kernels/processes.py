"""Reading the memory of another process of the same user.

Problem: data that passes through shared memory of two processes is copied in and out again. Linux can copy it once,
straight from source to destination, if it lets one process read the memory of the other. Debuggers do that too, so a
hardened system (Yama's ``ptrace_scope``), another user namespace or a filter of system calls may forbid it.

Cost: one system call and, per page of 4 KB, a look into the page table of the other process.

Source: ``process_vm_readv(2)``, the cross memory attach of Linux 3.2.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
from numba import types

from dsgd.kernels.atomics import store
from dsgd.kernels.jit import kernel, scalar
from dsgd.types import AnyArray, IntVector

#: Whether this system has such a call at all; whether it may be used shows when it is.
CAN_READ: Final = hasattr(ctypes.CDLL(None), "process_vm_readv")
#: Words of scratch that a read needs: two pairs of address and length.
N_WORDS: Final = 4

_readv = types.ExternalFunction(
    "process_vm_readv", types.intp(types.int32, types.intp, types.uintp, types.intp, types.uintp, types.uintp)
)


@scalar
def read_process(pid: int, target: int, source: int, n_bytes: int, words: int) -> Any:
    """Copy from address `source` of a process to `target` of this one; returns the bytes copied, −1 for none.

    At address `words` there are `N_WORDS` words of scratch.
    """
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
