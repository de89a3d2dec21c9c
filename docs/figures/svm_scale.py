"""Draw docs/_static/svm-scale.png and write svm-scale.csv, from svm_scale.jsonl, the rows of benchmarks/svm/scale.py.

python docs/figures/svm_scale.py
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from dsgd.report.figures import BLUE, GREEN, MUTED, SERIES, VERMILION
from dsgd.report.png import log_scale, picture, settings

HERE = Path(__file__).parent
LINES = {
    "tree_s": ("blocks, trees", "-", BLUE),
    "ring_s": ("blocks, round a ring", "--", VERMILION),
    "published_s": ("published pairs", ":", GREEN),
}


def main() -> None:
    """Draw the figure."""
    rows = [json.loads(line) for line in (HERE / "svm_scale.jsonl").read_text(encoding="utf-8").splitlines()]
    checks = [row for row in rows if row["case"] == "check"]
    (HERE / "svm-scale.csv").write_text(table(checks), encoding="utf-8")
    largest = max(row["n"] for row in rows if row["case"] == "scale")
    with mpl.rc_context(settings()):
        figure = Figure(figsize=(10.0, 3.6), layout="constrained")
        first, *others = figure.subplots(1, 3)
        compare(first, checks)
        networks = list(dict.fromkeys(row["network"] for row in rows if row["case"] == "scale"))
        for axis, network in zip(others, networks, strict=True):
            some = [row for row in rows if row["case"] == "scale" and (row["n"], row["network"]) == (largest, network)]
            draw(axis, some, f"{largest // 10**6} million rows, {network}")
        (HERE.parent / "_static" / "svm-scale.png").write_bytes(picture(figure))


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table of the page."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["Set", "Rows", "Ranks", "Measured s", "Predicted s", "Ratio", "Costs are"])
    for row in rows:
        seconds = f"{row['seconds']:.2f}", f"{row['predicted_s']:.2f}", f"{row['predicted_s'] / row['seconds']:.2f}"
        used = "fitted to it" if row["used"] == "fitted" else "of other runs"
        writer.writerow([row["problem"], f"{row['n']:,}", row["ranks"], *seconds, used])
    return text.getvalue()


def compare(axis: Any, rows: list[dict[str, Any]]) -> None:
    """Draw predicted against measured seconds, and the band of a quarter."""
    for ranks, colour, marker in zip((1, 2, 4), SERIES, ("o", "s", "^"), strict=False):
        for used, fill in (("fitted", "none"), ("predicted", colour.light)):
            some = [row for row in rows if (row["ranks"], row["used"]) == (ranks, used)]
            axis.plot(
                [row["seconds"] for row in some], [row["predicted_s"] for row in some], marker, color=colour.light,
                markerfacecolor=fill, label=f"{ranks} rank{'s' * (ranks > 1)}" if used == "predicted" else None,
            )  # fmt: skip
    ends = np.array([0.7 * min(row["seconds"] for row in rows), 1.4 * max(row["seconds"] for row in rows)])
    axis.fill_between(ends, 0.75 * ends, 1.25 * ends, color=MUTED.light, alpha=0.15, linewidth=0)
    for side in (axis.xaxis, axis.yaxis):
        log_scale(side)
        side.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set(xlabel="measured seconds", ylabel="predicted seconds", title="Real ranks")
    axis.legend(frameon=False)


def draw(axis: Any, rows: list[dict[str, Any]], title: str) -> None:
    """Draw seconds against ranks."""
    ranks = [row["ranks"] for row in rows]
    for name, (label, style, colour) in LINES.items():
        axis.plot(ranks, [row[name] for row in rows], style, color=colour.light, label=label)
    axis.set(xscale="log", yscale="log", xlabel="ranks", ylabel="predicted seconds", title=title)
    axis.set_xticks(ranks, [f"{n:,}" for n in ranks])
    axis.minorticks_off()
    axis.legend(frameon=False)


if __name__ == "__main__":
    main()
