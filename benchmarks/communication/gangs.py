"""What a fit costs on many worker processes of one machine, the first and those that follow, beside XGBoost.

Workers have one thread each and share the cores, so what is measured is what a gang costs beside its training: to
meet, to connect, and to load code in the first fit. Both libraries get the same rows, which the workers hold, and
clusters of processes that have run nothing yet; the case ``cold`` has no compiled kernels on disk either, and
``threads`` has four processes with many threads each, of which every one is a rank. In the case ``hosts``, which
needs root, the processes are spread over four network namespaces, so that most of them cannot share memory
(`benchmarks.communication.hosts`), and ``own_bytes`` is the memory that a worker shares with no other. Seconds are
those of the caller. Processor time is that of all workers, and of the thread of the scheduler, on which this process
listens to it too. After the fits that are timed there is one in which the processes are watched: ``sockets`` is how
many a worker has open at once beyond those of Dask, ``shared_bytes`` what it has mapped of shared memory, both of the
worker with the most. XGBoost is given up where a fit takes longer than ``--limit-s``.

    python -m benchmarks run gangs --out rows.jsonl
    sudo python -m benchmarks run gangs --only hosts --workers 64
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import numpy as np

from benchmarks.common.measuring import Options, Rows, table, timed, workers
from benchmarks.common.suite import UnavailableError, child

PAGE = "cluster"
QUICK_S = 60
QUICK = "2 and 8 workers, and 8 ranks in threads, three fits each, without XGBoost"
REPEATS = (5, 3)
CASES = ("dsgd", "cold", "xgboost", "threads", "hosts")
USUAL_CASES = ("dsgd", "xgboost", "threads")
QUICK_CASES = ("dsgd", "threads")

SIZES = (8, 32, 64)
QUICK_SIZES = (2, 8)
# Of the case "threads": worker processes, and threads of each.
THREADS = (4, 64)
QUICK_THREADS = (2, 4)
# Of the case "hosts".
N_HOSTS = 4
N_ROWS = 20_000
# How long many processes may take to begin.
START_S = 300.0
# Between two looks at the files of all workers.
_LOOK_S = 0.02


OPTIONS = {
    "--workers": {"type": int, "nargs": "+", "help": "numbers of worker processes"},
    "--limit-s": {"type": float, "default": 120.0, "help": "how long a fit of XGBoost may take (120)"},
}


def train_sgd(client: Any, X: Any, y: Any) -> Any:
    """Train three epochs, and return the model."""
    from dsgd import SGDClassifier

    return SGDClassifier(client=client, sync=256, max_iter=3, tol=None, random_state=0).fit(X, y)


def train_trees(client: Any, X: Any, y: Any) -> Any:
    """Train three trees."""
    from xgboost import dask as dxgb

    parameters = {"objective": "binary:logistic", "max_depth": 2, "nthread": 1, "verbosity": 0}
    return dxgb.train(client, parameters, dxgb.DaskDMatrix(client, X, y), num_boost_round=3)


@contextlib.contextmanager
def fresh_cluster(n: int, threads: int, *, cold: bool) -> Iterator[tuple[Any, Any, Any]]:
    """Give a client of n new processes of some threads, and rows and labels that they hold."""
    with contextlib.ExitStack() as stack:
        if cold:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            before = os.environ.get("NUMBA_CACHE_DIR")
            os.environ["NUMBA_CACHE_DIR"] = folder
            stack.callback(_restore, "NUMBA_CACHE_DIR", before)
        client = stack.enter_context(workers(n, threads, memory_limit=0))
        client.wait_for_workers(n, timeout=300)
        yield client, *put_rows(client, n)


def put_rows(client: Any, n: int) -> tuple[Any, Any]:
    """Return rows and labels that n workers hold."""
    import dask.array as da
    from distributed import wait

    whole = np.random.default_rng(0).standard_normal((N_ROWS, 20)).astype(np.float32)
    share = -(-N_ROWS // n)
    labels = (whole[:, 0] > 0).astype(int)
    X, y = client.persist([da.from_array(whole, chunks=(share, 20)), da.from_array(labels, chunks=share)])
    wait([X, y])
    return X, y


def _restore(name: str, value: str | None) -> None:
    if value is None:
        del os.environ[name]
    else:
        os.environ[name] = value


def in_time(work: Callable[[], Any], limit_s: float) -> Any:
    """Return what a call returns, or raise what it raises; None if it is not over in time, when a thread is left."""
    over: futures.Future[Any] = futures.Future()

    def call() -> None:
        try:
            over.set_result(timed(work))
        except BaseException as error:
            over.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return over.result() if over in futures.wait([over], limit_s).done else None


def cpu_s(client: Any) -> tuple[float, float]:
    """Return the processor seconds so far of the thread of the scheduler, and of all workers."""
    return client.run_on_scheduler(time.thread_time), float(sum(client.run(time.process_time).values()))


class Watch(threading.Thread):
    """Looks, until it is stopped, at the open files and the mappings of processes.

    Parameters
    ----------
    pids : collection of int
        The processes.
    """

    def __init__(self, pids: Any) -> None:
        super().__init__(daemon=True)
        self._before = {pid: open_sockets(pid) for pid in pids}
        self._over = threading.Event()
        self.sockets = self.shared_bytes = 0

    def run(self) -> None:
        """Look again and again."""
        while not self._over.wait(_LOOK_S):
            for pid, before in self._before.items():
                self.sockets = max(self.sockets, open_sockets(pid) - before)
                self.shared_bytes = max(self.shared_bytes, shared_bytes(pid))

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        self.join()


def open_sockets(pid: int) -> int:
    """Return how many sockets a process has open."""
    n = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            n += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
    return n


def shared_bytes(pid: int) -> int:
    """Return how much a process has mapped of the folder of shared memory."""
    n = 0
    with open(f"/proc/{pid}/maps", encoding="utf-8") as lines:
        for line in lines:
            if "/dev/shm/" in line:
                begin, end = line.split(" ", 1)[0].split("-")
                n += int(end, 16) - int(begin, 16)
    return n


def stage_s(model: Any, name: str) -> float:
    """Return the mean seconds of the workers in a stage of a fit."""
    seconds: dict[str, float] = defaultdict(float)
    for entry in model.fit_report_["stages"]:
        if entry["where"] != "client":
            seconds[entry["where"]] += entry["seconds"] * (entry["stage"] == name)
    return statistics.mean(seconds.values())


def timed_fit(case: str, client: Any, X: Any, y: Any, limit_s: float) -> dict[str, Any] | None:
    """Fit once, and return seconds and processor seconds; None if it is not over in time."""
    train = train_trees if case == "xgboost" else train_sgd
    before = cpu_s(client)
    timing = in_time(lambda: train(client, X, y), limit_s)
    if timing is None:
        return None
    scheduler, all_workers = (now - then for now, then in zip(cpu_s(client), before, strict=True))
    found = {"seconds": timing.seconds, "scheduler_cpu_s": scheduler, "workers_cpu_s": all_workers}
    if case != "xgboost":
        found |= {f"{stage.replace(' ', '_')}_s": stage_s(timing.value, stage) for stage in STAGES}
    return found


def show(gang: dict[str, Any], number: int, found: dict[str, Any], line: Callable[..., None]) -> None:
    """Print one fit."""
    n = gang["workers"]
    cells = (found["seconds"], 1e3 * found["scheduler_cpu_s"] / n, found["workers_cpu_s"], found.get("meet_s"))
    line(gang["case"], n, gang["ranks"], number + 1, *cells, None, None)


def measure(case: str, n: int, threads: int, options: Options, rows: Rows, line: Callable[..., None]) -> None:
    """Fit some times on a cluster of n new processes, and once more under watch."""
    gang = {"case": case, "workers": n, "ranks": (ranks := n * threads)}
    with fresh_cluster(n, threads, cold=case == "cold") as (client, X, y):
        for number in range(options.repeats + 1):
            found = timed_fit(case, client, X, y, options.limit_s)
            if found is None:
                rows.add(**gang, fit=number, seconds=None, limit_s=options.limit_s)
                line(case, n, ranks, number + 1, f"over {options.limit_s:g}", *[None] * 5)
                return
            rows.add(**gang, fit=number, **found)
            show(gang, number, found, line)
        watch = Watch(client.run(os.getpid).values())
        watch.start()
        timed_fit(case, client, X, y, options.limit_s)
        watch.stop()
        rows.add(**gang, fit="watched", sockets=watch.sockets, shared_bytes=watch.shared_bytes)
        line(case, n, ranks, "watched", None, None, None, None, watch.sockets, watch.shared_bytes / 2**20)


def measure_on_hosts(n: int, options: Options, rows: Rows, line: Callable[..., None]) -> None:
    """Fit some times on n new processes of several hosts."""
    from benchmarks.communication import hosts as network

    network.check_machine()
    gang = {"case": "hosts", "workers": n, "ranks": n}
    with (
        network.Hosts(N_HOSTS + 1) as hosts,
        network.cluster(hosts, n // N_HOSTS, 1) as (scheduler, environment),
    ):
        command = child(__name__, [scheduler, str(n)], "--repeats", str(options.repeats))
        with hosts.start(0, command, stdout=subprocess.PIPE, env=environment) as client:
            for number, text in enumerate(client.stdout or ()):
                found = json.loads(text)
                rows.add(**gang, fit=number, **found)
                show(gang, number, found, line)
        if client.returncode:
            raise RuntimeError(f"The client ended with status {client.returncode}.")


def inside(options: Options) -> None:
    """Fit some times on the cluster at the address given, and print a line of JSON for each. Runs on the first host."""
    from distributed import Client

    address, n = options.inside[0], int(options.inside[1])
    with Client(address, timeout=START_S) as client:
        client.wait_for_workers(n, timeout=START_S)
        X, y = put_rows(client, n)
        for _ in range(options.repeats + 1):
            found = timed_fit("hosts", client, X, y, options.limit_s) or {}
            own_bytes = statistics.median(client.run(own_memory).values())
            print(json.dumps({**found, "own_bytes": own_bytes}), flush=True)


def own_memory() -> int:
    """Return the bytes that this process shares with no other."""
    import psutil

    return int(psutil.Process().memory_full_info().uss)


STAGES = ("kernels", "meet", "train")


def run(options: Options, rows: Rows) -> None:
    """Fit some times on each number of workers."""
    if not os.path.isdir("/proc/self/fd"):
        raise UnavailableError("needs /proc")
    heads = ("case", "workers", "ranks", "fit", "seconds:.2f", "scheduler, ms a worker:.1f", "CPU of workers, s:.1f")
    heads += ("met:.2f", "sockets", "shared, MiB:.1f")
    with table(f"three epochs, or three trees, of {N_ROWS:,} rows", *heads) as line:
        for n in options.workers or (QUICK_SIZES if options.quick else SIZES):
            for case in options.only:
                if case == "hosts":
                    measure_on_hosts(n, options, rows, line)
                elif case != "threads":
                    measure(case, n, 1, options, rows, line)
        if "threads" in options.only:
            measure("threads", *(QUICK_THREADS if options.quick else THREADS), options, rows, line)
