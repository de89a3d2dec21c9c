"""A search on worker processes beside the same search in this process, and beside cluster fits one after another.

64 candidates (16 strengths, two losses, with and without balanced classes) on five folds, on two single-threaded
workers, without a last fit. `SGDSearchCV` in this process has as many threads as there are workers. Of the separate
fits, each with its score, every seventh candidate is run on one fold, and multiplied up: seconds, rounds and bytes.
Bytes are what all ranks send for the algorithm, headers included; waiting is the share of the ranks' seconds that they
move bytes or wait for one another, without what they say beside the algorithm.

The second table has four periods of synchronisation and 16 strengths: in one search, whose messages have the columns
whose rounds end, and in one search for each period.

    python -m benchmarks run cluster_search --out rows.jsonl
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from sklearn.base import clone
from sklearn.model_selection import ParameterGrid, StratifiedKFold

from benchmarks.common.measuring import Options, Rows, table, timed, waiting_share, workers
from benchmarks.training.search import EVERY, GRID, N_FOLDS, make_data
from dsgd import SGDClassifier
from dsgd.model_selection import SGDSearchCV

PAGE = "model-selection"
ONE_THREAD = True
QUICK_S = 25
QUICK = "2,000 rows"
CASES = ("ways", "periods")
N_WORKERS = 2
PERIODS = (64, 256, 1024, 4096)
HEADS = "way", "s:.1f", "times:.2f", "rounds:.0f", "messages:.0f", "MB:.1f", "waiting:.2f"


OPTIONS = {
    "--rows": {"type": int, "help": "rows; by default 20,000, with --quick 2,000"},
    "--features": {"type": int, "default": 100, "help": "features (default: %(default)s)"},
    "--dtype": {"choices": ("float32", "float64"), "default": "float64", "help": "of the rows"},
}


def run(options: Options, rows: Rows) -> None:
    """Measure the ways of each case, one after the other, on the same workers."""
    warnings.simplefilter("ignore")
    X, y = make_data(options.rows or (2_000 if options.quick else 20_000), options.features, options.dtype)
    with workers(N_WORKERS) as client:
        model = SGDClassifier(random_state=0, client=client)
        # Kernels are compiled, or loaded, before, here and on the workers.
        for each in (model, clone(model).set_params(client=None)):
            clone(each).fit(X[:500], y[:500])
            search_of(each, GRID).set_params(cv=2).fit(X[:500], y[:500])
        measured = {"ways": ways, "periods": periods}
        for case in options.only:
            found = measured[case](model, X, y)
            with table(f"{case}: {X.shape[0]} x {X.shape[1]}, {options.dtype}, {N_WORKERS} workers", *HEADS) as line:
                for row in found:
                    times = row["seconds"] / found[0]["seconds"]
                    line(
                        row["way"],
                        row["seconds"],
                        times,
                        *(row.get(name) for name in ("rounds", "messages")),
                        row.get("bytes", 0) / 1e6 or None,
                        row.get("waiting"),
                    )
                    rows.add(case=case, rows=X.shape[0], features=X.shape[1], dtype=options.dtype, times=times, **row)


def ways(model: SGDClassifier, X: Any, y: Any) -> list[dict[str, Any]]:
    """Return what the three ways have taken, that of the workers first."""
    here = clone(model).set_params(client=None)
    return [
        searched("SGDSearchCV on workers", search_of(model, GRID), X, y),
        searched("SGDSearchCV in this process", search_of(here, GRID).set_params(n_jobs=N_WORKERS), X, y),
        sampled("separate fits on workers", model, X, y),
    ]


def periods(model: SGDClassifier, X: Any, y: Any) -> list[dict[str, Any]]:
    """Return what one search over periods has taken, and one for each of them."""
    grid = {"alpha": GRID["alpha"]}
    found = [searched("one search", search_of(model, {**grid, "sync": PERIODS}), X, y)]
    alone = [searched(f"sync={n}", search_of(clone(model).set_params(sync=n), grid), X, y) for n in PERIODS]
    total = {name: sum(row[name] for row in alone) for name in ("seconds", "rounds", "messages", "bytes")}
    return [*found, {"way": "a search for each period", **total}, *alone]


def search_of(model: SGDClassifier, grid: Mapping[str, Any]) -> SGDSearchCV:
    """Return a search without a last fit."""
    return SGDSearchCV(clone(model), grid, cv=N_FOLDS, refit=False)


def searched(way: str, search: SGDSearchCV, X: Any, y: Any) -> dict[str, Any]:
    """Search, and return what it has taken."""
    seconds = timed(search.fit, X, y).seconds
    row = {"way": way, "seconds": seconds, "epochs": search.n_epochs_}
    return {**row, **(spent(search.ledger_) if hasattr(search, "ledger_") else {})}


def sampled(way: str, model: SGDClassifier, X: Any, y: Any) -> dict[str, Any]:
    """Fit and score a sample of the candidates on one fold; return what all of them on all folds would take."""
    train, test = next(StratifiedKFold(N_FOLDS).split(X, y))
    candidates = list(ParameterGrid(GRID))
    # Parameters of the grid change with every candidate or every other one: seven meets all of their values.
    sample = candidates[EVERY // 2 :: EVERY]

    def fit_and_score(candidate: Mapping[str, Any]) -> SGDClassifier:
        fitted = clone(model).set_params(**candidate).fit(X[train], y[train])
        fitted.score(X[test], y[test])
        return fitted

    found = [timed(fit_and_score, candidate) for candidate in sample]
    each = [{"seconds": fit.seconds, **spent(fit.value.ledger_)} for fit in found]
    scale = len(candidates) * N_FOLDS / len(sample)
    total = {name: scale * sum(row[name] for row in each) for name in ("seconds", "rounds", "messages", "bytes")}
    return {
        "way": way,
        **total,
        "waiting": sum(row["waiting"] * row["seconds"] for row in each) * scale / total["seconds"],
    }


def spent(ledger: Any) -> dict[str, Any]:
    """Return rounds, messages and bytes of the algorithm, and the share of waiting."""
    totals = ledger.totals()
    return {
        "rounds": totals["rounds"],
        "messages": totals["messages"],
        "bytes": totals["bytes_sent"],
        "waiting": waiting_share(totals),
    }
