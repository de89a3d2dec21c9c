"""A search in one pass beside GridSearchCV with our estimator and with scikit-learn's.

64 candidates (16 strengths, two losses, with and without balanced classes) on five folds, and the last fit of the best:
`SGDSearchCV`, the same with successive halving, and `GridSearchCV`, which fits 320 models one by one. Then the same
candidates on one split, which holds out a fifth of the rows: 64 models. Of the single fits a sample is run, every
seventh candidate on one fold, and multiplied up; ``--whole`` runs them all, which takes most of an hour. Every way has
as many threads or processes as there are cores, and peers in the sample run one by one: their seconds are divided by
the cores, as if processes did not hinder each other. Seconds of the processor, of all threads together, depend less on
what else the machine does; "fits" are these in units of one fit, the mean of the sample.

Memory is the peak above what the process had before, over that of one fit of our estimator.

    python -m benchmarks run search --out rows.jsonl
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.linear_model import SGDClassifier as Peer
from sklearn.model_selection import GridSearchCV, ParameterGrid, StratifiedKFold, StratifiedShuffleSplit

from benchmarks.common.measuring import Options, Rows, report, timed
from benchmarks.training.whole_fit import forget_peak, memory
from dsgd import SGDClassifier
from dsgd.model_selection import SGDSearchCV

PAGE = "model-selection"
QUICK_S = 40
QUICK = "20,000 rows"
GRID = {"alpha": np.logspace(-5, -1, 16), "loss": ["hinge", "log_loss"], "class_weight": [None, "balanced"]}
N_FOLDS, EVERY = 5, 7
N_MODELS = N_FOLDS * len(ParameterGrid(GRID))


OPTIONS = {
    "--rows": {"type": int, "help": "rows; by default 500,000, with --quick 20,000"},
    "--features": {"type": int, "default": 100, "help": "features (default: %(default)s)"},
    "--dtype": {"choices": ("float32", "float64"), "default": "float64", "help": "of the rows"},
    "--whole": {"action": "store_true", "help": "run all fits of the peers, and no sample"},
}


def run(options: Options, rows: Rows) -> None:
    """Measure all ways, one after the other."""
    warnings.simplefilter("ignore")
    n, d = options.rows or (20_000 if options.quick else 500_000), options.features
    X, y = make_data(n, d, options.dtype)
    cores = os.cpu_count() or 1
    model = SGDClassifier(random_state=0)
    # Kernels are compiled, or loaded, before.
    SGDSearchCV(model, GRID, cv=2, n_jobs=2).fit(X[:500], y[:500])
    one = peak_of(clone(model), X, y)
    held_out = StratifiedShuffleSplit(1, test_size=1 / N_FOLDS, random_state=0)
    ways = {
        "SGDSearchCV": SGDSearchCV(model, GRID, cv=N_FOLDS, n_jobs=cores),
        "SGDSearchCV, factor=3": SGDSearchCV(model, GRID, cv=N_FOLDS, n_jobs=cores, factor=3),
        "SGDSearchCV, one split": SGDSearchCV(model, GRID, cv=held_out, n_jobs=cores),
        "SGDSearchCV, one split, factor=3": SGDSearchCV(model, GRID, cv=held_out, n_jobs=cores, factor=3),
    }
    found: list[dict[str, Any]] = []
    for name, search in ways.items():
        before = forget_peak()
        taken = timed(search.fit, X, y)
        peak = max(0, memory()["VmHWM"] - before)
        found.append(
            {"way": name, "seconds": taken.seconds, "cpu_s": taken.cpu_s, "memory": peak / one, **best_of(search)}
        )
    for name, estimator in {"GridSearchCV, dsgd": model, "GridSearchCV, scikit-learn": Peer(random_state=0)}.items():
        if options.whole:
            search = GridSearchCV(estimator, GRID, cv=N_FOLDS, n_jobs=cores)
            seconds = timed(search.fit, X, y).seconds
            found.append({"way": name, "seconds": seconds, "cpu_s": None, "memory": None, **best_of(search)})
        else:
            seconds, cpu_s = sampled_s(estimator, X, y)
            row = {"way": name, "seconds": seconds / cores, "cpu_s": cpu_s, "memory": None}
            found.append({**row, "score": None, "best": "sample"})
    fits_s = next(row["cpu_s"] for row in found if row["way"] == "GridSearchCV, dsgd")
    columns = "way | s = seconds:.1f | times:.1f | cpu s = cpu_s:.1f | fits:.1f | memory:.2f | score:.4f | best"
    facts = {"rows": n, "features": d, "dtype": options.dtype, "whole": options.whole}
    with report(rows, f"{n} x {d}, {options.dtype}", columns, **facts) as add:
        for row in found:
            times = row["seconds"] / found[0]["seconds"]
            fits = row["cpu_s"] / fits_s * N_MODELS if fits_s and row["cpu_s"] else None
            add(times=times, fits=fits, **row)


def make_data(n: int, d: int, dtype: str) -> tuple[Any, Any]:
    """Return rows of two classes that overlap, a fifth of them in the smaller one."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d), dtype=dtype)  # type: ignore[call-overload]
    scores = X @ rng.standard_normal(d) + 5 * rng.standard_normal(n)
    return X, (scores > np.quantile(scores, 0.8)).astype(int)


def peak_of(model: Any, X: Any, y: Any) -> int:
    """Return the bytes that a fit adds to the memory of this process at its peak."""
    before = forget_peak()
    model.fit(X, y)
    return max(1, memory()["VmHWM"] - before)


def best_of(search: Any) -> dict[str, Any]:
    """Return the best score and the best candidate, as a row has them."""
    best = ", ".join(f"{name}={value}" for name, value in search.best_params_.items())
    return {"score": search.best_score_, "best": best}


def sampled_s(estimator: Any, X: Any, y: Any) -> tuple[float, float]:
    """Return the seconds of all fits one after the other, and of the processor, from a sample of candidates and folds.

    Parameters of the grid change with every candidate or every other one: seven meets all of their values.
    """
    split = [next(StratifiedKFold(N_FOLDS).split(X, y))]
    candidates = list(ParameterGrid(GRID))
    listed = [{name: [value] for name, value in each.items()} for each in candidates[EVERY // 2 :: EVERY]]
    search = GridSearchCV(estimator, listed, cv=split, refit=False)
    taken, factor = timed(search.fit, X, y), len(candidates) * N_FOLDS / len(listed)
    return taken.seconds * factor, taken.cpu_s * factor
