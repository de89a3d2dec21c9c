"""What progress costs a fit: told and shown beside not told and not shown, in turns.

Three cases, each with a ratio of seconds, the median over pairs of fits that follow each other in changing order, and
with the seconds that were spent in the parts that make up progress, over those of the fit. On a shared machine the
ratio is good to some per cent, what is spent inside to a hundredth of one:

- ``account``: the seconds of every rank in the control message and the events made of them, beside the same fit with
  both replaced by nothing; epochs of about a millisecond, the shortest there are. Inside: per rank.
- ``line``: a live line on a terminal, beside the same fit without a listener; two threads of this process. Inside: the
  line and all redraws; those in a thread of their own take a core from the ranks only if there is none to spare.
- ``cluster``: the same with two worker processes.

    python -m benchmarks run progress
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
from rich.console import Console
from rich.live import Live

from benchmarks.common.measuring import Options, Rows, in_turns, median_s, ratio, table, timed, workers
from dsgd import SGDClassifier
from dsgd.progress import ProgressLine
from dsgd.runtime.train.epoch import ProgressAccount

PAGE = "monitoring"
QUICK_S = 40
QUICK = "fewer and shorter fits"
REPEATS = (9, 3)

PARTS: dict[str, Callable[..., Any]] = {
    "own": lambda self: np.zeros(0),
    "update": lambda self, spent, n_seen: None,
    "event": lambda self, record, period, *, last: None,
}


@contextlib.contextmanager
def untold() -> Iterator[None]:
    """Replace the account by nothing."""
    with contextlib.ExitStack() as stack:
        for name, nothing in PARTS.items():
            stack.enter_context(mock.patch.object(ProgressAccount, name, nothing))
        yield


@contextlib.contextmanager
def clocked(parts: list[tuple[type, str]]) -> Iterator[list[float]]:
    """Give the list of what every call of some methods takes."""
    taken: list[float] = []

    def clock(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                taken.append(time.perf_counter() - begin)

        return call

    with contextlib.ExitStack() as stack:
        for owner, name in parts:
            stack.enter_context(mock.patch.object(owner, name, clock(getattr(owner, name))))
        yield taken


def shown() -> ProgressLine:
    """Return a live line on a pseudo-terminal."""
    return ProgressLine(Console(file=io.StringIO(), force_terminal=True, width=120))


def run(options: Options, rows: Rows) -> None:
    # Fits of some seconds: starting and ending a line is a matter of milliseconds.
    part = 20 if options.quick else 1
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40_000, 22)).astype(np.float32)
    y = X[:, 0] > 0

    def fit(n_rows: int, epochs: int, listener: ProgressLine | None = None, client: Any = None) -> None:
        model = SGDClassifier(max_iter=epochs // part, tol=None, random_state=0, sync=256, n_jobs=2, client=client)
        model.set_callbacks(*filter(None, [listener])).fit(X[:n_rows], y[:n_rows])

    def account_off() -> None:
        with untold():
            fit(8_000, 3000)

    account = [(ProgressAccount, name) for name in PARTS]
    drawn = [*((ProgressLine, name) for name in ("on_begin", "on_event", "on_end")), (Live, "refresh")]
    heads = ("case", "with, s:.3f", "without, s:.3f", "with/without:.4f", "inside:.2%")
    with table("medians", *heads) as line:

        def report(case: str, told: Callable[[], None], quiet: Callable[[], None], parts: list[Any]) -> None:
            found = in_turns({"with": told, "without": quiet}, options.repeats, warm_up=1, alternate=True)
            compared = ratio(*([each.seconds for each in found[name]] for name in found))
            both = [median_s(found[name]) for name in found]
            with clocked(parts) as taken:
                whole = timed(told)
            inside = sum(taken) / (2 if case == "account" else 1) / whole.seconds
            rows.add(case=case, ratio=compared, with_s=both[0], without_s=both[1], inside=inside)
            line(case, *both, compared, inside)

        report("account", lambda: fit(8_000, 3000), account_off, account)
        report("line", lambda: fit(40_000, 2000, shown()), lambda: fit(40_000, 2000), drawn)
        with workers(2) as client:
            told, quiet = lambda: fit(40_000, 2000, shown(), client), lambda: fit(40_000, 2000, None, client)
            report("cluster", told, quiet, drawn)
