"""Known defects, planted one by one: the tests that ought to find each must fail.

``make mutations``, or ``python tests/mutations.py --quick --only NAME --processes 2 --out rows.jsonl``.

A mutation of ``mutations.toml`` replaces one passage of one file, in a copy of the tree, and names the modules or
folders of tests that are run there: those whose claim it breaks. It is killed by the first test that fails, by a crash,
or by a hang. One that survives is a hole in the tests, or changes nothing that anybody can observe and does not belong
there. With ``--schedules 10000`` a seed of `simulation` has to find it, among so many, and no other test runs. In the
end all tests that killed one run on the tree as it is, where they must pass.

A mutation goes with the passage that it replaces; ``--check`` says which no longer occur once, and so does a test.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
LIST: Final = Path(__file__).with_suffix(".toml")
#: Kernels of mutants are told apart by their code, so that all share a folder and compile only what has changed.
KERNELS: Final = Path(tempfile.gettempdir()) / "dsgd-mutations-kernels"
#: What is copied, and where to: in the copy ``import dsgd`` needs no import hook. Everything else is linked.
COPIED: Final = {
    "dsgd": "dsgd",
    "svm": "dsgd/svm",
    "datasets": "dsgd/datasets",
    "tests": "tests",
    "pyproject.toml": "pyproject.toml",
}


@dataclass(frozen=True)
class Mutation:
    """A defect that somebody could introduce.

    Parameters
    ----------
    name : str
        What is wrong.
    file : str
        Where.
    old, new : str
        The passage, which occurs there once, and what takes its place.
    tests : str
        Modules or folders of tests that ought to find it, below ``tests``, separated by blanks.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str

    @property
    def paths(self) -> list[str]:
        """The tests, from the root of the tree."""
        return [f"tests/{path}" for path in self.tests.split()]


_SIMULATED: Final = "tests/runtime/test_simulation.py"
MUTATIONS: Final = [Mutation(**entry) for entry in tomllib.loads(LIST.read_text(encoding="utf-8"))["mutation"]]


def faults() -> list[str]:
    """Return what is wrong with the list: passages that do not occur once, changes that are none, tests not there."""
    names = [mutation.name for mutation in MUTATIONS]
    found = [f"{name}: there are several of this name" for name in sorted(set(names)) if names.count(name) > 1]
    for mutation in MUTATIONS:
        text = (ROOT / mutation.file).read_text(encoding="utf-8")
        if (n := text.count(mutation.old)) != 1:
            found.append(f"{mutation.name}: what it replaces occurs {n} times in {mutation.file}")
        elif _program(text) == _program(text.replace(mutation.old, mutation.new)):
            found.append(f"{mutation.name}: the program stays the same")
        found += [f"{mutation.name}: there is no {path}" for path in mutation.paths if not (ROOT / path).exists()]
    return found


def _program(text: str) -> str:
    """Return what Python reads; a SyntaxError is no defect that tests have to find."""
    return ast.dump(ast.parse(text))


class Tree:
    """A copy of the tree in a folder of its own, where tests run on what is planted there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: subprocess.Popen[bytes] | None = None
        folder.mkdir()
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        names = [name for name in listed.split("\0") if (ROOT / name).is_file()]
        for name in names:
            if name.split("/")[0] in COPIED:
                self.place(name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.place(name))
        for name in {name.split("/")[0] for name in names} - COPIED.keys():
            (folder / name).symlink_to(ROOT / name)
        # Before the folders of the editable install, whose import hook is asked last.
        paths = os.pathsep.join(filter(None, (str(folder), str(folder / "tests"), os.environ.get("PYTHONPATH"))))
        self._environment = {"NUMBA_CACHE_DIR": str(KERNELS), **os.environ, "PYTHONPATH": paths}
        code = "import dsgd, dsgd.datasets, dsgd.svm; print(dsgd.__path__, dsgd.datasets.__path__, dsgd.svm.__path__)"
        command = [sys.executable, "-c", code]
        said = subprocess.run(command, cwd=folder, env=self._environment, capture_output=True, text=True, check=True)
        if said.stdout.count(str(folder)) != 3:
            raise RuntimeError(f"imports find another tree: {said.stdout}")

    def place(self, name: str) -> Path:
        """Return where a file of the repository is in the copy."""
        top, _, rest = name.partition("/")
        return self._folder / COPIED[top] / rest

    @contextlib.contextmanager
    def planted(self, mutation: Mutation) -> Iterator[None]:
        """Have a defect for as long as the context lasts."""
        place, original = self.place(mutation.file), ROOT / mutation.file
        place.write_text(original.read_text(encoding="utf-8").replace(mutation.old, mutation.new), encoding="utf-8")
        try:
            yield
        finally:
            shutil.copy2(original, place)

    def test(self, *arguments: str, limit_s: float) -> tuple[int | None, list[str]]:
        """Run pytest; return how it has exited, None if it had to be stopped, and the tests that failed."""
        code, said = self.run("pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *arguments, limit_s=limit_s)
        summary = said.rpartition("short test summary info")[2]
        return code, re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", summary, re.MULTILINE)

    def run(self, module: str, *arguments: str, limit_s: float) -> tuple[int | None, str]:
        """Run a module; return how it has exited, None if it had to be stopped, and what it has written."""
        command = [sys.executable, "-m", module, *arguments]
        # Not a pipe, which a process that is left behind would keep open.
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
            process = self._running = subprocess.Popen(
                command, cwd=self._folder, env=self._environment, stdout=said, stderr=said, start_new_session=True
            )
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return None, ""
            finally:
                self.stop()
            said.seek(0)
            return code, said.read()

    def stop(self) -> None:
        """End pytest, and what its tests have started: they are in its session."""
        running, self._running = self._running, None
        if running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def try_one(mutation: Mutation, tree: Tree, *, quick: bool, limit_s: float) -> dict[str, Any]:
    """Return a row: what has killed a mutation, None if nothing has, and after how long."""
    began = time.monotonic()
    with tree.planted(mutation):
        code, failed = tree.test("-x", *["--quick"] * quick, *mutation.paths, limit_s=limit_s)
    if code is None:
        killer: str | None = f"no end within {limit_s:g} s"
    elif code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"{mutation.name}: pytest finds no test in {', '.join(mutation.paths)} (exit {code})")
    elif code == pytest.ExitCode.OK:
        killer = None
    else:
        killer = failed[0] if failed else f"a crash (exit {code})"
    seconds = round(time.monotonic() - began, 1)
    test = failed[0] if failed else None
    return {"name": mutation.name, "quick": quick, "killed_by": killer, "test": test, "seconds": seconds}


def try_schedules(mutation: Mutation, tree: Tree, n: int, *, limit_s: float) -> dict[str, Any]:
    """Return a row as `try_one` does: the first schedule of `simulation` that finds a mutation, and no other test."""
    began = time.monotonic()
    with tree.planted(mutation):
        code, said = tree.run("simulation", "0", "--runs", str(n), "--first", limit_s=limit_s)
    if code is None:
        killer: str | None = f"no end within {limit_s:g} s"
    else:
        killer = None if code == 0 else said.strip().splitlines()[-2 if code == 1 else -1].partition("simulation ")[2]
    seconds = round(time.monotonic() - began, 1)
    return {"name": mutation.name, "schedules": n, "killed_by": killer, "test": None, "seconds": seconds}


def main() -> int:
    """Plant the defects; return 1 if one survives, or if a test that killed one fails without it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say what is wrong with the list")
    parser.add_argument("--quick", action="store_true", help="run the tests of `make test`, not all of them")
    parser.add_argument("--only", action="append", default=[], help="part of a name; may be given several times")
    parser.add_argument("--schedules", type=int, help="plant those that simulation ought to find, for so many seeds")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds until a run counts as a hang")
    parser.add_argument("--out", type=Path, help="a file to which a line of JSON is appended for each")
    asked = parser.parse_args()
    if wrong := faults():
        _say("\n".join(wrong))
    if wrong or asked.check:
        return int(bool(wrong))
    chosen = [m for m in MUTATIONS if not asked.only or any(part in m.name for part in asked.only)]
    if asked.schedules:
        chosen = [m for m in chosen if _SIMULATED in m.paths]
    if not chosen:
        parser.error(f"no mutation is named {' or '.join(asked.only)}")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="dsgd-mutations-") as folder:
        trees = [Tree(Path(folder, str(k))) for k in range(asked.processes)]
        idle: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for tree in trees:
            idle.put(tree)

        def run(mutation: Mutation) -> dict[str, Any]:
            tree = idle.get()
            try:
                if asked.schedules:
                    return try_schedules(mutation, tree, asked.schedules, limit_s=asked.limit)
                return try_one(mutation, tree, quick=asked.quick, limit_s=asked.limit)
            finally:
                idle.put(tree)

        with ThreadPoolExecutor(asked.processes) as pool:
            try:
                for future in as_completed([pool.submit(run, mutation) for mutation in chosen]):
                    rows.append(row := future.result())
                    _say(f"{row['name']}: {row['killed_by'] or 'SURVIVED'} ({row['seconds']} s)")
                    if asked.out:
                        with asked.out.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(row) + "\n")
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for tree in trees:
                    tree.stop()
                raise
        killers = sorted({row["test"] for row in rows if row["test"]})
        code, anyway = trees[0].test(*killers, limit_s=asked.limit) if killers else (0, [])
    survivors = [row["name"] for row in rows if row["killed_by"] is None]
    _say("; ".join([f"{len(rows)} mutations, {len(survivors)} survived", *survivors]))
    if code != 0:
        _say(f"killers fail on the tree as it is, too (exit {code}): {', '.join(anyway)}")
    return int(bool(survivors or code != 0))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
