"""Summary of the study of variance: how far each method stays from the minimum, and what a draw costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dsgd.kernels.sum_tree import FANOUT, sum_levels
from dsgd.report import Claim, Table, figure_text, span_of
from dsgd.study.frame.rows import Row
from dsgd.study.frame.statement import Statement, as_times
from dsgd.study.frame.summary import AbstractCell, grouped
from dsgd.study.frame.verdict import average, exact, largest, ratio, were_busy
from dsgd.study.published.library import DRAW_STEP
from dsgd.study.published.variance import AS_GOOD, DRAW, OUTLIERS, SAGA_LINEAR, SVRG_LINEAR
from dsgd.study.variance.courses import N_PASSES
from dsgd.study.variance.problems import FAR, TOY

__all__ = [
    "DrawCell",
    "VarianceCell",
    "VarianceProblem",
    "check_variance_claims",
    "course_table",
    "draw_table",
    "summarise_draws",
    "summarise_variance",
    "variance_verdict",
]

_SGD, _WALK, _SRG = "SGD, drawn", "SGD, each once", "SRG"
# Below the rounding of an objective nothing is known.
_LEAST: Final = 1e-17
_MILLION: Final = 1_000_000
# Of methods whose error vanishes, the rounding decides how many times smaller it is.
_BEYOND: Final = 1e6
_CONVERGES: Final = {"SAGA": SAGA_LINEAR, "SVRG": SVRG_LINEAR}


@dataclass(frozen=True)
class VarianceCell(AbstractCell):
    """The courses of one method on one problem, which differ in the seed.

    Parameters
    ----------
    method : str
        The method.
    rows : sequence of dict
        The rows of its seeds.
    lowest : float
        The minimum of the objective.
    """

    method: str
    rows: Sequence[Row]
    lowest: float

    def errors(self, column: str = "plateau") -> dict[int, float]:
        """Return the distance to the minimum by seed: over the second half of the epochs, or of another column."""
        return {seed: max(found - self.lowest, _LEAST) for seed, found in self.column(column).items()}

    def error(self, column: str = "plateau") -> float:
        """Return the mean of the same over seeds."""
        found = self.errors(column)
        return sum(found.values()) / len(found)

    def gaps(self) -> list[dict[str, float]]:
        """Return passes, seconds and distance to the minimum along the course, medians over seeds."""
        return [{**at, "gap": max(at["objective"] - self.lowest, _LEAST)} for at in self.curve()]


@dataclass(frozen=True)
class VarianceProblem:
    """All courses on one problem.

    Parameters
    ----------
    dataset : str
        Its name.
    cells : dict of str to VarianceCell
        By method.
    """

    dataset: str
    cells: dict[str, VarianceCell]

    @property
    def has_outliers(self) -> bool:
        """Whether a few of its rows have far larger gradients than the others."""
        return self.dataset in (TOY, FAR)

    def times(self, method: str, over: str) -> float | None:
        """Return the error of a method over that of another; None where one of them was not run."""
        ours, other = self.cells.get(method), self.cells.get(over)
        return ours.error() / other.error() if ours and other else None


@dataclass(frozen=True)
class DrawCell(AbstractCell):
    """Timed steps for one number of rows.

    Parameters
    ----------
    size : int
        Rows.
    rows : sequence of dict
        The rows of its repetitions.
    """

    size: int
    rows: Sequence[Row]

    def over(self, other: str) -> float:
        """Return how long a drawn step takes over one of another kind, by the shortest repetitions."""
        return min(self.column("drawn_ns", "repeat").values()) / min(self.column(other, "repeat").values())

    @property
    def groups(self) -> int:
        """Groups of neighbours in the tree that a draw reads."""
        return len(sum_levels(self.size)) - 1


def summarise_variance(rows: Iterable[Row]) -> list[VarianceProblem]:
    """Return one entry per problem.

    Parameters
    ----------
    rows : iterable of dict
        Rows of one study.
    """
    found = []
    for (dataset,), own in grouped((row for row in rows if row["part"] == "course"), "dataset").items():
        lowest = min(min(row["lowest"], row["reached"]) for row in own)
        cells = {method: VarianceCell(method, seeds, lowest) for (method,), seeds in grouped(own, "method").items()}
        found.append(VarianceProblem(dataset, cells))
    return found


def summarise_draws(rows: Iterable[Row]) -> list[DrawCell]:
    """Return one entry per number of rows, in rising order.

    Parameters
    ----------
    rows : iterable of dict
        Rows of one study.
    """
    timed = grouped((row for row in rows if row["part"] == "draws"), "rows")
    return [DrawCell(size, own) for (size,), own in sorted(timed.items())]


def course_table(problems: Sequence[VarianceProblem]) -> Table:
    """Return how far each method stays from the minimum."""
    rows = [
        (
            problem.dataset,
            cell.method,
            f"{cell.error():.1e}",
            _times(problem.times(_SGD, cell.method)),
            f"{cell.error('after'):.1e}",
            figure_text(1e3 * cell.median("seconds")),
        )
        for problem in problems
        for cell in problem.cells.values()
    ]
    columns = ("problem", "method", "error", "SGD, drawn, over it", f"after {N_PASSES} passes", "ms")
    note = (
        "Error: the objective less its minimum, mean over the second half of the epochs and over seeds. The minimum is "
        "the lowest objective that any method reached, SAGA in six times as many epochs among them. Milliseconds of "
        "all steps, medians."
    )
    return Table("Distance to the minimum", columns, rows, note, n_text=2)


def draw_table(cells: Sequence[DrawCell]) -> Table:
    """Return what a step costs by the number of rows."""
    columns = {
        "rows": lambda cell: f"{cell.size:,}",
        "drawn, ns": lambda cell: figure_text(cell.stat("drawn_ns").low),
        "uniform, ns": lambda cell: figure_text(cell.stat("uniform_ns").low),
        "each once, ns": lambda cell: figure_text(cell.stat("walk_ns").low),
        "over uniform": lambda cell: as_times(cell.over("uniform_ns")),
        "over each once": lambda cell: as_times(cell.over("walk_ns")),
        "groups read": lambda cell: str(cell.groups),
    }
    note = (
        "Nanoseconds of a step on 22 float32 numbers, the shortest repetitions. A draw reads one group of eight "
        "numbers on each level of the tree."
    )
    return Table.of("Cost of a draw", cells, columns, note)


def variance_verdict(problems: Sequence[VarianceProblem], draws: Sequence[DrawCell]) -> str:
    """Return the answer of the study, a few sentences."""
    sentences = []
    for holds, text in ((True, "Where outliers dominate"), (False, "Where no rows stand out")):
        found = [one for problem in problems if problem.has_outliers is holds and (one := problem.times(_SGD, _SRG))]
        if found:
            shares = span_of([1.0 / one for one in found], "{:.2g}")
            sentences.append(f"{text}, drawing rows by their gradients leaves {shares} of the error of uniform draws.")
    exact_ones = [
        cell.error("after") for problem in problems for name, cell in problem.cells.items() if name in _CONVERGES
    ]
    if exact_ones:
        sentences.append(f"SAGA and SVRG end within {max(exact_ones):.0e} of the minimum after {N_PASSES} passes.")
    if draws:
        sentences.append(
            f"A step on a drawn row takes {as_times(draws[-1].over('uniform_ns'))} as long as on a uniform one at "
            f"{draws[-1].size:,} rows."
        )
    return " ".join(sentences)


def check_variance_claims(problems: Sequence[VarianceProblem], draws: Sequence[DrawCell] = ()) -> list[Claim]:
    """Return what is published of the methods, and whether it holds here.

    Parameters
    ----------
    problems : sequence of VarianceProblem
        Courses.
    draws : sequence of DrawCell, optional
        Timed steps.
    """
    outliers = [_ratio(OUTLIERS, problem, _SGD, _SRG) for problem in problems if problem.has_outliers]
    others = [_ratio(AS_GOOD, problem, _SRG, _SGD) for problem in problems if not problem.has_outliers]
    linear = [_linear(statement, method, problems) for method, statement in _CONVERGES.items()]
    return [*outliers, *others, *(linear if problems else ()), *_draw_claims(draws)]


def _draw_claims(draws: Sequence[DrawCell]) -> list[Claim]:
    """Return what is said of the cost of a draw, and whether it holds here; nothing without timed steps."""
    if not draws:
        return []
    sizes = f"{draws[0].size:,} to {draws[-1].size:,} rows"
    groups = max(cell.groups / math.log(cell.size, FANOUT) for cell in draws)
    claims = [DRAW.judged(sizes, exact(groups), f"{draws[-1].groups} groups at {draws[-1].size:,} rows.")]
    at = {cell.size: cell for cell in draws}.get(_MILLION)
    data = "1,000,000 rows of 22 float32 numbers"
    if at is None:
        return [*claims, DRAW_STEP.not_run(data, "Time steps on 1,000,000 rows.")]
    found = ratio(at.column("drawn_ns", "repeat"), at.column("uniform_ns", "repeat"))
    assert found is not None  # both are in every row
    note = f"{as_times(at.over('walk_ns'))} as long as visiting each row once, which reads memory in order."
    return [*claims, DRAW_STEP.judged(data, found, note, busy=were_busy(at.rows))]


def _ratio(statement: Statement, problem: VarianceProblem, above: str, below: str) -> Claim:
    """Return a claim about the error of a method over that of another, seed by seed."""
    ours, other = problem.cells.get(above), problem.cells.get(below)
    found = ratio(ours.errors(), other.errors()) if ours and other else None
    if found is None:
        return statement.not_run(problem.dataset, f"{above} and {below} were not both run.")
    walk = problem.times(_WALK, _SRG)
    note = f"Visiting each row once, as by default, has {as_times(walk)} the error of SRG." if walk else ""
    return statement.judged(problem.dataset, found, note, baseline="1x")


def _linear(statement: Statement, method: str, problems: Sequence[VarianceProblem]) -> Claim:
    """Return the claim that a method is near the minimum of every problem."""
    found = [
        mean
        for problem in problems
        if (cell := problem.cells.get(method)) and (mean := average(cell.errors("after"))) is not None
    ]
    if not found:
        return statement.not_run("-", f"{method} was not run.")
    baseline = max((cell.error("after") for one in problems if (cell := one.cells.get(_SGD))), default=math.nan)
    return statement.judged(
        f"{len(found)} problems", largest(found), "The largest distance of all problems.",
        baseline=f"{baseline:.1e}: {_SGD}",
    )  # fmt: skip


def _times(factor: float | None) -> str:
    if factor is None:
        return "-"
    return as_times(factor) if factor < _BEYOND else f"over {as_times(_BEYOND)}"
