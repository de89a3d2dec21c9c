"""What the rows of the study of elimination hold: cells, predicted times on more ranks, and claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dsgd.collectives.cost import Link, n_levels
from dsgd.comm.frames import HEADER_BYTES
from dsgd.report import Claim, span_of
from dsgd.study.frame.report import time_text
from dsgd.study.frame.rows import Cell, Row, Stat, any_busy, cells_of, one_of, only
from dsgd.study.published import STATEMENTS, Interval, Margin, Statement, exact
from dsgd.svm.kernel_solver.solve import LARGEST_DIRECT
from dsgd.validation import check_number

#: The presets of `dsgd.svm.SVC`, the one without elimination first.
PRESETS: Final = ("none", "single", "multi", "libsvm", "aggressive", "average", "conservative", "auto")
#: The sequential baseline: scikit-learn's SVC, which is LIBSVM on one thread.
REFERENCE: Final = "scikit-learn"
#: Values of ``solver``: by blocks, and the published algorithm, a pair of variables per step and exchange.
SOLVERS: Final = ("block", "pairwise")
#: Variables of a block.
BLOCK: Final = 512
#: TCP between two processes as `dsgd` does it (benchmarks/communication/transports.py), at 10 Gbit/s.
TEN_GIGABIT: Final = Link(latency_s=25e-6, byte_s=0.8e-9)
_PAIR_BYTES: Final = 32  # two extremes and their places
_ORDER: Final = {name: number for number, name in enumerate([*PRESETS, REFERENCE])}


# -- times on more ranks -------------------------------------------------------------------------------------------


class Counts(NamedTuple):
    """Counts of a run on one rank, and its seconds that ranks divide and that they do not."""

    solver: str
    rounds: int
    rows_sent: int
    reconstructions: int
    row_bytes: float
    parallel_s: float
    serial_s: float = 0.0


class SimulatedTime(NamedTuple):
    """Predicted seconds of a run on more ranks."""

    compute_s: float
    communication_s: float

    @property
    def total_s(self) -> float:
        """Both together."""
        return self.compute_s + self.communication_s


def simulate(counts: Counts, ranks: int, link: Link) -> SimulatedTime:
    """Return the predicted seconds on `ranks` ranks of a run with these counts on one rank."""
    check_number("simulate(ranks=...)", ranks, low=1)
    compute = counts.parallel_s / ranks + counts.serial_s
    if ranks == 1:
        return SimulatedTime(compute, 0.0)
    levels, latency, byte = n_levels(ranks), link.latency_s, link.byte_s
    allreduce = levels * (latency + (_PAIR_BYTES + HEADER_BYTES) * byte)
    row = counts.row_bytes * byte
    if counts.solver == "pairwise":
        # Two rows down a tree of L levels, each level a message of a whole row.
        messages = counts.rounds * (allreduce + 2 * levels * latency) + counts.rows_sent * levels * row
    else:
        # The extremes of both sides, the best candidates, their rows, and the answer.
        messages = counts.rounds * (3 * levels * latency + allreduce) + counts.rows_sent * row
    return SimulatedTime(compute, messages + counts.reconstructions * levels * latency)


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

        With s support vectors among n samples, this gap depends on every value between a support vector and a sample,
        and a solver cannot know a value without computing it: s n - s (s - 1) / 2 values, as K is symmetric.
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

    def simulated(self, ranks: int) -> SimulatedTime:
        """Return the predicted seconds on more ranks of runs on one rank, from medians over the repetitions."""
        # Every rank gets both rows of a pair; of a block, the rows of the variables that may move, at most all.
        rounds = int(self.median("rounds"))
        sent = 2 * rounds if self.solver == "pairwise" else rounds * min(BLOCK // 2, int(self.median("rows")))
        seconds = self.median("row_bytes"), self.median("parallel_s"), self.median("serial_s")
        counts = Counts(self.solver, rounds, sent, int(self.median("n_reconstructions")), *seconds)
        return simulate(counts, ranks, TEN_GIGABIT)


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

    def cache_text(self, cache: str) -> str:
        """Return what a cache holds, such as "Cache of 1 to 3 % of the matrix"."""
        if cache == "fits":
            return "Cache that fits"
        shares = [100.0 * cell.share_of_cache() for cell in only(self.cells, cache=cache, ranks=None)]
        return f"Cache of {span_of(shares, '{:.2g}')} % of the matrix"

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

    def distributed(self, problem: str, solver: str, method: str) -> list[EliminationCell]:
        """Return the distributed cells of a problem, by rising ranks."""
        found = only(self.cells, problem=problem, solver=solver, method=method)
        return sorted((cell for cell in found if cell.ranks is not None), key=lambda cell: int(cell.ranks))


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
        base = next(reversed(summary.distributed(problem, solver, "none")), None)
        ranks = base.ranks if base else 0
        others = [
            cell for cell in only(summary.cells, problem=problem, solver=solver, ranks=ranks) if cell.method != "none"
        ]
        if base is None or ranks < 2 or not others:
            continue
        best = min(others, key=lambda cell: cell.times(base, "seconds"))
        note = f"{solver} solver on {ranks} processes, {best.method}: {_saving(base, best)}"
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
    statement = STATEMENTS["dsgd/elimination-optimum"]
    base = {cell.cache: cell for cell in only(summary.cells, problem=problem, method="none")}
    found = [
        (distance, cell)
        for cell in only(summary.cells, problem=problem)
        if (distance := cell.distance(base.get(cell.cache))) is not None
    ]
    if all(cell.method == "none" for _, cell in found):
        return statement.not_run(problem, "Needs a preset beside none.")
    worst, cell = max(found, key=lambda pair: pair[0])
    rows = [row for _, own in found for row in own.rows]
    n_open = sum(not row["converged"] for row in rows)
    widest = max(row["gap"] for row in rows)
    note = f"Widest gap over all samples in float64: {widest:.2g} (tol {cell.tol:g}); farthest preset: {cell.method}."
    if n_open:
        note += f" {n_open} runs stopped with an open gap."
        return statement.said(problem, f"{worst:.1e}", "fails", note)
    return statement.judged(problem, exact(worst), note)


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
    return STATEMENTS["dsgd/elimination-slower"].judged(problem, more, note, busy=busy)


def check_elimination_claims(summary: EliminationSummary) -> list[Claim]:
    """Return the claims, each with the result of a study on each of its problems."""
    checks: Sequence[Callable[[EliminationSummary, str], Claim | None]] = (
        _faster_than_sequential, _less_time, _less_time_on_ranks, _same_optimum, _fewer_values, _never_slower,
    )  # fmt: skip
    return [claim for check in checks for name in summary.problems() if (claim := check(summary, name)) is not None]
