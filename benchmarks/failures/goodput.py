"""Goodput of workers that are killed now and then, beside simulated machines that fail at the same moments.

Two worker processes of a `LocalCluster` train a linear classifier under ``on_failure="restart"`` and ``elastic=True``:
the one that is left has all rows, until the other is back. Each is killed by SIGKILL at moments of a Poisson process of
its own, and one that has yet to come back is spared. Goodput is the time of a fit in which nobody was killed, in the
mean of the two before and after, over that of the fit. The simulated twin has this time, the moments of the kills, and
the seconds until ranks trained again and until there were two, which are means of all *other* fits: of its own it is
told nothing but the moments.

    python -m benchmarks run goodput --out rows.jsonl
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

from distributed import Client
from sklearn.datasets import make_classification

from benchmarks.common.measuring import Options, Rows, report, workers
from dsgd import Gang, SGDClassifier
from dsgd.runtime import Restart
from dsgd.sim import Compute, Failures, SimulatedCluster

PAGE = "failures"
QUICK_S = 120
QUICK = "one fit at each rate"
REPEATS = (4, 1)

N_WORKERS, TWIN_EPOCHS = 2, 60
MODEL = {"alpha": 1e-4, "tol": None, "random_state": 0, "sync": 256, "average": True}
#: Kills of a worker in an hour.
CASES = ("120", "240", "480")


class Watched(SGDClassifier):
    """A classifier that tells `watch` what its ranks publish."""

    watch: Callable[[Mapping[str, Any]], None] | None = None

    def _listener(self) -> Any:
        return self.watch


class Killer:
    """Kills workers while ranks train, and notes when they do again; a context manager."""

    def __init__(self, client: Client, rate: float, seed: int) -> None:
        self._workers, self._failures, self._seed = client.cluster.workers, Failures(rate), seed
        self._over, self._thread = threading.Event(), threading.Thread(target=self._run)
        self._epoch, self._n_begun, self._is_whole = 0, 0, False
        self.killed: list[tuple[float, int]] = []
        #: Seconds from kills until ranks trained again, and until there were two.
        self.again, self.whole = list[float](), list[float]()

    def __enter__(self) -> Killer:
        self._begin = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def hear(self, event: Mapping[str, Any]) -> None:
        """Note that ranks have begun, or gone on: from a copy, or from the beginning where there was none."""
        epoch = event.get("epoch", self._epoch)
        if not (self._is_whole or self._n_begun) or event.get("phase") == "resumed" or epoch < self._epoch:
            self._n_begun += 1
            if self.killed and self._n_begun <= 2:
                since_s = time.perf_counter() - self._begin - self.killed[-1][0]
                (self.again if self._n_begun == 1 else self.whole).append(since_s)
            self._is_whole = not self.killed or self._n_begun >= 2
        self._epoch = epoch

    def _run(self) -> None:
        at = 0.0
        while True:
            at, rank = self._failures.first(self._seed, range(N_WORKERS), at)
            if self._over.wait(max(0.0, self._begin + at - time.perf_counter())):
                return
            if self._is_whole:
                self._is_whole, self._n_begun = False, 0
                self.killed.append((time.perf_counter() - self._begin, rank))
                os.kill(list(self._workers.values())[rank].pid, signal.SIGKILL)


def fit(client: Client, data: Any, epochs: int, killer: Killer | None = None) -> float:
    """Return the seconds of a fit."""
    client.wait_for_workers(N_WORKERS, timeout=300)
    model = Watched(**MODEL, max_iter=epochs, client=Gang(client, on_failure=Restart(at_most=1_000), elastic=True))
    model.watch = killer.hear if killer else None
    begin = time.perf_counter()
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # each failure is told
        model.fit(*data)
    return time.perf_counter() - begin


def simulate(data: Any, plain_s: float, failures: Failures) -> float:
    """Return the goodput of a simulated fit that takes so long without failures."""
    compute = Compute(0.0, plain_s * N_WORKERS / (TWIN_EPOCHS * len(data[1])), 0.0, 0.0, 0.0, "as long as that")
    cluster = SimulatedCluster(N_WORKERS, "InfiniBand", compute, failures=failures, on_failure="elastic")
    twin = SGDClassifier(**MODEL, max_iter=TWIN_EPOCHS, client=cluster).fit(*data)
    return float(twin.fit_report_["goodput"])


OPTIONS = {
    "--seconds": {"type": float, "default": 20.0, "help": "how long a fit takes if nobody is killed, about"},
}


def run(options: Options, rows: Rows) -> None:
    """Kill, measure, and simulate the same."""
    data = make_classification(20_000, 20, n_informative=12, random_state=0)
    found = []
    with workers(N_WORKERS) as client:

        def plain_s() -> float:
            fit(client, data, 1)  # loads kernels where a worker is new
            return fit(client, data, epochs)

        epochs = 2_000
        plain_s()
        epochs = max(1, round(epochs * options.seconds / plain_s()))
        for seed, rate in product(range(options.repeats), options.only):
            before_s = plain_s()
            with Killer(client, float(rate), seed) as killer:
                fit_s = fit(client, data, epochs, killer)
            found.append((float(rate), statistics.mean([before_s, plain_s()]), fit_s, killer))
    columns = (
        "kills of a worker an hour = rate:g | kills = kills | without s = plain_s:.1f | with s = fit_s:.1f | "
        "again s = restart_s:.2f | two s = return_s:.2f | goodput % = goodput*100:.1f | simulated % = simulated*100:.1f"
    )
    off = []
    with report(rows, f"goodput of {N_WORKERS} workers, and of simulated machines", columns) as line:
        for number, (rate, usual_s, fit_s, killer) in enumerate(found):
            others = [each[-1] for other, each in enumerate(found) if other != number]
            restart_s, return_s = (
                statistics.mean([s for one in others for s in getattr(one, name)] or getattr(killer, name) or [0.0])
                for name in ("again", "whole")
            )
            failures = Failures(trace=killer.killed, restart_s=restart_s, return_s=return_s)
            simulated = simulate(data, usual_s, failures)
            off.append(simulated / (usual_s / fit_s) - 1.0)
            line(
                rate=rate, kills=len(killer.killed), plain_s=usual_s, fit_s=fit_s, restart_s=restart_s,
                return_s=return_s, goodput=usual_s / fit_s, simulated=simulated,
            )  # fmt: skip
    print(f"\nsimulated over measured: {min(off):+.1%} to {max(off):+.1%}, in the median {statistics.median(off):+.1%}")
