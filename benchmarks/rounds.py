"""Where a round of local SGD goes that averages after every row, over each wire of one host.

Two ranks train on ijcnn1 (a generated twin where the set is not at hand) with ``LocalSGD(every=1)``: as two worker
processes of one `LocalCluster` over TCP and over shared memory, and as two threads of one process; over memory once
with a core for each rank, where rounds are fused, and once as if there were fewer cores than ranks. All in one run, one
after the other, several times. Rows go to ``--out`` as JSON lines, a table to the terminal.

    python benchmarks/rounds.py --quick
    python benchmarks/rounds.py --out docs/figures/rounds.jsonl && python docs/figures/rounds.py

A round is a call of the kernel (or its share of one), the reduction and all bookkeeping: the seconds of an epoch over
its rounds, median over epochs; of several runs the median one is shown. Phases are means over the rounds that the
ledger has timed, over both ranks, the longest one in a hundred left out: a rank that loses its core to another program
for a moment says nothing about the wire. "other" is what they leave of the round.
"""

from __future__ import annotations

import argparse
import logging
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from common import Rows
from distributed import Client, LocalCluster

import dsgd.comm.wires.inproc
import dsgd.runtime.worker.rendezvous
from dsgd import SGDClassifier
from dsgd.datasets import load_or_generate

PHASES = ("compute", "encode", "wire", "wait")
#: What it is called, and how it is run.
WIRES = {
    "processes, tcp": "tcp",
    "processes, few cores": "auto",
    "processes": "auto",
    "threads, few cores": None,
    "threads": None,
}


def believe(n_cores: int) -> None:
    """Let a worker process believe that it may use so many cores."""
    dsgd.runtime.worker.rendezvous.CPU_COUNT = n_cores  # type: ignore[attr-defined]


@contextmanager
def cores_for(name: str, client: Client) -> Iterator[None]:
    """Let ranks believe that there is one core only, where there are to be few."""
    if not name.endswith("few cores"):
        yield
        return
    client.run(believe, 1)
    with mock.patch.object(dsgd.comm.wires.inproc, "_n_cores", return_value=1):
        yield
    client.run(believe, 2)


def measure(name: str, X: Any, y: Any, client: Client, n_epochs: int) -> dict[str, Any]:
    """Train once; return the microseconds of a round and of its phases."""
    transport = WIRES[name]
    place: dict[str, Any] = {"n_jobs": 2} if transport is None else {"client": client, "transport": transport}
    model = SGDClassifier(sync=1, max_iter=n_epochs, tol=None, random_state=0, **place)
    with cores_for(name, client):
        model.fit(X, y)
    n_rounds = -(-X.shape[0] // 2)
    ends = [0.0, *(epoch["seconds"] for epoch in model.fit_report_["epochs"])]
    totals, records = model.ledger_.totals(), model.ledger_.to_frame()
    spent = records.loc[records["op"] == "sync", [f"{phase}_s" for phase in PHASES]]
    spent = spent[spent.sum(axis=1) <= spent.sum(axis=1).quantile(0.99)].mean()
    return {
        "round_us": 1e6 * statistics.median(np.diff(ends)) / n_rounds,
        "mean_round_us": 1e6 * ends[-1] / n_epochs / n_rounds,
        "rounds": totals["rounds"],
        "bytes_sent": totals["bytes_sent"],
        **{f"{phase}_us": 1e6 * float(spent[f"{phase}_s"]) for phase in PHASES},
        "model": model.coef_.tobytes(),
    }


def middle(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the run whose round is the median one."""
    return sorted(found, key=lambda run: run["round_us"])[len(found) // 2]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="append one JSON row per wire to this file")
    parser.add_argument("--quick", action="store_true", help="fewer rows and repeats")
    arguments = parser.parse_args()
    data = load_or_generate("ijcnn1", split="train", dtype=np.float32, dense=True)
    X, y = data.X, data.y
    if arguments.quick:
        X, y = X[:8000], y[:8000]
    rows = Rows("rounds", arguments.out)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in WIRES}
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):
        # The first run of each compiles.
        models = {name: measure(name, X[:8000], y[:8000], client, 1)["model"] for name in WIRES}
        for _ in range(1 if arguments.quick else 5):
            for name in WIRES:
                quick = name in ("processes", "threads")
                found[name].append(measure(name, X, y, client, 20 if quick else 1))
    for place in ("processes", "threads"):
        if len({model for name, model in models.items() if name.startswith(place)}) > 1:
            raise SystemExit(f"{place} give other models over one wire than over another")
    print(f"{'us a round':>20} {'round':>8} {'mean':>8} " + " ".join(f"{name:>8}" for name in (*PHASES, "other")))
    for name, runs in found.items():
        run = middle(runs)
        run.pop("model")
        spent = [run[f"{phase}_us"] for phase in PHASES]
        other = max(run["round_us"] - sum(spent), 0.0)
        figures = " ".join(f"{value:>8.2f}" for value in (*spent, other))
        print(f"{name:>20} {run['round_us']:>8.2f} {run['mean_round_us']:>8.2f} {figures}")
        rows.add(data=data.name, n_rows=X.shape[0], every=1, wire=name, other_us=other, **run)


if __name__ == "__main__":
    main()
