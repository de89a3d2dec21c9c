"""The model of the kernel SVM's rounds against real ranks, and what it says of thousands of them.

Processes of one thread each train on generated sets with one, two and four ranks; four share the cores where there are
fewer. What work costs is fitted on some of the sets, and the time on the others is predicted, phase by phase, from the
amounts of work of their run on one rank and the measured cost of a message. Then the same model goes on to 4,096 ranks,
beside the published algorithm: pairs of variables, with the reductions and broadcasts of its authors' program. Last,
the same with blocks of other sizes.

    python -m benchmarks run svm/scale --out rows.jsonl
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any

from benchmarks.common.measuring import Options, Rows, table, workers
from dsgd.collectives.cost import Link
from dsgd.study import svm_rounds as model
from dsgd.study.svm_problems import PROBLEMS
from dsgd.svm.kernel_solver.elimination import PHASES

PAGE = "svm"
QUICK_S = 60
QUICK = "1500 and 3000 rows, one repeat, one and two ranks"
REPEATS = (2, 1)
CASES = ("check", "scale", "blocks")

#: Sets by name and rows, in thousands: costs are fitted on the first, the others are predicted.
FITTED = (("clean", 12), ("noisy", 8), ("noisy", 16), ("free-svs", 4), ("checkerboard", 16))
LEFT_OUT = (("clean", 20), ("noisy", 12), ("noisy", 20), ("free-svs", 6))
#: Networks: TCP at 10 Gbit/s, and a fabric of a supercomputer.
NETWORKS = {"10 Gbit/s": Link(latency_s=25e-6, byte_s=0.8e-9), "fabric": model.FABRIC}
RANKS = (1, 4, 16, 64, 256, 1024, 4096)
FULL_ROWS = 11_000_000
BLOCKS = (64, 128, 256, 512, 1024)
#: What is extrapolated: the set, and the rows of the runs by blocks and by pairs, in thousands.
GROWN, SIZE, PAIRWISE_SIZE = "noisy", 16, 8
_CACHE_MB = 400.0
_TURNS = 3


def measure(
    sets: Sequence[tuple[str, int]], ranks: Sequence[int], repeats: int, solver: str = "block"
) -> list[model.MeasuredRun]:
    """Run every set on every number of ranks, again and again some time apart, and take the fastest."""
    found = []
    for n_ranks in ranks:
        with workers(n_ranks) if n_ranks > 1 else nullcontext() as client:
            settings = [
                model.RunSettings(replace(PROBLEMS[name], rows=rows), "none", solver, _CACHE_MB, repeats=repeats)
                for name, rows in sets
            ]
            turns = [
                [model.observe(one, n_ranks, client) for one in settings] for _ in range(_TURNS if repeats > 1 else 1)
            ]
            found += [min(runs, key=lambda run: run.seconds) for runs in zip(*turns, strict=True)]
    return found


def name_of(run: model.MeasuredRun) -> str:
    return f"{run.settings.problem.name} {run.settings.problem.rows:,}"


def row_of(run: model.MeasuredRun, cores: int) -> dict[str, Any]:
    """Return what a run was, for a row."""
    return {
        "problem": run.settings.problem.name,
        "n": run.settings.problem.rows,
        "solver": run.settings.solver,
        "ranks": run.ranks,
        "cores": cores,
        "seconds": run.seconds,
        "phases": dict(run.phases),
        "link": asdict(run.link),
        "amounts": asdict(run.amounts),
        "objective": run.objective,
    }


def check(
    runs: Sequence[model.MeasuredRun], costs: model.Costs, fitted: Sequence[model.MeasuredRun], cores: int, rows: Rows
) -> None:
    """Compare predicted and measured seconds, in all and by phase.

    Amounts are those of the same set on one rank: of the runs on more only the cost of a message is used.
    """
    alone = {name_of(run): run.amounts for run in runs if run.ranks == 1}
    heads = ("set", "ranks:d", "costs", "measured s:.3f", "predicted s:.3f", "ratio:.2f", *(f"{p}:.2f" for p in PHASES))
    with table("predicted / measured, in all and by phase", *heads) as line:
        for run in sorted(runs, key=lambda run: (name_of(run), run.ranks)):
            found = model.predict_phases(alone[name_of(run)], costs, model.Place(run.ranks, run.link, cores))
            total = sum(phase.total_s for phase in found.values())
            ratios = [found[p].total_s / run.phases[p] if run.phases[p] > 0.02 * run.seconds else None for p in PHASES]
            used = "fitted" if any(run is one for one in fitted) else "predicted"
            line(name_of(run), run.ranks, used, run.seconds, total, total / run.seconds, *ratios)
            rows.add(
                case="check",
                **row_of(run, cores),
                used=used,
                predicted_s=total,
                predicted={p: asdict(seconds) for p, seconds in found.items()},
            )


def scale(
    ours: model.RoundAmounts,
    theirs: model.RoundAmounts,
    costs: model.Costs,
    pair: Sequence[float],
    title: str,
    rows: Rows,
) -> None:
    """Print and write predicted seconds to 4,096 ranks, each on a core of its own."""
    for network, link in NETWORKS.items():
        heads = ("tree s:.4g", "ring s:.4g", "published s:.4g", *(f"{p}:.0%" for p in PHASES))
        with table(f"{title}, {network}: predicted seconds, and shares of the first", "ranks:d", *heads) as line:
            for n_ranks in RANKS:
                tree = model.predict_phases(ours, costs, model.Place(n_ranks, link))
                ring = model.predict_phases(ours, costs, model.Place(n_ranks, link, talk="ring"))
                published = model.pairwise_seconds(
                    theirs.rounds, theirs.looked, theirs.features, pair, model.Place(n_ranks, link)
                )
                totals = [sum(phase.total_s for phase in found.values()) for found in (tree, ring)]
                line(n_ranks, *totals, published.total_s, *(tree[p].total_s / totals[0] for p in PHASES))
                rows.add(
                    case="scale",
                    n=ours.n,
                    network=network,
                    link=asdict(link),
                    ranks=n_ranks,
                    tree_s=totals[0],
                    ring_s=totals[1],
                    published_s=published.total_s,
                    published_wire_s=published.wire_s,
                    phases={p: asdict(seconds) for p, seconds in tree.items()},
                )


def blocks(n: int, costs: model.Costs, rows: Rows) -> None:
    """Print and write predicted seconds with blocks of other sizes."""
    found = {}
    for size in BLOCKS:
        settings = model.RunSettings(replace(PROBLEMS[GROWN], rows=n), cache_mb=_CACHE_MB, repeats=1, block_size=size)
        found[size] = model.observe(settings, 1).amounts
    for n_rows in (n, FULL_ROWS):
        for network, link in NETWORKS.items():
            title = f"{GROWN}, n = {n_rows:,}, {network}: predicted seconds by the variables of a block"
            with table(title, "ranks:d", *(f"{size}:.4g" for size in BLOCKS)) as line:
                for n_ranks in RANKS:
                    seconds = {}
                    for size, amounts in found.items():
                        grown = amounts if n_rows == n else model.extrapolate(amounts, n_rows)
                        phases = model.predict_phases(grown, costs, model.Place(n_ranks, link))
                        seconds[size] = sum(phase.total_s for phase in phases.values())
                    line(n_ranks, *seconds.values())
                    rows.add(case="blocks", n=n_rows, network=network, ranks=n_ranks, seconds=seconds)


OPTIONS = {
    "--ranks": {"type": int, "nargs": "+", "default": [1, 2, 4], "help": "ranks of the runs that are measured"},
}


def is_of(run: model.MeasuredRun, sets: Sequence[tuple[str, int]]) -> bool:
    return (run.settings.problem.name, run.settings.problem.rows) in sets


def run(options: Options, rows: Rows) -> None:
    cores, shrink = os.cpu_count() or 1, 1000
    if options.quick:
        options.ranks, shrink = [1, 2], 125
    fitted_sets, left_out = ([(name, shrink * n) for name, n in sets] for sets in (FITTED, LEFT_OUT))
    runs = measure([*fitted_sets, *left_out], options.ranks, options.repeats)
    fitted = [run for run in runs if is_of(run, fitted_sets)]
    costs = model.fit_costs([run.observation(cores) for run in fitted])
    rows.add(case="costs", costs={phase: list(numbers) for phase, numbers in costs.items()}, cores=cores)
    heads = ("phase", "c0:.3g", "c1:.3g", "c2:.3g", "c3:.3g", "c4:.3g", "c5:.3g")
    with table("what work costs, nanoseconds, in the order of the model", *heads) as line:
        for phase, numbers in costs.items():
            line(phase, *(1e9 * number for number in numbers), *[None] * (6 - len(numbers)))
    if "check" in options.only:
        check(runs, costs, fitted, cores, rows)
    n = shrink * SIZE
    if "scale" in options.only:
        ours = next(run.amounts for run in runs if run.ranks == 1 and is_of(run, [(GROWN, n)]))
        (pair,) = measure([(GROWN, shrink * PAIRWISE_SIZE)], [1], 1, "pairwise")
        rows.add(case="pairwise", **row_of(pair, cores))
        per_value = pair.seconds / (2.0 * pair.amounts.looked)
        for n_rows in (n, FULL_ROWS):
            theirs = model.extrapolate(pair.amounts, n_rows)
            grown = ours if n_rows == n else model.extrapolate(ours, n_rows)
            scale(grown, theirs, costs, (0.0, per_value), f"{GROWN}, n = {n_rows:,}", rows)
    if "blocks" in options.only:
        blocks(n, costs, rows)
