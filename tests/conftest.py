"""What every test gets: a machine like any other, and a check that it leaves nothing behind.

A test fails when a thread, a child process, an internet socket or a shared-memory file of ours is there after it that
was not there before. What belongs to a fixture of wider scope (a cluster for a whole module) was there before; while
such a cluster lives its own sockets and processes come and go, so they are counted when its module ends.
"""

from __future__ import annotations

import os

# One thread per library: tests start processes of their own, and sums in a fixed order make results repeat.
# Set before numpy is loaded, and inherited by worker processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "2")
os.environ.setdefault("MPLBACKEND", "agg")
# A local cluster closes the nanny of a worker that is not there so long after it was lost, even if it had come back and
# was lost a second time just then, as happens where one test after the other kills workers.
os.environ.setdefault("DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT", "1h")
# Tests start a hundred processes, which compile the modules anew where none of them may write bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Tests see the folder with real data sets through the fixture `data_home` alone, and no cache but their own: what
# passes here passes on a machine that has neither. The processes of pytest-xdist inherit this name.
if "DSGD_DATA" in os.environ:
    os.environ["DSGD_TEST_DATA"] = os.environ.pop("DSGD_DATA")

import contextlib
import functools
import gc
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import psutil
import pytest

from shared_memory import descendants, shared_names

# Examples are the same in every run, and a slow machine is not a failure.
hypothesis.settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
# Looks for new counterexamples: HYPOTHESIS_PROFILE=explore make test.
hypothesis.settings.register_profile("explore", parent=hypothesis.settings.get_profile("ci"), derandomize=False)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

_GRACE_S = 5.0
# Helpers of the standard library and joblib that serve the whole session once they run; what they have forked does not.
_HELPER_PROCESSES = ("resource_tracker", "forkserver", "semaphore_tracker")
# Pools that libraries keep for the life of the process.
_LIBRARY_THREADS = ("Dask-Offload", "asyncio_", "TMonitor", "tqdm_monitor", "Profile", "pydevd", "pytest_timeout")


@dataclass(frozen=True)
class _Holdings:
    """What this process holds that outlives a function: each a set of names that mean something to a reader."""

    threads: frozenset[str]
    processes: frozenset[str]
    forked: frozenset[str]
    sockets: frozenset[str]
    shared_memory: frozenset[str]

    @classmethod
    def now(cls) -> _Holdings:
        return cls(_threads(), *_processes(), _sockets(), shared_names())

    def beyond(self, before: _Holdings, *, module: bool) -> list[str]:
        """Return what is here and was not there before; after a module also what was forked from a server of forks."""
        found = [
            *(f"thread {name}" for name in self.threads - before.threads),
            *(f"process {name}" for name in self.processes - before.processes),
            *(f"shared memory {name}" for name in self.shared_memory - before.shared_memory),
        ]
        found += [f"socket {name}" for name in self.sockets - before.sockets]
        if module:
            found += [f"process {name}" for name in self.forked - before.forked]
        return sorted(found)


def _threads() -> frozenset[str]:
    threaded = sys.modules.get("dask.threaded")
    pool = getattr(threaded, "default_pool", None)
    kept = getattr(pool, "_threads", set())
    return frozenset(
        f"{thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        if thread not in kept and not thread.name.startswith(_LIBRARY_THREADS)
    )


def _processes() -> tuple[frozenset[str], frozenset[str]]:
    """Return our processes, and those that helpers have forked for us."""
    ours, forked = set(), set()
    for pid, parent in descendants(os.getpid()):
        try:
            child = psutil.Process(pid)
            command = " ".join(child.cmdline())
            if child.status() == psutil.STATUS_ZOMBIE:
                continue
        except psutil.NoSuchProcess:
            continue
        helps = any(helper in command for helper in _HELPER_PROCESSES)
        if not helps:
            ours.add(f"{pid} ({command[:120]})")
        elif parent != os.getpid() and "forkserver" in command:
            forked.add(f"{pid} ({command[:120]})")
    return frozenset(ours), frozenset(forked)


def _sockets() -> frozenset[str]:
    files = Path("/proc/self/fd")
    return _connections_of(_links(files)) if files.is_dir() else _connections()


def _connections() -> frozenset[str]:
    found = psutil.Process().net_connections(kind="inet")
    return frozenset(f"{one.laddr} -> {one.raddr or 'listening'}" for one in found)


@functools.lru_cache(1)
def _connections_of(sockets: frozenset[str]) -> frozenset[str]:
    """Return what open sockets connect: a search in tables of the whole machine, made where there are others."""
    return _connections()


def _links(files: Path) -> frozenset[str]:
    """Return the sockets among open files, by numbers that are not used again."""
    found = set()
    for name in os.listdir(files):
        with contextlib.suppress(OSError):  # the file that lists them is closed by now
            found.add(os.readlink(files / name))
    return frozenset(link for link in found if link.startswith("socket:"))


def _lives_cluster() -> bool:
    """Return whether a Dask scheduler runs in this process."""
    module = sys.modules.get("distributed.scheduler")
    if module is None:
        return False
    return any(scheduler.status.name == "running" for scheduler in list(module.Scheduler._instances))


def _left_behind(before: _Holdings, *, module: bool) -> list[str]:
    """Return what is left once it had time to go: threads end and sockets close a moment after their owner."""
    deadline = time.monotonic() + _GRACE_S
    left = _Holdings.now().beyond(before, module=module)
    while left and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
        left = _Holdings.now().beyond(before, module=module)
    return left


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run be short."""
    parser.addoption(
        "--quick", action="store_true", help="leave out slow tests, and variants whose every parameter others have"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Give this process an empty cache folder for as long as tests run, and let it hear ctrl-C and write bytecode."""
    sys.dont_write_bytecode = False
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell begins what runs in the background without; our processes and theirs would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = tempfile.TemporaryDirectory(prefix="dsgd-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ["DSGD_CACHE"] = folder.name


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let one process run all tests with clusters where several run tests: they fill a machine, and time themselves.

    Tests that ask for real data get their marker. A quick run has the tests that `_covering` keeps.
    """
    if config.getoption("quick"):
        kept = _covering(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    for item in items:
        if item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.xdist_group("clusters"))
        if "data_home" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.data)


def _covering(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return tests that are not slow: those without variants, and variants that have each parameter's values once.

    Of scikit-learn's checks each class of estimators has its own once, with the parameters that come first.
    """
    kept, seen = set(), set()
    for item in items:
        test = item.nodeid.partition("[")[0]
        callspec = getattr(item, "callspec", None)
        # The identifiers of the sets of parameters, in the order of their decorators.
        values = {(test, *one) for one in enumerate(callspec._idlist)} if callspec else {test}
        if callspec and {"estimator", "check"} <= set(callspec.params):
            check = callspec.params["check"]
            values = {(type(callspec.params["estimator"]), getattr(check, "func", check).__name__)}
        if not values <= seen and not item.get_closest_marker("slow"):
            seen |= values
            kept.add(item)
    return kept


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what twelve thousand tests are: a look at that takes it half a second."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal whole modules with ``--dist loadgroup``, but for tests of a group; the largest ones come first.

    Tests of a module need the same kernels, which one process compiles while the others would wait for it, and the same
    fixtures and models, of which each process would make its own.
    """
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Modules(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope = super()._split_scope(nodeid)
            return scope if scope != nodeid else nodeid.split("::", 1)[0]

    return Modules(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the server that workers are forked from, before the first test that has any."""
    if item.get_closest_marker("cluster"):
        from forks import fork_workers

        fork_workers()


@pytest.fixture(autouse=True, scope="module")
def _module_leaves_nothing_behind() -> Iterator[None]:
    before = _Holdings.now()
    outer = _lives_cluster()
    yield
    left = [] if outer else _left_behind(before, module=True)
    assert not left, "the module left behind: " + "; ".join(left)


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    cluster_fixture = _lives_cluster()
    before = _Holdings.now()
    yield
    if cluster_fixture:  # its nannies restart workers and its comms open sockets at any time; the module check counts
        return
    left = _left_behind(before, module=False)
    assert not left, f"{request.node.name} left behind: " + "; ".join(left)


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    """Seed the global generators, which only other people's code draws from; ours never does."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002


@pytest.fixture
def rng() -> np.random.Generator:
    """Return a generator that gives every test the same numbers."""
    return np.random.default_rng(0)


@pytest.fixture
def data_home(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder with real data sets, which DSGD_DATA names for this test, or skip the test."""
    folder = os.environ.get("DSGD_TEST_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs real data sets: set DSGD_DATA to the folder that holds them")
    monkeypatch.setenv("DSGD_DATA", folder)
    return Path(folder)


@pytest.fixture
def real_file(data_home: Path) -> Callable[[str], Path]:
    """Return a function that gives the path of a real file by name, or skips the test."""

    def find(name: str) -> Path:
        path = data_home / name
        if not path.exists():
            pytest.skip(f"needs the real data file {name} in DSGD_DATA ({data_home})")
        return path

    return find
