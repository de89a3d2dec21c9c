"""A gang with one slow rank: averaging by rows against averaging by the clock.

Two single-threaded worker processes hold equal shares of a dense problem. The process of one of them is stopped and
continued in a fixed rhythm, so that it has only a part of its time, as on a machine that somebody else uses too. Each
strategy trains with and without that; runs take turns. The time to a loss counts from the first step: it is when an
epoch ended whose mean loss was no more than what every run has reached.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from common import Rows, machine
from distributed import Client, LocalCluster

from dsgd import SGDClassifier
from dsgd.errors import StragglerWarning
from dsgd.sync import AnytimeSGD, EpochAveraging, LocalSGD


@contextmanager
def slowed(pid: int | None, share: float, period_s: float) -> Iterator[None]:
    """Let a process run for a share of the time only; none at all if there is no process."""
    over = threading.Event()

    def pulse() -> None:
        while pid is not None and not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait((1.0 - share) * period_s)
            os.kill(pid, signal.SIGCONT)
            over.wait(share * period_s)

    thread = threading.Thread(target=pulse)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def make_rows(n_rows: int, n_features: int, seed: int) -> tuple[Any, Any]:
    """Return a block of rows of a noisy linear problem; the same separator for every seed."""
    normal = np.random.default_rng(0).standard_normal(n_features, dtype=np.float32)
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, n_features), dtype=np.float32)
    scores = X @ normal / np.float32(np.sqrt(n_features))
    return X, np.where(scores + 0.5 * rng.standard_normal(n_rows) > 0, 1.0, -1.0)


def fit(client: Client, blocks: list[Any], sync: Any, max_iter: int) -> SGDClassifier:
    """Train, and keep quiet about the slow rank."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StragglerWarning)
        return SGDClassifier(
            loss="log_loss", alpha=1e-4, max_iter=max_iter, tol=None, random_state=0, sync=sync, client=client
        ).fit(blocks)


def describe(model: SGDClassifier) -> dict[str, Any]:
    """Return what one run has taken."""
    epochs, totals = model.fit_report_["epochs"], model.ledger_.totals()
    spent = sum(totals[f"{phase}_s"] for phase in ("compute", "encode", "wire", "wait"))
    return {
        "seconds": epochs[-1]["seconds"],
        "seconds_per_epoch": epochs[-1]["seconds"] / len(epochs),
        "rounds": totals["rounds"],
        "wait_share": totals["wait_s"] / spent,
        "stragglers": [slow["rank"] for slow in model.fit_report_["stragglers"]],
        "curve": [(epoch["seconds"], epoch["train_loss"]) for epoch in epochs],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="rows of each worker")
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.25, help="time that the slow worker has")
    parser.add_argument("--period", type=float, default=0.02, help="seconds from one stop to the next")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, few epochs, one repeat")
    parser.add_argument("--out", help="append rows to this file, one JSON object per line")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.repeats, options.epochs = options.rows // 10, 1, 4
    strategies = {
        "LocalSGD": LocalSGD(every=50_000),
        "EpochAveraging": EpochAveraging(),
        "AnytimeSGD": AnytimeSGD(seconds=0.05),
    }
    rows = Rows("stragglers", options.out)
    runs: dict[tuple[str, bool], list[dict[str, Any]]] = {(name, slow): [] for name in strategies for slow in (0, 1)}
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
        blocks = [
            client.submit(make_rows, options.rows, options.features, seed, workers=[worker], pure=False)
            for seed, worker in enumerate(workers, start=1)
        ]
        pid = client.run(os.getpid, workers=[workers[1]])[workers[1]]
        for sync in strategies.values():
            fit(client, blocks, sync, 1)
        for _ in range(options.repeats):
            for (name, slow), taken in runs.items():
                with slowed(pid if slow else None, options.share, options.period):
                    taken.append(describe(fit(client, blocks, strategies[name], options.epochs)))
                time.sleep(0.2)
    target = max(min(loss for _, loss in run["curve"]) for taken in runs.values() for run in taken)
    print(" ".join(f"{key}={value}" for key, value in machine().items()))
    print(
        f"{'strategy':16} {'worker 1':9} {'s/epoch':>8} {'s to loss':>10} {'final loss':>11} {'rounds':>7} {'wait':>6}"
    )
    for (name, slow), taken in runs.items():
        reached = [next(seconds for seconds, loss in run["curve"] if loss <= target) for run in taken]
        values = {
            key: statistics.median(run[key] for run in taken) for key in ("seconds_per_epoch", "rounds", "wait_share")
        }
        values |= {
            "seconds_to_loss": statistics.median(reached),
            "final_loss": statistics.median(run["curve"][-1][1] for run in taken),
        }
        rows.add(
            strategy=name,
            slow=bool(slow),
            share=options.share,
            ranks=2,
            data=f"linear {options.rows}x{options.features}",
            stragglers=taken[-1]["stragglers"],
            **values,
        )
        print(
            f"{name:16} {'slow' if slow else 'even':9} {values['seconds_per_epoch']:8.3f} "
            f"{values['seconds_to_loss']:10.3f} {values['final_loss']:11.5f} {values['rounds']:7.0f} "
            f"{values['wait_share']:6.1%}"
        )


if __name__ == "__main__":
    main()
