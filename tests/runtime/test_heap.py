"""Memory that ranks free: kept while they run, given back when they have ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from dsgd.runtime.worker import heap

_PROGRAM = """
import json, resource
import numpy as np
from dsgd.runtime.worker.heap import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(200):
        np.ones(125_000)  # a megabyte, 245 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

found = [faults()]
with keep_freed_memory():
    with keep_freed_memory():
        found.append(faults())
    found.append(faults())
    pieces = [np.ones(125_000) for _ in range(100)]
    guard = np.ones(1000)
    del pieces
    held = resident()
found.append(faults())
print(json.dumps({"faults": found, "given_back": held - resident()}))
"""


@pytest.mark.skipif(heap._libc() is None, reason="only glibc has thresholds for freed memory")
def test_freed_memory_is_kept_for_a_while() -> None:
    """New pages for every array before and after, next to none within; what is free in the end is given back."""
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    before, inner, outer, after = found["faults"]
    assert min(before, after) > 200 * 100
    assert max(inner, outer) < 200 * 10
    assert found["given_back"] > 50 * 2**20


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without such thresholds, or without a setting in the environment, nothing is changed."""
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    monkeypatch.setattr(heap, "_libc", lambda: None)
    with heap.keep_freed_memory():
        assert not heap._users
    monkeypatch.undo()
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    with heap.keep_freed_memory():
        assert not heap._users
