"""The report of the study of features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dsgd.report import Axis, Figure, Level, Line, Page, Panel, Table, series
from dsgd.report.figures import Dash
from dsgd.report.theme import TEXT, Colour
from dsgd.study.features.grid import ALONE, EXACT, GRAPHS, ONE_MACHINE, FeatureStudy
from dsgd.study.features.summary import (
    AgentSize,
    MachineSet,
    ValueCell,
    best_table,
    by_features,
    by_rows,
    check_feature_claims,
    error_table,
    feature_verdict,
    graph_table,
    machine_table,
    speedup_table,
    summarise_agents,
    summarise_machines,
    summarise_values,
)
from dsgd.study.frame.report import doubts, facts, joined
from dsgd.study.frame.rows import Row, check_rows
from dsgd.study.published import SOURCES, as_points, as_times, citations

__all__ = ["feature_page"]

_NAMES: Final = (*GRAPHS, ALONE, ONE_MACHINE)
_STEPS: Final = (
    "Excess risk of the agents' predictions against steps, one panel for each number of rows per agent: it falls while "
    "they learn, and rises when they learn the noise. Medians over seeds."
)
_ROWS: Final = "Lowest excess risk of all steps against rows per agent; medians over seeds."
_SPEEDUP: Final = (
    "How much less work an agent has than one machine with all rows, until its excess risk is within a tenth of what "
    "that reaches at best; no point where it never is. Medians over seeds."
)
_FEATURES: Final = "Lowest excess risk of all steps against features of a row; medians over seeds."
_MACHINES: Final = (
    "Accuracy on test rows against seconds of training on one thread; each point is a number of features."
)
_VALUES: Final = "Root mean squared error of kernel values against features of a row; medians over seeds."


def feature_page(study: FeatureStudy, rows: Sequence[Row]) -> Page:
    """Return the report of a study from its finished runs.

    Raises
    ------
    DsgdError
        There are no rows.
    """
    check_rows(rows)
    sizes, values, sets = summarise_agents(rows), summarise_values(rows), summarise_machines(rows)
    usual = by_rows(sizes)
    figures = [_courses(usual), _best(usual), _speedups(usual), _by_features(by_features(sizes))] if sizes else []
    figures += [_machines(sets)] if sets else []
    tables = [speedup_table(usual), error_table(usual), best_table(usual), graph_table(usual)] if sizes else []
    return Page(
        title="What do random features cost, on one machine and on a network of agents?",
        answer=feature_verdict(sizes, sets),
        ran=facts(
            rows,
            ("Agents", f"{study.agents}, with {joined(f'{n:,}' for n in study.rows_per_agent)} rows each"),
            (
                "Machines",
                f"{joined(f'{n:,}' for n in study.components)} features, {joined(study.epochs)} epochs, one thread",
            ),
            ("Seeds", joined(study.seeds)),
        ),
        highlights=_highlights(usual, sets),
        doubts=doubts(rows, asked=study.count()),
        data=[_data_table(rows)] if sets else [],
        claims=check_feature_claims(sizes, values, sets),
        source="; ".join(SOURCES[key].reference for key in ("agents", "rff")) + ".",
        figures=[*figures, *([_errors(values)] if values else [])],
        tables=[*([machine_table(sets)] if sets else []), *tables],
        details=[best_table(by_features(sizes), ", by features")] if sizes else [],
        rows=rows,
        citations=citations(SOURCES[key] for key in ("agents", "rff")),
    )


def _highlights(sizes: Sequence[AgentSize], sets: Sequence[MachineSet]) -> list[tuple[str, str]]:
    found = []
    if sizes and (over := sizes[-1].over_one("cycle")) is not None:
        text = f"the error of one machine, on a cycle with {sizes[-1].rows:,} rows per agent"
        found.append((as_times(over.estimate), text))
    found += [
        (as_points(gap.estimate), f"{one.cells[-1].name} over {EXACT}, {one.dataset}")
        for one in sets
        if one.cells and (gap := one.behind(one.cells[-1])) is not None
    ]
    return found[:4]


def _data_table(rows: Sequence[Row]) -> Table:
    first: dict[str, Row] = {}
    for row in rows:
        if row["part"] == "machines":
            first.setdefault(row["dataset"], row)
    columns = {
        "data": lambda row: row["dataset"],
        "source": lambda row: row["source"],
        "train rows": lambda row: f"{row['rows']:,}",
        "test rows": lambda row: f"{row['test_rows']:,}",
        "columns": lambda row: f"{row['columns']:,}",
        "gamma": lambda row: f"{row['gamma']:.3g}",
        "commonest label": lambda row: f"{row['majority_accuracy']:.2%}",
        "checksum": lambda row: row["checksum"],
    }
    return Table.of("Data of the machines", first.values(), columns, n_text=2)


def _courses(sizes: Sequence[AgentSize]) -> Figure:
    """Return the excess risk along the steps, for the fewest, some, and the most rows of an agent."""
    shown = sizes if len(sizes) <= 4 else [sizes[k * (len(sizes) - 1) // 3] for k in range(4)]
    panels = []
    for size in shown:
        lines = []
        for number, name in enumerate(_NAMES):
            if name in size.cells:
                colour, _, dash = _look(number, name)
                curve = size.cells[name].curve()
                lines.append(
                    Line(name, [at["steps"] for at in curve], [at["error"] for at in curve], colour, dash=dash)
                )
        panels.append(Panel(f"{size.rows:,} rows per agent", Axis("steps", "log"), Axis("excess risk", "log"), lines))
    return Figure("features_steps", "Excess risk by steps", _STEPS, panels, columns=2)


def _best(sizes: Sequence[AgentSize]) -> Figure:
    lines = _lines(sizes, "rows")
    panel = Panel("", Axis("rows per agent", "log"), Axis("lowest excess risk", "log"), lines)
    return Figure("features_rows", "Excess risk by rows per agent", _ROWS, [panel], columns=1)


def _by_features(sizes: Sequence[AgentSize]) -> Figure:
    lines = _lines(sizes, "features")
    panel = Panel("", Axis("features", "log"), Axis("lowest excess risk", "log"), lines)
    return Figure("features_number", "Excess risk by features", _FEATURES, [panel], columns=1)


def _look(number: int, name: str) -> tuple[Colour, str, Dash]:
    """Return how a graph is drawn; that with which all are compared stands out."""
    colour, marker, dash = series(number)
    return (TEXT, "", "dashed") if name == ONE_MACHINE else (colour, marker, dash)


def _lines(sizes: Sequence[AgentSize], along: str) -> list[Line]:
    lines = []
    for number, name in enumerate(_NAMES):
        colour, marker, dash = _look(number, name)
        found = [
            (getattr(size, along), stat)
            for size in sizes
            if name in size.cells
            if (stat := size.cells[name].stat("best"))
        ]
        x, stats = [float(place) for place, _ in found], [stat for _, stat in found]
        ranges = [(stat.low, stat.high) for stat in stats]
        lines.append(Line(name, x, [stat.median for stat in stats], colour, marker, dash, ranges=ranges))
    return lines


def _speedups(sizes: Sequence[AgentSize]) -> Figure:
    lines: list[Line | Level] = []
    for number, name in enumerate(GRAPHS):
        colour, marker, dash = series(number)
        found = [(size.rows, sorted(ups)) for size in sizes if (ups := size.speedups(name).values()) and min(ups)]
        x, middle = [float(rows) for rows, _ in found], [ups[len(ups) // 2] for _, ups in found]
        ranges = [(ups[0], ups[-1]) for _, ups in found]
        lines.append(Line(name, x, middle, colour, marker, dash, ranges=ranges))
    lines.append(Level(float(sizes[0].agents), "linear"))
    panel = Panel("", Axis("rows per agent", "log"), Axis("speed-up", unit="x", low=0.0), lines)
    return Figure("features_speedup", "Speed-up by rows per agent", _SPEEDUP, [panel], columns=1)


def _machines(sets: Sequence[MachineSet]) -> Figure:
    panels = []
    for one in sets:
        kinds = {
            f"features, {epochs} epochs": [cell for cell in one.cells if cell.epochs == epochs]
            for epochs in dict.fromkeys(cell.epochs for cell in one.cells)
        }
        lines = []
        for number, (label, cells) in enumerate([*kinds.items(), (EXACT, [one.exact] if one.exact else [])]):
            colour, marker, dash = series(number)
            if label == EXACT:
                colour, marker = TEXT, "diamond"
            seconds, accuracy = ([cell.median(name) for cell in cells] for name in ("seconds", "accuracy"))
            lines.append(Line(label, seconds, accuracy, colour, marker, dash, names=[cell.name for cell in cells]))
        panels.append(Panel(one.dataset, Axis("training", "log", "s"), Axis("accuracy", unit="%"), lines))
    return Figure("features_machines", "Features beside the exact machine", _MACHINES, panels)


def _errors(values: Sequence[ValueCell]) -> Figure:
    lines = []
    for number, name in enumerate(("plain", "orthogonal")):
        colour, marker, dash = series(number)
        x = [float(cell.features) for cell in values]
        lines.append(Line(name, x, [cell.median(name) for cell in values], colour, marker, dash))
    panel = Panel("", Axis("features", "log"), Axis("error of kernel values", "log"), lines)
    return Figure("features_values", "Error of kernel values by features", _VALUES, [panel], columns=1)
