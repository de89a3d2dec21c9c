"""Where a round of local SGD goes that averages after every row, or few, over each wire of one host.

Two ranks train on ijcnn1 (a generated twin if the set is not there) with ``LocalSGD(every=1)``, over TCP with 16 and
256 rows, too: as two worker processes of one `LocalCluster` over TCP and over shared memory, and as two threads of one
process; over memory once with a core for each rank, where rounds are fused, and once as if there were fewer cores than
ranks. All in one run, one after the other, several times. Rows go to ``--out`` as JSON lines, a table to the terminal.

    python -m benchmarks run rounds --quick
    python -m benchmarks run rounds --out docs/figures/rounds.jsonl && python docs/figures/rounds.py

A round is a call of the kernel (or its share of one), the reduction and all bookkeeping: the seconds of all epochs over
their rounds; "median" is that of an epoch. Of several runs the median one is shown. Phases are what the ledger has of
all rounds, in the mean over both ranks; "other" is what they leave of the round.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import dask.system
import numpy as np
from distributed import Client

import dsgd.comm.wires.inproc
from benchmarks.common.measuring import Options, Rows, table, workers
from dsgd import Gang, SGDClassifier
from dsgd.datasets import load_or_generate

PAGE = "performance"
QUICK_S = 40
QUICK = "fewer rows and repeats"
REPEATS = (5, 1)

PHASES = ("compute", "encode", "wire", "wait", "control")
#: What it is called, how it is run, and the rows between two exchanges.
WIRES = {
    "processes, tcp": ("tcp", 1),
    "processes, tcp, 16 rows": ("tcp", 16),
    "processes, tcp, 256 rows": ("tcp", 256),
    "processes, few cores": ("auto", 1),
    "processes": ("auto", 1),
    "threads, few cores": (None, 1),
    "threads": (None, 1),
}


def believe(n_cores: int) -> None:
    """Let a worker process believe that it may use so many cores."""
    dask.system.CPU_COUNT = n_cores


@contextmanager
def cores_for(name: str, client: Client) -> Iterator[None]:
    """Let ranks believe that there is one core only, where there are to be few."""
    if not name.endswith("few cores"):
        yield
        return
    client.run(believe, 1)
    with mock.patch.object(dsgd.comm.wires.inproc, "count_cores", return_value=1):
        yield
    client.run(believe, 2)


def measure(name: str, X: Any, y: Any, client: Client, n_epochs: int) -> dict[str, Any]:
    """Train once; return the microseconds of a round and of its phases."""
    transport, every = WIRES[name]
    place: dict[str, Any] = {"n_jobs": 2} if transport is None else {"client": Gang(client, transport=transport)}
    model = SGDClassifier(sync=every, max_iter=n_epochs, tol=None, random_state=0, **place)
    with cores_for(name, client):
        model.fit(X, y)
    n_rounds = -(-X.shape[0] // (2 * every))
    ends = [0.0, *(epoch["seconds"] for epoch in model.fit_report_["epochs"])]
    totals = model.ledger_.totals()
    phases = {f"{phase}_us": 1e6 * totals[f"{phase}_s"] / 2 / n_epochs / n_rounds for phase in PHASES}
    round_us = 1e6 * ends[-1] / n_epochs / n_rounds
    return {
        "round_us": round_us,
        "median_round_us": 1e6 * statistics.median(np.diff(ends)) / n_rounds,
        "rounds": totals["rounds"],
        "bytes_sent": totals["bytes_sent"],
        **phases,
        "other_us": round_us - sum(phases.values()),
        "model": model.coef_.tobytes(),
    }


def run(options: Options, rows: Rows) -> None:
    data = load_or_generate("ijcnn1", split="train", dtype=np.float32, dense=True)
    X, y = data.X, data.y
    if options.quick:
        X, y = X[:8000], y[:8000]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in WIRES}
    with workers(2, scheduler_kwargs={"dashboard": False}) as client:
        # The first run of each compiles.
        models = {name: measure(name, X[:8000], y[:8000], client, 1)["model"] for name in WIRES}
        for _ in range(options.repeats):
            for name in WIRES:
                found[name].append(measure(name, X, y, client, 20 if name in ("processes", "threads") else 1))
    for place in ("processes", "threads"):
        if len({model for name, model in models.items() if name.startswith(place) and WIRES[name][1] == 1}) > 1:
            raise SystemExit(f"{place} give other models over one wire than over another")
    with table(
        "microseconds a round", "wire", *(f"{name}:.2f" for name in ("round", "median", *PHASES, "other"))
    ) as line:
        for name, runs in found.items():
            middle = sorted(runs, key=lambda run: run["round_us"])[len(runs) // 2]
            middle.pop("model")
            line(name, *(middle[f"{part}_us"] for part in ("round", "median_round", *PHASES, "other")))
            rows.add(data=data.name, n_rows=X.shape[0], every=WIRES[name][1], wire=name, **middle)
