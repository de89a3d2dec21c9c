"""The page on the architecture: what it names exists, and the ways that it shows are those that real fits take."""

from __future__ import annotations

import ast
import re
import runpy
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dask.distributed import Client

import dsgd.kernels.rounds as round_kernels
import dsgd.kernels.sgd as row_kernels
import dsgd.runtime.worker.member as member
import dsgd.svm.kernel_solver.block as block_solver
from dsgd import SGDClassifier
from dsgd.collectives import Group
from dsgd.ledger import RankLedger
from dsgd.runtime.pools import count_cores
from dsgd.svm import SVC
from dsgd.sync import LocalSGD
from gang_cluster import start_cluster

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "architecture.rst"
SCRIPT = runpy.run_path(str(REPOSITORY / "docs" / "figures" / "architecture.py"))
PATHS: dict[str, list[Any]] = SCRIPT["PATHS"]
BUDGET = {"process": 12, "cluster": 18}

Frames = list[tuple[str, str]]


def frames() -> Frames:
    """Return the functions of the package on the stack of the caller's caller, as (file, qualified name)."""
    found: Frames = []
    frame = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(REPOSITORY) and path.relative_to(REPOSITORY).parts[0] in ("dsgd", "svm", "datasets"):
            found.append((path.relative_to(REPOSITORY).as_posix(), frame.f_code.co_qualname))
        frame = frame.f_back
    return found[::-1]


class Stacks:
    """Takes down the stack at every call of functions that a stand-in has taken the place of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch, self._lock = monkeypatch, threading.Lock()
        self.seen: dict[str, list[Frames]] = {}

    def at(self, owner: Any, name: str) -> None:
        """Watch a function of a module or a class."""
        function, seen = getattr(owner, name), self.seen.setdefault(name, [])

        def watched(*args: Any, **kwargs: Any) -> Any:
            stack = frames()
            with self._lock:
                if stack not in seen:
                    seen.append(stack)
            return function(*args, **kwargs)

        self._monkeypatch.setattr(owner, name, watched)

    def through(self, name: str, function: str) -> Frames:
        """Return the longest stack at `name` that has `function` in it."""
        return max((stack for stack in self.seen[name] if any(hop == function for _, hop in stack)), key=len)


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> Stacks:
    """Stand-ins that go at the end of the test."""
    return Stacks(monkeypatch)


@pytest.fixture
def client() -> Iterator[Client]:
    """A cluster whose workers are threads of this process, so that stand-ins reach them."""
    with start_cluster(2, processes=False) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


def rows(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Return two classes that overlap a little."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5))
    return X, (X[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(int)


def hops(name: str) -> Frames:
    """Return a table of the page."""
    return [(hop.file, hop.function) for hop in PATHS[name]]


def is_on_the_way(stations: Frames, stack: Frames) -> bool:
    """Return whether the stations are on a stack, in their order; others may lie between."""
    left = iter(stack)
    return all(station in left for station in stations)


def defined(file: str) -> set[str]:
    """Return the qualified names of the functions and classes of a file."""
    names = set()

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef):
                names.add(prefix + child.name)
                visit(child, f"{prefix}{child.name}." + ("" if isinstance(child, ast.ClassDef) else "<locals>."))
            else:
                visit(child, prefix)

    visit(ast.parse((REPOSITORY / file).read_text(encoding="utf-8")), "")
    return names


def test_what_the_page_names_is_there() -> None:
    """Every file is in the repository, and holds the function that the drawing, a table or the text names with it."""
    places = [(hop.file, hop.function) for path in PATHS.values() for hop in path]
    places += [(box.file, box.function) for box in SCRIPT["BOXES"].values()]
    assert [place for place in places if place[1] not in defined(place[0])] == []
    text = PAGE.read_text(encoding="utf-8")
    files = re.findall(r"``((?:dsgd|svm|datasets|docs|tests)/[\w/]+\.py)``", text)
    assert len(files) >= 4
    assert [file for file in files if not (REPOSITORY / file).exists()] == []
    # A function that the text names with its file in parentheses.
    named = re.findall(r"``([\w.]+)``\s+\(``([\w/]+\.py)``\)", text)
    assert len(named) >= 15
    assert [place for place in named if place[0] not in defined(place[1])] == []


def test_the_constants_of_waiting_are_those_of_the_code() -> None:
    """A row of the table of waits names constants of the files that it names."""
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index("Where a rank waits") : text.index("After training, rank 0")]
    n_named = 0
    for row in table.split("* - ")[1:]:
        code = "".join(
            (REPOSITORY / file).read_text(encoding="utf-8") for file in re.findall(r"``(dsgd/[\w/]+\.py)``", row)
        )
        for name in re.findall(r"``(_?[A-Z][A-Z_]+)``", row):
            assert re.search(rf"^{name}(: Final)? = ", code, re.MULTILINE), name
            n_named += 1
    assert n_named >= 8


def test_the_drawing_and_the_tables_are_those_of_their_script() -> None:
    """The files in the repository are those that the script writes, and the page shows all of them."""
    text = PAGE.read_text(encoding="utf-8")
    for path, content in SCRIPT["files"]().items():
        assert path.read_text(encoding="utf-8") == content, f"run docs/figures/architecture.py: {path.name} is old"
        assert path.name in text


def test_the_page_states_the_numbers_of_its_tables() -> None:
    """The counts in the text are the lengths of the tables, which keep to the budget that it states."""
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"calls these {len(PATHS['process'])} functions" in text
    assert f"passes through {len(PATHS['cluster'])} functions" in text
    assert (
        "The budget is {process} functions to the kernel in one process and {cluster} on a cluster.".format(**BUDGET)
        in text
    )
    assert all(len(PATHS[name]) <= most for name, most in BUDGET.items())


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_fit_in_process_takes_the_way_of_the_page(stacks: Stacks, n_jobs: int) -> None:
    """From fit to the kernel there are the functions of the table, all of them, in its order."""
    stacks.at(row_kernels, "run_rows")
    SGDClassifier(max_iter=1, tol=None, n_jobs=n_jobs, sync=LocalSGD(every=64)).fit(*rows())
    epochs = [stack for stack in stacks.seen["run_rows"] if ("dsgd/runtime/train/loop.py", "_run_epoch") in stack]
    assert hops("process") in epochs
    # Other ranks are threads: their stacks begin there.
    assert all(is_on_the_way(stack, hops("process")) for stack in epochs)


@pytest.mark.skipif(count_cores() < 2, reason="needs a core for each of two ranks")
def test_rounds_in_one_kernel_are_no_further_away(stacks: Stacks) -> None:
    """Where many rounds run in one call of a kernel, that call is within the budget too."""
    stacks.at(round_kernels, "run_rounds")
    SGDClassifier(max_iter=2, tol=None, n_jobs=2, sync=LocalSGD(every=8)).fit(*rows())
    assert len(stacks.through("run_rounds", "FusedRounds.run")) <= BUDGET["process"]


@pytest.mark.cluster
def test_a_fit_on_a_cluster_takes_the_way_of_the_page(stacks: Stacks, client: Client) -> None:
    """From fit to the task, from the task to the thread and from there to the kernel, there is what the table says."""
    stacks.at(Client, "submit")
    stacks.at(member, "run_threads")
    stacks.at(row_kernels, "run_rows")
    SGDClassifier(max_iter=1, tol=None, client=client, sync=LocalSGD(every=64)).fit(*rows())
    submitted = stacks.through("submit", "run_on_cluster")
    task = stacks.through("run_threads", "run_member")
    rank = stacks.through("run_rows", "_run_epoch")
    assert [*submitted, *task, ("dsgd/runtime/threads.py", "run_threads"), *rank] == hops("cluster")


def test_an_exchange_takes_the_way_of_the_page(stacks: Stacks) -> None:
    """From the round to the ledger there are the functions of the table, all of them, in its order."""
    stacks.at(RankLedger, "count")
    SGDClassifier(max_iter=1, tol=None, n_jobs=2, sync=LocalSGD(every=64)).fit(*rows())
    stack = stacks.through("count", "Rounds._exchange_models")
    begin = [function for _, function in stack].index("Rounds._exchange_models")
    assert [*stack[begin:], ("dsgd/ledger/rank.py", "RankLedger.count")] == hops("exchange")


def test_an_svm_passes_the_stations_of_the_page(stacks: Stacks) -> None:
    """The stations are on the stack of the kernel that solves a working set."""
    stacks.at(block_solver, "solve_block")
    SVC(cache_size=1, elimination="single").fit(*rows(1500))
    assert any(is_on_the_way(hops("svc"), stack) for stack in stacks.seen["solve_block"])


@pytest.mark.cluster
def test_an_svm_on_a_cluster_passes_the_stations_of_the_page(stacks: Stacks, client: Client) -> None:
    """So they are on a cluster, from the client to what the ranks tell each other in a round."""
    stacks.at(Client, "submit")
    stacks.at(member, "run_threads")
    stacks.at(Group, "allreduce")
    SVC(client=client).fit(*rows())
    submitted = stacks.through("submit", "run_on_cluster")
    task = [*stacks.through("run_threads", "run_member"), ("dsgd/runtime/threads.py", "run_threads")]
    rank = [*stacks.through("allreduce", "_Run._round"), ("dsgd/collectives/group.py", "Group.allreduce")]
    assert is_on_the_way(hops("svc-cluster"), [*submitted, *task, *rank])


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_a_module_passes_the_stations_of_the_page() -> None:
    """They are on the stack of the module's forward pass."""
    from torch import nn

    from dsgd.torch import TorchClassifier

    seen: list[Frames] = []

    class Watched(nn.Linear):
        def forward(self, X: Any) -> Any:
            seen.append(frames())
            return super().forward(X)

    X, y = rows()
    net = TorchClassifier(Watched, module__in_features=5, module__out_features=2, max_epochs=1)
    net.fit(X.astype(np.float32), y)
    assert any(is_on_the_way(hops("torch"), stack) for stack in seen)
