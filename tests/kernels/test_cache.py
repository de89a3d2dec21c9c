"""Kernels on disk: every copy of the same code finds them, none in which anything differs, and processes take turns."""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest
from numba import TypingError
from numba.core.registry import cpu_target

from dsgd.kernels import jit, rules
from dsgd.kernels.jit import KernelCache, _turns
from forks import forking

FILES = {
    "top.py": '''"""A kernel."""
from typing import NamedTuple
from numba.extending import intrinsic
from numba import types
from dsgd.kernels.jit import kernel
from made import low
from made.low import added, FACTOR
from made.table import TABLE

class Pair(NamedTuple):
    a: float
    b: float

@intrinsic
def one(typing):
    return types.int64(), lambda context, builder, signature, args: context.get_constant(types.int64, 1)

@kernel
def run(x, pair):
    """Do it."""
    total = 0.0
    for i in range(len(x)):
        total += added(x[i]) * FACTOR + low.OFFSET + TABLE[i % 2]
    return total + one() + pair.a - 2 * pair.b
''',
    "low.py": '''"""Parts."""
from dsgd.kernels.jit import inlined, scalar
from made.lowest import less

FACTOR = 2.0
OFFSET = 0.5

@inlined({"reassoc"})
def added(x):
    return less(x) + 1.0
''',
    "lowest.py": '''"""What parts call."""
from dsgd.kernels.jit import scalar

@scalar
def less(x):
    def inner(y):
        return y - 3.0
    return inner(x)
''',
    "table.py": '"""Numbers."""\nimport numpy as np\n\nTABLE = np.array([1.0, 2.0])\nUNUSED = 1\n',
    "__init__.py": "",
}
#: Edits of one of the files, and whether kernels are made of what they change.
EDITS = {
    "its own code": ("top.py", "total = 0.0", "total = 1.0", True),
    "what it calls": ("low.py", "+ 1.0", "+ 1.5", True),
    "what that calls": ("lowest.py", "3.0", "4.0", True),
    "a number": ("low.py", "FACTOR = 2.0", "FACTOR = 3.0", True),
    "a number in a module": ("low.py", "OFFSET = 0.5", "OFFSET = 0.25", True),
    "an array": ("table.py", "1.0, 2.0", "1.0, 3.0", True),
    "an option of the compiler": ("low.py", '"reassoc"', '"contract"', True),
    "what is taught to the compiler": ("top.py", "types.int64, 1)", "types.int64, 2)", True),
    "the order of fields": ("top.py", "    a: float\n    b: float", "    b: float\n    a: float", True),
    "a comment": ("low.py", "def added(x):\n", "def added(x):\n    # one more\n\n\n", False),
    "a docstring": ("top.py", "Do it.", "Do it, and say more\n    about it.", False),
    "the docstring of a module": ("lowest.py", "What parts call.", "Parts of parts.", False),
    "a number that it does not name": ("table.py", "UNUSED = 1", "UNUSED = 2", False),
}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give a function that imports the kernels of `FILES` anew from a folder of their own."""
    for name, text in FILES.items():
        path = tmp_path / "made" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load() -> ModuleType:
        for name in [name for name in sys.modules if name.partition(".")[0] == "made"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        jit._code_of.cache_clear()
        return importlib.import_module("made.top")

    yield load
    for name in [name for name in sys.modules if name.partition(".")[0] == "made"]:
        del sys.modules[name]


def _place(top: ModuleType) -> str | None:
    """Return the name of the file of the kernel for an array and a pair."""
    types = [numba.typeof(np.ones(3)), numba.typeof(top.Pair(1.0, 2.0))]
    return top.run._cache._name(types, jit._PORTABLE)


@pytest.mark.parametrize("edit", EDITS)
def test_a_kernel_is_kept_under_what_it_is_made_of(made: Any, tmp_path: Path, edit: str) -> None:
    """Whatever changes the machine code changes its name; comments, docstrings and other numbers do not."""
    file, before, after, is_other = EDITS[edit]
    first = _place(made())
    path = tmp_path / "made" / file
    assert path.read_text().count(before) == 1
    path.write_text(path.read_text().replace(before, after))
    assert (_place(made()) != first) == is_other


USE = """
import sys
import numpy as np
from numba.core import event

class Count(event.Listener):
    n = 0
    def on_start(self, event):
        self.n += 1
    def on_end(self, event):
        pass

count = Count()
event.register("numba:compile", count)
from made.top import Pair, run
print(run(np.ones(3), Pair(1.0, 2.0)), count.n)
"""


def test_copies_compile_nothing(made: Any, tmp_path: Path) -> None:
    """A copy elsewhere, with other times, finds the kernels of the first; a file that was cut off is made again."""

    def use(folder: Path) -> tuple[str, bool]:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kept"), "PYTHONPATH": str(folder)}
        done = subprocess.run([sys.executable, "-c", USE], env=environment, capture_output=True, text=True, check=True)
        value, n_compiled = done.stdout.split()
        return value, int(n_compiled) > 0

    value, compiles = use(tmp_path)
    assert compiles
    shutil.copytree(tmp_path / "made", tmp_path / "elsewhere" / "made")
    for path in (tmp_path / "elsewhere" / "made").iterdir():
        os.utime(path, (1, 1))
    assert use(tmp_path / "elsewhere") == (value, False)
    (kept,) = (tmp_path / "kept" / "dsgd").glob("*.kernel")
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 2])
    assert use(tmp_path) == (value, True)
    assert use(tmp_path) == (value, False)
    kept.write_bytes(whole[:100] + b"?" + whole[101:])
    assert use(tmp_path) == (value, True)


COVERED = """
from numba.core import event
import dsgd.kernels.jit
from dsgd.kernels.jit import _covered

class Heard(event.Listener):
    inside, n = [], 0
    def on_start(self, event):
        function = event.data["dispatcher"].py_func
        self.inside.append(function)
        if function.__module__.startswith("dsgd."):
            covered = {text.partition(" ")[0] for text in _covered(self.inside[0])}
            assert function.__module__ in covered, (self.inside[0], function)
            self.n += 1
    def on_end(self, event):
        self.inside.pop()

heard = Heard()
event.register("numba:compile", heard)
import numpy as np
from dsgd import SGDRegressor
from dsgd.linear_model import Lasso
X = np.random.default_rng(0).normal(size=(40, 3))
SGDRegressor(max_iter=1, tol=None).fit(X, X[:, 0])
Lasso().fit(X, X[:, 0])
print(heard.n)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not jit._runs_portable(cpu_target.target_context.codegen().magic_tuple()), reason="needs a processor with AVX2"
)
def test_kernels_that_a_package_carries_are_found(made: Any, tmp_path: Path) -> None:
    """Kernels for a level of processors are run by this one, though it would compile others for itself."""

    def use(folder: str, **environment: str) -> list[str]:
        command = [sys.executable, "-c", f"from pathlib import Path\nfrom dsgd.kernels import jit\n{carried}\n{USE}"]
        given = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / folder), "PYTHONPATH": str(tmp_path), **environment}
        return subprocess.run(command, env=given, capture_output=True, text=True, check=True).stdout.split()

    carried = ""
    value, n_compiled = use("portable", NUMBA_CPU_NAME=jit._PORTABLE[1], NUMBA_CPU_FEATURES=jit._PORTABLE[2])
    assert int(n_compiled) > 0
    assert int(use("native")[1]) > 0
    carried = f"jit._carried = lambda: Path({str(tmp_path / 'portable' / 'dsgd')!r})"
    assert use("other") == [value, "0"]


@pytest.mark.slow
def test_the_stamp_covers_what_the_compiler_compiles(tmp_path: Path) -> None:
    """Of every function of ours that Numba compiles for a kernel the module is in its stamp."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COVERED], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30


def test_what_nobody_uses_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When kernels are saved, those that were last used a hundred days ago go, and others stay."""
    old, young = tmp_path / "old.kernel", tmp_path / "young.kernel"
    for path, days in (old, 100), (young, 10):
        path.touch()
        os.utime(path, (0, path.stat().st_mtime - days * 86400))
    jit._remove_unused(tmp_path)
    assert (old.exists(), young.exists()) == (False, True)


def test_functions_as_arguments_are_not_kept() -> None:
    """A compiled function of the user is told by its address, which may be another one's in another process."""

    @numba.njit
    def step(x: float) -> float:
        return x + 1.0

    kept = KernelCache(rules.gradient_rows.py_func, {})
    assert kept._name([numba.typeof(step)], jit._PORTABLE) is None


def _use(path: str, ready: Any, found: Any) -> None:
    sys.path.insert(0, path)
    jit.kernel_folder = lambda: Path(path)
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
