"""What the rows of the study of elimination say: cells, claims, tables, figures and the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dsgd.report import Axis, Band, Claim, Figure, Level, Line, Mark, Panel, Table, span_of
from dsgd.report.figures import BLUE, GREEN, GREY, MUTED, ORANGE, PURPLE, SKY, TEXT, VERMILION, Colour, Dash
from dsgd.study.frame.report import tally, tally_sentence, time_text
from dsgd.study.frame.rows import Cell, Row, Stat, any_busy, cells_of, one_of, only
from dsgd.study.published import STATEMENTS, Interval, Margin, Statement, exact
from dsgd.svm.kernel_solver.solve import LARGEST_DIRECT

#: The presets of `dsgd.svm.SVC`, the one without elimination first.
PRESETS: Final = ("none", "single", "multi", "libsvm", "aggressive", "average", "conservative", "auto")
#: The sequential baseline: scikit-learn's SVC, which is LIBSVM on one thread.
REFERENCE: Final = "scikit-learn"
#: Values of ``solver``: by blocks, and the published algorithm, a pair of variables per step and exchange.
SOLVERS: Final = ("block", "pairwise")
_ORDER: Final = {name: number for number, name in enumerate([*PRESETS, REFERENCE])}

# -- cells ---------------------------------------------------------------------------------------------------------


class EliminationCell(Cell):
    """The runs of one problem, method, cache, solver and number of ranks, which differ in the repetition."""

    def ratio(self, base: Cell | None, name: str) -> Stat | None:
        """Return a column over that of another cell, repetition by repetition."""
        ours, below = self.column(name), base.column(name) if base else {}
        return Stat.of(ours[key] / below[key] for key in ours if below.get(key))

    def times(self, base: Cell | None, name: str) -> float:
        """Return the median of the same; one if there is none."""
        stat = self.ratio(base, name)
        return stat.median if stat else 1.0

    def share_of_cache(self) -> float:
        """Return the share of the kernel matrix in float32 that the cache holds."""
        return float(self.cache_mb * 2**20 / (4.0 * self.rows[0]["rows"] ** 2))

    def least_values(self) -> float | None:
        """Return how many kernel values any solver needs for a gap over all samples; None for more than two classes.

        With s support vectors among n samples the gap depends on every value between the two: s n - s (s - 1) / 2, as K
        is symmetric.
        """
        row = self.rows[0]
        if row["classes"] > 2 or row.get("samples") is None:
            return None
        samples = self.median("samples")
        support = samples * self.median("n_support") / float(row["rows"])
        return support * samples - support * (support - 1.0) / 2.0

    def distance(self, base: Cell | None) -> float | None:
        """Return how far the dual objective lies from that of another cell, relative to it."""
        ours, other = self.stat("objective"), base.stat("objective") if base else None
        if ours is None or other is None:
            return None
        return abs(ours.median - other.median) / max(abs(other.median), 1e-300)


@dataclass(frozen=True)
class EliminationSummary:
    """All cells of a study."""

    cells: Sequence[EliminationCell]

    def problems(self) -> list[str]:
        """Return the names of the problems, in the order of the study."""
        return list(dict.fromkeys(cell.problem for cell in self.cells))

    def caches(self) -> list[str]:
        """Return the sizes of the cache that were run."""
        return list(dict.fromkeys(cell.cache for cell in self.cells if cell.ranks is None))

    def tight(self) -> str:
        """Return the smallest cache that was run; "small" where none was."""
        return next(iter(sorted(self.caches(), reverse=True)), "small")

    def cell(self, problem: str, method: str, cache: str) -> EliminationCell | None:
        """Return one cell in one process, or None if it has not been run."""
        return one_of(self.cells, problem=problem, method=method, cache=cache, solver="block", ranks=None)

    def presets(self, problem: str, cache: str) -> list[EliminationCell]:
        """Return the cells of the presets on a problem, in one process, the one without elimination first."""
        cells = only(self.cells, problem=problem, cache=cache, ranks=None)
        return [cell for cell in cells if cell.method != REFERENCE]

    def on_ranks(self) -> Iterator[list[EliminationCell]]:
        """Yield the distributed cells of each problem, solver and method, by rising ranks."""
        for problem in self.problems():
            for solver in SOLVERS:
                for method in PRESETS:
                    found = only(self.cells, problem=problem, solver=solver, method=method)
                    if cells := sorted((one for one in found if one.ranks is not None), key=lambda one: int(one.ranks)):
                        yield cells


def summarise(rows: Sequence[Row]) -> EliminationSummary:
    """Return the cells that the rows of a study fall into, in the order of the report."""
    cells = cells_of(rows, "problem", "method", "cache", "solver", "ranks", make=EliminationCell)
    place = {name: number for number, name in enumerate(dict.fromkeys(cell.problem for cell in cells))}
    return EliminationSummary(
        sorted(cells, key=lambda c: (place[c.problem], c.ranks or 0, c.solver, c.cache != "small", _ORDER[c.method]))
    )


# -- claims --------------------------------------------------------------------------------------------------------

# With so many times fewer values goes so many times less time.
_AUTO_FASTER: Final = Margin(1.3)
# The promise of fewer values is made for a cache of a hundredth; small problems have the least cache there is, 1 MB.
_SMALL_CACHE: Final = 0.02


def _faster_than_sequential(summary: EliminationSummary, problem: str) -> Claim:
    statement, cache = STATEMENTS["shrinking/sequential"], summary.tight()
    base, cells = summary.cell(problem, REFERENCE, cache), summary.presets(problem, cache)
    if base is None or not cells:
        return statement.not_run(problem, "Needs scikit-learn's SVC and a preset.")
    best, alone = min(cells, key=lambda cell: cell.median("seconds")), summary.cell(problem, "none", cache)
    note = (
        f"Sequential baseline: scikit-learn's SVC (LIBSVM, one thread), {time_text(base.median('seconds'))}. "
        f"Best preset: {best.method}, {time_text(best.median('seconds'))} in one process"
    )
    share = 1.0 / alone.times(base, "seconds") if alone else None
    if share is not None:
        note += (
            f". Without any elimination it is {share:.1f}x already, from blocks, matrix products and threads; "
            f"elimination makes it {1.0 / best.times(base, 'seconds') / share:.2f} times that"
        )
    cores = best.rows[0]["machine"]["cores"]
    note += f". The published figure is from many nodes, ours from {cores} core{'s' * (cores > 1)}."
    plain = f"{share:.1f}x: no elimination" if share else ""
    return statement.judged(problem, base.over(best, "seconds"), note, busy=any_busy(base, best), baseline=plain)


def _less_time(summary: EliminationSummary, problem: str) -> Claim:
    statement, cache = STATEMENTS["shrinking/saved"], summary.tight()
    base, cells = summary.cell(problem, "none", cache), summary.presets(problem, cache)[1:]
    if base is None or not cells:
        return statement.not_run(problem, "Needs a preset beside none.")
    best = min(cells, key=lambda cell: cell.times(base, "seconds"))
    return _saved(statement, base, best, _why(base, best))


def _less_time_on_ranks(summary: EliminationSummary, problem: str) -> Claim | None:
    for solver in ("pairwise", "block"):
        own = [cell for cell in only(summary.cells, problem=problem, solver=solver) if cell.ranks is not None]
        base = max(only(own, method="none"), key=lambda cell: int(cell.ranks), default=None)
        others = [cell for cell in own if base and cell.ranks == base.ranks and cell.method != "none"]
        if base is None or base.ranks < 2 or not others:
            continue
        best = min(others, key=lambda cell: cell.times(base, "seconds"))
        note = f"{solver} solver on {base.ranks} processes, {best.method}: {_saving(base, best)}"
        return _saved(STATEMENTS["shrinking/saved-on-ranks"], base, best, note)
    return None


def _saved(statement: Statement, base: EliminationCell, best: EliminationCell, note: str) -> Claim:
    """Return a claim on the share of time that a preset saves."""
    share = best.over(base, "seconds")
    if share is None:
        return statement.not_run(base.problem, "Needs both in one repetition.")
    saved = share.mapped(lambda left: 1.0 - left)
    return statement.judged(base.problem, saved, note, busy=any_busy(base, best), baseline="0 %: no elimination")


def _saving(base: EliminationCell, best: EliminationCell) -> str:
    """Return time and kernel values of a preset beside those without elimination."""
    fewer = 100.0 * (1.0 - best.times(base, "kernel_evaluations"))
    times = f"{time_text(base.median('seconds'))} -> {time_text(best.median('seconds'))}"
    return f"{times}, kernel values {fewer:.0f} % fewer."


def _why(base: EliminationCell, best: EliminationCell) -> str:
    """Return what decides how much elimination can save on a problem."""
    samples = base.median("samples")
    note = f"Best preset {best.method}: {_saving(base, best)}"
    support = base.median("n_support") / base.median("rows")
    needed = base.median("kernel_evaluations") / (samples * samples)
    if base.classes > 2:
        return note + " Every pair of classes is a small problem of its own, whose kernel matrix fits the cache."
    if base.method == "none" and samples <= LARGEST_DIRECT:
        return note + (
            f" Up to {LARGEST_DIRECT:,} samples are solved with all rows kept, whatever the cache is, unless asked to"
            " eliminate: there is nothing to save."
        )
    if base.median("cache_share") > 0.9:
        note += f" {base.median('cache_share'):.0%} of the values came from the cache anyway."
    if support > 0.4:
        note += f" {support:.0%} of the samples are support vectors: few can be left out for good."
    elif needed < 1.0:
        note += (
            f" Without elimination {needed:.2f} n² values are computed in all, so most rows are needed once: there is "
            "little to save."
        )
    return note


def _same_optimum(summary: EliminationSummary, problem: str) -> Claim:
    statement, own = STATEMENTS["dsgd/elimination-optimum"], only(summary.cells, problem=problem)
    base = {cell.cache: cell for cell in only(own, method="none")}
    found = [(far, cell) for cell in own if (far := cell.distance(base.get(cell.cache))) is not None]
    if all(cell.method == "none" for _, cell in found):
        return statement.not_run(problem, "Needs a preset beside none.")
    worst, cell = max(found, key=lambda pair: pair[0])
    rows = [row for _, own in found for row in own.rows]
    n_open, widest = sum(not row["converged"] for row in rows), max(row["gap"] for row in rows)
    note = f"Widest gap over all samples in float64: {widest:.2g} (tol {cell.tol:g}); farthest preset: {cell.method}."
    if n_open:
        return statement.said(problem, f"{worst:.1e}", "fails", f"{note} {n_open} runs stopped with an open gap.")
    return statement.judged(problem, exact(worst), note, controls=[statement.control("a model of zeros", exact(1.0))])


def _fewer_values(summary: EliminationSummary, problem: str) -> Claim:
    statement = STATEMENTS["dsgd/elimination-values"]
    base, auto = summary.cell(problem, "none", "small"), summary.cell(problem, "auto", "small")
    if base is None or auto is None:
        return statement.not_run(problem, "Needs auto and the small cache.")
    values, faster = base.ratio(auto, "kernel_evaluations"), base.over(auto, "seconds")
    if values is None or faster is None:
        return statement.not_run(problem, "Nothing was computed.")
    times = 1.0 / auto.times(base, "kernel_evaluations")
    note, promised, least = _why(base, auto), statement.margin.least, base.least_values()
    if least is not None:
        limit = base.median("kernel_evaluations") / least
        note += f" The proof alone needs as many values as leave {limit:.1f}x at most"
        note += ": the promise cannot be kept here." if limit < promised else "."
    # Values are counted and the same in every run: if there are too many, seconds do not matter.
    verdict = "undecided" if any_busy(base, auto) else _AUTO_FASTER.verdict(faster)
    if times < promised:
        verdict = "fails"
    share = base.share_of_cache()
    if share > _SMALL_CACHE:
        note = f"The promise is for a cache of 1/100 of the matrix, this one holds 1/{1 / share:.0f}. {note}"
        verdict = "not run"
    ours = f"{times:.2f}x, {faster.text('{:.2f}x'.format)}"
    return statement.said(problem, ours, verdict, note, baseline="1x: no elimination")


def _never_slower(summary: EliminationSummary, problem: str) -> Claim:
    found: list[tuple[Interval, str, bool]] = []
    for cache in summary.caches():
        base, auto = summary.cell(problem, "none", cache), summary.cell(problem, "auto", cache)
        if base and auto and (times := auto.over(base, "seconds")) is not None:
            found.append((times, cache, any_busy(base, auto)))
    if not found:
        return STATEMENTS["dsgd/elimination-slower"].not_run(problem, "Needs auto.")
    worst, cache, busy = max(found, key=lambda one: one[0].estimate)
    more, note = worst.mapped(lambda times: times - 1.0), f"Time over that of none, {cache} cache."
    statement, base = STATEMENTS["dsgd/elimination-slower"], summary.cell(problem, "none", cache)
    others = [cell for cell in summary.presets(problem, cache)[1:] if cell.method != "auto"]
    slowest = max(others, key=lambda cell: cell.median("seconds"), default=None)
    slow = f"{statement.form(slowest.times(base, 'seconds') - 1.0)}: {slowest.method}" if slowest and base else ""
    return statement.judged(problem, more, note, busy=busy, baseline=slow)


def check_elimination_claims(summary: EliminationSummary) -> list[Claim]:
    """Return the claims, each with the result of a study on each of its problems."""
    checks: Sequence[Callable[[EliminationSummary, str], Claim | None]] = (
        _faster_than_sequential, _less_time, _less_time_on_ranks, _same_optimum, _fewer_values, _never_slower,
    )  # fmt: skip
    return [claim for check in checks for name in summary.problems() if (claim := check(summary, name)) is not None]


# -- tables --------------------------------------------------------------------------------------------------------

_CACHES: Final = {"small": "small cache", "fits": "cache that fits"}


def problems_table(summary: EliminationSummary) -> Table:
    """Return what the study trained on."""
    cells = cells_of((row for cell in summary.cells if cell.method != REFERENCE for row in cell.rows), "problem")
    return Table.of(
        "Problems",
        cells,
        "problem = problem | what = text | rows = rows:,.0f | features = features:,.0f | non-zero = density:.1% | "
        "classes = classes | C = C:g | gamma = gamma | support vectors = support | of them free = free | "
        "source = source | checksum = checksum",
        "Support vectors as a share of the rows; free: below C.",
        2,
        support=lambda cell: f"{cell.n_support / cell.rows[0]['rows']:.0%}",
        free=lambda cell: f"{cell.n_free / max(1, cell.n_support):.0%}",
        checksum=lambda cell: getattr(cell, "checksum", "-"),
    )


def elimination_table(summary: EliminationSummary, problem: str, cache: str) -> Table:
    """Return one row per method on a problem with this cache."""
    base, cells = summary.cell(problem, "none", cache), summary.presets(problem, cache)
    reference = summary.cell(problem, REFERENCE, cache)
    size = f", {cells[0].cache_mb:g} MB" if cells else ""
    note = (
        "Medians over the repetitions; x none: median of the ratios to the run without elimination. From cache: of the "
        "values that blocks used. Left out, came back: samples, each time counted; as many came back as were left out "
        "wrongly. Objective: distance of the dual objective from that without elimination, relative."
    )
    # The reference counts steps alone.
    return Table.of(
        f"{problem}, {_CACHES[cache]}{size}",
        [*cells, *([reference] if reference else [])],
        "elimination = method | seconds = seconds | x none = times | steps = n_iter:,.0f | 1e6 kernel values = values |"
        " x none = fewer | from cache = cache_share:.0% | left out = n_eliminated:,.0f | came back = n_returned:,.0f | "
        "renewals = n_reconstructions:,.0f | gap = gap:.1e | objective = objective",
        note,
        seconds=lambda cell: _figure(cell.median("seconds")),
        times=lambda cell: _ratio(cell, base, "seconds"),
        values=lambda cell: _figure(cell.median("kernel_evaluations") / 1e6) if cell is not reference else "-",
        fewer=lambda cell: _ratio(cell, base, "kernel_evaluations"),
        objective=lambda cell: "-" if (far := cell.distance(base)) is None else f"{far:.0e}",
    )


def overview_table(summary: EliminationSummary, cache: str) -> Table:
    """Return one row per problem with this cache: the savings of elimination."""
    rows: list[tuple[str, ...]] = []
    for problem in summary.problems():
        base, cells = summary.cell(problem, "none", cache), summary.presets(problem, cache)
        if base is None:
            continue
        reference, auto = summary.cell(problem, REFERENCE, cache), summary.cell(problem, "auto", cache)
        fewest, fastest = (min(cells, key=lambda cell: cell.median(name)) for name in ("kernel_evaluations", "seconds"))
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
                f"{max(far for cell in cells if (far := cell.distance(base)) is not None):.0e}",
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


def ranks_table(summary: EliminationSummary) -> Table:
    """Return times by ranks."""
    rows: list[tuple[str, ...]] = []
    for cells in summary.on_ranks():
        for cell in cells:
            seconds, wire = cell.median("seconds"), cell.stat("communication_s")
            gain, values = cells[0].median("seconds") / seconds, cell.median("kernel_evaluations") / 1e6
            what = (cell.problem, cell.solver, cell.method, str(cell.ranks), _figure(seconds))
            rows.append((*what, f"{wire.median / seconds:.0%}" if wire else "-", f"{gain:.2f}", f"{values:,.3g}e6"))
    columns = ("problem", "solver", "elimination", "ranks", "seconds", "communication", "x 1 rank", "kernel values")
    return Table("Ranks", columns, rows, "Worker processes of one thread each on this machine.", n_text=3)


def _ratio(cell: EliminationCell | None, base: EliminationCell | None, name: str) -> str:
    stat = cell.ratio(base, name) if cell else None
    return f"{stat.median:.2f}" if stat else "-"


def _figure(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


# -- figures -------------------------------------------------------------------------------------------------------

_LOOKS: Final[dict[str, tuple[Colour, str, Dash]]] = {
    "none": (GREY, "plus", "dashed"), "single": (PURPLE, "inverted_triangle", "dotdash"),
    "multi": (BLUE, "circle", "solid"), "libsvm": (ORANGE, "square", "dotdash"),
    "aggressive": (VERMILION, "x", "dotted"), "average": (GREEN, "triangle", "dashed"),
    "conservative": (SKY, "hex", "dashed"), "auto": (TEXT, "diamond", "solid"), REFERENCE: (MUTED, "star", "dotted"),
}  # fmt: skip
_HEIGHT: Final = 270
_ACTIVE: Final = (
    "Share of the samples that are still active, against the steps of the solver, with the small cache. A line that "
    "falls early saves most; one that rises again had left samples out wrongly and took them back. A line ends with "
    "the run, when all samples are checked in float64."
)


def elimination_figures(summary: EliminationSummary) -> list[Figure]:
    """Return the figures for which the study has runs."""
    active = []
    for name in summary.problems():
        if not (cells := summary.presets(name, summary.tight())):
            continue
        row, lines = cells[0].rows[0], []
        title = f"{name}: {row['rows']:,} rows, {row['n_support'] / row['rows']:.0%} SVs"
        for cell in cells:
            at, (colour, _, dash) = cell.rows[0]["curve"], _LOOKS[cell.method]
            look: dict[str, Any] = {"colour": colour, "dash": dash, "width": 2.4 if cell.method == "auto" else 1.5}
            shares = [n / at["n_active"][0] for n in at["n_active"]]
            lines.append(Line(cell.method, [n / 1000 for n in at["n_iter"]], shares, **look))
        steps = Axis("steps on two variables, thousands", low=0.0)
        active.append(Panel(title, steps, Axis("samples still active", unit="%", low=0.0, high=1.04), lines))
    made = [Figure("active", "Who stays active", _ACTIVE, active, height=_HEIGHT), *_sideways(summary)]
    return [figure for figure in made if figure.panels]


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
            "work", "Kernel values computed",
            "As a multiple of what the run without elimination computes. Left of the line elimination saves work.",
            Axis("kernel values, as a multiple of none", "log", "x"), to_none("kernel_evaluations"), [none],
        ),
        (
            "time", "Time",
            "As a multiple of the run without elimination, bars from the fastest to the slowest repetition. Grey: the "
            "published 30 to 60 % less.",
            Axis("time, as a multiple of none", "log", "x"), to_none("seconds"), [published, none],
        ),
        (
            "sequential", "Against the sequential baseline",
            "Speed-up over scikit-learn's SVC, which is LIBSVM on one thread with its own shrinking, at the same "
            "tolerance and cache.",
            Axis("speed-up over scikit-learn's SVC", "log", "x"), over_reference,
            [
                Level(1.0, "as fast", TEXT, "solid", "x"),
                Level(sequential, f"published: {sequential:.0f}x", VERMILION, along="x"),
            ],
        ),
    )  # fmt: skip
    return [
        Figure(name, title, caption, _dots(summary, axis, pick, behind), 2, height, "xy")
        for name, title, caption, axis, pick, behind in kinds
    ]


def _dots(
    summary: EliminationSummary, axis: Axis, pick: Callable[[EliminationCell], Stat | None], behind: Sequence[Mark]
) -> list[Panel]:
    """Return a panel per cache, a band per problem, and in it a dot per preset with its range over repetitions."""
    problems = summary.problems()
    cells = [cell for name in problems for cache in summary.caches() for cell in summary.presets(name, cache)]
    found = [(cell, stat) for cell in cells if (stat := pick(cell)) is not None]
    methods = [method for method in PRESETS if any(cell.method == method for cell, _ in found)]
    side = Axis(
        ticks={float(n): name for n, name in enumerate(problems)},
        low=-0.5,
        high=len(problems) - 0.5,
        grid=False,
        reverse=True,
    )
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
        shares = [100.0 * cell.share_of_cache() for cell in only(summary.cells, cache=cache, ranks=None)]
        held = "that fits" if cache == "fits" else f"of {span_of(shares, '{:.2g}')} % of the matrix"
        panels.append(Panel(f"Cache {held}", axis, side, marks))
    return panels


# -- the answer ----------------------------------------------------------------------------------------------------


def elimination_answer(summary: EliminationSummary, claims: Sequence[Claim]) -> tuple[str, list[tuple[str, str]]]:
    """Return the answer of the study, the savings of auto with a small cache, and its highlights."""
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
    highlights = [
        (f"{span_of(numbers, form)}x", text)
        for numbers, form, text in (
            (values, "{:.2f}", "the kernel values of a run without elimination"),
            (seconds, "{:.2f}", "the time of a run without elimination"),
            (single, "{:.1f}", "as fast as scikit-learn's SVC"),
        )
        if numbers
    ]
    highlights.append((tally(claims), "claims hold here"))
    count = tally_sentence(claims, "claims")
    if not values:
        return f"This study did not run both none and auto with a small cache. {count}", highlights
    same = [claim.holds for claim in claims if claim.holds is not None and claim.name.startswith("Every preset")]
    text = (
        f"With the small cache, elimination (auto) computed {span_of(values, '{:.2f}')} times the kernel values of a "
        f"run without it, in {span_of(seconds, '{:.2f}')} times the time. "
        f"{'Every' if same and all(same) else 'Not every'} preset ended at the same optimum; {wrong:,.0f} of "
        f"{out:,.0f} samples left out, over all presets, had to come back. "
    )
    if single:
        text += f"Against scikit-learn's single thread auto was {span_of(single, '{:.1f}')} times as fast. "
    return text + count, highlights
