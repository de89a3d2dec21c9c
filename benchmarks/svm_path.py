"""Grids of C and gamma: `dsgd.svm.svm_path` beside one cold `SVC` per point, on the same data in the same run.

Prints one line per set and grid: kernel values and seconds of the path, of the cold fits, and the ratios, the largest
relative difference of dual objectives, and the share of samples proven to sit at a bound before a point was solved
(median and largest over the points after the first C). Then, per set, the share of samples with a proven coefficient:
before a run, from the solution at a C smaller by a factor, and after it, by `dsgd.svm.screen`, at two tolerances. Real
sets are read from the folder DSGD_DATA names.

    DSGD_DATA=... python benchmarks/svm_path.py --out rows.jsonl
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from common import Rows
from sklearn.datasets import make_classification

from dsgd.datasets import load
from dsgd.errors import DatasetError
from dsgd.svm import SVC, screen, svm_path

#: name -> (costs, factors of gamma="scale")
GRIDS: dict[str, tuple[list[float], list[float]]] = {
    "coarse": ([0.1, 0.3, 1.0, 3.0, 10.0, 30.0], [1.0]),
    "fine": ([float(c) for c in 0.1 * 1.05 ** np.arange(12)], [1.0]),
    "fine, larger C": ([float(c) for c in 1.0 * 1.05 ** np.arange(12)], [1.0]),
    "C and gamma": ([0.3, 1.0, 3.0, 10.0], [0.25, 1.0, 4.0]),
}


def generated() -> tuple[Any, Any]:
    """Return a noisy problem of 20000 rows and 20 features."""
    return make_classification(20_000, 20, n_informative=10, n_clusters_per_class=5, flip_y=0.01, random_state=0)


def real(name: str) -> Callable[[], tuple[Any, Any]]:
    """Return what loads a set."""

    def read() -> tuple[Any, Any]:
        data = load(name)
        return data.X, data.y

    return read


def mnist() -> tuple[Any, Any]:
    """Return the first 6000 digits, scaled to [0, 1], dense float32, ten classes."""
    X, y = real("mnist")()
    X = np.asarray(X[:6000].toarray() if sp.issparse(X) else X[:6000], dtype=np.float32)
    return X / X.max(), y[:6000]


#: name -> (reader, grids)
CASES: dict[str, tuple[Callable[[], tuple[Any, Any]], list[str]]] = {
    "a9a": (real("a9a"), list(GRIDS)),
    "generated 20k x 20": (generated, list(GRIDS)),
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
    begin, cpu = time.perf_counter(), time.process_time()
    path = svm_path(X, y, Cs=costs, gammas=gammas, cache_size=cache_mb)
    path_s, path_cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    cold_s = cold_cpu_s = 0.0
    cold_values, spread = 0, 0.0
    for point in path.points:
        begin, cpu = time.perf_counter(), time.process_time()
        model = SVC(C=point.C, gamma=point.gamma, cache_size=cache_mb).fit(X, y)
        cold_s, cold_cpu_s = cold_s + time.perf_counter() - begin, cold_cpu_s + time.process_time() - cpu
        cold_values += model.n_kernel_evaluations_
        spread = max(spread, abs(model.dual_objective_ - point.dual_objective) / abs(model.dual_objective_))
    shares = [point.n_proven / point.n_samples for point in path.points if costs[0] < point.C]
    rows.add(
        case=name,
        grid=grid,
        n=X.shape[0],
        d=X.shape[1],
        costs=costs,
        gammas=gammas,
        cache_mb=cache_mb,
        path_kernel_evaluations=path.n_kernel_evaluations,
        path_products=sum(point.n_products for point in path.points),
        cold_kernel_evaluations=cold_values,
        path_seconds=path_s,
        cold_seconds=cold_s,
        path_cpu_seconds=path_cpu_s,
        cold_cpu_seconds=cold_cpu_s,
        objective_spread=spread,
        worst_gap=max(point.gap for point in path.points),
        proven_shares=shares,
    )
    print(
        f"{name:>20}, {grid} ({len(path.points)} points, n={X.shape[0]}, cache {cache_mb:g} MB): 1e9 kernel values "
        f"{path.n_kernel_evaluations / 1e9:.2f} against {cold_values / 1e9:.2f} "
        f"({cold_values / path.n_kernel_evaluations:.1f}x), products "
        f"{sum(point.n_products for point in path.points) / 1e9:.2f}, seconds {path_s:.1f} against {cold_s:.1f} "
        f"({cold_s / path_s:.1f}x), of CPU {path_cpu_s:.1f} against {cold_cpu_s:.1f} ({cold_cpu_s / path_cpu_s:.1f}x); "
        f"objectives {spread:.0e}, proven {np.median(shares):.0%} and {max(shares):.0%}"
    )


def certify(name: str, limit: int | None, rows: Rows) -> None:
    """Print the shares of samples whose coefficient is proven before and after runs."""
    X, y = CASES[name][0]()
    X, y = X[:limit], y[:limit]
    for cost in (0.1, 1.0, 10.0):
        before = [svm_path(X, y, Cs=[cost, step * cost]).points[1] for step in STEPS]
        shares = [point.n_proven / point.n_samples for point in before]
        after = {tol: float(np.isfinite(screen(SVC(C=cost, tol=tol).fit(X, y), X, y)).mean()) for tol in (1e-3, 1e-5)}
        rows.add(case=name, n=X.shape[0], C=cost, steps=STEPS, proven_before=shares, proven_after=after)
        print(
            f"{name:>20}, C={cost:g}: proven before, C times "
            + ", ".join(f"{step}: {share:.0%}" for step, share in zip(STEPS, shares, strict=True))
            + "; after, tol "
            + ", ".join(f"{tol:g}: {share:.0%}" for tol, share in after.items())
        )


def main() -> None:
    """Run all sets and grids and print their lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="append one JSON row per set and grid to this file")
    parser.add_argument("--quick", action="store_true", help="the first 2000 rows")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this set; can be repeated")
    parser.add_argument("--grid", action="append", choices=list(GRIDS), help="only this grid; can be repeated")
    parser.add_argument("--cache-mb", type=float, default=400.0)
    parser.add_argument("--rows", type=int, help="only so many rows")
    arguments = parser.parse_args()
    rows = Rows("svm_path", arguments.out)
    for name in arguments.case or CASES:
        limit = 2000 if arguments.quick else arguments.rows
        try:
            for grid in CASES[name][1]:
                if not arguments.grid or grid in arguments.grid:
                    compare(name, grid, limit, arguments.cache_mb, rows)
            if not arguments.grid and len(CASES[name][1]) > 1:
                certify(name, limit, rows)
        except DatasetError as error:
            print(f"{name:>20} skipped: {error}")


if __name__ == "__main__":
    main()
