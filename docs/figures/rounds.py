"""Draw docs/_static/rounds.png and write rounds.csv, from rounds.jsonl, the rows of benchmarks/communication/rounds.py.

A bar is the mean round; control, which only ends of epochs have, is not drawn.

python docs/figures/rounds.py
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from dsgd.report.figures import PHASE_COLOURS, PHASES
from dsgd.report.png import picture, settings

HERE = Path(__file__).parent
# A round of the algorithm has no control in it.
COLOURS = {p: c for p, c in zip(PHASES, PHASE_COLOURS, strict=True) if p != "control"}
NAMES = {
    "processes, tcp": "processes\nTCP",
    "threads, few cores": "threads",
    "processes, few cores": "processes\nshared memory",
    "processes": "processes",
    "threads": "threads",
}
COLUMNS = ["compute", "encode", "wire", "wait", "other"]
RANKS = {
    "processes, tcp": 'worker processes, ``transport="tcp"``',
    "processes, few cores": "worker processes, fewer cores than ranks",
    "processes": "worker processes, a core for each",
    "threads, few cores": "threads, fewer cores than ranks",
    "threads": "threads, a core for each",
}
ROUND_BY_ROUND = ["processes, tcp", "threads, few cores", "processes, few cores"]
FUSED = ["processes", "threads"]


def main() -> None:
    """Draw the figure."""
    found = map(json.loads, (HERE / "rounds.jsonl").read_text(encoding="utf-8").splitlines())
    lines = [row for row in found if row["every"] == 1]
    rows = {row["wire"]: row for row in lines}
    (HERE / "rounds.csv").write_text(table(lines), encoding="utf-8")
    with mpl.rc_context(settings()):
        figure = Figure(figsize=(9.0, 3.9), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[3, 2])
        bars(left, [rows[name] for name in ROUND_BY_ROUND], "Round by round in Python: fewer cores than ranks, or TCP")
        bars(right, [rows[name] for name in FUSED], "In one compiled loop: a core for each")
        left.set_ylabel("microseconds a round")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(COLOURS))
        (HERE.parent / "_static" / "rounds.png").write_bytes(picture(figure))


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table of the page: microseconds of a round, and of each phase in it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["ranks", "a round", *COLUMNS])
    for row in rows:
        cells = [row["round_us"], *(row[f"{name}_us"] for name in COLUMNS)]
        writer.writerow([RANKS[row["wire"]], *(f"{value:.2g}" if value < 10 else f"{value:.0f}" for value in cells)])
    return text.getvalue()


def bars(axis: Any, rows: list[dict[str, Any]], title: str) -> None:
    """Draw a bar of stacked phases for each row."""
    places = range(len(rows))
    floors = [0.0] * len(rows)
    for phase, colour in ((name, colour.light) for name, colour in COLOURS.items()):
        heights = [row[f"{phase}_us"] for row in rows]
        axis.bar(places, heights, bottom=floors, color=colour, width=0.6, label=phase)
        floors = [floor + height for floor, height in zip(floors, heights, strict=True)]
    for place, row, top in zip(places, rows, floors, strict=True):
        text = f"{row['round_us']:.2g}" if top < 10 else f"{row['round_us']:.0f}"
        axis.annotate(text, (place, top), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=9)
    axis.set_xticks(list(places), [NAMES[row["wire"]] for row in rows])
    axis.grid(visible=False, axis="x")
    axis.set_ylim(0.0, 1.12 * max(floors))
    axis.set_title(title)


if __name__ == "__main__":
    main()
