"""What keeping the ledger costs: a training run with it, beside the same run with its methods replaced by nothing.

python benchmarks/ledger.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
from common import Rows

from dsgd import SGDClassifier
from dsgd.ledger import RankLedger

METHODS = ("begin_round", "charge", "count", "end_round")


def nothing(*_: Any) -> None:
    """Stand in for a method of the ledger."""


def seconds(X: np.ndarray, y: np.ndarray, every: int) -> float:
    """Return the wall-clock seconds of one training run on two threads."""
    model = SGDClassifier(max_iter=2, tol=None, random_state=0, sync=every, n_jobs=2)
    begin = time.perf_counter()
    model.fit(X, y)
    return time.perf_counter() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="append one JSON row per case to this file")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40_000, 22)).astype(np.float32)
    y = X[:, 0] > 0
    rows = Rows("ledger", arguments.out)
    kept = {name: getattr(RankLedger, name) for name in METHODS}
    seconds(X, y, 512)  # compiles
    print(f"{'every':>6} {'us a round':>11} {'with/without':>13}   (median of pairs)")
    for every in (1, 16, 256):
        ratios, rounds_us = [], []
        for _ in range(5 if arguments.quick else 15):
            with_ledger = seconds(X, y, every)
            for name in METHODS:
                setattr(RankLedger, name, nothing)
            try:
                without = seconds(X, y, every)
            finally:
                for name, method in kept.items():
                    setattr(RankLedger, name, method)
            ratios.append(with_ledger / without)
            rounds_us.append(1e6 * with_ledger / (2 * 20_000 / every))
        ratio = statistics.median(ratios)
        rows.add(case=f"every={every}", ratio=ratio, round_us=statistics.median(rounds_us))
        print(f"{every:>6} {statistics.median(rounds_us):11.1f} {ratio:13.3f}", flush=True)


if __name__ == "__main__":
    main()
