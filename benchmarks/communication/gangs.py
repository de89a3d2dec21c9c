"""What a fit on many worker processes of one machine takes, the first and those that follow.

Workers have one thread each and share the cores, so what is measured is what a gang costs beside its training: to meet,
to connect, and to load kernels in the first fit. Seconds are those of the caller; processor time is that of the client
with its scheduler and, apart, of all workers together.

    python -m benchmarks run gangs --out rows.jsonl
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from typing import Any

import numpy as np

from benchmarks.common.rows import Rows
from benchmarks.common.table import table
from benchmarks.common.timing import timed
from benchmarks.common.workers import workers
from dsgd import SGDClassifier

PAGE = "cluster"
QUICK_S = 60
QUICK = "2 and 8 workers, three fits each"
REPEATS = (5, 3)

SIZES = (2, 8, 16, 32)
QUICK_SIZES = (2, 8)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, nargs="+", help="numbers of worker processes")


def cpu_s(client: Any) -> float:
    """Return the processor seconds of all workers so far."""
    return float(sum(client.run(time.process_time).values()))


def stage_s(model: Any, name: str) -> float:
    """Return the mean seconds of the workers in a stage of a fit."""
    seconds: dict[str, float] = defaultdict(float)
    for entry in model.fit_report_["stages"]:
        if entry["where"] != "client":
            seconds[entry["where"]] += entry["seconds"] * (entry["stage"] == name)
    return statistics.mean(seconds.values())


def run(options: argparse.Namespace, rows: Rows) -> None:
    """Fit some times on each number of workers."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, 20)).astype(np.float32)
    y = (X[:, 0] > 0).astype(int)
    heads = ("workers", "fit", "seconds:.2f", "CPU of client, s:.2f", "of all workers:.2f", "met:.2f", "trained:.2f")
    with table("three epochs of 20,000 rows", *heads) as line:
        for n in options.workers or (QUICK_SIZES if options.quick else SIZES):
            with workers(n, memory_limit=0) as client:
                client.wait_for_workers(n, timeout=300)
                for number in range(options.repeats):
                    model = SGDClassifier(client=client, sync=256, max_iter=3, tol=None, random_state=0)
                    before = cpu_s(client)
                    timing = timed(model.fit, X, y)
                    spent, met, trained = cpu_s(client) - before, stage_s(model, "meet"), stage_s(model, "train")
                    rows.add(
                        case=n,
                        fit=number,
                        seconds=timing.seconds,
                        client_cpu_s=timing.cpu_s,
                        workers_cpu_s=spent,
                        meet_s=met,
                        train_s=trained,
                    )
                    line(str(n), str(number + 1), timing.seconds, timing.cpu_s, spent, met, trained)
