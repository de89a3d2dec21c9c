"""What the cost model predicts for an epoch, and what it takes, for periods from 1 to 4096 on worker processes.

In every turn and for each set the gang is measured (`dsgd.sim.measure_costs`), then fits of all periods are timed.
Before and after each a fit that averages once per epoch tells what a row of the set costs, the mean of both: the speed
of a shared machine changes from minute to minute. Rows are sent to the workers once. The median epoch of a fit after
its first counts, and the median over turns of what was predicted over what was measured. Two predictions: from kernels
on made rows alone, and with the seconds per row of the set at hand.

    python benchmarks/cost_model.py --turns 12 --out cost_model.jsonl
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from common import Rows
from dask.distributed import Client, LocalCluster

from dsgd import SGDClassifier
from dsgd.datasets import load_or_generate
from dsgd.sim import CostModel, Workload, measure_costs
from dsgd.study.frame.data import place
from dsgd.sync import EpochAveraging

PERIODS = (1, 4, 16, 64, 256, 1024, 4096)
#: Rows of each set: the shortest period takes a message per row.
SETS = {"ijcnn1": 16_384, "a9a": 16_384, "epsilon-like": 8_192}
# A fit lasts about as long, by epochs; of the longest epochs two count.
FIT_S, MOST_EPOCHS = 0.25, 400


def epoch_s(blocks: Any, sync: Any, client: Any, n_epochs: int) -> float:
    """Return the median seconds of an epoch after the first."""
    options = {"tol": None, "random_state": 0, "sync": sync, "client": client}
    clf = SGDClassifier(max_iter=n_epochs + 1, **options).fit(blocks)
    return median(np.diff([record["seconds"] for record in clf.fit_report_["epochs"]]).tolist())


def epochs_for(seconds: float) -> int:
    """Return how many epochs of so many seconds are timed."""
    return max(2, min(MOST_EPOCHS, int(FIT_S / seconds)))


def workload_of(X: Any) -> Workload:
    """Return the rows of a set as the cost model sees them."""
    sparse = hasattr(X, "indptr")
    entries = X.nnz / X.shape[0] if sparse else X.shape[1]
    return Workload(X.shape[0], entries, X.shape[1] + 1, layout="sparse" if sparse else "dense")


def probed_row_s(model: CostModel, load: Workload, blocks: Any, client: Any) -> float:
    """Return the seconds that one row of a set takes, of a fit that averages once per epoch.

    It is what the model must be given to predict that fit. Ranks that work longer wait longer, so it takes a few steps.
    """
    sync = EpochAveraging()
    taken_s = epoch_s(blocks, sync, client, epochs_for(model.epoch(load, sync).seconds))
    share = -(-load.n_rows // model.calibration.ranks)
    row_s = taken_s / share
    for _ in range(20):
        row_s = max(0.0, row_s + (taken_s - model.epoch(replace(load, row_s=row_s), sync).seconds) / share)
    return row_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--out", help="append measurements to this file")
    parser.add_argument("--quick", action="store_true", help="one turn on one set")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.turns, arguments.sets = 1, arguments.sets[:1]
    rows = Rows("cost_model", arguments.out)
    data = {name: load_or_generate(name, n_rows=SETS[name]) for name in arguments.sets}
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    n = arguments.workers
    with LocalCluster(n_workers=n, threads_per_worker=1, dashboard_address="127.0.0.1:0") as c, Client(c) as client:
        placed = {name: place(client, d.X, d.y, n, "contiguous") for name, d in data.items()}
        for turn in range(arguments.turns):
            for name, blocks in placed.items():
                begin = time.perf_counter()
                model = measure_costs(client)
                print(f"turn {turn}, {name}: calibrated in {time.perf_counter() - begin:.1f} s", flush=True)
                load = workload_of(data[name].X)
                before_s = probed_row_s(model, load, blocks, client)
                for every in PERIODS:
                    made_s = model.epoch(load, every).seconds
                    taken_s = epoch_s(blocks, every, client, epochs_for(made_s))
                    after_s = probed_row_s(model, load, blocks, client)
                    own_s = model.epoch(replace(load, row_s=(before_s + after_s) / 2), every).seconds
                    found.setdefault((name, every), []).append((taken_s, own_s, made_s))
                    before_s = after_s
    heads = "measured", "predicted", "error", "from made rows", "error"
    print("\n{:<13} {:>6} {:>11} {:>11} {:>6}   {:>14} {:>6}".format("set", "period", *heads))
    errors: dict[str, list[float]] = {}
    for (name, every), turns in found.items():
        taken, own, made = (median(column) for column in zip(*turns, strict=True))
        ratios = [median(t[k] / t[0] for t in turns) - 1.0 for k in (1, 2)]
        errors.setdefault(name, []).append(abs(ratios[0]))
        print(
            f"{name:<13} {every:>6} {1e3 * taken:>8.3f} ms {1e3 * own:>8.3f} ms {ratios[0]:>+6.0%}   "
            f"{1e3 * made:>11.3f} ms {ratios[1]:>+6.0%}"
        )
        rows.add(set=name, every=every, measured_s=taken, predicted_s=own, made_rows_s=made, turns=turns)
    for name, values in errors.items():
        print(f"{name}: median error {median(values):.0%}, worst {max(values):.0%}")
    together = [value for values in errors.values() for value in values]
    within = sum(value <= 0.2 for value in together)
    print(
        f"all: median error {median(together):.0%}, worst {max(together):.0%}; {within} of {len(together)} within 20 %"
    )


if __name__ == "__main__":
    main()
