"""A gang with one slow rank: averaging by rows against averaging by the clock.

Two single-threaded worker processes hold equal shares of a dense problem. The process of one of them is stopped and
continued in a fixed rhythm, so that it has only a part of its time, as on a machine that somebody else uses too. Each
strategy trains with and without that; runs take turns. The time to a loss counts from the first step: it is when an
epoch ended whose mean loss was no more than what every run has reached.
"""

from __future__ import annotations

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
from distributed import Client

from benchmarks.common.measuring import Options, Rows, table, workers
from dsgd import SGDClassifier
from dsgd.errors import StragglerWarning
from dsgd.ledger import PHASES
from dsgd.sync import AnytimeSGD, EpochAveraging, LocalSGD

PAGE = "synchronisation"
QUICK_S = 20
QUICK = "a tenth of the rows, few epochs, one repeat"
REPEATS = (3, 1)


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
    return {
        "seconds": epochs[-1]["seconds"],
        "seconds_per_epoch": epochs[-1]["seconds"] / len(epochs),
        "rounds": totals["rounds"],
        "wait_share": totals["wait_s"] / sum(totals[f"{phase}_s"] for phase in PHASES),
        "stragglers": [slow["rank"] for slow in model.fit_report_["stragglers"]],
        "curve": [(epoch["seconds"], epoch["train_loss"]) for epoch in epochs],
    }


OPTIONS = {
    "--rows": {"type": int, "default": 500_000, "help": "rows of each worker"},
    "--features": {"type": int, "default": 64},
    "--epochs": {"type": int, "default": 8},
    "--share": {"type": float, "default": 0.25, "help": "time that the slow worker has"},
    "--period": {"type": float, "default": 0.02, "help": "seconds from one stop to the next"},
}


def train(options: Options) -> dict[tuple[str, bool], list[dict[str, Any]]]:
    """Return the runs of every strategy, beside a slow rank and without one."""
    strategies = {
        "LocalSGD": LocalSGD(every=50_000),
        "EpochAveraging": EpochAveraging(),
        "AnytimeSGD": AnytimeSGD(seconds=0.05),
    }
    runs: dict[tuple[str, bool], list[dict[str, Any]]]
    runs = {(name, slow): [] for name in strategies for slow in (False, True)}
    with workers(2) as client:
        addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
        blocks = [
            client.submit(make_rows, options.rows, options.features, seed, workers=[address], pure=False)
            for seed, address in enumerate(addresses, start=1)
        ]
        pid = client.run(os.getpid, workers=[addresses[1]])[addresses[1]]
        for sync in strategies.values():
            fit(client, blocks, sync, 1)
        for _ in range(options.repeats):
            for (name, slow), taken in runs.items():
                with slowed(pid if slow else None, options.share, options.period):
                    taken.append(describe(fit(client, blocks, strategies[name], options.epochs)))
                time.sleep(0.2)
    return runs


def run(options: Options, rows: Rows) -> None:
    if options.quick:
        options.rows, options.epochs = options.rows // 10, 4
    runs = train(options)
    data = f"linear {options.rows}x{options.features}"
    target = max(min(loss for _, loss in each["curve"]) for taken in runs.values() for each in taken)
    heads = ("strategy", "worker 1", "s/epoch:.3f", "s to loss:.3f", "final loss:.5f", "rounds:.0f", "wait:.1%")
    with table(f"{data}, two workers, medians of {options.repeats}", *heads) as line:
        for (name, slow), taken in runs.items():
            reached = [next(seconds for seconds, loss in each["curve"] if loss <= target) for each in taken]
            values = {
                key: statistics.median(each[key] for each in taken)
                for key in ("seconds_per_epoch", "rounds", "wait_share")
            }
            values["seconds_to_loss"] = statistics.median(reached)
            values["final_loss"] = statistics.median(each["curve"][-1][1] for each in taken)
            facts = {"slow": slow, "share": options.share, "ranks": 2, "data": data}
            rows.add(strategy=name, **facts, stragglers=taken[-1]["stragglers"], **values)
            kept = ("seconds_per_epoch", "seconds_to_loss", "final_loss", "rounds", "wait_share")
            line(name, "slow" if slow else "even", *(values[key] for key in kept))
