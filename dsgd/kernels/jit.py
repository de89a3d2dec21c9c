"""How every kernel of dsgd is compiled.

All decorators cache on disk, so a new worker process loads machine code instead of compiling. Numba watches the file of
the decorated function only: after an edit to a function that a kernel of *another* file calls, delete the caches
(``find . -name '*.nb[ci]' -delete``), or the kernel goes on running the old one.
"""

from __future__ import annotations

from numba import njit

__all__ = ["kernel", "scalar"]

#: Compiles a kernel: cached on disk, releases the interpreter lock, divides as numpy does instead of raising.
kernel = njit(cache=True, nogil=True, error_model="numpy")

#: Compiles a small function that kernels call; LLVM inlines it. It has no entry in the cache of its own: a kernel's
#: entry holds everything that it calls.
scalar = njit(nogil=True, error_model="numpy")
