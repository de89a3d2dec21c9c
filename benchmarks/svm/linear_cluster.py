"""Linear SVMs on worker processes: exchanges, bytes and seconds of each method, and the error after each of them.

Rows lie on the workers before a fit begins, one block each. Every method runs on one and on two single-threaded worker
processes; a fit in this process, on one thread, stands beside them. Seconds are of whole fits: packing rows, meeting,
solving, the certificate. Each fit certifies itself; the error of a certificate is the primal objective over the
optimum, less one, and the optimum is the largest lower bound of all fits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from distributed import Client

from benchmarks.common.measuring import Options, Rows, in_turns, median_s, table, workers
from benchmarks.svm import linear_peers
from dsgd.svm import LinearSVC

PAGE = "linear-svm"
QUICK_S = 40
QUICK = "a tenth of the rows, one repeat"
REPEATS = (3, 1)
CASES = linear_peers.CASES
USUAL_CASES = ("webspam",)

METHODS = {"hinge": ("auto", "cocoa", "newton"), "squared_hinge": ("auto", "cocoa")}
TARGETS = (1e-2, 1e-3, 1e-4)


def place(client: Client, X: Any, y: Any) -> list[Any]:
    """Put one block of rows on each worker."""
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    n_rows, size = X.shape[0], len(workers)
    cuts = [n_rows * k // size for k in range(size + 1)]
    return [
        client.scatter([(X[cuts[k] : cuts[k + 1]], y[cuts[k] : cuts[k + 1]], None)], workers=[worker], hash=False)[0]
        for k, worker in enumerate(workers)
    ]


def measure(data: tuple[Any, ...], repeats: int, **options: Any) -> tuple[LinearSVC, float]:
    """Return the last of some fits, and the median of their seconds; one before them loads what a first fit loads."""
    found = in_turns({"fit": lambda: LinearSVC(random_state=0, **options).fit(*data)}, repeats, warm_up=1)["fit"]
    return found[-1].value, median_s(found)


def first_within(certificates: list[dict[str, Any]], optimum: float, target: float) -> dict[str, Any] | None:
    """Return the first certificate whose primal objective is within a share of the optimum."""
    return next((c for c in certificates if c["primal"] <= optimum * (1.0 + target)), None)


def show(line: Callable[..., None], name: str, model: LinearSVC, seconds: float, optimum: float) -> None:
    """Print seconds, exchanges and bytes of a fit, and those after which each error was reached."""
    error = float(model.primal_objective_[0]) / optimum - 1.0
    if not hasattr(model, "ledger_"):
        line(name, model.solver_[0], error, seconds, None, None)
        return
    totals, certificates = model.ledger_.totals(), model.fit_report_["certificates"]
    line(name, model.solver_[0], error, seconds, totals["rounds"], totals["bytes_sent"] / 1e6)
    for target in TARGETS:
        first = first_within(certificates, optimum, target)
        if first:
            line(f"  within {target:g}", "", None, first["seconds"], first["exchanges"], first["bytes_sent"] / 1e6)


def compare(
    name: str, X: Any, y: Any, loss: str, C: float, solvers: Sequence[str], repeats: int, max_rounds: int, rows: Rows
) -> None:
    """Measure all methods on one data set."""
    fits: list[tuple[str, int, LinearSVC, float]] = []
    model, seconds = measure((X, y), repeats, loss=loss, C=C)
    fits.append(("in process", 0, model, seconds))
    for size in (1, 2):
        with workers(size) as client:
            blocks = place(client, X, y)
            for solver in solvers:
                limit = max_rounds if solver == "cocoa" else 1000
                settings = {"loss": loss, "C": C, "solver": solver, "max_iter": limit, "client": client}
                model, seconds = measure((blocks,), repeats, **settings)
                fits.append((f"{solver}, {size} worker(s)", size, model, seconds))
    optimum = max(float(model.dual_objective_[0]) for _, _, model, _ in fits)
    heads = ("method", "solver", "error:.1e", "seconds:.2f", "exchanges:.0f", "MB:.2f")
    with table(f"{name}, {loss}, C={C:g}", *heads) as line:
        for method, size, model, seconds in fits:
            show(line, method, model, seconds, optimum)
            told = getattr(model, "fit_report_", {})
            errors = [
                {k: c[k] for k in ("stage", "exchanges", "bytes_sent", "seconds")}
                | {"error": c["primal"] / optimum - 1.0}
                for c in told.get("certificates", [])
            ]
            rows.add(
                data=name,
                loss=loss,
                C=C,
                method=method,
                workers=size,
                seconds=seconds,
                solver=model.solver_[0],
                gap=model.gap_,
                error=float(model.primal_objective_[0]) / optimum - 1.0,
                errors=errors,
                totals=model.ledger_.totals() if told else None,
            )


OPTIONS = {
    "--loss": {"choices": list(METHODS), "help": "one loss only"},
    "--solvers": {"nargs": "+", "help": "these alone"},
    "--rounds": {"type": int, "default": 100, "help": "most rounds of CoCoA+ alone"},
}


def run(options: Options, rows: Rows) -> None:
    warnings.simplefilter("ignore")  # CoCoA+ alone is stopped on purpose
    for name, X, y, C in linear_peers.data_sets(options.quick, options.only):
        for loss in METHODS if options.loss is None else (options.loss,):
            solvers = options.solvers or METHODS[loss]
            compare(name, X, y, loss, C, solvers, options.repeats, options.rounds, rows)
