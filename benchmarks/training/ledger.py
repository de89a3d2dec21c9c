"""What keeping the ledger costs: a training run with it, beside the same run with its methods replaced by nothing.

python -m benchmarks run ledger
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.common.measuring import Options, Rows, in_turns, median_s, ratio, spread, table
from dsgd import SGDClassifier
from dsgd.ledger import RankLedger

PAGE = "performance"
QUICK_S = 10
QUICK = "fewer repeats"
REPEATS = (15, 5)

METHODS = ("begin_round", "charge", "count", "end_round")


def nothing(*_: Any) -> None:
    """Stand in for a method of the ledger."""


@contextmanager
def without() -> Iterator[None]:
    """Replace the methods of the ledger by nothing."""
    with ExitStack() as stack:
        for name in METHODS:
            stack.enter_context(mock.patch.object(RankLedger, name, nothing))
        yield


def run(options: Options, rows: Rows) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40_000, 22)).astype(np.float32)
    y = X[:, 0] > 0

    def fit(every: int) -> None:
        SGDClassifier(max_iter=2, tol=None, random_state=0, sync=every, n_jobs=2).fit(X, y)

    def fit_without(every: int) -> None:
        with without():
            fit(every)

    fit(512)  # compiles
    with table("two threads, medians of pairs", "every", "us a round:.1f", "with/without", "of processor time") as line:
        for every in (1, 16, 256):
            methods = {"with": partial(fit, every), "without": partial(fit_without, every)}
            found = in_turns(methods, options.repeats)
            seconds, cpu_s = ([[getattr(t, name) for t in found[k]] for k in methods] for name in ("seconds", "cpu_s"))
            round_us = 1e6 * median_s(found["with"]) / (2 * 20_000 / every)
            rows.add(case=f"every={every}", ratio=ratio(*seconds), cpu_ratio=ratio(*cpu_s), round_us=round_us)
            line(every, round_us, spread(*seconds), spread(*cpu_s))
