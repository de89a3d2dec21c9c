"""Step times of a convolutional network on 1, 2 and 4 processes, beside what the scaling analysis predicts.

The layers of the network are traced and timed one by one on this machine, alone and with a second thread at the same
work. In a whole step they take longer than by themselves, and there is more in a step than layers (fetching rows, the
loss, the optimiser): a factor and a constant, from two short trainings on one process with half and twice the rows a
step. From that, and from what a message costs between two processes here, the step of 1, 2 and 4 processes is
predicted; four take turns on fewer cores. Nothing of what is predicted was measured before.

    python benchmarks/torch_scaling.py [--out rows.jsonl]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from distributed import Client, LocalCluster

from dsgd.collectives import LINKS
from dsgd.report import origin
from dsgd.sim.scaling import Node, predict_step
from dsgd.study.dnn.modules import CNN
from dsgd.sync import MinibatchSGD
from dsgd.torch import TorchClassifier, measure_node, trace

BATCH = 64
STEPS = 40
SHAPE = (1, 28, 28)
REPEATS = 3


def main() -> None:
    """Measure, predict, print a table, and append rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", help="File to append rows to.")
    parser.add_argument("--ranks", default="1,2,4", help="Numbers of processes.")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    cores = len(os.sched_getaffinity(0))
    alone, beside = calibrate()
    rows = [measure(ranks, alone if ranks == 1 else beside, cores) for ranks in map(int, options.ranks.split(","))]
    print(f"CNN, {BATCH} rows of a process in a step; {cores} cores")
    print(f"{'processes':>9} {'measured ms':>12} {'predicted ms':>13} {'predicted / measured':>21} {'waited ms':>10}")
    for row in rows:
        ratio = row["predicted_s"] / row["measured_s"]
        print(
            f"{row['ranks']:>9} {1e3 * row['measured_s']:>12.2f} {1e3 * row['predicted_s']:>13.2f} {ratio:>21.2f} "
            f"{1e3 * row['exposed_s']:>10.2f}"
        )
    if options.out:
        with open(options.out, "a", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")


def calibrate() -> tuple[Node, Node]:
    """Return this machine as it is for one process, and as it is for a process beside others."""
    alone, beside = (measure_node(CNN(), SHAPE, rows=(BATCH // 4, 2 * BATCH), repeats=20, beside=n) for n in (0, 1))
    few, many = BATCH // 2, 2 * BATCH
    few_s, many_s = training_step_s(1, few), training_step_s(1, many)
    factor = (many_s - few_s) / (passes_s(alone, many) - passes_s(alone, few))
    whole = replace(alone.slower(factor), step_s=max(0.0, few_s - factor * passes_s(alone, few)))
    # Where other cores work too, all of a step takes longer as layers do.
    return whole, whole.slower(max(1.0, passes_s(beside, BATCH) / passes_s(alone, BATCH)))


def passes_s(node: Node, batch: int) -> float:
    """Return the seconds of all passes over so many rows on one process."""
    return predict_step(trace(CNN(), SHAPE), 1, batch, node, LINKS["shm"]).seconds


def measure(ranks: int, node: Node, cores: int) -> dict[str, Any]:
    """Return a row: the measured and the predicted step."""
    layers = trace(CNN(), SHAPE)
    turns = max(1.0, ranks / cores)
    step = predict_step(layers, ranks, ranks * BATCH, node.slower(turns), LINKS["shm"], sharing="data", overlaps=False)
    return {
        "ranks": ranks,
        "batch": BATCH,
        "measured_s": training_step_s(ranks, BATCH),
        "predicted_s": step.seconds,
        "exposed_s": step.exposed_s,
        **origin(),
    }


def training_step_s(ranks: int, batch: int) -> float:
    """Return the median seconds of a step of synchronous SGD on so many worker processes."""
    rng = np.random.default_rng(0)
    n_rows = ranks * batch * STEPS
    X, y = rng.standard_normal((n_rows, *SHAPE)).astype(np.float32), rng.integers(0, 10, n_rows)
    with (
        LocalCluster(
            n_workers=ranks, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", silence_logs=40
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        model = TorchClassifier(
            CNN, optimizer__momentum=0.9, lr=0.001, max_epochs=1 + REPEATS, sync=MinibatchSGD(ranks * batch),
            client=client, random_state=0,
        )  # fmt: skip
        model.fit(X, y)
    seconds = [epoch["seconds"] for epoch in model.fit_report_["epochs"]]
    # The first epoch loads what has not been used yet.
    return statistics.median(np.diff(seconds)) / STEPS


if __name__ == "__main__":
    sys.exit(main())
