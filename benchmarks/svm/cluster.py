"""Kernel SVMs on worker processes: one and two ranks side by side, and what each way of solving says on the wire.

Worker processes of a LocalCluster, one thread each, train `dsgd.svm.SVC` on a generated set, by blocks; one and two
ranks take turns, and medians are compared. What two processes gain that never speak is measured beside it, as cores
that are shared with other machines may be worth less than two. Then the published pairwise algorithm and the block
solver train on a smaller set of the same kind, with two ranks, and their ledgers are compared: seconds that ranks
compute, move bytes and wait; bytes, messages and rounds. Last, a set of many classes: one rank, two ranks that pairs of
classes are dealt out to, and two that solve one pair after the other together, as fits do that keep their variables.
And where the time of rank 0 goes by the phases of a round, on one rank and on two: the steps within blocks are not
divided.

    python -m benchmarks run svm/cluster --out rows.jsonl
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from distributed import Client

from benchmarks.common.measuring import Options, Rows, report, table, timed, waiting_share, workers
from benchmarks.svm.peers import generated
from dsgd import Gang
from dsgd.study.svm_problems import PROBLEMS, Problem
from dsgd.study.svm_rounds import RunSettings, observe
from dsgd.svm import SVC
from dsgd.svm.kernel_solver.elimination import PHASES
from dsgd.svm.kernels.functions import Kernel, prepare
from dsgd.svm.kernels.products import Sums
from dsgd.svm.kernels.rows import span
from dsgd.svm.kernels.threads import open_pool

PAGE = "svm"
QUICK_S = 40
QUICK = "3000 and 600 rows, one repeat"
REPEATS = (3, 1)
CASES = ("ranks", "solvers", "pairs", "blocks")

CACHE_MB = 400
BURST_S = 0.4


@contextlib.contextmanager
def cluster(n_workers: int) -> Iterator[Client]:
    """Give worker processes of one thread each, with everything compiled and loaded."""
    with workers(n_workers) as client:
        X, y = generated(400)
        SVC(cache_size=0.1, elimination="aggressive", n_jobs=1, client=client).fit(X, y)
        SVC(max_iter=20, tol=100.0, solver="pairwise", n_jobs=1, client=client).fit(X, y)
        yield client


def processor_seconds() -> float:
    """Return the processor time that this process has used."""
    return time.process_time()


def values_per_second() -> float:
    """Return how many kernel values this process computes and sums per second, as the solver does."""
    kernel, X = Kernel("rbf", gamma=0.05), np.random.default_rng(0).normal(size=(4096, 20))
    rows, coefs, sums, count = prepare(kernel, X, np.float64, sparse=False), np.ones((256, 1)), np.zeros((4096, 1)), 0
    with open_pool(1) as pool:
        begin = time.perf_counter()
        while time.perf_counter() < begin + BURST_S:
            Sums(kernel, np.float64, pool).add_weighted(partial(span, rows), coefs, partial(span, rows), sums)
            count += len(coefs) * len(sums)
        return count / (time.perf_counter() - begin)


def independent_speedup(client: Client) -> float:
    """Return how much more all worker processes compute at once than one alone, without a word between them."""
    together = client.run(values_per_second)
    alone = [client.run(values_per_second, workers=[worker])[worker] for worker in together]
    return float(sum(together.values()) / statistics.mean(alone))


@dataclass(frozen=True)
class Fit:
    """A fit: its seconds, the processor time of the busiest worker process, and the model."""

    seconds: float
    busiest_s: float
    model: SVC

    @property
    def solver_s(self) -> float:
        """Seconds of the solver alone, without placing the rows."""
        return float(self.model.elimination_history_[0][-1].seconds)


def fit(client: Client, X: Any, y: Any, policy: str = "raise", **options: Any) -> Fit:
    """Fit once."""
    model, before = SVC(n_jobs=1, client=Gang(client, on_failure=policy), **options), client.run(processor_seconds)
    seconds, after = timed(model.fit, X, y).seconds, client.run(processor_seconds)
    return Fit(seconds, max(after[worker] - before[worker] for worker in after), model)


def add(rows: Rows, case: str, fits: Sequence[Fit], n: int, **more: Any) -> dict[str, float]:
    """Write one row; return the median seconds of a fit, of its solver and of the busiest processor."""
    model = fits[-1].model
    medians = {
        "seconds": statistics.median(each.seconds for each in fits),
        "solver_seconds": statistics.median(each.solver_s for each in fits),
        "busiest_processor_seconds": statistics.median(each.busiest_s for each in fits),
    }
    rows.add(
        case=case,
        ranks=model.fit_report_["ranks"],
        n=n,
        d=model.n_features_in_,
        solver=model.solver,
        **medians,
        all_seconds=[each.seconds for each in fits],
        objective=model.dual_objective_,
        gap=model.gap_,
        n_iter=int(np.sum(model.n_iter_)),
        kernel_evaluations=model.n_kernel_evaluations_,
        **model.ledger_.totals(),
        **more,
    )
    return medians


def compare_ranks(n: int, repeats: int, cache_mb: float, rows: Rows) -> None:
    """Train by blocks on one and on two ranks, interleaved."""
    X, y = generated(n)
    fits: dict[int, list[Fit]] = {1: [], 2: []}
    most: list[float] = []
    # One cluster at a time: an idle worker takes some hundredths of a core, which two ranks on two cores do not have.
    for _ in range(repeats):
        for n_ranks, found in fits.items():
            with cluster(n_ranks) as client:
                found.append(fit(client, X, y, cache_size=cache_mb / n_ranks))
                if n_ranks == 2:
                    most.append(independent_speedup(client))
    one, two = (add(rows, "ranks", found, n, independent_speedup=most) for found in fits.values())
    models = {n_ranks: found[-1].model for n_ranks, found in fits.items()}
    apart = abs(models[1].dual_objective_ / models[2].dual_objective_ - 1)
    totals = models[2].ledger_.totals()
    title = (
        f"block, n={n}: {totals['rounds']:.0f} rounds, {totals['bytes_sent'] / 1e6:.1f} MB in "
        f"{totals['messages']:.0f} messages; objectives {apart:.0e} apart"
    )
    with table(title, "median seconds of", "1 rank:.2f", "2 ranks:.2f", "times faster:.2f") as line:
        for what, name in zip(("a fit", "the solver alone", "the busiest processor"), one, strict=True):
            line(what, one[name], two[name], one[name] / two[name])
        line("two processes that never speak", None, None, statistics.median(most))


def compare_solvers(n: int, rows: Rows) -> None:
    """Train by blocks and by pairs on two ranks, and print where the time went."""
    X, y = generated(n)
    kept = ("rounds:.0f", "messages:.0f", "MB:.2f", "1e6 kernel values:.0f", "objective:.6f")
    heads = ("solver", "elimination", "seconds:.2f", "communication:.0%", "wire s:.2f", "wait s:.2f", "compute s:.2f")
    with cluster(2) as client, table(f"two ranks, n={n}", *heads, *kept) as line:
        for name, elimination in (("block", "auto"), ("pairwise", "none"), ("pairwise", "average")):
            taken = fit(client, X, y, solver=name, elimination=elimination, cache_size=CACHE_MB / 2)
            add(rows, f"{name} {elimination}", [taken], n)
            model, totals = taken.model, taken.model.ledger_.totals()
            busy = totals["compute_s"] + totals["encode_s"]
            times = taken.seconds, waiting_share(totals), totals["wire_s"], totals["wait_s"], busy
            counts = totals["rounds"], totals["messages"], totals["bytes_sent"] / 1e6
            line(name, elimination, *times, *counts, model.n_kernel_evaluations_ / 1e6, model.dual_objective_)


def many_classes(n: int, n_classes: int) -> tuple[Any, Any]:
    """Return n rows of 16 features, three clouds a class, that overlap about as much as those of letter."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, n_classes, n)
    centres = rng.normal(size=(n_classes, 3, 16))
    return centres[y, rng.integers(0, 3, n)] + 0.5 * rng.normal(size=(n, 16)), y


def compare_pairs(n: int, n_classes: int, repeats: int, rows: Rows) -> None:
    """Train many classes on one rank and on two, which are dealt pairs of classes or solve each of them together."""
    X, y = many_classes(n, n_classes)
    ways = {"1 rank": (1, "raise"), "2 ranks, dealt": (2, "raise"), "2 ranks, together": (2, "restart")}
    fits: dict[str, list[Fit]] = {way: [] for way in ways}
    for _ in range(repeats):
        for n_ranks in (1, 2):
            with cluster(n_ranks) as client:
                for way, (size, policy) in ways.items():
                    if size == n_ranks:
                        fit(client, *many_classes(200, 3), policy=policy)
                        fits[way].append(fit(client, X, y, C=10.0, policy=policy))
    title = f"{n_classes} classes, n={n}"
    times = "seconds:.2f", "times faster:.2f", "busiest processor s:.2f", "times less:.2f"
    with table(title, "ranks", *times, "wait s:.2f", "MB:.2f", "messages:.0f", "objective:.4f") as line:
        first: dict[str, float] = {}
        for way, found in fits.items():
            model, totals = found[-1].model, found[-1].model.ledger_.totals()
            medians = add(rows, f"pairs, {way}", found, n, n_classes=n_classes)
            first = first or medians
            names = ("seconds", "busiest_processor_seconds")
            shown = [number for name in names for number in (medians[name], first[name] / medians[name])]
            line(way, *shown, totals["wait_s"], totals["bytes_sent"] / 1e6, totals["messages"], model.dual_objective_)


def share_phases(problem: Problem, repeats: int, rows: Rows) -> None:
    """Print which share of the time of rank 0 each phase takes on one rank and on two."""
    settings = RunSettings(problem, "auto", cache_mb=CACHE_MB, repeats=repeats)
    columns = " | ".join(["ranks:d", "seconds:.2f", *(f"{phase} = {phase}_share:.1%" for phase in PHASES)])
    facts = {"case": "blocks", "problem": problem.name, "n": problem.rows}
    with workers(2) as client, report(rows, f"{problem.name}, {problem.rows} rows", columns, **facts) as add_row:
        for n_ranks in (1, 2):
            run = observe(settings, n_ranks, client)
            shares = {f"{phase}_share": run.phases[phase] / run.seconds for phase in PHASES}
            add_row(ranks=n_ranks, seconds=run.seconds, phases=dict(run.phases), **shares)


OPTIONS = {
    "--rows": {"type": int, "default": 60_000, "help": "rows of the comparison of ranks"},
    "--pairwise-rows": {"type": int, "default": 4_000, "help": "rows of the comparison of solvers"},
    "--class-rows": {"type": int, "default": 15_000, "help": "rows of the set of many classes"},
    "--problem": {"choices": PROBLEMS, "default": "a9a", "help": "set of the shares of phases"},
    "--classes": {"type": int, "default": 26, "help": "its classes"},
}


def run(options: Options, rows: Rows) -> None:
    if (os.cpu_count() or 1) < 2:
        print("one core only: two ranks cannot be faster here")
    if options.quick:
        options.rows, options.pairwise_rows, options.class_rows, options.classes = 3000, 600, 600, 5
    if "ranks" in options.only:
        compare_ranks(options.rows, options.repeats, CACHE_MB, rows)
    if "solvers" in options.only:
        compare_solvers(options.pairwise_rows, rows)
    if "pairs" in options.only:
        compare_pairs(options.class_rows, options.classes, options.repeats, rows)
    if "blocks" in options.only:
        problem = replace(PROBLEMS["noisy"], rows=1500) if options.quick else PROBLEMS[options.problem]
        share_phases(problem, options.repeats, rows)
