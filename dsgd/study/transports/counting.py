"""Copies and allocations of a process, counted where they happen: in calls of its C library.

Problem: what a library says of its copies is a promise, and a profile of samples is a guess. Hardware counters of
memory are closed to an ordinary user.

Method: a small library (``counting.c``) is loaded into a process before all others, so that the calls of Python, numpy,
torch, OpenSSL and compiled kernels to ``memcpy``, ``memmove``, ``malloc`` and its relatives, ``send``, ``recv``,
``read``, ``write``, ``process_vm_readv`` and theirs pass through it. It counts the bytes that these functions moved and
calls the real ones. ``PYTHONMALLOC=malloc`` lets every object of Python be one of those allocations. Nothing else about
the process is changed, but it is slower, so nothing is timed in it.

What is not seen: copies of a few bytes that a compiler wrote out, loops that move numbers one by one, what ``realloc``
moves, and memory that a program maps by itself. Over TLS the cipher reads and writes all data at both ends, which is
not counted as a copy.

Source: symbol interposition by the dynamic linker (``ld.so(8)``, LD_PRELOAD).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import dask

from dsgd.errors import ClusterError

#: What is counted: bytes copied in the process, handed to the kernel, taken from it and read from another process;
#: system calls for these; bytes asked for by allocations, and their number.
COUNTS: Final = ("copied", "to_kernel", "from_kernel", "pulled", "calls", "allocated", "allocations")

_SOURCE: Final = Path(__file__).with_name("counting.c")


def can_count() -> bool:
    """Return whether this system has what counting needs: Linux, and a C compiler called ``cc``."""
    return sys.platform == "linux" and shutil.which("cc") is not None


@contextmanager
def counted() -> Iterator[None]:
    """Let processes that are started inside count, workers of Dask too; this one does not."""
    with tempfile.TemporaryDirectory(prefix="dsgd-") as folder:
        library = Path(folder) / "counting.so"
        command = ["cc", "-O2", "-shared", "-fPIC", "-fno-builtin", "-o", str(library), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
        first = os.environ.get("LD_PRELOAD")
        added = {"LD_PRELOAD": f"{library}:{first}" if first else str(library), "PYTHONMALLOC": "malloc"}
        before = {name: os.environ.get(name) for name in added}
        os.environ.update(added)
        try:
            # A worker that is forked from a server has the libraries of that server.
            with dask.config.set({"distributed.worker.multiprocessing-method": "spawn"}):
                yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def counts_here() -> list[int]:
    """Return what this process has counted since it began, in the order of `COUNTS`."""
    read = getattr(ctypes.CDLL(None), "dsgd_counts", None)
    if read is None:
        raise ClusterError(f"process {os.getpid()} does not count its copies: it was started in another way.")
    found = (ctypes.c_long * len(COUNTS))()
    read(found)
    return list(found)
