"""Linear SVMs on worker processes: exchanges, bytes and seconds of each method, and the error after each of them.

Rows lie on the workers before a fit begins, one block each. Every method runs on one and on two single-threaded worker
processes; a fit in this process, on one thread, stands beside them. Seconds are of whole fits: packing rows, meeting,
solving, the certificate. Each fit certifies itself; the error of a certificate is the primal objective over the
optimum, less one, and the optimum is the largest lower bound of all fits.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
import warnings
from collections.abc import Sequence
from typing import Any

from common import Rows, machine
from distributed import Client, LocalCluster
from linear_svm_peers import data_sets

from dsgd.svm import LinearSVC

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
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        model = LinearSVC(random_state=0, **options).fit(*data)
        times.append(time.perf_counter() - begin)
    return model, statistics.median(times[1:])


def first_within(certificates: list[dict[str, Any]], optimum: float, target: float) -> dict[str, Any] | None:
    """Return the first certificate whose primal objective is within a share of the optimum."""
    return next((c for c in certificates if c["primal"] <= optimum * (1.0 + target)), None)


def show(name: str, model: LinearSVC, seconds: float, optimum: float) -> None:
    """Print one line: seconds, exchanges, bytes, and after how many exchanges each error was reached."""
    error = float(model.primal_objective_[0]) / optimum - 1.0
    line = f"  {name:28s} {seconds:7.2f} s  error {error:.1e}  {model.solver_[0]}"
    if hasattr(model, "ledger_"):
        totals = model.ledger_.totals()
        certificates = model.fit_report_["certificates"]
        found = [first_within(certificates, optimum, target) for target in TARGETS]
        steps = ", ".join(
            f"{target:g} after {c['exchanges']} exchanges, {c['bytes_sent'] / 1e6:.2f} MB, {c['seconds']:.2f} s"
            for target, c in zip(TARGETS, found, strict=True)
            if c
        )
        line += f"\n{'':31s}{totals['rounds']} exchanges, {totals['bytes_sent'] / 1e6:.2f} MB in all; {steps}"
    print(line, flush=True)


def compare(
    name: str, X: Any, y: Any, loss: str, C: float, solvers: Sequence[str], repeats: int, max_rounds: int, rows: Rows
) -> None:
    """Measure all methods on one data set."""
    print(f"\n{name}, {loss}, C={C:g}", flush=True)
    fits: list[tuple[str, int, LinearSVC, float]] = []
    model, seconds = measure((X, y), repeats, loss=loss, C=C)
    fits.append(("in process", 0, model, seconds))
    for size in (1, 2):
        options: dict[str, Any] = {"dashboard_address": "127.0.0.1:0", "silence_logs": logging.ERROR}
        with LocalCluster(n_workers=size, threads_per_worker=1, **options) as cluster, Client(cluster) as client:
            blocks = place(client, X, y)
            for solver in solvers:
                limit = max_rounds if solver == "cocoa" else 1000
                settings = {"loss": loss, "C": C, "solver": solver, "max_iter": limit, "client": client}
                model, seconds = measure((blocks,), repeats, **settings)
                fits.append((f"{solver}, {size} worker(s)", size, model, seconds))
    optimum = max(float(model.dual_objective_[0]) for _, _, model, _ in fits)
    for method, size, model, seconds in fits:
        show(method, model, seconds, optimum)
        report = getattr(model, "fit_report_", {})
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
            totals=model.ledger_.totals() if report else None,
            errors=[
                {k: c[k] for k in ("stage", "exchanges", "bytes_sent", "seconds")}
                | {"error": c["primal"] / optimum - 1.0}
                for c in report.get("certificates", [])
            ],
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one repeat")
    parser.add_argument("--out", help="file of JSON lines to append to")
    parser.add_argument("--only", default="webspam", help="data sets whose name begins with this")
    parser.add_argument("--loss", help="one loss only")
    parser.add_argument("--solvers", nargs="+", help="these alone")
    parser.add_argument("--repeats", type=int, help="fits per method")
    parser.add_argument("--rounds", type=int, default=100, help="most rounds of CoCoA+ alone")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # CoCoA+ alone is stopped on purpose
    repeats = arguments.repeats or (1 if arguments.quick else 3)
    rows = Rows("linear_svm_cluster", arguments.out)
    print(machine())
    for name, X, y, C in data_sets(arguments.quick, arguments.only):
        for loss in METHODS:
            if arguments.loss in (None, loss):
                solvers = arguments.solvers or METHODS[loss]
                compare(name, X, y, loss, C, solvers, repeats, arguments.rounds, rows)


if __name__ == "__main__":
    main()
