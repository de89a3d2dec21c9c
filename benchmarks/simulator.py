"""What the simulator predicts for real processes, and what they take; and how fast it simulates.

For each number of worker processes of this machine and each strategy, `dsgd.sim.calibrate` measures what messages and
work cost, and training is run for real and on the simulated twin: dense all-reduce of short and of long models, of
models and of gradients, top-k and gossip. The seconds are the median epoch after the first.

The speed of a shared machine changes by a factor of two from minute to minute, and what a cache line takes between two
cores by ten. So every calibration has a run before it and one after it, whose mean it is compared with, and the median
of these ratios counts. In the end 64 simulated ranks train ijcnn1.

    python benchmarks/simulator.py --workers 2 4 --repeats 5 --out simulator.jsonl
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from statistics import mean, median
from typing import Any

import numpy as np
from common import Rows
from dask.distributed import Client, LocalCluster

from dsgd import SGDClassifier
from dsgd.compress import ErrorFeedback, TopK
from dsgd.datasets import load
from dsgd.sim import SimulatedCluster, calibrate
from dsgd.sync import DPSGD, SGP, LocalSGD, MinibatchSGD

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


def epoch_s(X: Any, y: Any, sync: Any, client: Any, epochs: int = EPOCHS) -> float:
    """Return the median seconds of an epoch, but for the first."""
    clf = SGDClassifier(max_iter=epochs, tol=None, random_state=0, sync=sync, client=client).fit(X, y)
    return median(np.diff([record["seconds"] for record in clf.fit_report_["epochs"]]).tolist())


def predictions(workers: list[int], repeats: int, rows: Rows) -> None:
    print(f"{'ranks':>5}  {'training':<30} {'measured':>10} {'predicted':>10} {'ratio':>6}")
    for n in workers:
        with LocalCluster(n_workers=n, threads_per_worker=1, dashboard_address="127.0.0.1:0") as c, Client(c) as client:
            found: dict[str, list[tuple[float, float]]] = {}
            for _ in range(repeats):
                for name, X, y, sync in cases():
                    epochs = max(EPOCHS, min(200, int(RUN_S / epoch_s(X, y, sync, client))))
                    before = epoch_s(X, y, sync, client, epochs)
                    twin = calibrate(client, sync=sync).cluster()
                    measured = mean([before, epoch_s(X, y, sync, client, epochs)])
                    found.setdefault(name, []).append((measured, epoch_s(X, y, sync, twin)))
        for name, pairs in found.items():
            measured, predicted = (median(column) for column in zip(*pairs, strict=True))
            ratio = median(prediction / seconds for seconds, prediction in pairs)
            print(f"{n:>5}  {name:<30} {measured:>8.4f} s {predicted:>8.4f} s {ratio:>6.2f}", flush=True)
            rows.add(ranks=n, training=name, measured_s=measured, predicted_s=predicted, ratio=ratio, pairs=pairs)


def speed(rows: Rows) -> None:
    d = load("ijcnn1")
    for every in (512, 64):
        begin = time.perf_counter()
        clf = SGDClassifier(max_iter=5, tol=None, random_state=0, sync=every, client=SimulatedCluster(64)).fit(d.X, d.y)
        real_s, messages = time.perf_counter() - begin, clf.ledger_.totals()["messages"]
        print(
            f"64 ranks, ijcnn1, sync={every}, 5 epochs: {real_s:.2f} s for {clf.ledger_.elapsed_s:.3f} virtual s, "
            f"{messages:,.0f} messages, {1e6 * real_s / messages:.0f} us each; accuracy {clf.score(d.X, d.y):.4f}"
        )
        rows.add(ranks=64, sync=every, real_s=real_s, virtual_s=clf.ledger_.elapsed_s, messages=messages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", help="append measurements to this file")
    parser.add_argument("--quick", action="store_true", help="two workers, once")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.workers, arguments.repeats = [2], 1
    rows = Rows("simulator", arguments.out)
    predictions(arguments.workers, arguments.repeats, rows)
    speed(rows)


if __name__ == "__main__":
    main()
