"""Summary of the study of features: how far agents are from one machine, and features from the exact kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dsgd.report import Claim, Table, figure_text, seconds_text
from dsgd.study.features.grid import ALONE, EXACT, GRAPHS, ONE_MACHINE
from dsgd.study.frame.rows import Row
from dsgd.study.frame.summary import AbstractCell, grouped
from dsgd.study.published import STATEMENTS, as_points, as_times
from dsgd.study.verdict import average, difference, ratio

__all__ = [
    "AgentCell",
    "AgentSize",
    "MachineCell",
    "MachineSet",
    "ValueCell",
    "best_table",
    "check_feature_claims",
    "error_table",
    "feature_verdict",
    "graph_table",
    "machine_table",
    "speedup_table",
    "summarise_agents",
    "summarise_machines",
    "summarise_values",
]

# Whoever comes as near to the truth as one machine at its best, but for this share, has caught up with it.
_NEAR: Final = 1.1
_WORST: Final = "cycle"


@dataclass(frozen=True)
class AgentCell(AbstractCell):
    """Agents on one graph, which differ in the seed.

    Parameters
    ----------
    graph : str
        The graph.
    rows : sequence of dict
        The rows of its seeds.
    """

    graph: str
    rows: Sequence[Row]

    def steps_to(self, targets: dict[int, float]) -> dict[int, float]:
        """Return by seed how many steps it takes to an excess risk; infinity where it is never reached."""
        return {row["seed"]: _first(row["curve"], targets[row["seed"]]) for row in self.rows if row["seed"] in targets}


@dataclass(frozen=True)
class AgentSize:
    """Agents with so many rows and features, on all graphs.

    Parameters
    ----------
    agents, rows, features : int
        Agents, rows of each, and features of a row.
    cells : dict of str to AgentCell
        By graph.
    """

    agents: int
    rows: int
    features: int
    cells: dict[str, AgentCell]

    def over_one(self, graph: str) -> Any:
        """Return the interval of the lowest excess risk over that of one machine with all rows; None without both."""
        ours, one = self.cells.get(graph), self.cells.get(ONE_MACHINE)
        return ratio(ours.column("best"), one.column("best")) if ours and one else None

    def speedups(self, graph: str) -> dict[int, float]:
        """Return by seed how much less work an agent has than one machine until it has caught up; 0 if it never does.

        Work is the rows that gradients are of.
        """
        ours, one = self.cells.get(graph), self.cells.get(ONE_MACHINE)
        if ours is None or one is None:
            return {}
        targets = {seed: _NEAR * best for seed, best in one.column("best").items()}
        alone, together = one.steps_to(targets), ours.steps_to(targets)
        return {seed: self.agents * alone[seed] / together[seed] for seed in together if seed in alone}


@dataclass(frozen=True)
class ValueCell(AbstractCell):
    """Kernel values of so many features.

    Parameters
    ----------
    features : int
        Features.
    rows : sequence of dict
        The rows of its seeds.
    """

    features: int
    rows: Sequence[Row]


@dataclass(frozen=True)
class MachineCell(AbstractCell):
    """A machine of so many features on one set.

    Parameters
    ----------
    features, epochs : int
        Features and epochs; both 0 for the exact one.
    rows : sequence of dict
        The rows of its seeds.
    """

    features: int
    epochs: int
    rows: Sequence[Row]

    @property
    def name(self) -> str:
        """What it is called."""
        return f"{self.features:,} features" if self.features else EXACT


@dataclass(frozen=True)
class MachineSet:
    """All machines on one set.

    Parameters
    ----------
    dataset : str
        Its name.
    exact : MachineCell or None
        The exact machine, if it was run.
    cells : list of MachineCell
        The others, by epochs and features, rising.
    """

    dataset: str
    exact: MachineCell | None
    cells: list[MachineCell]

    def behind(self, cell: MachineCell) -> Any:
        """Return the interval of an accuracy less that of the exact machine; None without it."""
        return self.exact and difference(cell.column("accuracy"), self.exact.column("accuracy"))

    def times(self, cell: MachineCell) -> float | None:
        """Return how many times as long as the exact machine one trains; None without it."""
        return cell.median("seconds") / self.exact.median("seconds") if self.exact else None


def summarise_agents(rows: Iterable[Row]) -> list[AgentSize]:
    """Return one entry per number of rows and features, in the order in which they were run."""
    mine = [row for row in rows if row["part"] == "agents"]
    return [
        AgentSize(agents, n, m, {name: AgentCell(name, seeds) for (name,), seeds in grouped(own, "graph").items()})
        for (agents, n, m), own in grouped(mine, "agents", "rows", "features").items()
    ]


def summarise_values(rows: Iterable[Row]) -> list[ValueCell]:
    """Return one entry per number of features, rising."""
    mine = grouped((row for row in rows if row["part"] == "values"), "features")
    return [ValueCell(features, own) for (features,), own in sorted(mine.items())]


def summarise_machines(rows: Iterable[Row]) -> list[MachineSet]:
    """Return one entry per set."""
    mine = grouped((row for row in rows if row["part"] == "machines"), "dataset")

    def of_set(own: Sequence[Row]) -> list[tuple[tuple[Any, ...], list[Row]]]:
        return sorted(grouped(own, "features", "epochs").items(), key=lambda item: item[0][::-1])

    return [
        MachineSet(
            name,
            next((MachineCell(0, 0, seeds) for (m, _), seeds in of_set(own) if not m), None),
            [MachineCell(m, epochs, seeds) for (m, epochs), seeds in of_set(own) if m],
        )
        for (name,), own in mine.items()
    ]


def by_rows(sizes: Sequence[AgentSize]) -> list[AgentSize]:
    """Return those that differ in the rows of an agent, rising: of the features that are run most often."""
    counts = [size.features for size in sizes]
    usual = max(counts, key=counts.count, default=0)
    return sorted((size for size in sizes if size.features == usual), key=lambda size: size.rows)


def by_features(sizes: Sequence[AgentSize]) -> list[AgentSize]:
    """Return those that differ in the features, rising."""
    counts = [size.rows for size in sizes]
    usual = max(counts, key=counts.count, default=0)
    return sorted((size for size in sizes if size.rows == usual), key=lambda size: size.features)


def best_table(sizes: Sequence[AgentSize], of: str = "") -> Table:
    """Return the excess risk at the best step, by rows of an agent and graph; `of` ends the title."""
    names = list(dict.fromkeys(name for size in sizes for name in size.cells))
    rows = [
        (f"{size.rows:,}", f"{size.features:,}", *(_best(size.cells.get(name)) for name in names)) for size in sizes
    ]
    note = (
        "Excess risk: mean squared distance of an agent's predictions from the function without noise, mean over "
        "agents, at the step at which it is lowest; behind it that step. Medians over seeds. The variance of the "
        "function is 0.2, that of the noise 1."
    )
    return Table(f"Excess risk at the best step{of}", ("rows per agent", "features", *names), rows, note, n_text=0)


def speedup_table(sizes: Sequence[AgentSize]) -> Table:
    """Return the speed-up over one machine, by rows of an agent and graph."""
    rows = [(f"{size.rows:,}", *(_speedup(size, name) for name in GRAPHS)) for size in sizes]
    agents = sizes[0].agents if sizes else 0
    note = (
        f"Rows that gradients are of until the excess risk is within a tenth of what one machine with all rows reaches "
        f"at best, one machine over an agent; {agents}x would be linear. Medians over seeds; -: never reached. "
        "Messages are not in it: a round sends one model to each neighbour."
    )
    return Table("Speed-up over one machine", ("rows per agent", *GRAPHS), rows, note, n_text=0)


def error_table(sizes: Sequence[AgentSize]) -> Table:
    """Return the error over that of one machine, by rows of an agent and graph."""
    rows = [(f"{size.rows:,}", *(_over(size, name) for name in (*GRAPHS, ALONE))) for size in sizes]
    note = "Ratio of the lowest excess risks of all steps, mean over seeds."
    return Table("Error over one machine", ("rows per agent", *GRAPHS, ALONE), rows, note, n_text=0)


def graph_table(sizes: Sequence[AgentSize]) -> Table:
    """Return what the graphs are."""
    first = sizes[0].cells if sizes else {}
    rows = [
        (name, str(cell.rows[0]["neighbours"]), f"{cell.rows[0]['gap']:.3f}")
        for name, cell in first.items()
        if name in GRAPHS
    ]
    note = "Gap: one minus the second largest modulus of an eigenvalue of the weights; Metropolis weights."
    return Table("Graphs", ("graph", "neighbours at most", "spectral gap"), rows, note)


def machine_table(sets: Sequence[MachineSet]) -> Table:
    """Return accuracy and seconds by features, beside the exact machine."""
    rows = [
        (
            one.dataset,
            cell.name,
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


def feature_verdict(sizes: Sequence[AgentSize], sets: Sequence[MachineSet]) -> str:
    """Return the answer of the study, a few sentences."""
    sentences = []
    ordered = by_rows(sizes)
    if ordered:
        few, many = ordered[0], ordered[-1]
        found = {size.rows: size.over_one(_WORST) for size in (few, many)}
        if all(found.values()):
            sentences.append(
                f"On a {_WORST}, {many.agents} agents have {as_times(found[many.rows].estimate)} the error of one "
                f"machine with {many.rows:,} rows each, and {as_times(found[few.rows].estimate)} with {few.rows:,}."
            )
        median = _median(many.speedups(_WORST))
        sentences.append(
            f"An agent then has {as_times(median)} less work than one machine; {many.agents}x would be linear."
            if median
            else "With none of these numbers of rows do they come within a tenth of it at every seed."
        )
    for one in sets:
        gap, times = (one.behind(one.cells[-1]), one.times(one.cells[-1])) if one.cells else (None, None)
        if gap is not None and times is not None:
            sentences.append(
                f"On {one.dataset}, {one.cells[-1].name} end {100 * abs(gap.estimate):.2f} points "
                f"{'above' if gap.estimate > 0 else 'below'} {EXACT}, in {as_times(times)} its time."
            )
    return " ".join(sentences)


def check_feature_claims(
    sizes: Sequence[AgentSize], values: Sequence[ValueCell] = (), sets: Sequence[MachineSet] = ()
) -> list[Claim]:
    """Return what is published of the methods, and whether it holds here."""
    return [*(_agent_claims(by_rows(sizes)) if sizes else ()), *_value_claims(values), *_machine_claims(sets)]


def _agent_claims(sizes: Sequence[AgentSize]) -> list[Claim]:
    few, many = sizes[0], sizes[-1]
    claims = []
    for statement, size in ((STATEMENTS["agents/any-graph"], many), (STATEMENTS["agents/few-rows"], few)):
        data = f"{size.agents} agents on a {_WORST}, {size.rows:,} rows each"
        found = size.over_one(_WORST)
        alone = size.over_one(ALONE)
        baseline = f"{as_times(alone.estimate)}: alone" if alone else ""
        claims.append(
            statement.not_run(data, f"Run the {_WORST} and {ONE_MACHINE}.")
            if found is None
            else statement.judged(data, found, f"Spectral gap {_gap(size):.3f}.", baseline=baseline)
        )
    data = f"{many.agents} agents on a {_WORST}, {many.rows:,} rows each"
    share = average({seed: found / many.agents for seed, found in many.speedups(_WORST).items()})
    note = "Rows that gradients are of, until the error is within a tenth of that of one machine; without messages."
    claims.append(
        STATEMENTS["agents/speed-up"].not_run(data, "Run one machine too.")
        if share is None
        else STATEMENTS["agents/speed-up"].judged(data, share, note)
    )
    return [*claims, _optimal(sizes)]


def _optimal(sizes: Sequence[AgentSize]) -> Claim:
    """Return the claim about how errors fall with the rows of all agents."""
    data = f"{sizes[0].agents} agents on a {_WORST}, {sizes[0].rows:,} to {sizes[-1].rows:,} rows each"
    cells = {size.agents * size.rows: size.cells[_WORST] for size in sizes if _WORST in size.cells}
    found = _exponents({n: cell.column("best") for n, cell in cells.items()})
    if found is None:
        return STATEMENTS["agents/rate"].not_run(data, "Run agents with several numbers of rows.")
    note = "Mean over agents of the lowest excess risk of all steps."
    return STATEMENTS["agents/rate"].judged(data, found, note, baseline="0: no steps")


def _value_claims(values: Sequence[ValueCell]) -> list[Claim]:
    if len(values) < 2:
        return []
    data = f"normal rows of 10 columns, {values[0].features:,} to {values[-1].features:,} features"
    found = _exponents({cell.features: cell.column("plain") for cell in values})
    assert found is not None  # every row has its error
    least = _median(values[-1].column("plain"))
    return [STATEMENTS["rff/values"].judged(data, found, f"Root mean squared error {least:.4f} at the most features.")]


def _machine_claims(sets: Sequence[MachineSet]) -> list[Claim]:
    claims = []
    for one in sets:
        most = one.cells[-1] if one.cells else None
        if most is None or one.exact is None:
            claims.append(STATEMENTS["rff/accuracy"].not_run(one.dataset, f"Run {EXACT} and features."))
            continue
        note = (
            f"{most.name}, {most.epochs} epochs; {EXACT} has {one.exact.median('accuracy'):.2%}. Training takes "
            f"{as_times(one.times(most) or 0.0)} as long."
        )
        data = f"{one.dataset}, {most.rows[0]['rows']:,} rows"
        claims.append(STATEMENTS["rff/accuracy"].judged(data, one.behind(most), note, baseline=f"0: {EXACT}"))
    return claims


def _exponents(found: dict[int, dict[int, float]]) -> Any:
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


def _gap(size: AgentSize) -> float:
    return float(size.cells[_WORST].rows[0]["gap"])


def _best(cell: AgentCell | None) -> str:
    return f"{figure_text(cell.median('best'))} ({cell.median('best_steps'):,.0f})" if cell else "-"


def _speedup(size: AgentSize, graph: str) -> str:
    median = _median(size.speedups(graph))
    return as_times(median) if median else "-"


def _over(size: AgentSize, graph: str) -> str:
    found = size.over_one(graph)
    return f"{found.estimate:.3g}x" if found else "-"


def _median(found: dict[Any, float]) -> float:
    return float(np.median(list(found.values()))) if found else 0.0
