"""Linear SVMs to an equal primal gap: dsgd's LinearSVC beside scikit-learn's (LIBLINEAR) and Snap ML, in the same run.

Every method gets a ladder of its own tolerances, from loose to tight. For each target (1e-3, 1e-5) the row holds the
fastest fit whose weights have an objective within that share of the optimum, computed in float64 over all rows by one
function for all methods, the penalised intercept included; the optimum is the largest lower bound of ours. Times are
whole fits, data given in the form the method reads without a conversion where it has one. scikit-learn is asked for
both of its solvers, and the faster counts. Fits of one method repeat and the median is kept.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from common import Rows, machine
from kernels import sparse_rows
from sklearn.svm import LinearSVC as PlainLinearSVC

from dsgd.datasets import make_like
from dsgd.svm import LinearSVC

TARGETS = (1e-3, 1e-5)
LADDERS = {
    "dsgd": (1e-2, 3e-3, 1e-3, 1e-4, 1e-5),
    "scikit-learn": (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5),
    "snapml": (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6),
}


def objective(X, y, loss: str, C: float, coef, intercept: float) -> float:
    """Return the primal objective with a penalised intercept."""
    margins = y * (np.asarray(X @ np.asarray(coef, np.float64)).ravel() + intercept)
    slack = np.maximum(0.0, 1.0 - margins)
    losses = slack if loss == "hinge" else slack * slack
    return 0.5 * (float(coef @ coef) + intercept**2) + C * float(losses.sum())


def ours(X, y, loss, C, tol, n_jobs):
    """Return coef and intercept of a fit of dsgd's."""
    model = LinearSVC(loss=loss, C=C, tol=tol, n_jobs=n_jobs, random_state=0).fit(X, y)
    return model.coef_.ravel(), float(model.intercept_[0])


def plain(X, y, loss, C, tol, dual):
    """Return coef and intercept of a fit of scikit-learn's."""
    model = PlainLinearSVC(loss=loss, C=C, tol=tol, dual=dual, max_iter=300, random_state=0).fit(X, y)
    return model.coef_.ravel(), float(model.intercept_[0])


def snap(X, y, loss, C, tol, n_jobs):
    """Return coef and intercept of a fit of Snap ML's."""
    from snapml import SupportVectorMachine

    model = SupportVectorMachine(
        loss=loss, regularizer=1.0 / C, tol=tol, n_jobs=n_jobs, fit_intercept=True, max_iter=300, random_state=0
    ).fit(X, y)
    return np.asarray(model.coef_, np.float64).ravel(), float(np.ravel(model.intercept_)[0])


def methods(X, y, loss: str, C: float) -> Iterator[tuple[str, str, Callable[[float], Any]]]:
    """Yield family, name and fit of every method that is there."""
    double = X.astype(np.float64)
    single = X.astype(np.float32)
    yield "dsgd", "dsgd, 1 thread", lambda tol: ours(single, y, loss, C, tol, 1)
    yield "dsgd", "dsgd, 2 threads", lambda tol: ours(single, y, loss, C, tol, 2)
    for dual in (True, False) if loss == "squared_hinge" else (True,):
        yield "scikit-learn", f"scikit-learn, dual={dual}", lambda tol, dual=dual: plain(double, y, loss, C, tol, dual)
    if importlib.util.find_spec("snapml"):
        narrow = single
        if sp.issparse(narrow):
            narrow = sp.csr_matrix((single.data, single.indices, single.indptr), shape=single.shape)
        yield "snapml", "Snap ML, 2 threads", lambda tol: snap(narrow, y, loss, C, tol, 2)


def data_sets(quick: bool) -> Iterator[tuple[str, Any, Any, float]]:
    """Yield name, rows, targets and C."""
    share = 0.1 if quick else 1.0
    for name, n_rows in (("webspam", int(350_000 * share)), ("epsilon", int(100_000 * share))):
        made = make_like(name, n_rows)
        y = np.where(np.asarray(made.y) > 0, 1.0, -1.0)
        yield f"{name}-shaped {n_rows} x {made.X.shape[1]}", made.X, y, 1.0
    n_rows = int(500_000 * share)
    X, y = sparse_rows(n_rows, 100_000, 30, seed=0)
    yield f"sparse {n_rows} x 100000, 30 per row", X, y, 1.0


def climb(
    fit, ladder, repeats: int, reached: Callable[[Any], float], budget_s: float
) -> dict[float, tuple[float, float]]:
    """Return for every target the seconds of the fastest fit that reached it, and the gap it reached."""
    found: dict[float, tuple[float, float]] = {}
    spent = 0.0
    for tol in ladder:
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            model = fit(tol)
            times.append(time.perf_counter() - start)
        seconds, gap = statistics.median(times), reached(model)
        spent += sum(times)
        for target in TARGETS:
            if gap <= target and seconds < found.get(target, (np.inf, 0.0))[0]:
                found[target] = (seconds, gap)
        if len(found) == len(TARGETS) or spent > budget_s:
            break
    return found


def compare(name, X, y, loss: str, C: float, repeats: int, budget_s: float, rows: Rows) -> None:
    """Measure all methods on one data set and print their lines."""
    best = LinearSVC(loss=loss, C=C, tol=1e-7, n_jobs=2, random_state=0, max_iter=3000).fit(X.astype(np.float64), y)
    optimum = float(best.dual_objective_[0])
    print(f"\n{name}, {loss}, C={C:g}; optimum {optimum:.8g} (certified to {best.gap_:.1e}, {best.solver_[0]})")
    for family, method, fit in methods(X, y, loss, C):
        fit(LADDERS[family][0])  # compiles, and warms up whatever a library keeps
        found = climb(
            fit,
            LADDERS[family],
            repeats,
            lambda model: objective(X, y, loss, C, *model) / optimum - 1.0,
            budget_s,
        )
        cells = [f"{found[t][0]:8.3f} s" if t in found else "  not reached" for t in TARGETS]
        print(
            f"  {method:28s}" + "".join(f"  {t:g}: {cell}" for t, cell in zip(TARGETS, cells, strict=True)), flush=True
        )
        for target in TARGETS:
            seconds, gap = found.get(target, (None, None))
            rows.add(data=name, loss=loss, C=C, method=method, target=target, seconds=seconds, gap=gap, optimum=optimum)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one repeat")
    parser.add_argument("--out", help="file of JSON lines to append to")
    parser.add_argument("--only", default="", help="data sets whose name begins with this")
    parser.add_argument("--repeats", type=int, help="fits per tolerance")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # peers stop at loose tolerances on purpose
    repeats = arguments.repeats or (1 if arguments.quick else 3)
    rows = Rows("linear_svm_peers", arguments.out)
    print(machine())
    for name, X, y, C in data_sets(arguments.quick):
        if name.startswith(arguments.only):
            for loss in ("hinge", "squared_hinge"):
                compare(name, X, y, loss, C, repeats, 20.0 if arguments.quick else 120.0, rows)


if __name__ == "__main__":
    main()
