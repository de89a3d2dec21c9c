"""What progress costs a fit: told and shown beside not told and not shown, in turns.

Three cases, each with a ratio of seconds, the median over pairs of fits that follow each other in changing order, and
with the seconds that were spent in the parts that make up progress, over those of the fit. On a shared machine the
ratio is good to some per cent, what is spent inside to a hundredth of one:

- ``account``: the seconds of every rank in the control message and the events made of them, beside the same fit with
  both replaced by nothing; epochs of about a millisecond, the shortest there are. Inside: per rank.
- ``line``: a live line on a terminal, beside nobody who listens; two threads of this process. Inside: the line and all
  redraws, of which those in a thread of their own take a core from the ranks only if there is none to spare.
- ``cluster``: the same with two worker processes.

python benchmarks/progress.py
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from common import Rows
from rich.console import Console
from rich.live import Live

from dsgd import SGDClassifier
from dsgd.progress import ProgressLine
from dsgd.runtime.train.account import ProgressAccount

PARTS: dict[str, Callable[..., Any]] = {
    "message": lambda self: np.zeros(0),
    "update": lambda self, summed, n_seen: None,
    "event": lambda self, record, period, *, last: None,
}


@contextlib.contextmanager
def untold() -> Iterator[None]:
    """Replace the account by nothing."""
    kept = {name: getattr(ProgressAccount, name) for name in PARTS}
    for name, nothing in PARTS.items():
        setattr(ProgressAccount, name, nothing)
    try:
        yield
    finally:
        for name, part in kept.items():
            setattr(ProgressAccount, name, part)


@contextlib.contextmanager
def clocked(parts: list[tuple[type, str]]) -> Iterator[list[float]]:
    """Give the list of what every call of some methods takes."""
    taken: list[float] = []
    kept = [(owner, name, getattr(owner, name)) for owner, name in parts]

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                taken.append(time.perf_counter() - begin)

        return call

    for owner, name, method in kept:
        setattr(owner, name, timed(method))
    try:
        yield taken
    finally:
        for owner, name, method in kept:
            setattr(owner, name, method)


def seconds(model: SGDClassifier, X: np.ndarray, y: np.ndarray) -> float:
    """Return the wall-clock seconds of a fit."""
    begin = time.perf_counter()
    model.fit(X, y)
    return time.perf_counter() - begin


def pairs(with_it: Callable[[], float], without: Callable[[], float], repeats: int) -> tuple[list[float], list[float]]:
    """Return the seconds of both, measured in turns; who goes first changes."""
    with_it(), without()
    taken: dict[Callable[[], float], list[float]] = {with_it: [], without: []}
    for number in range(repeats):
        for run in (with_it, without) if number % 2 else (without, with_it):
            taken[run].append(run())
    return taken[with_it], taken[without]


def line() -> ProgressLine:
    """Return a live line on a terminal that nobody sees."""
    return ProgressLine(Console(file=io.StringIO(), force_terminal=True, width=120))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="append one JSON row per case to this file")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter fits")
    arguments = parser.parse_args()
    # Fits of some seconds: starting and ending a line is a matter of milliseconds.
    repeats, part = (3, 20) if arguments.quick else (9, 1)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40_000, 22)).astype(np.float32)
    y = X[:, 0] > 0
    rows = Rows("progress", arguments.out)

    def fit(n_rows: int, epochs: int, listener: ProgressLine | None = None, client: Any = None) -> float:
        model = SGDClassifier(max_iter=epochs // part, tol=None, random_state=0, sync=256, n_jobs=2, client=client)
        return seconds(model.set_callbacks(*filter(None, [listener])), X[:n_rows], y[:n_rows])

    def account_off() -> float:
        with untold():
            return fit(8_000, 3000)

    def report(case: str, told: Callable[[], float], quiet: Callable[[], float], parts: list[tuple[type, str]]) -> None:
        with_it, without = pairs(told, quiet, repeats)
        ratio = statistics.median(a / b for a, b in zip(with_it, without, strict=True))
        both = statistics.median(with_it), statistics.median(without)
        with clocked(parts) as taken:
            inside = told()
        inside = sum(taken) / (2 if case == "account" else 1) / inside
        rows.add(case=case, ratio=ratio, with_s=both[0], without_s=both[1], inside=inside)
        print(f"{case:>8} {both[0]:8.3f} {both[1]:9.3f} {ratio:13.4f} {inside:10.2%}", flush=True)

    print(f"{'case':>8} {'with s':>8} {'without s':>9} {'with/without':>13} {'inside':>10}   (medians)")
    account = [(ProgressAccount, name) for name in PARTS]
    shown = [*((ProgressLine, name) for name in ("on_begin", "on_event", "on_end")), (Live, "refresh")]
    report("account", lambda: fit(8_000, 3000), account_off, account)
    report("line", lambda: fit(40_000, 2000, line()), lambda: fit(40_000, 2000), shown)
    from distributed import Client, LocalCluster

    options: dict[str, Any] = {"dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
    with LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster, Client(cluster) as client:
        told, quiet = lambda: fit(40_000, 2000, line(), client), lambda: fit(40_000, 2000, None, client)
        report("cluster", told, quiet, shown)


if __name__ == "__main__":
    main()
