"""The report of the study of elimination: its tables, its figures and its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dsgd.report import Axis, Band, Claim, Figure, Level, Line, Mark, Panel, Table, period_axis, span_of
from dsgd.report.figures import Dash
from dsgd.report.theme import BLUE, GREEN, GREY, MUTED, ORANGE, PURPLE, SKY, TEXT, VERMILION, Colour
from dsgd.study.elimination_cells import PRESETS, REFERENCE, SOLVERS, EliminationCell, EliminationSummary
from dsgd.study.frame.report import tally
from dsgd.study.frame.rows import Cell, Stat, cells_of
from dsgd.study.published import STATEMENTS

_CACHES: Final = {"small": "small cache", "fits": "cache that fits"}

# -- tables --------------------------------------------------------------------------------------------------------


def problems_table(summary: EliminationSummary) -> Table:
    """Return what the study trained on."""
    cells = cells_of((row for cell in summary.cells if cell.method != REFERENCE for row in cell.rows), "problem")
    columns: dict[str, Callable[[Cell], str]] = {
        "problem": lambda cell: cell.problem,
        "what": lambda cell: cell.text,
        "rows": lambda cell: f"{cell.rows[0]['rows']:,}",
        "features": lambda cell: f"{cell.features:,}",
        "non-zero": lambda cell: f"{cell.density:.1%}",
        "classes": lambda cell: f"{cell.classes}",
        "C": lambda cell: f"{cell.C:g}",
        "gamma": lambda cell: f"{cell.gamma}",
        "support vectors": lambda cell: f"{cell.n_support / cell.rows[0]['rows']:.0%}",
        "of them free": lambda cell: f"{cell.n_free / max(1, cell.n_support):.0%}",
        "source": lambda cell: cell.source,
        "checksum": lambda cell: getattr(cell, "checksum", "-"),
    }
    return Table.of("Problems", cells, columns, "Support vectors as a share of the rows; free: below C.", n_text=2)


def elimination_table(summary: EliminationSummary, problem: str, cache: str) -> Table:
    """Return one row per method on a problem with this cache."""
    base, cells = summary.cell(problem, "none", cache), summary.presets(problem, cache)
    reference = summary.cell(problem, REFERENCE, cache)
    columns: dict[str, Callable[[EliminationCell], str]] = {
        "elimination": lambda cell: cell.method,
        "seconds": lambda cell: _figure(cell.median("seconds")),
        "x none": lambda cell: _ratio(cell, base, "seconds"),
        "steps": lambda cell: f"{cell.median('n_iter'):,.0f}",
        "1e6 kernel values": lambda cell: _figure(cell.median("kernel_evaluations") / 1e6),
        "x none ": lambda cell: _ratio(cell, base, "kernel_evaluations"),
        "from cache": lambda cell: f"{cell.median('cache_share'):.0%}",
        "left out": lambda cell: f"{cell.median('n_eliminated'):,.0f}",
        "came back": lambda cell: f"{cell.median('n_returned'):,.0f}",
        "renewals": lambda cell: f"{cell.median('n_reconstructions'):,.0f}",
        "gap": lambda cell: f"{cell.median('gap'):.1e}",
        "objective": lambda cell: "-" if (far := cell.distance(base)) is None else f"{far:.0e}",
    }
    rows = [[say(cell) for say in columns.values()] for cell in cells]
    if reference is not None:  # it counts steps alone
        rows.append([say(reference) for say in [*columns.values()][:4]] + ["-"] * 8)
    size = f", {cells[0].cache_mb:g} MB" if cells else ""
    note = (
        "Medians over the repetitions; x none: median of the ratios to the run without elimination. From cache: of the "
        "values that blocks used. Left out, came back: samples, each time counted; as many came back as were left out "
        "wrongly. Objective: distance of the dual objective from that without elimination, relative."
    )
    return Table(f"{problem}, {_CACHES[cache]}{size}", [name.rstrip() for name in columns], rows, note)


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
                *("-" if cell is None else _figure(cell.median("seconds")) for cell in (reference, base, auto)),
                _ratio(auto, base, "kernel_evaluations"),
                "-" if least is None else f"{least / base.median('kernel_evaluations'):.2f}",
                _ratio(auto, base, "seconds"),
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


def ranks_table(summary: EliminationSummary, ranks: Sequence[int]) -> Table:
    """Return times by ranks: measured, and simulated on these numbers of ranks."""
    rows: list[tuple[str, ...]] = []
    for cells in _on_ranks(summary):
        first = cells[0]
        times = [
            (cell, cell.ranks, "measured", cell.median("seconds"), cell.medians("communication_s")["communication_s"])
            for cell in cells
        ]
        for n in ranks if first.ranks == 1 else ():
            found = first.simulated(n)
            times.append((first, n, "simulated", found.total_s, found.communication_s))
        for cell, n, how, seconds, wire_s in times:
            share = "-" if wire_s is None else f"{wire_s / seconds:.0%}"
            gain, values = first.median("seconds") / seconds, cell.median("kernel_evaluations") / 1e6
            what = (cell.problem, cell.solver, cell.method, str(n), how)
            rows.append((*what, _figure(seconds), share, f"{gain:.2f}", f"{values:,.3g}e6"))
    columns = (
        "problem", "solver", "elimination", "ranks", "", "seconds", "communication", "x 1 rank", "kernel values"
    )  # fmt: skip
    note = (
        "Measured: worker processes of one thread each on this machine. Simulated: the kernel values and steps that "
        "one rank counted, divided among the ranks, and messages by the cost model (25 us, 10 Gbit/s). "
        "Waiting for the slowest rank is not in it."
    )
    return Table("Ranks", columns, rows, note, n_text=3)


def _on_ranks(summary: EliminationSummary) -> Iterator[list[EliminationCell]]:
    """Yield the distributed cells of each problem, solver and method, by rising ranks."""
    for problem in summary.problems():
        for solver in SOLVERS:
            for method in PRESETS:
                if cells := summary.distributed(problem, solver, method):
                    yield cells


def _ratio(cell: EliminationCell | None, base: EliminationCell | None, name: str) -> str:
    stat = cell.ratio(base, name) if cell else None
    return f"{stat.median:.2f}" if stat else "-"


def _figure(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


# -- figures -------------------------------------------------------------------------------------------------------

_LOOKS: Final[dict[str, tuple[Colour, str, Dash]]] = {
    "none": (GREY, "plus", "dashed"),
    "single": (PURPLE, "inverted_triangle", "dotdash"),
    "multi": (BLUE, "circle", "solid"),
    "libsvm": (ORANGE, "square", "dotdash"),
    "aggressive": (VERMILION, "x", "dotted"),
    "average": (GREEN, "triangle", "dashed"),
    "conservative": (SKY, "hex", "dashed"),
    "auto": (TEXT, "diamond", "solid"),
    REFERENCE: (MUTED, "star", "dotted"),
}
_SHOWN_GAPS: Final = {"none", "multi", "libsvm", "aggressive", "auto"}
_ALL_RANKS: Final = (1, 2, 4, 8)
_SOLVERS: Final[dict[str, tuple[str, Dash]]] = {"block": ("circle", "solid"), "pairwise": ("square", "dashed")}
_HEIGHT: Final = 270


def elimination_figures(summary: EliminationSummary) -> list[Figure]:
    """Return the figures for which the study has runs."""
    made = [_active(summary), _gap(summary), *_sideways(summary), _ranks(summary)]
    return [figure for figure in made if figure.panels]


def _problems(summary: EliminationSummary) -> list[tuple[str, list[EliminationCell]]]:
    """Return the cells of the presets of each problem at the smallest cache, with a title."""
    found = []
    for name in summary.problems():
        if cells := summary.presets(name, summary.tight()):
            row = cells[0].rows[0]
            found.append((f"{name}: {row['rows']:,} rows, {row['n_support'] / row['rows']:.0%} SVs", cells))
    return found


def _curve(cell: EliminationCell, points: Sequence[tuple[float, float]]) -> Line:
    colour, _, dash = _LOOKS[cell.method]
    x, y = [at for at, _ in points], [value for _, value in points]
    return Line(cell.method, x, y, colour, dash=dash, width=2.4 if cell.method == "auto" else 1.5)


def _active(summary: EliminationSummary) -> Figure:
    panels = []
    for title, cells in _problems(summary):
        marks: list[Mark] = []
        for cell in cells:
            points = cell.rows[0]["curve"]
            everyone = points["n_active"][0]
            steps = zip(points["n_iter"], points["n_active"], strict=True)
            marks.append(_curve(cell, [(n / 1000, active / everyone) for n, active in steps]))
        x = Axis("steps on two variables, thousands", low=0.0)
        panels.append(Panel(title, x, Axis("samples still active", unit="%", low=0.0, high=1.04), marks))
    caption = (
        "Share of the samples that are still active, against the steps of the solver, with the small cache. A line "
        "that falls early saves most; one that rises again had left samples out wrongly and took them back. A line "
        "ends with the run, when all samples are checked in float64."
    )
    return Figure("active", "Who stays active", caption, panels, height=_HEIGHT)


def _gap(summary: EliminationSummary) -> Figure:
    panels = []
    for title, cells in _problems(summary):
        marks: list[Mark] = []
        for cell in [cell for cell in cells if cell.method in _SHOWN_GAPS] or cells:
            points = cell.rows[0]["curve"]
            known = [(s, gap) for s, gap in zip(points["seconds"], points["gap"], strict=True) if gap and s]
            if known:
                marks.append(_curve(cell, known))
        marks.append(Level(cells[0].tol, "tol", MUTED, "solid"))
        gap = Axis("gap among active samples", "log")
        panels.append(Panel(title, Axis("time", unit="s", low=0.0), gap, marks))
    caption = (
        "Largest violation of optimality among the active samples against seconds, with the small cache; a run ends "
        "only when it is below tol over all samples."
    )
    return Figure("gap", "How the gap closes", caption, panels, height=_HEIGHT)


def _sideways(summary: EliminationSummary) -> list[Figure]:
    """Return the figures with a line for each problem, and a panel for each cache."""
    height = 90 + 46 * len(summary.problems())
    saved, sequential = STATEMENTS["shrinking/saved"].margin, STATEMENTS["shrinking/sequential"].margin.least
    none = Level(1.0, "none", TEXT, "solid", "x")
    published = Band(1 - saved.published, 1 - saved.least, "published: 30 to 60 % less", along="x")

    def to_none(name: str) -> Callable[[EliminationCell], Stat | None]:
        return lambda cell: (
            None if cell.method == "none" else cell.ratio(summary.cell(cell.problem, "none", cell.cache), name)
        )

    def over_reference(cell: EliminationCell) -> Stat | None:
        base = summary.cell(cell.problem, REFERENCE, cell.cache)
        return base.ratio(cell, "seconds") if base else None

    kinds: Sequence[tuple[str, str, str, Axis, Callable[[EliminationCell], Stat | None], Sequence[Mark]]] = (
        (
            "work",
            "Kernel values computed",
            "As a multiple of what the run without elimination computes. Left of the line elimination saves work.",
            Axis("kernel values, as a multiple of none", "log", "x"),
            to_none("kernel_evaluations"),
            [none],
        ),
        (
            "time",
            "Time",
            "As a multiple of the run without elimination, bars from the fastest to the slowest repetition. Grey: the "
            "published 30 to 60 % less.",
            Axis("time, as a multiple of none", "log", "x"),
            to_none("seconds"),
            [published, none],
        ),
        (
            "cache",
            "What the cache gives",
            "Of the kernel values that blocks used, the share that was found in the cache. Fewer active samples make "
            "shorter rows, of which more fit, so with a small cache the share rises. With one that fits it falls: what "
            "is left out would have been read from the cache.",
            Axis("share of the used kernel values that were cached", unit="%", low=-0.02, high=1.02),
            lambda cell: cell.stat("cache_share"),
            [],
        ),
        (
            "sequential",
            "Against the sequential baseline",
            "Speed-up over scikit-learn's SVC, which is LIBSVM on one thread with its own shrinking, at the same "
            "tolerance and cache.",
            Axis("speed-up over scikit-learn's SVC", "log", "x"),
            over_reference,
            [
                Level(1.0, "as fast", TEXT, "solid", "x"),
                Level(sequential, f"published: {sequential:.0f}x", VERMILION, along="x"),
            ],
        ),
    )
    return [
        Figure(name, title, caption, _dots(summary, axis, pick, behind), 2, height, "xy")
        for name, title, caption, axis, pick, behind in kinds
    ]


def _dots(
    summary: EliminationSummary, axis: Axis, pick: Callable[[EliminationCell], Stat | None], behind: Sequence[Mark]
) -> list[Panel]:
    """Return a panel per cache, a band per problem, and in it a dot per preset with its range over repetitions."""
    problems = summary.problems()
    found = [
        (cell, stat)
        for problem in problems
        for cache in summary.caches()
        for cell in summary.presets(problem, cache)
        if (stat := pick(cell)) is not None
    ]
    methods = [method for method in PRESETS if any(cell.method == method for cell, _ in found)]
    side = Axis(
        ticks={float(n): name for n, name in enumerate(problems)}, low=-0.5, high=len(problems) - 0.5, grid=False,
        reverse=True,
    )  # fmt: skip
    panels = []
    for cache in summary.caches() if found else ():
        marks: list[Mark] = [*(Band(n - 0.5, n + 0.5) for n in range(0, len(problems), 2)), *behind]
        for number, method in enumerate(methods):
            chosen = [(cell, stat) for cell, stat in found if (cell.cache, cell.method) == (cache, method)]
            offset = 0.72 * ((number + 0.5) / len(methods) - 0.5)
            colour, marker, _ = _LOOKS[method]
            if chosen:
                x, y = [stat.median for _, stat in chosen], [problems.index(c.problem) + offset for c, _ in chosen]
                ranges, names = [(s.low, s.high) for _, s in chosen], [f"{method} on {c.problem}" for c, _ in chosen]
                style: dict[str, Any] = {"width": 0.0, "size": 8.0, "ranges_along": "x"}
                marks.append(Line(method, x, y, colour, marker, ranges=ranges, names=names, **style))
        panels.append(Panel(summary.cache_text(cache), axis, side, marks))
    return panels


def _ranks(summary: EliminationSummary) -> Figure:
    """Draw a panel per problem: seconds against ranks, full dots measured, rings simulated."""
    panels: dict[str, list[Mark]] = {}
    for cells in _on_ranks(summary):
        first = cells[0]
        (marker, dash), colour = _SOLVERS[first.solver], _LOOKS[first.method][0]
        marks, label = panels.setdefault(first.problem, []), f"{first.solver}, {first.method}"
        if first.ranks == 1:
            seconds = [first.simulated(ranks).total_s for ranks in _ALL_RANKS]
            marks.append(Line(f"{label}, simulated", _ALL_RANKS, seconds, colour, marker, "dotted", 1.4, hollow=True))
        ranks = [cell.ranks for cell in cells]
        marks.append(Line(label, ranks, [cell.median("seconds") for cell in cells], colour, marker, dash))
    caption = (
        "Seconds against ranks. Full: measured, one thread per rank. Rings: simulated from what one rank counted, "
        "kernel values divided among the ranks and messages by the cost model; waiting is not in it."
    )
    x, y = period_axis("ranks", _ALL_RANKS), Axis("time", "log", "s")
    drawn = [Panel(problem, x, y, marks) for problem, marks in panels.items()]
    return Figure("ranks", "More ranks", caption, drawn, height=_HEIGHT)


# -- the answer ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gains:
    """The savings of auto with a small cache, a figure per problem, and how many samples had to come back."""

    values: Sequence[float]
    seconds: Sequence[float]
    single: Sequence[float]
    wrong: float
    out: float

    @classmethod
    def of(cls, summary: EliminationSummary) -> Gains:
        """Return those of a study."""
        values, seconds, single, wrong, out = [], [], [], 0.0, 0.0
        for problem in summary.problems():
            base, auto, reference = (summary.cell(problem, name, "small") for name in ("none", "auto", REFERENCE))
            if base is None or auto is None:
                continue
            less, faster = auto.ratio(base, "kernel_evaluations"), auto.ratio(base, "seconds")
            if less is not None and faster is not None:
                values.append(less.median)
                seconds.append(faster.median)
            if reference is not None and (times := reference.ratio(auto, "seconds")) is not None:
                single.append(times.median)
            cells = summary.presets(problem, "small")
            wrong += sum(cell.median("n_returned") for cell in cells)
            out += sum(cell.median("n_eliminated") for cell in cells)
        return cls(values, seconds, single, wrong, out)

    def highlights(self) -> list[tuple[str, str]]:
        """Return ranges over the problems."""
        return [
            (f"{span_of(numbers, form)}x", text)
            for numbers, form, text in (
                (self.values, "{:.2f}", "the kernel values of a run without elimination"),
                (self.seconds, "{:.2f}", "the time of a run without elimination"),
                (self.single, "{:.1f}", "as fast as scikit-learn's SVC"),
            )
            if numbers
        ]

    def answer(self, claims: Sequence[Claim]) -> str:
        """Return the answer of the study in a sentence or two."""
        count = f"{tally(claims)} claims hold here."
        if not self.values:
            return f"This study did not run both none and auto with a small cache. {count}"
        same = [claim.holds for claim in claims if claim.holds is not None and claim.name.startswith("Every preset")]
        text = (
            f"With the small cache, elimination (auto) computed {span_of(self.values, '{:.2f}')} times the kernel "
            f"values of a run without it, in {span_of(self.seconds, '{:.2f}')} times the time. "
            f"{'Every' if same and all(same) else 'Not every'} preset ended at the same optimum; {self.wrong:,.0f} of "
            f"{self.out:,.0f} samples left out, over all presets, had to come back. "
        )
        if self.single:
            text += f"Against scikit-learn's single thread auto was {span_of(self.single, '{:.1f}')} times as fast. "
        return text + count
