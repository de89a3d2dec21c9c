"""Draw docs/_static/gangs.png and write two tables, from the rows of two benchmarks: gangs and control_plane.

python docs/figures/gangs.py
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from dsgd.report.figures import BLUE, GREEN, GROUND, PURPLE, VERMILION
from dsgd.report.png import picture, settings

HERE = Path(__file__).parent
NAMES = {"dsgd": "dsgd", "xgboost": "XGBoost", "threads": "dsgd, 4 processes of 64 threads", "hosts": "dsgd, 4 hosts"}
# What is drawn; the tables have all.
COLOURS = {"dsgd": BLUE, "xgboost": VERMILION, "threads": GREEN}

# How jobs of the control plane end.
ENDS = {
    "done": "Done, s",
    "fails": "A member fails, s",
    "worker": "A worker leaves, s",
    "join": "A worker leaves while others join, s",
    "client": "The client leaves, s",
}


class Gang:
    """All fits of one case on one cluster.

    Parameters
    ----------
    rows : list of dict
        Rows of the benchmark.
    """

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.case, self.workers, self.ranks = rows[0]["case"], rows[0]["workers"], rows[0]["ranks"]
        fits = [row for row in rows if row["fit"] != "watched"]
        self.first_s = fits[0]["seconds"]
        self.limit_s = fits[-1].get("limit_s")
        self.repeated_s = [row["seconds"] for row in fits[1:] if row["seconds"] is not None]
        cpu_s = [row["scheduler_cpu_s"] for row in fits[1:] if row["seconds"] is not None]
        self.scheduler_ms = 1e3 * statistics.median(cpu_s) / self.workers if cpu_s else None
        self.sockets = next((row["sockets"] for row in rows if row["fit"] == "watched"), None)

    def cells(self) -> Iterable[str]:
        """Return a line of the table."""
        first, repeated = self._seconds(self.first_s), "not reached"
        if self.repeated_s:
            repeated = f"{min(self.repeated_s):.2f} to {max(self.repeated_s):.2f}"
        yield from (NAMES[self.case], f"{self.workers}", f"{self.ranks}", first, repeated)
        yield "" if self.scheduler_ms is None else f"{self.scheduler_ms:.0f}"
        yield "" if self.sockets is None else f"{self.sockets}"

    def _seconds(self, seconds: float | None) -> str:
        return f"over {self.limit_s:g}" if seconds is None else f"{seconds:.1f}"


def main() -> None:
    """Draw the figure, and write the tables."""
    lines = (HERE / "gangs.jsonl").read_text(encoding="utf-8").splitlines()
    rows = list(map(json.loads, lines))
    by_gang: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        if row["benchmark"].endswith("gangs"):
            by_gang.setdefault((row["case"], row["ranks"]), []).append(row)
    gangs = sorted(map(Gang, by_gang.values()), key=lambda gang: (gang.ranks, gang.case))
    simulated = [row for row in rows if row["benchmark"].endswith("control_plane")]
    heads = ["", "Workers", "Ranks", "First fit, s", "Next fits, s", "Scheduler, ms a worker", "Sockets"]
    write("gangs", heads, [gang.cells() for gang in gangs])
    write("control-plane", ["Members", *ENDS.values(), "Messages a member"], costs(simulated))
    with mpl.rc_context(settings()):
        figure = Figure(figsize=(6.4, 6.0), layout="constrained")
        above, below = figure.subplots(2, 1)
        for case in COLOURS:
            draw_seconds(above, [gang for gang in gangs if gang.case == case], case)
            draw_scheduler(below, [gang for gang in gangs if gang.case == case], case)
        sizes = [row["members"] for row in simulated if row["case"] == "done"]
        cost = [1e3 * row["seconds"] / row["members"] for row in simulated if row["case"] == "done"]
        below.plot(sizes, cost, marker="D", color=PURPLE.light, label="control plane alone, simulated members")
        finish(above, sorted({gang.ranks for gang in gangs}), "ranks", "seconds of a fit")
        sizes += [gang.workers for gang in gangs if gang.case != "threads"]
        finish(below, sorted(set(sizes)), "worker processes", "scheduler, ms a worker")
        (HERE.parent / "_static" / "gangs.png").write_bytes(picture(figure))


def costs(rows: list[dict[str, Any]]) -> Iterable[Iterable[str]]:
    """Return the lines of the table of simulated members."""
    by_members: dict[int, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_members.setdefault(row["members"], {})[row["case"]] = row
    for members, found in sorted(by_members.items()):
        yield f"{members:,}", *(f"{found[case]['seconds']:.2f}" for case in ENDS), f"{found['done']['messages']:.1f}"


def write(name: str, heads: Sequence[str], lines: Iterable[Iterable[str]]) -> None:
    """Write a table of the page."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(lines)
    (HERE / f"{name}.csv").write_text(text.getvalue(), encoding="utf-8")


def draw_seconds(axis: Any, gangs: list[Gang], case: str) -> None:
    """Draw the first fits dashed, and the median of those that follow."""
    colour = COLOURS[case].light
    first = [(gang.ranks, gang.first_s) for gang in gangs if gang.first_s is not None]
    later = [(gang.ranks, statistics.median(gang.repeated_s)) for gang in gangs if gang.repeated_s]
    for points, style, label in ((first, "--", f"{NAMES[case]}: first"), (later, "-", f"{NAMES[case]}: next")):
        if points:
            filled = colour if style == "-" else GROUND.light
            axis.plot(*zip(*points, strict=True), style, marker="o", color=colour, markerfacecolor=filled, label=label)


def draw_scheduler(axis: Any, gangs: list[Gang], case: str) -> None:
    """Draw the processor time of the scheduler, of repeated fits."""
    points = [(gang.workers, gang.scheduler_ms) for gang in gangs if gang.scheduler_ms is not None]
    if points and case != "threads":
        axis.plot(*zip(*points, strict=True), marker="o", color=COLOURS[case].light, label=f"{NAMES[case]}, whole fit")


def finish(axis: Any, sizes: Sequence[int], xlabel: str, ylabel: str) -> None:
    """Label an axis."""
    axis.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.legend(frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3)


if __name__ == "__main__":
    main()
