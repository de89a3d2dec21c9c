"""Which benchmarks there are, the options that they share, and how one is run.

A benchmark is a module in a folder beside this one. Its docstring is its help text, and the first line says what it
compares. It has

``PAGE``       the page of the documentation that it feeds
``QUICK_S``    about how many seconds its quick form takes on two cores that others use too
``QUICK``      what is less in the quick form
``run``        takes the options and the `Rows` to write

and, where it needs them,

``REPEATS``      how often it repeats, usually and in the quick form: option ``--repeats``
``CASES``        the names of its cases: option ``--only``; ``USUAL_CASES`` and ``QUICK_CASES`` if these are not all
``OPTIONS``      options of its own, by name: what `argparse` takes
``inside``       what its child processes do, which `child` starts
``ONE_THREAD``   true if libraries are to use one thread per process

No benchmark is imported but the one that runs, and this module needs the standard library alone: a child may run
under another interpreter, as MPI's does, and what must be set before numpy is loaded is set in time.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.measuring import Rows, machine, table

ROOT = Path(__file__).parents[2]
#: Exit status of a benchmark that cannot run on this machine, as in automake.
SKIPPED = 77
FACTS = ("PAGE", "QUICK_S", "QUICK", "ONE_THREAD")


class UnavailableError(Exception):
    """A benchmark cannot run here; the text says what is missing."""


@dataclass(frozen=True)
class Benchmark:
    """What a module says of itself, read without importing it.

    Attributes
    ----------
    name : str
        Folder and file, as ``"training/ledger"``.
    summary : str
        What it compares: the first line of its docstring.
    page : str
        Page of the documentation that it feeds.
    quick : str
        What is less in the quick form.
    quick_s : float
        About how many seconds that takes.
    one_thread : bool
        Whether libraries are to use one thread per process.
    """

    name: str
    summary: str
    page: str
    quick: str
    quick_s: float
    one_thread: bool = False

    @property
    def module(self) -> str:
        """The name to import it by."""
        return f"benchmarks.{self.name.replace('/', '.')}"


def benchmarks() -> list[Benchmark]:
    """Return all, by folder and name."""
    files = sorted(Path(__file__).parents[1].glob("*/*.py"))
    return [_read(path) for path in files if path.parent.name != "common" and path.stem != "__init__"]


def _read(path: Path) -> Benchmark:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    facts: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in FACTS:
            facts[node.targets[0].id.lower()] = ast.literal_eval(node.value)
    summary = (ast.get_docstring(tree) or "").split("\n")[0]
    return Benchmark(f"{path.parent.name}/{path.stem}", summary, **facts)


def find(name: str) -> Benchmark:
    """Return the benchmark of a name, with its folder or, where no other has it, without."""
    found = [b for b in benchmarks() if name in (b.name, b.name.split("/")[1])]
    if len(found) != 1:
        known = ", ".join(b.name for b in found or benchmarks())
        raise SystemExit(f"{'no' if not found else 'more than one'} benchmark is called {name!r}: {known}")
    return found[0]


def child(module: str, inside: list[str], *options: str, python: str = sys.executable) -> list[str]:
    """Return the command of a child process, which calls `inside` of a benchmark; its `run` passes ``__name__``."""
    name = module.removeprefix("benchmarks.").replace(".", "/")
    # The folder is named, as the child may start in another.
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from benchmarks.common.suite import main; sys.exit(main())"
    return [python, "-c", start, "run", name, *options, "--inside", *inside]


@contextmanager
def where_found(name: str) -> Iterator[None]:
    """Go on without a case whose data set is not on this machine, and say so."""
    from dsgd.errors import DatasetError

    try:
        yield
    except DatasetError as error:
        print(f"{name} skipped: {error}")


def parser_of(benchmark: Benchmark, module: Any) -> argparse.ArgumentParser:
    """Return the parser of a benchmark: the shared options and its own."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks run {benchmark.name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", metavar="FILE", help="append rows to this file, one JSON object per line")
    parser.add_argument("--quick", action="store_true", help=benchmark.quick)
    if hasattr(module, "REPEATS"):
        usual, quick = module.REPEATS
        parser.add_argument("--repeats", type=int, metavar="N", help=f"by default {usual}, with --quick {quick}")
    if hasattr(module, "CASES"):
        names = list(module.CASES)
        parser.add_argument("--only", nargs="+", choices=names, metavar="CASE", help=f"of {', '.join(names)}")
    for name, settings in getattr(module, "OPTIONS", {}).items():
        parser.add_argument(name, **settings)
    if hasattr(module, "inside"):
        parser.add_argument("--inside", nargs="+", help=argparse.SUPPRESS)
    return parser


def options_of(benchmark: Benchmark, module: Any, argv: list[str]) -> argparse.Namespace:
    """Read the options of a benchmark, and fill in those whose defaults hang on ``--quick``."""
    options = parser_of(benchmark, module).parse_args(argv)
    if hasattr(module, "REPEATS") and options.repeats is None:
        options.repeats = module.REPEATS[options.quick]
    if hasattr(module, "CASES") and options.only is None:
        usual = getattr(module, "USUAL_CASES", module.CASES)
        options.only = list(getattr(module, "QUICK_CASES", usual) if options.quick else usual)
    return options


def run(name: str, argv: list[str]) -> int:
    """Run one benchmark; return the exit status."""
    benchmark = find(name)
    if benchmark.one_thread:
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(variable, "1")
    try:
        module = importlib.import_module(benchmark.module)
        options = options_of(benchmark, module, argv)
        if getattr(options, "inside", None):
            module.inside(options)
            return 0
        return _measure(benchmark.name, module, options)
    except ModuleNotFoundError as error:
        return _skip(benchmark.name, f"needs {error.name}, which is not installed")
    except UnavailableError as error:
        return _skip(benchmark.name, str(error))


def _measure(name: str, module: Any, options: argparse.Namespace) -> int:
    from dsgd.errors import DatasetError

    about = machine()
    print(f"{name}: {about['cpu']}, {about['cores']} cores, commit {about['commit']}", flush=True)
    try:
        return int(module.run(options, Rows(name, options.out)) or 0)
    except DatasetError as error:
        return _skip(name, str(error))


def _skip(name: str, reason: str) -> int:
    print(f"{name}: {reason}", file=sys.stderr)
    return SKIPPED


def run_all_quickly(folder: str) -> int:
    """Run the quick form of each in a process of its own; return 1 if one has failed."""
    outcomes: dict[str, str] = {}
    for benchmark in benchmarks():
        out = Path(folder) / f"{benchmark.name}.jsonl"
        begin = time.monotonic()
        command = [sys.executable, "-m", "benchmarks", "run", benchmark.name, "--quick", "--out", str(out)]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        verdict = {0: "ok", SKIPPED: "cannot run here"}.get(status, f"FAILED with status {status}")
        outcomes[benchmark.name] = f"{verdict}, {time.monotonic() - begin:.0f} s"
    with table("benchmarks in their quick form", "benchmark", "outcome") as line:
        for name, outcome in outcomes.items():
            line(name, outcome)
    return int(any("FAILED" in outcome for outcome in outcomes.values()))


def main(argv: list[str] | None = None) -> int:
    """Read the command line, do what it says and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run the benchmarks of dsgd.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="say which there are, what each compares, and the page that has what was found")
    one = commands.add_parser("run", help="run one of them", add_help=False)
    one.add_argument("name", help="as the list has it; the folder may be left out where no other has the name")
    quick = commands.add_parser("quick", help="run all in their quick form, as make bench does")
    quick.add_argument("--out", default="build/benchmarks", metavar="FOLDER", help="for rows (default: %(default)s)")
    given, rest = parser.parse_known_args(argv)
    if given.command == "run":
        return run(given.name, rest)
    if rest:
        parser.error(f"unknown arguments: {' '.join(rest)}")
    if given.command == "quick":
        return run_all_quickly(str(Path(given.out).absolute()))
    with table("python -m benchmarks run NAME --help says more", "name", "compares", "page", "quick form, s") as line:
        for benchmark in benchmarks():
            line(benchmark.name, benchmark.summary, benchmark.page, f"{benchmark.quick_s:g}")
    return 0
