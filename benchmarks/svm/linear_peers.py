"""Linear SVMs to an equal primal gap: dsgd's LinearSVC beside scikit-learn's (LIBLINEAR) and Snap ML, in the same run.

Every method gets a ladder of its own tolerances, from loose to tight. For each target (1e-3, 1e-5) the row holds the
fit of the loosest tolerance whose weights have an objective within that share of the optimum, computed in float64 over
all rows by one function for all methods, the penalised intercept included; the optimum is the largest lower bound of
ours. With the loss ``l1`` it is the squared one with an L1 penalty. Times are whole fits, with data in a form that the
method reads without a conversion, if it has one. Both solvers of scikit-learn are run, and the faster counts. Fits
repeat, the methods by turns, and the median is kept.

Which tolerance a method needs does not depend on the clock. So it may be found beforehand, on a busy machine, with
``--scout FILE``; ``--timed FILE`` then times these fits alone.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.svm import LinearSVC as PlainLinearSVC

from benchmarks.common.measuring import Options, Rows, table, timed
from benchmarks.training.kernels import sparse_rows
from dsgd.datasets import make_like
from dsgd.svm import LinearSVC

PAGE = "linear-svm"
QUICK_S = 60
QUICK = "a tenth of the rows, one repeat"
REPEATS = (3, 1)
CASES = ("webspam", "epsilon", "sparse")

LOSSES = ("hinge", "squared_hinge", "l1")
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
    penalty = np.abs(coef).sum() + abs(intercept) if loss == "l1" else 0.5 * (float(coef @ coef) + intercept**2)
    return float(penalty) + C * float(losses.sum())


def settings(loss: str) -> dict[str, str]:
    """Return the parameters of a `LinearSVC` that say what it minimises."""
    return {"penalty": "l1", "loss": "squared_hinge"} if loss == "l1" else {"loss": loss}


def ours(X, y, loss, C, tol, n_jobs):
    """Return coef and intercept of a fit of dsgd's."""
    model = LinearSVC(**settings(loss), C=C, tol=tol, n_jobs=n_jobs, random_state=0).fit(X, y)
    return model.coef_.ravel(), float(model.intercept_[0])


def plain(X, y, loss, C, tol, dual):
    """Return coef and intercept of a fit of scikit-learn's."""
    model = PlainLinearSVC(**settings(loss), C=C, tol=tol, dual=dual, max_iter=300, random_state=0).fit(X, y)
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
    for dual in {"hinge": (True,), "squared_hinge": (True, False), "l1": (False,)}[loss]:
        yield "scikit-learn", f"scikit-learn, dual={dual}", lambda tol, dual=dual: plain(double, y, loss, C, tol, dual)
    if importlib.util.find_spec("snapml") and loss != "l1":
        narrow = single
        if sp.issparse(narrow):
            narrow = sp.csr_matrix((single.data, single.indices, single.indptr), shape=single.shape)
        yield "snapml", "Snap ML, 2 threads", lambda tol: snap(narrow, y, loss, C, tol, 2)


def data_sets(quick: bool, only: Sequence[str]) -> Iterator[tuple[str, Any, Any, float]]:
    """Yield name, rows in float32, targets and C of these sets."""
    share = 0.1 if quick else 1.0
    for name, n_rows in (("webspam", int(350_000 * share)), ("epsilon", int(100_000 * share))):
        if name in only:
            made = make_like(name, n_rows)
            y = np.where(np.asarray(made.y) > 0, 1.0, -1.0)
            yield f"{name}-shaped {n_rows} x {made.X.shape[1]}", made.X.astype(np.float32), y, 1.0
    if "sparse" in only:
        n_rows = int(500_000 * share)
        X, y = sparse_rows(n_rows, 100_000, 30, seed=0)
        yield f"sparse {n_rows} x 100000, 30 per row", X, y, 1.0


def scout(name, X, y, loss: str, C: float, budget_s: float) -> dict[str, Any]:
    """Return the optimum, and for every method and target the loosest tolerance that gets there and the gap it has."""
    best = LinearSVC(**settings(loss), C=C, tol=2e-7, n_jobs=2, random_state=0, max_iter=3000).fit(X, y)
    optimum = float(best.dual_objective_[0])
    print(f"\n{name}, {loss}, C={C:g}; optimum {optimum:.8g} (certified to {best.gap_:.1e}, {best.solver_[0]})")
    found: dict[str, Any] = {}
    for family, method, fit in methods(X, y, loss, C):
        reached: dict[str, Any] = {}
        start = time.perf_counter()
        for tol in LADDERS[family]:
            gap = objective(X, y, loss, C, *fit(tol)) / optimum - 1.0
            for target in TARGETS:
                if gap <= target and str(target) not in reached:
                    reached[str(target)] = (tol, gap)
            if len(reached) == len(TARGETS) or time.perf_counter() - start > budget_s:
                break
        print(f"  {method:28s} {reached}", flush=True)
        found[method] = reached
    return {"optimum": optimum, "certified": best.gap_, "methods": found}


def clock(name, X, y, loss: str, C: float, repeats: int, plan: dict[str, Any], rows: Rows) -> None:
    """Time the fits of a plan and print a line per method."""
    few = np.flatnonzero(np.arange(X.shape[0]) < 2000)
    for family, _, fit in methods(X[few], y[few], loss, C):
        fit(LADDERS[family][0])  # compiles, and warms up whatever a library keeps
    times: dict[tuple[str, str], list[float]] = {}
    gaps: dict[tuple[str, float], float] = {}
    for _ in range(repeats):
        for _, method, fit in methods(X, y, loss, C):
            done: dict[float, float] = {}  # both targets may need the same fit
            for target, (tol, _) in plan["methods"].get(method, {}).items():
                if tol not in done:
                    taken = timed(fit, tol)
                    done[tol] = taken.seconds
                    gaps[method, tol] = objective(X, y, loss, C, *taken.value) / plan["optimum"] - 1.0
                times.setdefault((method, target), []).append(done[tol])
    title = f"{name}, {loss}, C={C:g}; optimum {plan['optimum']:.8g} (certified to {plan['certified']:.1e})"
    with table(title, "method", *(f"seconds to {target:g}" for target in TARGETS)) as line:
        for method, reached in plan["methods"].items():
            cells = []
            for target in map(str, TARGETS):
                tol = reached[target][0] if target in reached else None
                gap = None if tol is None else gaps[method, tol]
                is_reached = gap is not None and gap <= float(target)
                seconds = statistics.median(times[method, target]) if is_reached else None
                cells.append(f"{seconds:.3f} ({gap:.0e})" if is_reached else "not reached")
                facts = {"data": name, "loss": loss, "C": C, "method": method, "optimum": plan["optimum"]}
                rows.add(target=float(target), seconds=seconds, tol=tol, gap=gap, **facts)
            line(method, *cells)


OPTIONS = {
    "--loss": {"choices": LOSSES, "help": "one loss alone"},
    "--budget": {"type": float, "default": 120.0, "help": "seconds after which a method's ladder ends"},
    "--scout": {"help": "file of the tolerances that are needed: find them and add them"},
    "--timed": {"help": "such a file: time these fits alone"},
}


def run(options: Options, rows: Rows) -> None:
    warnings.simplefilter("ignore")  # peers stop at loose tolerances on purpose
    path = Path(options.scout or options.timed or os.devnull)
    plans = json.loads(path.read_text() or "{}") if path.exists() else {}
    for name, X, y, C in data_sets(options.quick, options.only):
        for loss in LOSSES if options.loss is None else (options.loss,):
            if options.timed is None:
                plans[f"{name} {loss}"] = scout(name, X, y, loss, C, options.budget)
            if options.scout is None:
                clock(name, X, y, loss, C, options.repeats, plans[f"{name} {loss}"], rows)
            else:
                path.write_text(json.dumps(plans, indent=1))
