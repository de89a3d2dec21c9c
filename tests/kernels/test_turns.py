"""Compiling in turns: processes that start together, and kernels that cannot be compiled."""

from __future__ import annotations

import fcntl
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import TypingError

from dsgd.kernels import cache
from dsgd.kernels.jit import _turns
from forks import forking


def _use(path: str, ready: Any, found: Any) -> None:
    sys.path.insert(0, path)
    cache.kernel_folder = lambda: Path(path)
    module = importlib.import_module("turns_kernel")
    ready.wait(30.0)
    value = module.total(np.arange(5.0))
    found.send((float(value), sum(module.total.stats.cache_misses.values())))


@pytest.mark.slow
def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    """Of two processes that need a kernel at the same moment one compiles it, and the other finds it on disk."""
    source = tmp_path / "turns_kernel.py"
    source.write_text(
        "from dsgd.kernels.jit import kernel\n\n\n@kernel\ndef total(x):\n    out = 0.0\n"
        "    for i in range(len(x)):\n        out += x[i]\n    return out\n"
    )
    context = forking()
    ready, pipes, processes = context.Barrier(2), [], []
    for _ in range(2):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=_use, args=(str(tmp_path), ready, theirs)))
        processes[-1].start()
        pipes.append(ours)
    found = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join(30.0)
        process.close()
    assert [value for value, _ in found] == [10.0] * 2
    assert sorted(misses for _, misses in found) == [0, 1]


def test_a_failed_compilation_ends_the_turn_of_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kernel that Numba refuses, this process neither holds the lock nor believes that it still compiles."""
    (tmp_path / "refused_kernel.py").write_text(
        "from dsgd.kernels.jit import kernel\n\n\n@kernel\ndef refused(x):\n    return x.no_such_attribute\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    refused = importlib.import_module("refused_kernel").refused
    with pytest.raises(TypingError):
        refused(1.0)
    assert not _turns._compiling
    with refused._cache.lock_path.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "script", "said"),
    [
        ({"NUMBA_DISABLE_JIT": "1"}, "", "NUMBA_DISABLE_JIT is set: dsgd compiles its kernels nevertheless"),
        ({}, "Path.mkdir = Path(os.devnull).mkdir", "cannot be kept on disk"),
    ],
    ids=["no compiler", "no folder"],
)
def test_kernels_run_where_nothing_is_kept_or_compiled(setting: dict[str, str], script: str, said: str) -> None:
    """Without a folder that can be written to, and where Numba's compiler is off, kernels run; it is said once."""
    code = f"""
import os
from pathlib import Path
{script}
import numpy as np
from dsgd.kernels.jit import kernel, leaf_kernel

for make in (kernel, leaf_kernel):
    @make
    def total(values):
        return values.sum()

    assert total(np.arange(4.0)) == 6.0
    assert total.nopython_signatures
"""
    found = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | setting, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stderr.count(said) == 1
