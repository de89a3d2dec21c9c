"""What threads of a worker bring: one worker process of two threads beside two processes of one.

Each set is trained by `dsgd.SGDClassifier` on either cluster in turn, with an average of the models after every so many
rows of a rank. A row holds the median seconds of an epoch, the communication in it, and the memory of the worker
processes, together: what they held before the first fit, and the largest they have held.

    python -m benchmarks run threads --out rows.jsonl
"""

from __future__ import annotations

import contextlib
from functools import partial
from statistics import median
from typing import Any

import psutil
from sklearn.datasets import make_classification

from benchmarks.common.measuring import Options, Rows, epoch_s, in_turns, table, waiting_share, workers
from dsgd import SGDClassifier
from dsgd.datasets import load_or_generate

PAGE = "cluster"
QUICK_S = 50
QUICK = "two epochs, once"
REPEATS = (3, 1)

LAYOUTS = ((1, 2), (2, 1))
EVERY = (64, 1024)


def memory(client: Any) -> int:
    """Return the resident bytes of all workers."""
    return int(sum(client.run(lambda: psutil.Process().memory_info().rss).values()))


def measure(client: Any, X: Any, y: Any, every: int, epochs: int) -> tuple[float, float, int]:
    """Return seconds of an epoch, the share of communication, and the peak memory of the workers."""
    model = SGDClassifier(alpha=1e-4, sync=every, max_iter=epochs, tol=None, random_state=0, client=client).fit(X, y)
    peaks = {s["worker"]: s["peak_rss_bytes"] for s in model.fit_report_["stats"]}
    return epoch_s(model), waiting_share(model.ledger_.totals()), sum(peaks.values())


OPTIONS = {
    "--epochs": {"type": int, "default": 20},
}


def run(options: Options, rows: Rows) -> None:
    if options.quick:
        options.epochs = 2
    ijcnn1 = load_or_generate("ijcnn1")
    sets = {
        "dense 20000 x 100": make_classification(20_000, 100, n_informative=30, random_state=0),
        "ijcnn1": (ijcnn1.X, ijcnn1.y),
    }
    heads = ("epoch, ms:.2f", "waits:.0%", "MiB before:.0f", "MiB at the peak:.0f")
    with contextlib.ExitStack() as stack:
        line = stack.enter_context(table("two ranks", "set", "every", "workers", "threads", *heads))
        clients = {layout: stack.enter_context(workers(*layout, set_as_default=False)) for layout in LAYOUTS}
        before = {layout: memory(client) for layout, client in clients.items()}
        for name, (X, y) in sets.items():
            for client in clients.values():
                measure(client, X, y, 1024, 2)  # compiles
            for every in EVERY:
                fits = {
                    layout: partial(measure, client, X, y, every, options.epochs) for layout, client in clients.items()
                }
                for layout, turns in in_turns(fits, options.repeats).items():
                    epochs_s, waits, peaks = zip(*(turn.value for turn in turns), strict=True)
                    found = {"epoch_s": median(epochs_s), "communication": median(waits)}
                    found |= {"bytes_before": before[layout], "bytes_peak": max(peaks)}
                    rows.add(dataset=name, every=every, workers=layout[0], threads=layout[1], **found)
                    sizes = before[layout] / 2**20, max(peaks) / 2**20
                    line(name, every, *layout, 1e3 * found["epoch_s"], found["communication"], *sizes)
