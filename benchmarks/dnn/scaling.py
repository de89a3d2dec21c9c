"""Step times of a convolutional network on 1, 2 and 4 processes, beside what the scaling analysis predicts.

The layers of the network are traced and timed one by one on this machine, alone and with a second thread at the same
work. In a whole step they take longer than by themselves, and there is more in a step than layers (fetching rows, the
loss, the optimiser): a factor and a constant, from two short trainings on one process with half and twice the rows a
step. From that, and from what a message costs between two processes here, the step of 1, 2 and 4 processes is
predicted; four take turns on fewer cores. Nothing of what is predicted was measured before. What a machine does changes
from minute to minute, so all of this takes turns, and the table has the medians.

    python -m benchmarks run scaling --repeats 3 --out rows.jsonl
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from distributed import Client

from benchmarks.common.measuring import Options, Rows, epoch_s, table, workers
from dsgd.collectives import LINKS
from dsgd.sim.scaling import Node, predict_step
from dsgd.study.networks import CNN
from dsgd.sync import MinibatchSGD
from dsgd.torch import TorchClassifier, measure_node, trace

PAGE = "scaling"
QUICK_S = 150
QUICK = "two processes at most, one turn"
REPEATS = (3, 1)
ONE_THREAD = True

BATCH = 64
STEPS = 40
SHAPE = (1, 28, 28)
N_EPOCHS = 2


OPTIONS = {
    "--ranks": {"type": int, "nargs": "+", "default": [1, 2, 4], "help": "numbers of processes"},
}


def run(options: Options, rows: Rows) -> None:
    ranks, cores = [1, 2] if options.quick else options.ranks, len(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        clients = {n: stack.enter_context(trained(n)) for n in {1, *ranks}}
        turns = [take_turn(clients, ranks, cores) for _ in range(options.repeats)]
    title = f"CNN, {BATCH} rows of a process in a step; {cores} cores; medians of {options.repeats} turns"
    heads = ("measured ms:.2f", "predicted ms:.2f", "predicted / measured:.2f", "waited ms:.2f")
    with table(title, "processes", *heads) as line:
        for n in ranks:
            row = {name: statistics.median(turn[n][name] for turn in turns) for name in turns[0][n]}
            measured, predicted = row["measured_s"], row["predicted_s"]
            line(n, 1e3 * measured, 1e3 * predicted, predicted / measured, 1e3 * row["exposed_s"])
            rows.add(ranks=n, batch=BATCH, **row)


@contextlib.contextmanager
def trained(n: int) -> Iterator[Client]:
    """Start so many worker processes that have trained before."""
    with workers(n, set_as_default=False) as client:
        training_step_s(client, n, BATCH)
        yield client


def take_turn(clients: Mapping[int, Client], ranks: Sequence[int], cores: int) -> dict[int, dict[str, float]]:
    """Return the measured and the predicted step by number of processes."""
    alone, beside = calibrate(clients[1])
    return {n: compare(clients[n], n, alone if n == 1 else beside, cores) for n in ranks}


def calibrate(client: Client) -> tuple[Node, Node]:
    """Return this machine as it is for one process, and as it is for a process beside others."""
    alone, beside = (measure_node(CNN(), SHAPE, rows=(BATCH // 4, 2 * BATCH), repeats=20, beside=n) for n in (0, 1))
    few, many = BATCH // 2, 2 * BATCH
    few_s, many_s = training_step_s(client, 1, few), training_step_s(client, 1, many)
    factor = (many_s - few_s) / (passes_s(alone, many) - passes_s(alone, few))
    whole = replace(alone.slower(factor), step_s=max(0.0, few_s - factor * passes_s(alone, few)))
    # Where other cores work too, all of a step takes longer as layers do.
    return whole, whole.slower(max(1.0, passes_s(beside, BATCH) / passes_s(alone, BATCH)))


def passes_s(node: Node, batch: int) -> float:
    """Return the seconds of all passes over so many rows on one process."""
    return predict_step(trace(CNN(), SHAPE), 1, batch, node, LINKS["shm"]).seconds


def compare(client: Client, ranks: int, node: Node, cores: int) -> dict[str, float]:
    """Return the measured and the predicted step."""
    layers = trace(CNN(), SHAPE)
    turns = max(1.0, ranks / cores)
    step = predict_step(layers, ranks, ranks * BATCH, node.slower(turns), LINKS["shm"], sharing="data", overlaps=False)
    measured_s = training_step_s(client, ranks, BATCH)
    return {"measured_s": measured_s, "predicted_s": step.seconds, "exposed_s": step.exposed_s}


def training_step_s(client: Client, ranks: int, batch: int) -> float:
    """Return the median seconds of a step of synchronous SGD on so many worker processes."""
    rng = np.random.default_rng(0)
    n_rows = ranks * batch * STEPS
    X, y = rng.standard_normal((n_rows, *SHAPE)).astype(np.float32), rng.integers(0, 10, n_rows)
    model = TorchClassifier(
        CNN,
        optimizer__momentum=0.9,
        lr=0.001,
        max_epochs=1 + N_EPOCHS,
        sync=MinibatchSGD(ranks * batch),
        client=client,
        random_state=0,
    )
    model.fit(X, y)
    return epoch_s(model) / STEPS
