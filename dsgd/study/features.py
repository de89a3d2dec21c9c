"""The study of random features: compared with the exact kernel SVM, and learnt by agents without a centre.

What is timed comes first, while nothing else runs; then kernel values and agents, whose steps are in
`dsgd.study.agents`. A set that is not on this machine has generated clusters of its shape in its place.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from dsgd.datasets import find, locate
from dsgd.estimators import SGDClassifier
from dsgd.kernel_approximation import RandomFeatures
from dsgd.report import Axis, Claim, Figure, Level, Line, Panel, Table, figure_text, seconds_text
from dsgd.report.figures import TEXT
from dsgd.study.agents import ALONE, GRAPHS, ONE_MACHINE, run_agents
from dsgd.study.frame import options
from dsgd.study.frame.data import DataSource, MissingData, StudyData, load_or_keep, sizes_of
from dsgd.study.frame.report import data_table, joined, line_of, lines_of
from dsgd.study.frame.rows import Cell, Row, Run, Stat, cells_of, one_of
from dsgd.study.frame.study import Batch, Grid, Option, Study
from dsgd.study.published import SOURCES, STATEMENTS, Interval, as_percent, as_points, as_times, average
from dsgd.svm import SVC
from dsgd.types import AnyArray, FloatMatrix

__all__ = ["STUDY"]

#: The kernel machine without features.
EXACT: Final = "SVC"


# -- machines -----------------------------------------------------------------------------------------------------

#: How names of generated clusters end.
CLUSTERS: Final = "-clusters"

_COST: Final = 10.0
_OF_A_CLASS: Final = 6
_DIRECTIONS: Final = 6
_PAIRS: Final = 400
_DRAWS: Final = 10
_COLUMNS: Final = 10


def data_of_machines(source: DataSource, dtype: str, rows: Sequence[Row]) -> StudyData | MissingData:
    """Return a set of the registry, or clusters of its shape where it is not on this machine."""
    del dtype
    name = source.name
    if name.endswith(CLUSTERS):
        return _clusters(name.removesuffix(CLUSTERS), source)
    if source.read is not None or name.endswith("-like") or locate(find(name), "train") is not None:
        return load_or_keep(source, "float32", rows)
    own = [row for row in rows if row.get("dataset") == name]
    left = sizes_of(name, own, source.rows, source.all_test_rows)
    return _clusters(name, source) if left is None else left


def _clusters(base: str, source: DataSource) -> StudyData:
    """Return rows of as many columns and classes as a set has: clusters in a few directions, several a class."""
    info = find(base)
    n, n_test = source.rows or 5_000, source.all_test_rows or 2_000
    rng = np.random.default_rng(0)
    n_classes, d = info.n_classes, info.n_features
    centres = 3.0 * rng.standard_normal((n_classes * _OF_A_CLASS, _DIRECTIONS))
    cluster = rng.integers(len(centres), size=n + n_test)
    places = centres[cluster] + rng.standard_normal((n + n_test, _DIRECTIONS))
    X = places @ rng.standard_normal((_DIRECTIONS, d)) + 0.3 * rng.standard_normal((n + n_test, d))
    X, y = X.astype(np.float32), cluster % n_classes
    text = f"{_OF_A_CLASS} clusters a class in {_DIRECTIONS} directions, with the columns and classes of {base}"
    return StudyData(base + CLUSTERS, text, X[:n], y[:n], X[n:], y[n:])


def run_machines(batch: Batch, runs: Sequence[Run]) -> Iterator[Row]:
    """Yield the contents of the rows of machines on one set."""
    data = batch.data
    gamma = _width(data.X)
    described = {**data.describe(), "columns": int(data.X.shape[1]), "gamma": gamma, "cost": _COST}
    del described["features"]  # of a run they are those that are made
    # Kernels are compiled before anything is timed.
    for features in sorted({min(run.features, 50) for run in runs}):
        _machine(features, gamma, len(data.y), 1, 0).fit(data.X[:500], data.y[:500])
    for run in runs:
        model = _machine(run.features, gamma, len(data.y), run.epochs, run.seed)
        begin = time.perf_counter()
        model.fit(data.X, data.y)
        seconds = time.perf_counter() - begin
        accuracy = float(np.mean(model.predict(data.X_test) == data.y_test))
        yield {**described, "seconds": seconds, "accuracy": accuracy}


def _machine(features: int, gamma: float, n_rows: int, epochs: int, seed: int) -> Any:
    """Return a machine of one thread: the exact one, or of features; both minimise the same but for the kernel."""
    if not features:
        return SVC(C=_COST, gamma=gamma, n_jobs=1)
    return SGDClassifier(
        "hinge",
        alpha=1.0 / (_COST * n_rows),
        average=True,
        max_iter=epochs,
        tol=None,
        random_state=seed,
        features=RandomFeatures(features, gamma=gamma, random_state=seed),
        n_jobs=1,
    )


def _width(X: Any) -> float:
    """Return one over columns times variance, as ``gamma="scale"`` has it."""
    mean = float(X.mean())
    square = float(X.multiply(X).mean()) if hasattr(X, "multiply") else float(np.mean(np.square(X, dtype=np.float64)))
    return float(f"{1.0 / (X.shape[1] * max(square - mean**2, 1e-12)):.6g}")


def run_values(batch: Batch, runs: Sequence[Run]) -> Iterator[Row]:
    """Yield the root of the mean squared error of kernel values over ten draws, of plain and orthogonal features."""
    del batch
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2 * _PAIRS, _COLUMNS))
    gamma = 0.5 / _COLUMNS
    exact = np.exp(-gamma * np.sum((X[:_PAIRS] - X[_PAIRS:]) ** 2, axis=1))
    for run in runs:
        yield {
            "plain": _error(X, exact, gamma, run, orthogonal=False),
            "orthogonal": _error(X, exact, gamma, run, orthogonal=True),
        }


def _error(X: FloatMatrix, exact: AnyArray, gamma: float, run: Run, *, orthogonal: bool) -> float:
    squares = []
    for draw in range(_DRAWS):
        seed = _DRAWS * run.seed + draw
        made = RandomFeatures(run.features, gamma=gamma, orthogonal=orthogonal, random_state=seed).fit_transform(X)
        found = np.einsum("ij,ij->i", made[:_PAIRS], made[_PAIRS:])
        squares.append(np.mean((found - exact) ** 2))
    return float(np.sqrt(np.mean(squares)))


# -- summary ------------------------------------------------------------------------------------------------------

# Whoever comes as near to the truth as one machine at its best, but for this share, has caught up with it.
_NEAR: Final = 1.1
_WORST: Final = "cycle"


class _Size:
    """Agents with so many rows and features, on all graphs."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.agents, self.rows, self.features = (rows[0][name] for name in ("agents", "rows", "features"))
        self.cells: dict[str, Cell] = {cell.graph: cell for cell in cells_of(rows, "graph")}

    def over_one(self, graph: str) -> Interval | None:
        """Return the interval of the lowest excess risk over that of one machine with all rows; None without both."""
        ours, one = self.cells.get(graph), self.cells.get(ONE_MACHINE)
        return ours.over(one, "best") if ours and one else None

    def speedups(self, graph: str) -> dict[int, float]:
        """Return by seed how much less work an agent has than one machine until it has caught up; 0 if it never does.

        Work is the rows that gradients are of.
        """
        ours, one = self.cells.get(graph), self.cells.get(ONE_MACHINE)
        if ours is None or one is None:
            return {}
        targets = {seed: _NEAR * best for seed, best in one.column("best").items()}
        alone, together = (
            {row["seed"]: _first(row["curve"], targets[row["seed"]]) for row in cell.rows if row["seed"] in targets}
            for cell in (one, ours)
        )
        return {seed: self.agents * alone[seed] / together[seed] for seed in together if seed in alone}

    def speedup(self, graph: str) -> float:
        """Return the median of the same over the seeds; 0 without any."""
        return statistics.median(self.speedups(graph).values() or [0.0])


class _Set:
    """All machines on one set: the exact one, if it was run, and the others by epochs and features, rising."""

    def __init__(self, rows: Sequence[Row]) -> None:
        cells = sorted(cells_of(rows, "features", "epochs"), key=lambda cell: (cell.epochs, cell.features))
        self.dataset, self.exact = rows[0]["dataset"], one_of(cells, features=0)
        self.cells = [cell for cell in cells if cell.features]

    def behind(self, cell: Cell) -> Interval | None:
        """Return the interval of an accuracy less that of the exact machine; None without it."""
        return None if self.exact is None else cell.minus(self.exact, "accuracy")

    def times(self, cell: Cell) -> float | None:
        """Return how many times as long as the exact machine one trains; None without it."""
        return cell.median("seconds") / self.exact.median("seconds") if self.exact else None


def _name(cell: Cell) -> str:
    """Return what a machine is called."""
    return f"{cell.features:,} features" if cell.features else EXACT


def _read(rows: Sequence[Row]) -> tuple[list[_Size], list[Cell], list[_Set]]:
    """Return agents by rising rows, kernel values by rising features, and machines by set."""
    parts = {cell.part: cell.rows for cell in cells_of(rows, "part")}
    agents = cells_of(parts.get("agents", ()), "agents", "features")
    usual = max(agents, key=lambda cell: len(cell.rows), default=None)
    cells = cells_of(usual.rows, "rows") if usual else ()
    sizes = sorted((_Size(cell.rows) for cell in cells), key=lambda size: int(size.rows))
    values = sorted(cells_of(parts.get("values", ()), "features"), key=lambda cell: cell.features)
    return sizes, values, [_Set(cell.rows) for cell in cells_of(parts.get("machines", ()), "dataset")]


def _best_table(sizes: Sequence[_Size]) -> Table:
    """Return the excess risk at the best step, by rows of an agent and graph."""
    names = list(dict.fromkeys(name for size in sizes for name in size.cells))
    rows = []
    for size in sizes:
        cells = [size.cells.get(name) for name in names]
        best = [
            f"{figure_text(cell.median('best'))} ({cell.median('best_steps'):,.0f})" if cell else "-" for cell in cells
        ]
        rows.append((f"{size.rows:,}", *best))
    note = (
        "Excess risk: mean squared distance of an agent's predictions from the function without noise, mean over "
        "agents, at the step at which it is lowest; behind it that step. Medians over seeds. The variance of the "
        "function is 0.2, that of the noise 1."
    )
    return Table("Excess risk at the best step", ("rows per agent", *names), rows, note, n_text=0)


def _size_tables(sizes: Sequence[_Size]) -> list[Table]:
    """Return speed-up and error over one machine, the lowest risks, and what the graphs are."""

    def over(size: _Size, name: str) -> str:
        found = size.over_one(name)
        return f"{found.estimate:.3g}x" if found else "-"

    def speedup(size: _Size, name: str) -> str:
        median = size.speedup(name)
        return as_times(median) if median else "-"

    of_speedup = (
        "Rows that gradients are of until the excess risk is within a tenth of what one machine with all rows "
        f"reaches at best, one machine over an agent; {sizes[0].agents}x would be linear. Medians over seeds; -: never "
        "reached. Messages are not in it: a round sends one model to each neighbour."
    )
    of_error = "Ratio of the lowest excess risks of all steps, mean over seeds."
    tables = []
    for title, names, say, note in (
        ("Speed-up over one machine", [*GRAPHS], speedup, of_speedup),
        ("Error over one machine", [*GRAPHS, ALONE], over, of_error),
    ):
        rows = [(f"{size.rows:,}", *(say(size, name) for name in names)) for size in sizes]
        tables.append(Table(title, ("rows per agent", *names), rows, note, n_text=0))
    return [*tables, _best_table(sizes), _graph_table(sizes)]


def _graph_table(sizes: Sequence[_Size]) -> Table:
    """Return what the graphs are."""
    cells = [cell for name, cell in (sizes[0].cells if sizes else {}).items() if name in GRAPHS]
    note = "Gap: one minus the second largest modulus of an eigenvalue of the weights; Metropolis weights."
    return Table.of("Graphs", cells, "graph = graph | neighbours at most = neighbours | spectral gap = gap:.3f", note)


def _machine_table(sets: Sequence[_Set]) -> Table:
    """Return accuracy and seconds by features, beside the exact machine."""
    rows = [
        (
            one.dataset,
            _name(cell),
            str(cell.epochs) if cell.epochs else "-",
            f"{cell.median('accuracy'):.2%}",
            as_points(gap.estimate) if cell.features and (gap := one.behind(cell)) else "-",
            seconds_text(cell.median("seconds")),
            as_times(times) if cell.features and (times := one.times(cell)) else "-",
        )
        for one in sets
        for cell in ([one.exact] if one.exact else []) + one.cells
    ]
    note = (
        "Accuracy on the test rows; training on one thread, medians over seeds. SVC minimises the hinge loss of the "
        "exact kernel; of several classes it has a machine for each pair, features have one for each class."
    )
    columns = ("data", "machine", "epochs", "accuracy", "gap to the exact one", "training", "over SVC")
    return Table("Features beside the exact machine", columns, rows, note, n_text=2)


def _answer(sizes: Sequence[_Size], sets: Sequence[_Set]) -> str:
    """Return the answer of the study, a few sentences."""
    sentences = []
    if sizes:
        few, many = sizes[0], sizes[-1]
        of_few, of_many = few.over_one(_WORST), many.over_one(_WORST)
        if of_few and of_many:
            sentences.append(
                f"On a {_WORST}, {many.agents} agents have {as_times(of_many.estimate)} the error of one "
                f"machine with {many.rows:,} rows each, and {as_times(of_few.estimate)} with {few.rows:,}."
            )
        median = many.speedup(_WORST)
        sentences.append(
            f"An agent then has {as_times(median)} less work than one machine; {many.agents}x would be linear."
            if median
            else "With none of these numbers of rows do they come within a tenth of it at every seed."
        )
    for one in sets:
        gap, times = (one.behind(one.cells[-1]), one.times(one.cells[-1])) if one.cells else (None, None)
        if gap is not None and times is not None:
            sentences.append(
                f"On {one.dataset}, {_name(one.cells[-1])} end {100 * abs(gap.estimate):.2f} points "
                f"{'above' if gap.estimate > 0 else 'below'} {EXACT}, in {as_times(times)} its time."
            )
    return " ".join(sentences)


def _claims(sizes: Sequence[_Size], values: Sequence[Cell] = (), sets: Sequence[_Set] = ()) -> list[Claim]:
    """Return what is published of the methods, and whether it holds here."""
    return [
        *(_agent_claims(sizes) if sizes else ()),
        *_value_claims(values),
        *_machine_claims(sets),
    ]


def _agent_claims(sizes: Sequence[_Size]) -> list[Claim]:
    few, many = sizes[0], sizes[-1]
    who, claims = f"{many.agents} agents on a {_WORST}", []
    for key, size in (("agents/any-graph", many), ("agents/few-rows", few)):
        data, alone, cell = f"{who}, {size.rows:,} rows each", size.over_one(ALONE), size.cells.get(_WORST)
        found = size.over_one(_WORST)
        note = f"Spectral gap {cell.gap:.3f}." if found and cell else f"Run the {_WORST} and {ONE_MACHINE}."
        baseline = f"{as_times(alone.estimate)}: alone" if alone else ""
        claims.append(STATEMENTS[key].judged(data, found, note, baseline=baseline))
    share = average({seed: found / many.agents for seed, found in many.speedups(_WORST).items()})
    note = "Rows that gradients are of, until the error is within a tenth of that of one machine; without messages."
    note = note if share else "Run one machine too."
    data, one_works = f"{who}, {many.rows:,} rows each", f"{as_percent(1 / many.agents)}: one agent does all the work"
    claims.append(STATEMENTS["agents/speed-up"].judged(data, share, note, baseline=one_works))
    # How errors fall with the rows of all agents.
    cells = {size.agents * size.rows: size.cells[_WORST] for size in sizes if _WORST in size.cells}
    found = _exponents({n: cell.column("best") for n, cell in cells.items()})
    note = "Mean over agents of the lowest excess risk of all steps."
    note, baseline = (note, "0: no steps") if found else ("Run agents with several numbers of rows.", "")
    data = f"{who}, {few.rows:,} to {many.rows:,} rows each"
    return [*claims, STATEMENTS["agents/rate"].judged(data, found, note, baseline=baseline)]


def _value_claims(values: Sequence[Cell]) -> list[Claim]:
    if len(values) < 2:
        return []
    data = f"normal rows of 10 columns, {values[0].features:,} to {values[-1].features:,} features"
    found = _exponents({cell.features: cell.column("plain") for cell in values})
    least = values[-1].median("plain")
    note = f"Root mean squared error {least:.4f} at the most features."
    return [STATEMENTS["rff/values"].judged(data, found, note, baseline="0: no more features")]


def _machine_claims(sets: Sequence[_Set]) -> list[Claim]:
    claims = []
    for one in sets:
        most = one.cells[-1] if one.cells else None
        if most is None or one.exact is None:
            claims.append(STATEMENTS["rff/accuracy"].not_run(one.dataset, f"Run {EXACT} and features."))
            continue
        note = (
            f"{_name(most)}, {most.epochs} epochs; {EXACT} has {one.exact.median('accuracy'):.2%}. Training takes "
            f"{as_times(one.times(most) or 0.0)} as long."
        )
        data = f"{one.dataset}, {most.rows[0]['rows']:,} rows"
        claims.append(STATEMENTS["rff/accuracy"].judged(data, one.behind(most), note, baseline=f"0: {EXACT}"))
    return claims


def _exponents(found: dict[int, dict[int, float]]) -> Interval | None:
    """Return the interval of the power of a size with which a figure changes: least squares of logarithms, by seed."""
    seeds = set.intersection(*map(set, found.values())) if len(found) > 1 else set()
    sizes = np.log(sorted(found))
    slopes = {
        seed: float(np.polyfit(sizes, [math.log(found[size][seed]) for size in sorted(found)], 1)[0]) for seed in seeds
    }
    return average(slopes) if slopes else None


def _first(curve: Sequence[Row], target: float) -> float:
    """Return the step at which a curve reaches a target, between its points by their logarithms; infinity if never."""
    before: Row | None = None
    for at in curve:
        if at["error"] <= target:
            if before is None:
                return float(at["steps"])
            fall = math.log(before["error"] / at["error"])
            share = math.log(before["error"] / target) / fall if fall > 0.0 else 1.0
            return float(before["steps"] * (at["steps"] / before["steps"]) ** share)
        before = at
    return math.inf


# -- report -------------------------------------------------------------------------------------------------------

_NAMES: Final = (*GRAPHS, ALONE, ONE_MACHINE)
_STEPS: Final = (
    "Excess risk of the agents' predictions against steps, one panel for each number of rows per agent: it falls while "
    "they learn, and rises when they learn the noise. Medians over seeds."
)
_SPEEDUP: Final = (
    "How much less work an agent has than one machine with all rows, until its excess risk is within a tenth of what "
    "that reaches at best; no point where it never is. Medians over seeds."
)
_MACHINES: Final = (
    "Accuracy on test rows against seconds of training on one thread; each point is a number of features."
)


def _report(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    sizes, values, sets = _read(rows)
    machines = [row for row in rows if row["part"] == "machines"]
    return {
        "answer": _answer(sizes, sets),
        "ran": [
            ("Agents", f"{study.agents}, with {joined(f'{n:,}' for n in study.rows_per_agent)} rows each"),
            (
                "Machines",
                f"{joined(f'{n:,}' for n in study.components)} features, {joined(study.epochs)} epochs, one thread",
            ),
            ("Seeds", joined(study.seeds)),
        ],
        "highlights": _highlights(sizes, sets),
        "data": [data_table(machines, "columns", "gamma", "commonest label", title="Data of the machines")]
        if sets
        else [],
        "claims": _claims(sizes, values, sets),
        "source": "; ".join(SOURCES[key].reference for key in study.sources) + ".",
        "figures": [
            *([_courses(sizes), _speedups(sizes)] if sizes else []),
            *([_machines(sets)] if sets else []),
        ],
        "tables": [*([_machine_table(sets)] if sets else []), *(_size_tables(sizes) if sizes else [])],
    }


def _highlights(sizes: Sequence[_Size], sets: Sequence[_Set]) -> list[tuple[str, str]]:
    found = []
    if sizes and (over := sizes[-1].over_one("cycle")) is not None:
        text = f"the error of one machine, on a cycle with {sizes[-1].rows:,} rows per agent"
        found.append((as_times(over.estimate), text))
    found += [
        (as_points(gap.estimate), f"{_name(one.cells[-1])} over {EXACT}, {one.dataset}")
        for one in sets
        if one.cells and (gap := one.behind(one.cells[-1])) is not None
    ]
    return found[:4]


# That with which all are compared stands out.
_LOOKS: Final = {ONE_MACHINE: {"colour": TEXT, "marker": "", "dash": "dashed"}}


def _courses(sizes: Sequence[_Size]) -> Figure:
    """Return the excess risk along the steps, for the fewest, some, and the most rows of an agent."""
    panels = []
    for size in sizes if len(sizes) <= 4 else [sizes[k * (len(sizes) - 1) // 3] for k in range(4)]:
        points = {name: size.cells[name].curve() if name in size.cells else [] for name in _NAMES}
        lines = lines_of(points, lambda at: at["steps"], lambda at: at["error"], _LOOKS, marker="")
        panels.append(Panel(f"{size.rows:,} rows per agent", Axis("steps", "log"), Axis("excess risk", "log"), lines))
    return Figure("features_steps", "Excess risk by steps", _STEPS, panels, columns=2)


def _speedups(sizes: Sequence[_Size]) -> Figure:
    lines: list[Line | Level] = []
    for number, name in enumerate(GRAPHS):
        found = [(size.rows, sorted(ups)) for size in sizes if (ups := size.speedups(name).values()) and min(ups)]
        x, y = [float(rows) for rows, _ in found], [Stat(ups[len(ups) // 2], ups[0], ups[-1]) for _, ups in found]
        lines.append(line_of(name, x, y, number))
    lines.append(Level(float(sizes[0].agents), "linear"))
    panel = Panel("", Axis("rows per agent", "log"), Axis("speed-up", unit="x", low=0.0), lines)
    return Figure("features_speedup", "Speed-up by rows per agent", _SPEEDUP, [panel], columns=1)


def _machines(sets: Sequence[_Set]) -> Figure:
    panels = []
    for one in sets:
        kinds = {
            f"features, {epochs} epochs": [cell for cell in one.cells if cell.epochs == epochs]
            for epochs in dict.fromkeys(cell.epochs for cell in one.cells)
        }
        kinds |= {EXACT: [one.exact] if one.exact else []}
        lines = [
            replace(line, names=list(map(_name, kinds[line.label])))
            for line in lines_of(
                kinds, lambda cell: cell.median("seconds"), lambda cell: cell.median("accuracy"),
                {EXACT: {"colour": TEXT, "marker": "diamond"}},
            )
        ]  # fmt: skip
        panels.append(Panel(one.dataset, Axis("training", "log", "s"), Axis("accuracy", unit="%"), lines))
    return Figure("features_machines", "Features beside the exact machine", _MACHINES, panels)


#: The study.
STUDY: Final = Study(
    "features",
    "What do random features cost, on one machine and on a network of agents?",
    ("agents", "rff"),
    options={
        "data": options.data(
            [DataSource(name, 5_000, 2_000) for name in ("covtype-subset", "mnist", "ijcnn1")], may_be_empty=True,
            demo=tuple(DataSource(name, 1_000, 1_000) for name in ("covtype-subset", "mnist", "ijcnn1")),
        ),
        "components": Option(
            (100, 300, 1_000, 3_000, 10_000), "Features of a row of machines, as 100,1000.", least=1,
            demo=(100, 300, 1_000), may_be_empty=True,
        ),
        "epochs": Option((10, 40), "Epochs of machines, as 10,40.", least=1, demo=(5, 20)),
        "agents": Option(25, "Agents.", least=3),
        "rows_per_agent": Option(
            (10, 25, 100, 400, 1_600, 6_400), "Rows of each agent, as 10,100,1000.", least=1,
            demo=(10, 100, 1_600), may_be_empty=True,
        ),
        "features": Option(300, "Features of a row of agents.", least=1),
        "steps": Option(3_000, "Steps of agents.", least=10, demo=1_500),
        "seeds": options.seeds(),
    },
    grids=[
        Grid(
            # Machines take turns, so that each meets the same moments of the computer.
            lambda s: {
                "dataset": s.data, "part": ["machines"], "seed": s.seeds, "features": [0, *s.components],
                "epochs": [0, *s.epochs],
            },
            run_machines, derive=lambda run: {"way": "features" if run.features else EXACT},
            where=lambda run: (run.features > 0) == (run.epochs > 0), load=data_of_machines,
        ),
        Grid(
            lambda s: {"part": ["values"], "features": s.components, "seed": s.seeds}, run_values,
            derive=lambda run: {"dataset": "normal numbers"}, together=(),
        ),
        Grid(
            lambda s: {
                "part": ["agents"], "rows": s.rows_per_agent, "seed": s.seeds,
                "graph": [*GRAPHS, ALONE, ONE_MACHINE],
            },
            run_agents, ("agents", "steps", "features"), together=("rows", "seed"),
            derive=lambda run: {"made": repr(GRAPHS.get(run.graph)), "dataset": "sum of laplacians"},
        ),
    ],
    report=_report,
    about="A set that is not on this machine has generated clusters of its shape in its place.",
    examples=(
        "dsgd study features --demo --out demo/",
        "dsgd study features -d ijcnn1 --rows 20000 --components 1000,10000 --out study/",
        "dsgd study features --agents 64 --rows-per-agent 10,100,1000 --seeds 5 --out study/",
    ),
    columns=("part", "dataset"),
)  # fmt: skip
