"""The study of variance: importance sampling, SAGA and SVRG compared with SGD, by passes and by seconds.

Courses of training at constant rates: every method takes its steps on the same rows, from zero, on one rank. SGD and
SRG take steps of a quarter of the length that the largest curvature of a row allows, SAGA and SVRG steps of their own
length.

And the cost of a draw in proportion to gradients, against the number of rows: steps of logistic regression on rows of
22 random numbers, drawn in proportion to gradients, drawn uniformly, and in the order of memory. The three take turns,
so that they share whatever else the machine does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from dsgd.kernels.importance import FANOUT, sum_levels
from dsgd.local import SAGA, SGD, SVRG, AbstractReduction, Importance, Objective, Shard, make_shard
from dsgd.local.objective import n_params
from dsgd.report import Axis, Claim, Figure, Panel, Table, figure_text, span_of
from dsgd.study.frame import options
from dsgd.study.frame.data import DataSource, MissingData, checksum_of, load_or_keep
from dsgd.study.frame.report import joined, lines_of
from dsgd.study.frame.rows import Cell, Row, Run, cells_of, one_of, only
from dsgd.study.frame.study import Batch, Grid, Option, Study
from dsgd.study.published import SOURCES, STATEMENTS, Statement, as_times, average, exact, largest, ratio, were_busy
from dsgd.types import AnyArray, FloatVector

__all__ = ["STUDY"]

#: Methods by name: how rows are drawn, or what is remembered of them. None visits each row once an epoch.
METHODS: Final[Mapping[str, Importance | AbstractReduction | None]] = MappingProxyType(
    {
        "SGD, drawn": Importance(1.0), "SGD, each once": None, "SRG": Importance(0.5), "SAGA": SAGA(), "SVRG": SVRG(),
    }
)  # fmt: skip
_SGD, _WALK, _SRG = "SGD, drawn", "SGD, each once", "SRG"
_CONVERGE: Final = {"SAGA": "saga/linear", "SVRG": "svrg/linear"}
# Passes after which methods that converge linearly are compared with the minimum.
_PASSES: Final = 60
_POINTS: Final = 20
# SAGA gets so many times as many epochs to find the minimum, and no more than that.
_LONGER: Final = 6
_MOST_EPOCHS: Final = 2_000
# Below the rounding of an objective nothing is known; of methods whose error vanishes, rounding decides the ratio.
_LEAST: Final = 1e-17
_BEYOND: Final = 1e6

# -- problems ------------------------------------------------------------------------------------------------------

_TOY, _FAR = "one of 40", "far targets"
_NUMBERS, _FAR_ROWS = 40, 20


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows and a strongly convex objective; `rate` is the length of a step of SGD and SRG, ``1 / (4 L)`` where None."""

    name: str
    source: str
    X: Any = field(repr=False)
    y: AnyArray = field(repr=False)
    objective: Objective
    # How many times as many epochs it takes as others.
    longer: int = 1
    rate: float | None = None
    y_test: Sequence[Any] | AnyArray = ()

    def describe(self) -> Row:
        """Return the columns of a row that describe the rows."""
        return {
            "source": self.source, "features": int(self.X.shape[1]), "checksum": checksum_of(self.X, self.y),
            "loss": self.objective.loss, "alpha": self.objective.strength,
        }  # fmt: skip


def one_of_many() -> Problem:
    """Return the mean of 40 numbers, 0 but for one that is 1: El Hanchi and Stephens 2020."""
    numbers = np.zeros(_NUMBERS)
    numbers[0] = 1.0
    mean = Objective("squared_error", None, fit_intercept=False)
    text = f"{_NUMBERS} numbers, one of them an outlier"
    return Problem(_TOY, text, np.ones((_NUMBERS, 1)), numbers, mean, 30, 0.01)


def far_targets(rows: int) -> Problem:
    """Return ridge regression on normal rows, 20 of which have targets far off."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, 10))
    y = X @ rng.standard_normal(10) + 0.1 * rng.standard_normal(rows)
    far = np.arange(0, rows, rows // _FAR_ROWS)[:_FAR_ROWS]
    y[far] += 50.0 * rng.standard_normal(far.size)
    text = f"normal rows, {_FAR_ROWS} of them with targets far off"
    return Problem(_FAR, text, X, y, Objective("squared_error", "l2", 1e-3))


def _load(source: DataSource, dtype: str, rows: Sequence[Row]) -> Problem | MissingData:
    """Return regularised logistic regression on the rows of a set; the largest label is against all others."""
    data = load_or_keep(source, dtype, rows)
    if isinstance(data, MissingData):
        return data
    signs = np.where(data.y == np.max(data.y), 1.0, -1.0)
    return Problem(data.name, data.source, data.X, signs, Objective("log_loss", "l2", 1e-2), y_test=data.y_test)


# -- measuring -----------------------------------------------------------------------------------------------------


def lowest_objective(problem: Problem, epochs: int) -> float:
    """Return the lowest objective that SAGA reaches in several times as many epochs."""
    course = Course(problem, make_shard(problem.X, problem.y, seed=0), SAGA(), 0)
    return min(course.epoch() for _ in range(min(_MOST_EPOCHS, _LONGER * epochs * problem.longer)))


class Course:
    """One method on its way to the minimum of a problem; `passes` count those for full gradients as well."""

    def __init__(
        self, problem: Problem, shard: Shard, method: Importance | AbstractReduction | None, seed: int
    ) -> None:
        objective = problem.objective
        curvature, _ = SAGA().curvature(shard, objective)
        if isinstance(method, AbstractReduction):
            self._sgd = SGD(objective, "constant", eta0=1.0, reduction=method, seed=seed)
        else:
            self._sgd = SGD(
                objective, "constant", eta0=problem.rate or 1.0 / (4.0 * curvature), sampling=method, seed=seed
            )
        self._shard, self._state = shard, self._sgd.init(shard)
        if isinstance(method, AbstractReduction):
            self._state.rate_factor = method.length(curvature)
        self._params: FloatVector = np.zeros(n_params(shard.n_features, 1))
        self.passes, self.seconds = 0.0, 0.0
        # Loads the kernels.
        self._sgd.bind(self._params, shard, self._state)(0, 0)
        self._sgd.settle(self._params.copy(), shard, self._sgd.init(shard), is_last=False)

    def epoch(self) -> float:
        """Take the steps of an epoch; return the objective after them."""
        begin = time.perf_counter()
        self._state.start_epoch()
        self._sgd.arrange(self._shard, self._state)
        self._sgd.run(self._params, self._shard, 0, self._shard.n_rows, self._state)
        refreshed = self._sgd.settle(self._params, self._shard, self._state, is_last=False) is not None
        self.seconds += time.perf_counter() - begin
        self.passes += 1.0 + refreshed
        weights: Any = self._params[:-1]
        loss = self._sgd.evaluate(self._params, self._shard, self._state).mean_loss
        return float(loss + 0.5 * self._sgd.objective.strength * (weights @ weights))

    def row(self, epochs: int) -> Row:
        """Take all epochs, 2 or more; return the mean of the second half, the value after 60 passes, the lowest."""
        found, after, curve = [], 0.0, []
        stride = -(-epochs // _POINTS)
        for number in range(1, epochs + 1):
            found.append(self.epoch())
            if self.passes <= _PASSES or number == 1:
                after = found[-1]
            if number % stride == 0:
                curve.append({"passes": self.passes, "seconds": self.seconds, "objective": found[-1]})
        plateau = float(np.mean(found[epochs // 2 :]))
        return {
            "plateau": plateau, "after": after, "reached": min(found), "seconds": self.seconds, "curve": curve,
        }  # fmt: skip


def _courses(batch: Batch, runs: Sequence[Run]) -> Iterator[Row]:
    problem, epochs = batch.data, batch.study.epochs
    described = problem.describe() | {"lowest": lowest_objective(problem, epochs)}
    for run in runs:
        # The seed decides the order of the rows as well.
        shard = make_shard(problem.X, problem.y, seed=run.seed)
        yield described | Course(problem, shard, METHODS[run.method], run.seed).row(problem.longer * epochs)


_FEATURES, _STEPS = 22, 500_000
_KINDS: Final = {"drawn_ns": Importance(0.5), "uniform_ns": Importance(1.0), "walk_ns": None}


def _draws(batch: Batch, runs: Sequence[Run]) -> Iterator[Row]:
    """Yield the nanoseconds of a step of each kind, once for each repetition."""
    del batch
    n_rows = runs[0].rows
    X = np.random.default_rng(0).standard_normal((n_rows, _FEATURES), np.float32)
    shard = make_shard(X, np.where(X[:, 0] > 0.3, 1.0, -1.0), dtype=np.float32)
    del X
    sizes = np.ones(n_rows)
    kinds = {name: _Steps(kind, shard) for name, kind in _KINDS.items()}
    for _ in runs:
        turns = [{name: one.epoch_ns() for name, one in kinds.items()} for _ in range(max(1, _STEPS // n_rows))]
        # Nothing makes a step faster than it is; much makes it slower.
        begin = time.perf_counter()
        np.cumsum(sizes)  # what a draw would take that adds up the gradients of all rows
        summed = {"summed_ns": 1e9 * (time.perf_counter() - begin)}
        yield {name: min(turn[name] for turn in turns) for name in kinds} | summed


class _Steps:
    """Epochs of one kind, of which the first fills what is remembered and loads the kernel."""

    def __init__(self, kind: Importance | None, shard: Shard) -> None:
        self._sgd = SGD(Objective("log_loss", "l2", 1e-4), "constant", eta0=0.01, sampling=kind)
        self._shard, self._state = shard, self._sgd.init(shard)
        self._params = np.zeros(n_params(shard.n_features, 1), np.float32)
        self.epoch_ns()

    def epoch_ns(self) -> float:
        self._state.start_epoch()
        self._sgd.arrange(self._shard, self._state)
        walk = self._sgd.bind(self._params, self._shard, self._state)
        begin = time.perf_counter()
        walk(0, self._shard.n_rows)
        return 1e9 * (time.perf_counter() - begin) / self._shard.n_rows


# -- reading rows --------------------------------------------------------------------------------------------------


class _Course(Cell):
    """The courses of one method on one problem, whose minimum is the lowest objective that any reached."""

    def errors(self, column: str = "plateau") -> dict[int, float]:
        """Return the distance to the minimum by seed: over the second half of the epochs, or of another column."""
        return {seed: max(found - self.minimum, _LEAST) for seed, found in self.column(column).items()}

    def error(self, column: str = "plateau") -> float:
        found = self.errors(column)
        return sum(found.values()) / len(found)


def _read(rows: Sequence[Row]) -> tuple[dict[str, list[_Course]], list[Cell]]:
    """Return the courses by problem, and timed steps by rising number of rows."""
    courses = [row for row in rows if row["part"] == "course"]
    lowest: dict[str, float] = {}
    for row in courses:
        lowest[row["dataset"]] = min(row["lowest"], row["reached"], lowest.get(row["dataset"], math.inf))
    known = [row | {"minimum": lowest[row["dataset"]]} for row in courses]
    cells = cells_of(known, "dataset", "method", make=_Course)
    timed = cells_of([row for row in rows if row["part"] == "draws"], "rows")
    return {name: only(cells, dataset=name) for name in lowest}, sorted(timed, key=_size)


def _size(draw: Cell) -> int:
    return int(draw.rows[0]["rows"])


def _over(draw: Cell, other: str) -> float:
    """Return how long a drawn step takes over one of another kind, by the shortest repetitions."""
    return min(draw.column("drawn_ns").values()) / min(draw.column(other).values())


def _groups(draw: Cell) -> int:
    """Return the groups of neighbours in the tree that a draw reads."""
    return len(sum_levels(_size(draw))) - 1


def _times(cells: Sequence[_Course], method: str, over: str) -> float | None:
    """Return the error of a method over that of another; None where one of them was not run."""
    ours, other = one_of(cells, method=method), one_of(cells, method=over)
    return ours.error() / other.error() if ours and other else None


def check_claims(rows: Sequence[Row]) -> list[Claim]:
    """Return what is published of the methods, and whether it holds here."""
    problems, draws = _read(rows)
    claims = [
        _judge_ratio(STATEMENTS[key], cells, *pair)
        for key, outliers, pair in (("srg/outliers", True, (_SGD, _SRG)), ("srg/as-good", False, (_SRG, _SGD)))
        for name, cells in problems.items()
        if (name in (_TOY, _FAR)) is outliers
    ]
    if problems:
        claims += [_judge_linear(STATEMENTS[key], method, problems) for method, key in _CONVERGE.items()]
    return [*claims, *_judge_draws(draws)]


def _judge_ratio(statement: Statement, cells: Sequence[_Course], above: str, below: str) -> Claim:
    """Return a claim about the error of a method over that of another, seed by seed."""
    ours, other = one_of(cells, method=above), one_of(cells, method=below)
    found = ratio(ours.errors(), other.errors()) if ours and other else None
    if found is None:
        return statement.not_run(cells[0].dataset, f"{above} and {below} were not both run.")
    walk = _times(cells, _WALK, _SRG)
    note = f"Visiting each row once, as by default, has {as_times(walk)} the error of SRG." if walk else ""
    return statement.judged(cells[0].dataset, found, note, baseline="1x")


def _judge_linear(statement: Statement, method: str, problems: Mapping[str, Sequence[_Course]]) -> Claim:
    """Return the claim that a method is near the minimum of every problem."""
    own = [cell for cells in problems.values() for cell in only(cells, method=method)]
    found = [mean for cell in own if (mean := average(cell.errors("after"))) is not None]
    if not found:
        return statement.not_run("-", f"{method} was not run.")
    plain = [cell.error("after") for cells in problems.values() for cell in only(cells, method=_SGD)]
    return statement.judged(
        f"{len(found)} problems",
        largest(found),
        "The largest distance of all problems.",
        baseline=f"{max(plain, default=math.nan):.1e}: {_SGD}",
    )


def _judge_draws(draws: Sequence[Cell]) -> list[Claim]:
    """Return what is said of the cost of a draw; nothing without timed steps."""
    if not draws:
        return []
    groups = max(_groups(cell) / math.log(_size(cell), FANOUT) for cell in draws)
    note = f"{_groups(draws[-1])} groups at {_size(draws[-1]):,} rows."
    sizes = f"{_size(draws[0]):,} to {_size(draws[-1]):,} rows"
    claims = [STATEMENTS["srg/draw"].judged(sizes, exact(groups), note)]
    statement, data = STATEMENTS["dsgd/draw-step"], "1,000,000 rows of 22 float32 numbers"
    at = next((cell for cell in draws if _size(cell) == 1_000_000), None)
    if at is None:
        return [*claims, statement.not_run(data, "Time steps on 1,000,000 rows.")]
    found = ratio(at.column("drawn_ns"), at.column("uniform_ns"))
    note = f"{as_times(_over(at, 'walk_ns'))} as long as visiting each row once, which reads memory in order."
    summed = statement.control("adding up all gradients", ratio(at.column("summed_ns"), at.column("uniform_ns")))
    controls = [summed] if summed.found else []
    return [*claims, statement.judged(data, found, note, busy=were_busy(at.rows), controls=controls)]


# -- reporting -----------------------------------------------------------------------------------------------------


def _report(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    problems, draws = _read(rows)
    gains = [one for name, cells in problems.items() if name in (_TOY, _FAR) and (one := _times(cells, _SGD, _SRG))]
    highlights = [(span_of(gains, "{:.2g}") + "x", "less error where outliers dominate, SRG")] if gains else []
    if draws:
        steps = span_of([_over(cell, "uniform_ns") for cell in draws], "{:.2f}")
        highlights.append((f"{steps}x", "a step on a drawn row, over a uniform one"))
    return {
        "answer": _answer(problems, draws),
        "ran": [
            ("Courses", f"{study.epochs} epochs at constant rates, seeds {joined(study.seeds)}, one rank"),
            ("Steps timed", f"{joined(f'{size:,}' for size in study.sizes)} rows, {study.repeats} repetitions"),
        ],
        "highlights": highlights,
        "data": [_problem_table([cells[0].rows[0] for cells in problems.values()])],
        "claims": check_claims(rows),
        "source": "; ".join(SOURCES[key].reference for key in study.sources) + ".",
        "figures": [_course_figure(problems)] if problems else [],
        "tables": [*([_course_table(problems)] if problems else []), *([_draw_table(draws)] if draws else [])],
    }


def _answer(problems: Mapping[str, Sequence[_Course]], draws: Sequence[Cell]) -> str:
    sentences = []
    for has_outliers, text in ((True, "Where outliers dominate"), (False, "Where no rows stand out")):
        found = [
            one
            for name, cells in problems.items()
            if (name in (_TOY, _FAR)) is has_outliers and (one := _times(cells, _SGD, _SRG))
        ]
        if found:
            shares = span_of([1.0 / one for one in found], "{:.2g}")
            sentences.append(f"{text}, drawing rows by their gradients leaves {shares} of the error of uniform draws.")
    ends = [cell.error("after") for cells in problems.values() for cell in cells if cell.method in _CONVERGE]
    if ends:
        sentences.append(f"SAGA and SVRG end within {max(ends):.0e} of the minimum after {_PASSES} passes.")
    if draws:
        sentences.append(
            f"A step on a drawn row takes {as_times(_over(draws[-1], 'uniform_ns'))} as long as on a uniform one at "
            f"{_size(draws[-1]):,} rows."
        )
    return " ".join(sentences)


def _problem_table(rows: Sequence[Row]) -> Table:
    columns = (
        "problem = dataset | rows are = source | objective = {0[loss]}, alpha {0[alpha]:g} | rows = rows:, | "
        "features = features:, | checksum = checksum"
    )
    return Table.of("Problems", rows, columns, n_text=3)


def _course_table(problems: Mapping[str, Sequence[_Course]]) -> Table:
    def over(cell: _Course) -> str:
        factor = _times(problems[cell.dataset], _SGD, cell.method)
        return "-" if factor is None else as_times(factor) if factor < _BEYOND else f"over {as_times(_BEYOND)}"

    columns = (
        f"problem = dataset | method = method | error = error | SGD, drawn, over it = over | "
        f"after {_PASSES} passes = after | ms = seconds*1e3:3"
    )
    note = (
        "Error: the objective less its minimum, mean over the second half of the epochs and over seeds. The minimum is "
        "the lowest objective that any method reached, SAGA in six times as many epochs among them. Milliseconds of "
        "all steps, medians."
    )
    cells = [cell for own in problems.values() for cell in own]
    return Table.of(
        "Distance to the minimum",
        cells,
        columns,
        note,
        2,
        error=lambda cell: f"{cell.error():.1e}",
        over=over,
        after=lambda cell: f"{cell.error('after'):.1e}",
    )


def _draw_table(draws: Sequence[Cell]) -> Table:
    columns = (
        "rows = rows:,.0f | drawn, ns = drawn | uniform, ns = uniform | each once, ns = walk | over uniform = times | "
        "over each once = slower | groups read = groups"
    )
    note = (
        "Nanoseconds of a step on 22 float32 numbers, the shortest repetitions. A draw reads one group of eight "
        "numbers on each level of the tree."
    )

    def least(name: str) -> Callable[[Cell], str]:
        return lambda cell: figure_text(min(cell.column(name).values()))

    return Table.of(
        "Cost of a draw",
        draws,
        columns,
        note,
        drawn=least("drawn_ns"),
        uniform=least("uniform_ns"),
        walk=least("walk_ns"),
        times=lambda cell: as_times(_over(cell, "uniform_ns")),
        slower=lambda cell: as_times(_over(cell, "walk_ns")),
        groups=lambda cell: str(_groups(cell)),
    )


def _course_figure(problems: Mapping[str, Sequence[_Course]]) -> Figure:
    """Return the distance to the minimum along passes, a panel per problem."""
    panels = []
    for name, cells in problems.items():
        points = {
            cell.method: [(at["passes"], max(at["objective"] - cell.minimum, _LEAST)) for at in cell.curve()]
            for cell in cells
        }
        lines = lines_of(points, lambda at: at[0], lambda at: at[1], marker="")
        panels.append(Panel(name, Axis("passes"), Axis("objective - minimum", "log"), lines))
    caption = (
        "Objective less its minimum against passes over the rows, those for full gradients among them. Rates are "
        "constant; medians over seeds."
    )
    return Figure("variance", "Distance to the minimum by passes", caption, panels, columns=2)


#: The study.
STUDY: Final = Study(
    "variance",
    "When is less noise in steps worth its cost?",
    ("srg", "saga", "svrg"),
    options={
        "data": options.data(
            [DataSource("ijcnn1-like", 4_000, 100), DataSource("a9a-like", 4_000, 100)], may_be_empty=True
        ),
        "rows": Option(4_000, least=100),
        "epochs": options.epochs(60, least=2),
        "seeds": options.seeds((0, 1, 2, 3, 4), demo=(0, 1, 2)),
        "sizes": Option(
            (1_000, 10_000, 100_000, 1_000_000, 10_000_000),
            "Numbers of rows for which steps are timed, as 1000,1000000; a million take 90 MB.",
            least=2, demo=(1_000, 10_000, 100_000, 1_000_000),
        ),
        "repeats": Option(5, "Repetitions of what is timed.", least=1),
    },
    grids=[
        # What is timed comes first, while nothing else runs.
        Grid(lambda s: {"part": ["draws"], "rows": s.sizes, "repeat": range(s.repeats)}, _draws, together=("rows",)),
        Grid(
            # Methods take turns, so that each meets the same moments of the machine.
            lambda s: {
                "dataset": [one_of_many(), far_targets(s.rows), *s.data], "part": ["course"], "seed": s.seeds,
                "method": METHODS,
            },
            _courses, ("epochs",), derive=lambda run: {"made": repr(METHODS[run.method])}, load=_load,
        ),
    ],
    report=_report,
    about="Two problems have outliers; the datasets are for logistic regression.",
    examples=(
        "dsgd study variance --demo --out demo/",
        "dsgd study variance -d ijcnn1 -d a9a --rows 20000 --seeds 5 --out study/",
        "dsgd study variance --sizes 1000,1000000,10000000 --repeats 9 --out study/",
    ),
    columns=("part", "dataset"),
)  # fmt: skip
