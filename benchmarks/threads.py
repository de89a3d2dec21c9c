"""What threads of a worker bring: one worker process of two threads beside two processes of one.

Each set is trained by `dsgd.SGDClassifier` on either cluster in turn, with an average of the models after every so many
rows of a rank. A row holds the median seconds of an epoch, the communication in it, and the memory of the worker
processes, together: what they held before the first fit, and the largest they have held.

python benchmarks/threads.py --out rows.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

import numpy as np
import psutil
from common import Rows
from distributed import Client, LocalCluster
from sklearn.datasets import make_classification

from dsgd import SGDClassifier
from dsgd.datasets import load_or_generate

LAYOUTS = ((1, 2), (2, 1))
EVERY = (64, 1024)


def memory(client: Any) -> int:
    """Return the resident bytes of all workers."""
    return int(sum(client.run(lambda: psutil.Process().memory_info().rss).values()))


def measure(client: Any, X: Any, y: Any, every: int, epochs: int) -> tuple[float, float, int]:
    """Return seconds of an epoch, the share of communication, and the peak memory of the workers."""
    model = SGDClassifier(alpha=1e-4, sync=every, max_iter=epochs, tol=None, random_state=0, client=client).fit(X, y)
    report, totals = model.fit_report_, model.ledger_.totals()
    ends = [epoch["seconds"] for epoch in report["epochs"]]
    spent = sum(totals[f"{phase}_s"] for phase in ("compute", "encode", "wire", "wait"))
    peaks = {s["worker"]: s["peak_rss_bytes"] for s in report["stats"]}
    share = (totals["wire_s"] + totals["wait_s"]) / spent
    return float(np.median(np.diff(ends))), share, sum(peaks.values())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="append one JSON row per case to this file")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="two epochs, once")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.epochs, arguments.repeats = 2, 1
    rows = Rows("threads", arguments.out)
    ijcnn1 = load_or_generate("ijcnn1")
    sets = {
        "dense 20000 x 100": make_classification(20_000, 100, n_informative=30, random_state=0),
        "ijcnn1": (ijcnn1.X, ijcnn1.y),
    }
    with contextlib.ExitStack() as stack:
        clients, before = {}, {}
        for workers, threads in LAYOUTS:
            options = {"n_workers": workers, "threads_per_worker": threads, "dashboard_address": "127.0.0.1:0"}
            cluster = stack.enter_context(LocalCluster(**options))
            client = clients[workers, threads] = stack.enter_context(Client(cluster, set_as_default=False))
            before[workers, threads] = memory(client)
        print(f"{'set':>18} {'every':>6} {'workers':>8} {'threads':>8} {'epoch':>11} {'waits':>6}   before     peak")
        for name, (X, y) in sets.items():
            for client in clients.values():
                measure(client, X, y, 1024, 2)  # compiles
            for every in EVERY:
                found: dict[Any, list[tuple[float, float, int]]] = {layout: [] for layout in LAYOUTS}
                for _ in range(arguments.repeats):
                    for layout, client in clients.items():
                        found[layout].append(measure(client, X, y, every, arguments.epochs))
                for layout, runs in found.items():
                    epoch_s, waits = (float(np.median([run[k] for run in runs])) for k in range(2))
                    peak = max(run[2] for run in runs)
                    workers, threads = layout
                    print(
                        f"{name:>18} {every:>6} {workers:>8} {threads:>8} {1e3 * epoch_s:>8.2f} ms {waits:>5.0%} "
                        f"{before[layout] / 2**20:>4.0f} MiB {peak / 2**20:>4.0f} MiB"
                    )
                    rows.add(
                        dataset=name,
                        every=every,
                        workers=workers,
                        threads=threads,
                        epoch_s=epoch_s,
                        communication=waits,
                        bytes_before=before[layout],
                        bytes_peak=peak,
                    )


if __name__ == "__main__":
    main()
