"""What the cost model predicts for an epoch, and what it takes, for periods from 1 to 4096 on worker processes.

In every turn and for each set the gang is measured (`dsgd.sim.measure_costs`), then fits of all periods are timed.
Before and after each, a fit that averages once per epoch measures the cost of a row of the set, as the mean of both:
the speed of a shared machine changes from minute to minute. Rows are sent to the workers once. The table has the median
epoch of a fit after its first, and the median over turns of predicted over measured seconds. There are two predictions:
from kernels on generated rows alone, and with the seconds per row of the set.

    python -m benchmarks run cost_model --repeats 12 --out cost_model.jsonl
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from statistics import median
from typing import Any

from benchmarks.common.measuring import Options, Rows, epoch_s, table, timed, workers
from dsgd import SGDClassifier
from dsgd.datasets import load_or_generate
from dsgd.sim import CostModel, Workload, measure_costs
from dsgd.study.frame.data import place
from dsgd.sync import EpochAveraging

PAGE = "simulator"
QUICK_S = 20
QUICK = "one turn on one set"
REPEATS = (12, 1)
QUICK_CASES = ("ijcnn1",)

PERIODS = (1, 4, 16, 64, 256, 1024, 4096)
#: Rows of each set: the shortest period takes a message per row.
CASES = {"ijcnn1": 16_384, "a9a": 16_384, "w8a": 16_384, "webspam-like": 8_192, "epsilon-like": 8_192}
# A fit lasts about as long, by epochs; of the longest epochs two count.
FIT_S, MOST_EPOCHS = 0.25, 400


def fitted_s(blocks: Any, sync: Any, client: Any, n_epochs: int) -> float:
    """Return the median seconds of an epoch after the first."""
    options = {"tol": None, "random_state": 0, "sync": sync, "client": client}
    return epoch_s(SGDClassifier(max_iter=n_epochs + 1, **options).fit(blocks))


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
    taken_s = fitted_s(blocks, sync, client, epochs_for(model.epoch(load, sync).seconds))
    share = -(-load.n_rows // model.calibration.ranks)
    row_s = taken_s / share
    for _ in range(20):
        row_s = max(0.0, row_s + (taken_s - model.epoch(replace(load, row_s=row_s), sync).seconds) / share)
    return row_s


OPTIONS = {
    "--workers": {"type": int, "default": 2},
}


def measure(options: Options, data: Any) -> dict[tuple[str, int], list[tuple[float, float, float]]]:
    """Return seconds measured, predicted, and predicted from made rows, by set and period, in every turn."""
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    n = options.workers
    with workers(n) as client:
        placed = {name: place(client, (d.X, d.y), n, "contiguous")[0] for name, d in data.items()}
        for turn, (name, blocks) in product(range(options.repeats), placed.items()):
            calibrated = timed(measure_costs, client)
            model, load = calibrated.value, workload_of(data[name].X)
            print(f"turn {turn}, {name}: calibrated in {calibrated.seconds:.1f} s", flush=True)
            before_s = probed_row_s(model, load, blocks, client)
            for every in PERIODS:
                made_s = model.epoch(load, every).seconds
                taken_s = fitted_s(blocks, every, client, epochs_for(made_s))
                after_s = probed_row_s(model, load, blocks, client)
                own_s = model.epoch(replace(load, row_s=(before_s + after_s) / 2), every).seconds
                found.setdefault((name, every), []).append((taken_s, own_s, made_s))
                before_s = after_s
    return found


def run(options: Options, rows: Rows) -> None:
    data = {name: load_or_generate(name, n_rows=CASES[name]) for name in options.only}
    found = measure(options, data)
    errors: dict[str, list[float]] = {}
    heads = ("measured:.3f", "predicted:.3f", "error:+.0%", "from made rows:.3f", "its error:+.0%")
    with table("milliseconds of an epoch", "set", "period", *heads) as line:
        for (name, every), turns in found.items():
            taken, own, made = (median(column) for column in zip(*turns, strict=True))
            off = [median(turn[k] / turn[0] for turn in turns) - 1.0 for k in (1, 2)]
            errors.setdefault(name, []).append(abs(off[0]))
            line(name, every, 1e3 * taken, 1e3 * own, off[0], 1e3 * made, off[1])
            rows.add(set=name, every=every, measured_s=taken, predicted_s=own, made_rows_s=made, turns=turns)
    together = [value for values in errors.values() for value in values]
    with table("errors", "set", "median:.0%", "worst:.0%", "within 25 %") as line:
        for name, values in {**errors, "all": together}.items():
            line(name, median(values), max(values), f"{sum(value <= 0.25 for value in values)} of {len(values)}")
