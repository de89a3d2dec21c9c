"""What the simulator predicts for real processes, and what they take.

For each number of worker processes of this machine and each strategy, `dsgd.sim.calibrate` measures what messages and
work cost, and training is run for real and on the simulated twin: dense all-reduce of short and of long models, of
models and of gradients, top-k and gossip. The seconds are the median epoch after the first.

The speed of a shared machine changes by a factor of two from minute to minute, and what a cache line takes between two
cores by ten. So every calibration has a run before it and one after it, whose mean it is compared with, and the median
of these ratios counts.

    python -m benchmarks run simulator --workers 2 4 --repeats 5 --out simulator.jsonl
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from statistics import mean, median
from typing import Any

import numpy as np

from benchmarks.common.measuring import Options, Rows, epoch_s, table, workers
from dsgd import SGDClassifier
from dsgd.compress import ErrorFeedback, TopK
from dsgd.datasets import load
from dsgd.sim import calibrate
from dsgd.sync import DPSGD, SGP, LocalSGD, MinibatchSGD

PAGE = "simulator"
QUICK_S = 150
QUICK = "two workers, once"
REPEATS = (5, 1)

EPOCHS = 7
# Runs of short epochs are made this long, about, so that their median epoch is not one of a moment.
RUN_S = 0.25


def cases() -> Iterator[tuple[str, Any, Any, Any]]:
    """Give a name, rows, targets and a strategy."""
    d = load("ijcnn1")
    X, y = np.concatenate([d.X] * 2), np.concatenate([d.y] * 2)
    rng = np.random.default_rng(0)
    X_wide = rng.standard_normal((6000, 1000))
    y_wide = np.sign(X_wide[:, 0])
    yield "ijcnn1, mean every 512", X, y, LocalSGD(every=512)
    yield "ijcnn1, mean every 64", X, y, LocalSGD(every=64)
    yield "ijcnn1, gradients of 512", X, y, MinibatchSGD(batch=512)
    yield "ijcnn1, gossip", X, y, DPSGD(every=128)
    yield "ijcnn1, push-sum", X, y, SGP(every=128)
    yield "1,000 columns, mean every 50", X_wide, y_wide, LocalSGD(every=50)
    topk = ErrorFeedback(TopK(density=0.01))
    yield "1,000 columns, top-k of 1%", X_wide, y_wide, LocalSGD(every=50, compressor=topk)


def fitted_s(X: Any, y: Any, sync: Any, client: Any, epochs: int = EPOCHS) -> float:
    """Return the median seconds of an epoch, but for the first."""
    return epoch_s(SGDClassifier(max_iter=epochs, tol=None, random_state=0, sync=sync, client=client).fit(X, y))


def predictions(n_workers: list[int], repeats: int, rows: Rows) -> None:
    """Compare epochs of worker processes with those of their simulated twins."""
    heads = ("ranks", "training", "measured, s:.4f", "predicted, s:.4f", "ratio:.2f")
    with table("an epoch of worker processes", *heads) as line:
        for n in n_workers:
            found: dict[str, list[tuple[float, float]]] = {}
            with workers(n) as client:
                for _, (name, X, y, sync) in product(range(repeats), list(cases())):
                    epochs = max(EPOCHS, min(200, int(RUN_S / fitted_s(X, y, sync, client))))
                    before = fitted_s(X, y, sync, client, epochs)
                    twin = calibrate(client, sync=sync).cluster()
                    measured = mean([before, fitted_s(X, y, sync, client, epochs)])
                    found.setdefault(name, []).append((measured, fitted_s(X, y, sync, twin)))
            for name, pairs in found.items():
                measured, predicted = (median(column) for column in zip(*pairs, strict=True))
                ratio = median(prediction / seconds for seconds, prediction in pairs)
                line(n, name, measured, predicted, ratio)
                rows.add(ranks=n, training=name, measured_s=measured, predicted_s=predicted, ratio=ratio, pairs=pairs)


OPTIONS = {
    "--workers": {"type": int, "nargs": "*", "default": [2, 4]},
}


def run(options: Options, rows: Rows) -> None:
    if options.quick:
        options.workers = [2]
    predictions(options.workers, options.repeats, rows)
