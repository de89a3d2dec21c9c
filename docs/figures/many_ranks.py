"""Draw docs/_static/many-ranks.png and write many-ranks.csv, from the rows of benchmarks/simulation/many_ranks.py.

python docs/figures/many_ranks.py
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from dsgd.report.figures import SERIES
from dsgd.report.png import picture, settings

HERE = Path(__file__).parent


def main() -> None:
    """Draw the figure."""
    lines = (HERE / "many_ranks.jsonl").read_text(encoding="utf-8").splitlines()
    runs = [row for row in map(json.loads, lines) if row["what"] == "simulated"]
    rows = list({(row["ranks"], row["training"]): row for row in runs}.values())  # the newest of each
    (HERE / "many-ranks.csv").write_text(table(rows), encoding="utf-8")
    names = list(dict.fromkeys(row["training"] for row in rows))
    with mpl.rc_context(settings()):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axis = figure.subplots()
        for name, colour in zip(names, SERIES, strict=False):
            draw(axis, [row for row in rows if row["training"] == name], name, colour.light)
        axis.set(xscale="log", yscale="log", xlabel="ranks", ylabel="seconds for 100 synchronisations")
        axis.set_xticks(sizes := sorted({row["ranks"] for row in rows}), [str(size) for size in sizes])
        axis.minorticks_off()
        axis.legend(frameon=False)
        (HERE.parent / "_static" / "many-ranks.png").write_bytes(picture(figure))


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table of the page."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["Ranks", "Training", "Rounds", "Seconds", "Messages"])
    for row in rows:
        cells = (row["ranks"], row["training"], row["rounds"], f"{row['seconds']:.3g}", f"{row['messages']:,}")
        writer.writerow(cells)
    return text.getvalue()


def draw(axis: Any, rows: list[dict[str, Any]], name: str, colour: str) -> None:
    """Draw the line of one training."""
    seconds = [100.0 * row["seconds"] / row["rounds"] for row in rows]
    axis.plot([row["ranks"] for row in rows], seconds, marker="o", color=colour, label=name)


if __name__ == "__main__":
    main()
