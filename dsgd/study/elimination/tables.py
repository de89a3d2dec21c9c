"""The tables of the study of elimination."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dsgd.report import Table
from dsgd.study.elimination.grid import REFERENCE, SOLVERS
from dsgd.study.elimination.measure import BLOCK
from dsgd.study.elimination.model import Counts, Network, SimulatedTime, simulate
from dsgd.study.elimination.summary import EliminationCell, EliminationSummary
from dsgd.study.frame.rows import Row

__all__ = ["counts_of", "elimination_data_table", "elimination_table", "overview_table", "ranks_table", "simulated"]


def elimination_data_table(summary: EliminationSummary) -> Table:
    """Return what the study trained on."""
    first: dict[str, Row] = {}
    for cell in summary.cells:
        if cell.method != REFERENCE:
            first.setdefault(cell.problem, cell.rows[0])
    columns: dict[str, Callable[[Row], str]] = {
        "problem": lambda row: row["problem"],
        "what": lambda row: row["text"],
        "rows": lambda row: f"{row['rows']:,}",
        "features": lambda row: f"{row['features']:,}",
        "non-zero": lambda row: f"{row['density']:.1%}",
        "classes": lambda row: f"{row['classes']}",
        "C": lambda row: f"{row['C']:g}",
        "gamma": lambda row: f"{row['gamma']}",
        "support vectors": lambda row: f"{row['n_support'] / row['rows']:.0%}",
        "of them free": lambda row: f"{row['n_free'] / max(1, row['n_support']):.0%}",
        "source": lambda row: row["source"],
        "checksum": lambda row: row.get("checksum", "-"),
    }
    note = "Support vectors as a share of the rows; free: below C."
    return Table.of("Problems", first.values(), columns, note, n_text=2)


def elimination_table(summary: EliminationSummary, problem: str, cache: str) -> Table:
    """Return one row per method on a problem with this cache."""
    base = summary.cell(problem, "none", cache)
    cells = summary.presets(problem, cache)
    reference = summary.cell(problem, REFERENCE, cache)
    rows = [_line(cell, base) for cell in cells]
    if reference is not None:
        blank = ["-"] * 8
        rows.append(
            (reference.method, _figure(reference.median("seconds")), _ratio(reference, base, "seconds"),
             f"{reference.median('n_iter'):,.0f}", *blank)
        )  # fmt: skip
    columns = (
        "elimination", "seconds", "x none", "steps", "1e6 kernel values", "x none", "from cache", "left out",
        "came back", "renewals", "gap", "objective",
    )  # fmt: skip
    size = f", {cells[0].rows[0]['cache_mb']:g} MB" if cells else ""
    note = (
        "Medians over the repetitions; x none: median of the ratios to the run without elimination. From cache: of the "
        "values that blocks used. Left out, came back: samples, each time counted; as many came back as were left out "
        "wrongly. Objective: distance of the dual objective from that without elimination, relative."
    )
    return Table(f"{problem}, {_CACHES[cache]}{size}", columns, rows, note)


def overview_table(summary: EliminationSummary, cache: str) -> Table:
    """Return one row per problem with this cache: the savings of elimination."""
    rows: list[tuple[str, ...]] = []
    for problem in summary.problems():
        base, cells = summary.cell(problem, "none", cache), summary.presets(problem, cache)
        if base is None:
            continue
        reference, auto = summary.cell(problem, REFERENCE, cache), summary.cell(problem, "auto", cache)
        fewest = min(cells, key=lambda cell: cell.median("kernel_evaluations"))
        fastest = min(cells, key=lambda cell: cell.median("seconds"))
        distances = [distance for cell in cells if (distance := cell.distance(base)) is not None]
        least = base.least_values()
        rows.append(
            (
                problem,
                _figure(reference.median("seconds")) if reference else "-",
                _figure(base.median("seconds")),
                _figure(auto.median("seconds")) if auto else "-",
                _ratio(auto, base, "kernel_evaluations") if auto else "-",
                "-" if least is None else f"{least / base.median('kernel_evaluations'):.2f}",
                _ratio(auto, base, "seconds") if auto else "-",
                f"{fewest.method} {_ratio(fewest, base, 'kernel_evaluations')}",
                f"{fastest.method} {_ratio(fastest, base, 'seconds')}",
                f"{sum(cell.median('n_returned') for cell in cells):,.0f}",
                f"{max(distances):.0e}",
            )
        )
    columns = (
        "problem", "scikit-learn s", "none s", "auto s", "auto: values x none", "least possible", "time x none",
        "fewest values", "fastest", "came back", "objective",
    )  # fmt: skip
    note = (
        "Medians. Least possible: the values between support vectors and samples, each once, which a gap over all "
        "samples needs whatever the solver does, x none. Came back: samples left out wrongly, over all presets. "
        "Objective: the largest relative distance of a preset's dual objective from that without elimination."
    )
    return Table(f"What elimination saves, {_CACHES[cache]}", columns, rows, note)


def ranks_table(summary: EliminationSummary, ranks: tuple[int, ...], network: Network) -> Table:
    """Return times by ranks: measured, and simulated on these numbers of ranks over a network."""
    rows: list[tuple[str, ...]] = []
    for problem in summary.problems():
        for solver in SOLVERS:
            methods = dict.fromkeys(
                cell.method
                for cell in summary.cells
                if cell.problem == problem and cell.solver == solver and cell.ranks is not None
            )
            for method in methods:
                cells = summary.distributed(problem, solver, method)
                base = cells[0].median("seconds")
                for cell in cells:
                    wire = cell.stat("communication_s")
                    wire_s = wire.median if wire else None
                    rows.append(_on_ranks(cell, cell.ranks, "measured", cell.median("seconds"), wire_s, base))
                for n in ranks if cells[0].ranks == 1 else ():
                    found = simulated(cells[0], n, network)
                    rows.append(_on_ranks(cells[0], n, "simulated", found.total_s, found.communication_s, base))
    columns = (
        "problem", "solver", "elimination", "ranks", "", "seconds", "communication", "x 1 rank", "kernel values"
    )  # fmt: skip
    note = (
        "Measured: worker processes of one thread each on this machine. Simulated: the kernel values and steps that "
        f"one rank counted, divided among the ranks, and messages by the cost model ({network.name}); see "
        "dsgd.study.elimination.model. Waiting for the slowest rank is not in it."
    )
    return Table("Ranks", columns, rows, note, n_text=3)


def _on_ranks(
    cell: EliminationCell, ranks: int | None, how: str, seconds: float, wire_s: float | None, base: float
) -> tuple[str, ...]:
    """Return a row of `ranks_table`: seconds of the ranks, those on the wire, and their ratio to `base` seconds."""
    share = "-" if wire_s is None else f"{wire_s / seconds:.0%}"
    what = (cell.problem, cell.solver, cell.method, str(ranks), how)
    return *what, _figure(seconds), share, f"{base / seconds:.2f}", _count(cell.median("kernel_evaluations"))


def counts_of(cell: EliminationCell) -> Counts:
    """Return the counts of the runs of a cell on one rank, medians over the repetitions."""
    # Every rank gets both rows of a pair; of a block, the rows of the variables that may move, at most all active ones.
    rounds = int(cell.median("rounds"))
    sent = 2 * rounds if cell.solver == "pairwise" else rounds * min(BLOCK // 2, int(cell.median("rows")))
    return Counts(
        cell.solver,
        int(cell.median("kernel_evaluations")),
        int(cell.median("n_iter")),
        rounds,
        sent,
        int(cell.median("n_reconstructions")),
        cell.median("row_bytes"),
        cell.median("parallel_s"),
        cell.median("serial_s"),
    )


def simulated(cell: EliminationCell, ranks: int, network: Network) -> SimulatedTime:
    """Return the predicted seconds on more ranks of the runs of a cell on one rank."""
    return simulate(counts_of(cell), ranks, network)


_CACHES: Final = {"small": "small cache", "fits": "cache that fits"}


def _line(cell: EliminationCell, base: EliminationCell | None) -> tuple[str, ...]:
    distance = cell.distance(base) if base else None
    return (
        cell.method,
        _figure(cell.median("seconds")),
        _ratio(cell, base, "seconds"),
        f"{cell.median('n_iter'):,.0f}",
        _figure(cell.median("kernel_evaluations") / 1e6),
        _ratio(cell, base, "kernel_evaluations"),
        f"{cell.median('cache_share'):.0%}",
        f"{cell.median('n_eliminated'):,.0f}",
        f"{cell.median('n_returned'):,.0f}",
        f"{cell.median('n_reconstructions'):,.0f}",
        f"{cell.median('gap'):.1e}",
        "-" if distance is None else f"{distance:.0e}",
    )


def _ratio(cell: EliminationCell, base: EliminationCell | None, name: str) -> str:
    stat = cell.ratio(base, name) if base else None
    return f"{stat.median:.2f}" if stat else "-"


def _figure(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _count(value: float) -> str:
    return f"{value / 1e6:,.3g}e6"
