"""Dense rows in 16 bits beside float32: an epoch, a whole fit, its memory, and test accuracy on real sets.

Formats take turns on one thread; times are medians, and an epoch is one call of the kernel from a model of zeros.

- packed: bytes of the packed rows over those of the rows as they are given.
- memory: the most that a fit has added to the memory of the process, over the bytes of the rows.
- accuracy: of the test part, in per cent (R2 for cadata), after 20 epochs of averaged SGD, means over seeds. Sparse
  sets are made dense. Sets that are not on this machine are skipped and named.

    python -m benchmarks run storage [--quick] [--only "dense 22" mnist] [--epochs 10]
"""

from __future__ import annotations

import argparse
import gc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from benchmarks.common.rows import Rows
from benchmarks.common.suite import where_found
from benchmarks.common.table import table
from benchmarks.common.timing import in_turns, timed
from benchmarks.training.accuracy import EPOCHS, EQUAL, REGRESSION, split
from benchmarks.training.kernels import ALPHA, dense_rows
from benchmarks.training.whole_fit import forget_peak, memory
from dsgd import SGDClassifier, SGDRegressor
from dsgd.local import SGD, STORAGES, Objective, Shard, ShardBuilder, n_params

PAGE = "performance"
QUICK_S = 20
QUICK = "a tenth of the rows, one turn, one seed"
REPEATS = (5, 1)

#: Rows in thousands, and columns.
SHAPES = {"dense 22": (1_000, 22), "dense 256": (200, 256), "dense 2000": (40, 2_000)}
SETS = ("ijcnn1", "a9a", "usps", "covtype-subset", "cadata", "mnist", "letter")
CASES = (*SHAPES, *SETS)
FORMATS = (None, *STORAGES)


def packed(X: Any, y: Any, storage: str | None) -> Shard:
    """Return the packed rows."""
    builder = ShardBuilder(n_features=X.shape[1], dtype=np.float32, sparse=False, storage=storage)
    builder.look(X, y)
    builder.place(X)
    return builder.finish()


def epoch_of(shard: Shard) -> Callable[[], float]:
    """Return a function that takes the seconds of an epoch."""
    optimizer = SGD(Objective("hinge", alpha=ALPHA))

    def epoch() -> float:
        params = np.zeros(n_params(shard.n_features, 1), shard.dtype)
        state = optimizer.init(shard)
        state.start_epoch()
        optimizer.arrange(shard, state)
        return timed(optimizer.run, params, shard, 0, shard.n_rows, state).seconds

    epoch()
    return epoch


def fit_of(X: Any, y: Any, options: dict[str, Any]) -> Callable[[], tuple[float, float]]:
    """Return a function that takes the seconds of a fit and the memory that it adds, over the bytes of the rows."""

    def fit() -> tuple[float, float]:
        gc.collect()
        before = forget_peak()
        seconds = timed(SGDClassifier(**options).fit, X, y).seconds
        return seconds, max(0, memory()["VmHWM"] - before) / X.nbytes

    return fit


def measure(case: str, options: argparse.Namespace, rows: Rows) -> None:
    """Measure one shape and print its table."""
    thousands, width = SHAPES[case]
    X, y = dense_rows(thousands * (100 if options.quick else 1000), width, 0)
    shards = {storage: packed(X, y, storage) for storage in FORMATS}
    epochs = in_turns({s: epoch_of(shard) for s, shard in shards.items()}, options.repeats)
    seconds = {storage: float(np.median([each.value for each in taken])) for storage, taken in epochs.items()}
    shares = {storage: shard.values.nbytes / X.nbytes for storage, shard in shards.items()}
    del shards
    fixed = {"max_iter": options.epochs, "tol": None, "random_state": 0}
    fits = in_turns({s: fit_of(X, y, {**fixed, "storage": s}) for s in FORMATS}, options.repeats, warm_up=1)
    taken_by = {s: np.median([each.value for each in taken], axis=0).tolist() for s, taken in fits.items()}
    title = f"{case}: {len(y)} rows, {X.nbytes / 1e6:.0f} MB, fits of {options.epochs} epochs"
    heads = ("packed:.2f", "epoch ms:.1f", "times as fast:.2f", "fit s:.3f", "times as fast:.2f", "memory:.2f")
    with table(title, "storage", *heads) as line:
        for storage in FORMATS:
            fit_s, peak = taken_by[storage]
            found = {"packed": shares[storage], "epoch_s": seconds[storage], "fit_s": fit_s, "memory": peak}
            rows.add(case=case, storage=storage, nbytes=X.nbytes, epochs=options.epochs, **found)
            ratios = seconds[None] / seconds[storage], taken_by[None][0] / fit_s
            line(storage or "float32", shares[storage], 1e3 * seconds[storage], ratios[0], fit_s, ratios[1], peak)


def as_float32(X: Any) -> Any:
    """Return dense rows of float32."""
    return np.ascontiguousarray(X.toarray() if hasattr(X, "toarray") else X, np.float32)


def score(name: str, seeds: range, rows: Rows, line: Callable[..., None]) -> None:
    """Fit a set in every format, and print its line."""
    X, y, X_test, y_test = split(name)
    X, X_test = as_float32(X), as_float32(X_test)
    kind = SGDRegressor if name in REGRESSION else SGDClassifier
    options = {"max_iter": EPOCHS, "tol": None, **EQUAL.get(name, {"alpha": 1e-4, "average": True})}
    means = []
    for storage in FORMATS:
        scores = [
            100 * kind(**options, storage=storage, random_state=seed).fit(X, y).score(X_test, y_test) for seed in seeds
        ]
        rows.add(case=name, storage=storage, scores=scores, **options)
        means.append(float(np.mean(scores)))
    line(name, *means, *(mean - means[0] for mean in means[1:]))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=int, default=10, metavar="N", help="epochs of a fit (default: %(default)s)")


def run(options: argparse.Namespace, rows: Rows) -> None:
    warnings.simplefilter("ignore", ConvergenceWarning)
    for case in options.only:
        if case in SHAPES:
            measure(case, options, rows)
    names = [name for name in SETS if name in options.only]
    if names:
        seeds = range(1 if options.quick else 5)
        heads = ("float32:.3f", "float16:.3f", "bfloat16:.3f", "float16 gains:+.3f", "bfloat16 gains:+.3f")
        with table(f"test accuracy (R2 for cadata), %, means of {len(seeds)} seed(s)", "set", *heads) as line:
            for name in names:
                with where_found(name):
                    score(name, seeds, rows, line)
