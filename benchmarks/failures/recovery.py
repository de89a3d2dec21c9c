"""How long a fit takes to get over a killed worker, and how accurate it is in the end.

Three worker processes of a LocalCluster, one thread each and new for every kill, train a linear classifier on ijcnn1
(or, if that is not available, on a generated set of the same shape). At a random moment one of them is killed by
SIGKILL; the time runs until ``fit`` raises (``on_failure="raise"``) or until the gang, formed again, has done its
first round (``"restart"``, with the rows sent again or computed again by Dask, and ``"shrink"``). Policies and inputs
take turns. Then some fits run to their end, undisturbed and with a kill in the middle, and their accuracies are
compared.

    python -m benchmarks run recovery --out rows.jsonl
"""

from __future__ import annotations

import os
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client
from sklearn.datasets import make_classification

from benchmarks.common.measuring import Options, Rows, table, workers
from dsgd import Gang, SGDClassifier
from dsgd.datasets import read_svmlight
from dsgd.errors import WorkerLostError

PAGE = "failures"
QUICK_S = 60
QUICK = "two kills per case, one fit to the end"
REPEATS = (20, 2)

N_WORKERS = 3
#: Policy and input.
CASES = ("raise:numpy", "restart:numpy", "restart:dask", "shrink:numpy")
MODEL = {"alpha": 1e-4, "tol": None, "random_state": 0, "sync": 256, "average": True}


class _MeasuredError(Exception):
    """Ends a fit whose time has been taken."""


class Watched(SGDClassifier):
    """A classifier that tells `watch` what its ranks publish."""

    watch: Callable[[Mapping[str, Any]], None] | None = None

    def _listener(self) -> Any:
        return self.watch


def load() -> tuple[Any, Any]:
    """Return the rows, dense."""
    path = Path(os.environ.get("DSGD_DATA", ".")) / "ijcnn1.bz2"
    if not path.exists():
        return make_classification(49_990, 22, n_informative=12, weights=[0.9], class_sep=1.5, random_state=0)
    parts = [part.compute() for part in read_svmlight(str(path))]
    X = np.concatenate([np.asarray(part[0].toarray()) for part in parts])
    return X, np.concatenate([part[1] for part in parts])


def whole(client: Client) -> dict[str, int]:
    """Wait until all workers are there; return the process of each, by address."""
    client.wait_for_workers(N_WORKERS, timeout=300)
    return dict(client.run(os.getpid))


def fit(client: Client, data: Any, policy: str, kill_after_s: float | None, **options: Any) -> tuple[float, Any]:
    """Fit, killing a worker some seconds after the first epoch.

    Returns
    -------
    tuple
        Seconds from the kill until the fit raised or had resumed, and the model.
    """
    pids = list(whole(client).values())
    began, killed, resumed = 0.0, 0.0, 0.0
    model = Watched(**MODEL, **options, client=Gang(client, on_failure=policy))

    def watch(event: Mapping[str, Any]) -> None:
        nonlocal began, killed, resumed
        now = time.perf_counter()
        if event.get("phase") == "resumed":
            resumed = now
            if "max_iter" not in options:
                raise _MeasuredError
        began = began or (now if "epoch" in event else 0.0)
        if kill_after_s is not None and not killed and began and now - began >= kill_after_s:
            killed = time.perf_counter()
            os.kill(pids[int(1000 * kill_after_s) % N_WORKERS], signal.SIGKILL)

    model.watch = watch
    if "max_iter" not in options:
        model.set_params(max_iter=10_000_000)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            model.fit(*data)
    except (WorkerLostError, _MeasuredError):
        resumed = resumed or time.perf_counter()
    return resumed - killed, model


OPTIONS = {
    "--fits": {"type": int, "default": 3, "help": "fits to the end, per policy"},
}


def run(options: Options, rows: Rows) -> None:
    """Kill, measure and print; a kill per case in every repeat."""
    n_kills, n_fits = options.repeats, 1 if options.quick else options.fits
    X, y = load()
    inputs = {"numpy": (X, y), "dask": (da.from_array(X, chunks=(8192, -1)), da.from_array(y, chunks=8192))}
    rng = np.random.default_rng(0)
    seconds: dict[str, list[float]] = {case: [] for case in options.only}
    for _ in range(n_kills):
        for case, taken in seconds.items():
            policy, kind = case.split(":")
            # Its own cluster for each: what starts a killed worker again now and then leaves it dead.
            with workers(N_WORKERS) as client:
                taken.append(fit(client, inputs[kind], policy, float(rng.uniform(0.3, 1.0)))[0])
            rows.add(case=case, seconds=taken[-1])
    with table(f"seconds after each of {n_kills} kills", "policy and input", "median:.2f", "worst:.2f") as line:
        for case, taken in seconds.items():
            middle, worst = statistics.median(taken), max(taken)
            line(case, middle, worst)
            rows.add(case=case, kills=n_kills, median_s=middle, worst_s=worst)
    heads = ("policy", "mean:.4f", "least:.4f", "most:.4f")
    with workers(N_WORKERS) as client, table(f"accuracy of {n_fits} fits to the end", *heads) as line:
        for policy in ("raise", "restart", "shrink") if n_fits else ():
            scores = []
            for _ in range(n_fits):
                _, model = fit(client, inputs["numpy"], policy, None if policy == "raise" else 0.4, max_iter=400)
                scores.append(float(model.score(X, y)))
            name = "undisturbed" if policy == "raise" else policy
            line(name, statistics.mean(scores), min(scores), max(scores))
            rows.add(case=f"accuracy:{name}", fits=n_fits, accuracy=scores)
