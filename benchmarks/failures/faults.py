"""Hurt a fit on a cluster, and time what its user sees: dsgd beside xgboost.dask and lightgbm.dask.

Two worker processes of a `LocalCluster` train in one process of their own each, for a client that is a process too.
When all ranks have trained for a while, one of them is killed (``SIGKILL``) or frozen (``SIGSTOP``), or the client is
interrupted (``ctrl-C``) or killed (``client SIGKILL``). Then these are looked for, each for ``--wait-s`` seconds:

``seconds``     until ``fit`` raised in the client, or with ``client SIGKILL`` until no rank runs any more
``ranks_left``  rank tasks that still run five seconds after that, or when the wait was given up
``next_fit``    how a second, short fit of the same library ends on the same cluster; a frozen worker runs again by then

Every case gets a cluster of its own. A library that is not installed is left out. Rows go to ``--out`` as JSON lines,
a table to the terminal. Nothing is asserted.

    python -m benchmarks run faults --out rows.jsonl
    python -m benchmarks run faults --libraries dsgd --only SIGKILL
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import select
import signal
import subprocess
import time
import warnings
from itertools import product
from typing import Any

from distributed import Client

from benchmarks.common.measuring import Options, Rows, table, workers
from benchmarks.common.suite import child

PAGE = "failures"
QUICK_S = 50
QUICK = "dsgd alone, SIGKILL and ctrl-C"
ONE_THREAD = True
QUICK_CASES = ("SIGKILL", "ctrl-C")

LIBRARIES = ("dsgd", "xgboost", "lightgbm")
CASES = ("SIGKILL", "SIGSTOP", "ctrl-C", "client SIGKILL")
# Tasks that train, by the beginning of their keys.
_RANKS = {"dsgd": "dsgd-rank", "xgboost": "fn-", "lightgbm": "_train_part"}
_WARM_S = 3.0
_LINGER_S = 5.0
_START_S = 120.0


# ---- the client's process


def fit(method: str, address: str, n_rounds: int) -> None:
    """Fit in this process, and print how it ended."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    import dask.array as da

    with Client(address) as client:
        rng = da.random.default_rng(0)
        X = rng.standard_normal((20_000, 20), chunks=(5_000, 20))
        y = (X.sum(axis=1) > 0).astype("int64")
        print("began", flush=True)
        try:
            _train(method, client, X, y, n_rounds)
        except KeyboardInterrupt:
            print("ended KeyboardInterrupt", flush=True)
        except Exception as error:
            print(f"ended {type(error).__name__}", flush=True)
        else:
            print("ended model", flush=True)


def _train(method: str, client: Client, X: Any, y: Any, n_rounds: int) -> None:
    if method == "dsgd":
        from dsgd import SGDClassifier

        SGDClassifier(sync=64, max_iter=n_rounds, tol=None, random_state=0, client=client).fit(X, y)
    elif method == "xgboost":
        from xgboost import dask as dxgb

        matrix = dxgb.DaskDMatrix(client, X, y)
        dxgb.train(client, {"objective": "binary:logistic", "max_depth": 2}, matrix, num_boost_round=n_rounds)
    else:
        from lightgbm import DaskLGBMClassifier

        DaskLGBMClassifier(n_estimators=n_rounds, num_leaves=4, verbosity=-1, client=client).fit(X, y)


class _Fit:
    """A client process that fits."""

    def __init__(self, method: str, address: str, n_rounds: int) -> None:
        command = child(__name__, [method, address, str(n_rounds)])
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        self._out = self.process.stdout.fileno()
        self._text = b""

    def hears(self, word: str, wait_s: float) -> str | None:
        """Return the line that begins with `word`, or None if it does not come in time."""
        deadline = time.monotonic() + wait_s
        while True:
            for line in self._text.decode().splitlines():
                if line.startswith(word):
                    return line
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([self._out], [], [], remaining)[0]:
                return None
            said = os.read(self._out, 4096)
            if not said:
                return None
            self._text += said

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


# ---- the cluster


def _ranks(prefix: str, dask_scheduler: Any) -> list[str]:
    return [
        worker.address
        for worker in dask_scheduler.workers.values()
        for task in worker.processing
        if str(task.key).startswith(prefix)
    ]


def _executing(prefix: str, dask_worker: Any) -> int:
    """Count the rank tasks that run here; the scheduler has forgotten those that were cancelled."""
    running = ("executing", "long-running", "cancelled", "resumed")
    tasks = dask_worker.state.tasks.items()
    return sum(str(key).startswith(prefix) and task.state in running for key, task in tasks)


def _count(client: Client, prefix: str, stopped: set[str]) -> int:
    workers = [address for address in client.scheduler_info(n_workers=-1)["workers"] if address not in stopped]
    found = client.run(_executing, prefix, workers=workers, on_error="ignore") if workers else {}
    return sum(found.values())


def run_case(method: str, fault: str, wait_s: float) -> dict[str, Any]:
    """Measure one library under one fault."""
    with (
        workers(2, set_as_default=False, scheduler_kwargs={"dashboard": False}) as client,
        contextlib.ExitStack() as cleanup,
    ):
        prefix = _RANKS[method]
        first = _Fit(method, client.scheduler.address, 10_000_000)
        cleanup.callback(first.close)
        deadline = time.monotonic() + _START_S
        while len(ranks := client.run_on_scheduler(_ranks, prefix)) < 2:
            if time.monotonic() > deadline or first.process.poll() is not None:
                return {"method": method, "fault": fault, "outcome": "never trained"}
            time.sleep(0.1)
        time.sleep(_WARM_S)
        pids = client.run(os.getpid)
        victim = sorted(ranks)[1]

        begin = time.monotonic()
        stopped: set[str] = set()
        if fault == "SIGKILL":
            os.kill(pids[victim], signal.SIGKILL)
        elif fault == "SIGSTOP":
            os.kill(pids[victim], signal.SIGSTOP)
            stopped.add(victim)
            cleanup.callback(_signal, pids[victim], signal.SIGCONT)
        elif fault == "ctrl-C":
            first.process.send_signal(signal.SIGINT)
        else:
            first.process.kill()

        if fault == "client SIGKILL":
            outcome = "killed"
            while _count(client, prefix, stopped) and time.monotonic() - begin < wait_s:
                time.sleep(0.05)
            seconds = time.monotonic() - begin if not _count(client, prefix, stopped) else None
        else:
            said = first.hears("ended", wait_s)
            seconds = None if said is None else time.monotonic() - begin
            outcome = "nothing" if said is None else said.removeprefix("ended ")
        if seconds is not None:
            time.sleep(_LINGER_S)
        left = _count(client, prefix, stopped)
        first.close()
        for worker in stopped:
            _signal(pids[worker], signal.SIGCONT)
        second = _Fit(method, client.scheduler.address, 20)
        cleanup.callback(second.close)
        # A worker that was killed is started again meanwhile, and a fit takes a while to begin.
        ended = second.hears("ended", wait_s)
        return {
            "method": method,
            "version": importlib.import_module(method).__version__,
            "fault": fault,
            "outcome": outcome,
            "seconds": None if seconds is None else round(seconds, 2),
            "ranks_left": left,
            "next_fit": "hangs" if ended is None else ended.removeprefix("ended "),
            "wait_s": wait_s,
        }


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


OPTIONS = {
    "--libraries": {"nargs": "+", "choices": LIBRARIES, "default": list(LIBRARIES)},
    "--wait-s": {"type": float, "default": 40.0, "help": "how long an answer is waited for"},
}


def inside(options: Options) -> None:
    """Be the client's process."""
    method, address, n_rounds = options.inside
    fit(method, address, int(n_rounds))


def run(options: Options, rows: Rows) -> None:
    libraries = ["dsgd"] if options.quick else options.libraries
    for missing in [name for name in libraries if importlib.util.find_spec(name) is None]:
        print(f"{missing} is not installed: left out")
        libraries.remove(missing)
    with table("what the user sees", "fault", "library", "seconds", "outcome", "ranks left", "next fit") as line:
        for fault, method in product(options.only, libraries):
            row = run_case(method, fault, options.wait_s)
            rows.add(**row)
            seconds = row.get("seconds")
            shown = f"> {options.wait_s:g}" if seconds is None else f"{seconds:.2f}"
            line(fault, method, shown, row["outcome"], row.get("ranks_left"), row.get("next_fit", ""))
