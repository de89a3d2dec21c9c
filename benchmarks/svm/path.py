"""Grids of C and gamma: `dsgd.svm.svm_path` beside one cold `SVC` per point, on the same data in the same run.

Prints one line per set and grid: kernel values and seconds of the path, of the cold fits, and the ratios, the largest
relative difference of dual objectives, and the share of samples proven to sit at a bound before a point was solved
(median and largest over the points after the first C). Then, per set, the share of samples with a proven coefficient:
before a run, from the solution at a C smaller by a factor, and after it, by `dsgd.svm.screen`, at two tolerances. Real
sets are read from the folder DSGD_DATA names.

    DSGD_DATA=... python -m benchmarks run svm/path --out rows.jsonl
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.common.measuring import Options, Rows, table, timed
from benchmarks.common.suite import where_found
from benchmarks.svm.peers import generated, real
from dsgd.svm import SVC, screen, svm_path

PAGE = "model-selection"
QUICK_S = 90
QUICK = "the first 2000 rows"

#: name -> (costs, factors of gamma="scale")
GRIDS: dict[str, tuple[list[float], list[float]]] = {
    "coarse": ([0.1, 0.3, 1.0, 3.0, 10.0, 30.0], [1.0]),
    "fine": ([float(c) for c in 0.1 * 1.05 ** np.arange(12)], [1.0]),
    "fine, larger C": ([float(c) for c in 1.0 * 1.05 ** np.arange(12)], [1.0]),
    "C and gamma": ([0.3, 1.0, 3.0, 10.0], [0.25, 1.0, 4.0]),
}


def mnist() -> tuple[Any, Any]:
    """Return the first 6000 digits, scaled to [0, 1], dense float32, ten classes."""
    X, y = real("mnist", sparse=False)()
    X = X[:6000].astype(np.float32)
    return X / X.max(), y[:6000]


#: name -> (reader, grids)
CASES: dict[str, tuple[Callable[[], tuple[Any, Any]], list[str]]] = {
    "a9a": (real("a9a", sparse=True), list(GRIDS)),
    "generated 20k x 20": (lambda: generated(20_000), list(GRIDS)),
    "mnist-6k": (mnist, ["C and gamma"]),
}
STEPS = (1.01, 1.05, 1.2, 2.0)


def compare(name: str, grid: str, limit: int | None, cache_mb: float, rows: Rows) -> None:
    """Solve one grid both ways, point by point in turns as far as that goes, and print its line."""
    X, y = CASES[name][0]()
    X, y = X[:limit], y[:limit]
    costs, factors = GRIDS[grid]
    variance = float(X.multiply(X).mean() - X.mean() ** 2) if sp.issparse(X) else float(X.var())
    gammas = [factor / (X.shape[1] * variance) for factor in factors]
    few = slice(None, None, max(1, len(y) // 500))
    svm_path(X[few], y[few], Cs=[1.0, 2.0], cache_size=0.1)  # load compiled kernels
    warm = timed(svm_path, X, y, Cs=costs, gammas=gammas, cache_size=cache_mb)
    path = warm.value
    cold_s = cold_cpu_s = 0.0
    cold_values, spread = 0, 0.0
    for point in path.points:
        cold = timed(SVC(C=point.C, gamma=point.gamma, cache_size=cache_mb).fit, X, y)
        model, cold_s, cold_cpu_s = cold.value, cold_s + cold.seconds, cold_cpu_s + cold.cpu_s
        cold_values += model.n_kernel_evaluations_
        spread = max(spread, abs(model.dual_objective_ - point.dual_objective) / abs(model.dual_objective_))
    shares = [point.n_proven / point.n_samples for point in path.points if costs[0] < point.C]
    n_products = sum(point.n_products for point in path.points)
    facts = {"case": name, "grid": grid, "n": X.shape[0], "d": X.shape[1], "costs": costs, "gammas": gammas}
    rows.add(
        **facts,
        cache_mb=cache_mb,
        path_products=n_products,
        objective_spread=spread,
        proven_shares=shares,
        path_kernel_evaluations=path.n_kernel_evaluations,
        cold_kernel_evaluations=cold_values,
        path_seconds=warm.seconds,
        cold_seconds=cold_s,
        path_cpu_seconds=warm.cpu_s,
        cold_cpu_seconds=cold_cpu_s,
        worst_gap=max(point.gap for point in path.points),
    )
    title = (
        f"{name}, {grid}: {len(path.points)} points, n={X.shape[0]}, cache {cache_mb:g} MB; objectives {spread:.0e} "
        f"apart, proven {np.median(shares):.0%} and {max(shares):.0%}, {n_products / 1e9:.2f}e9 products"
    )
    with table(title, "what", "path:.2f", "cold:.2f", "times less:.1f") as line:
        values = path.n_kernel_evaluations / 1e9, cold_values / 1e9
        times, processor = (warm.seconds, cold_s), (warm.cpu_s, cold_cpu_s)
        for what, both in (("1e9 kernel values", values), ("seconds", times), ("processor s", processor)):
            line(what, *both, both[1] / both[0])


def certify(name: str, limit: int | None, rows: Rows) -> None:
    """Print the shares of samples whose coefficient is proven before and after runs."""
    X, y = CASES[name][0]()
    X, y = X[:limit], y[:limit]
    heads = (*(f"C times {step}:.0%" for step in STEPS), "after, tol 1e-3:.0%", "after, tol 1e-5:.0%")
    with table(f"{name}: share of samples that are proven before a run and after it", "C", *heads) as line:
        for cost in (0.1, 1.0, 10.0):
            before = [svm_path(X, y, Cs=[cost, step * cost]).points[1] for step in STEPS]
            shares = [point.n_proven / point.n_samples for point in before]
            models = {tol: SVC(C=cost, tol=tol).fit(X, y) for tol in (1e-3, 1e-5)}
            after = {tol: float(np.isfinite(screen(model, X, y)).mean()) for tol, model in models.items()}
            rows.add(case=name, n=X.shape[0], C=cost, steps=STEPS, proven_before=shares, proven_after=after)
            line(f"{cost:g}", *shares, *after.values())


OPTIONS = {
    "--grid": {"nargs": "+", "choices": list(GRIDS), "help": "only these grids", "metavar": "GRID"},
    "--cache-mb": {"type": float, "default": 400.0},
    "--rows": {"type": int, "help": "only so many rows"},
}


def run(options: Options, rows: Rows) -> None:
    limit = 2000 if options.quick else options.rows
    for name in options.only:
        with where_found(name):
            for grid in CASES[name][1]:
                if not options.grid or grid in options.grid:
                    compare(name, grid, limit, options.cache_mb, rows)
            if not options.grid and len(CASES[name][1]) > 1:
                certify(name, limit, rows)
