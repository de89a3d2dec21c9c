"""Draw docs/_static/transports.png from transports.jsonl, the rows of benchmarks/communication/transports.py.

python docs/figures/transports.py
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from dsgd.report.png import log_scale, picture, settings, spread
from dsgd.report.theme import BLUE, GREEN, MUTED, ORANGE, PURPLE, VERMILION

HERE = Path(__file__).parent
# Ours are solid, what they are held against is dashed.
WIRES = {
    "graph": ("task graph", MUTED.light, True),
    "actor": ("Dask actor", ORANGE.light, True),
    "rpc": ("rpc", PURPLE.light, False),
    "tls": ("tls", VERMILION.light, False),
    "tcp": ("tcp", BLUE.light, False),
    "shm": ("shm", GREEN.light, False),
    "gloo": ("gloo", BLUE.light, True),
    "mpi": ("MPICH", GREEN.light, True),
}
SIZES = {8: "8 B", 1024: "1 KB", 65536: "64 KB", 10**6: "1 MB", 10**7: "10 MB", 64 * 10**6: "64 MB"}


def main() -> None:
    """Draw the figure."""
    rows = [json.loads(line) for line in (HERE / "transports.jsonl").read_text(encoding="utf-8").splitlines()]
    with mpl.rc_context(settings()):
        figure = Figure(figsize=(11.5, 4.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        lines(left, [row for row in rows if row["operation"] == "allreduce"], lambda row: row["median_us"])
        left.set_ylabel("microseconds")
        left.set_title("An all-reduce of two ranks")
        # A round trip moves the vector twice.
        lines(right, [row for row in rows if row["operation"] == "pingpong"], lambda row: 2 * row["mb_per_s"])
        right.set_ylabel("MB/s")
        right.set_title("What a round trip moves")
        (HERE.parent / "_static" / "transports.png").write_bytes(picture(figure))


def lines(axis: Any, rows: list[dict[str, Any]], value: Any) -> None:
    """Draw a line per wire, named at its end."""
    ends = []
    for method, (name, colour, is_peer) in WIRES.items():
        line = sorted((row for row in rows if row["method"] == method), key=lambda row: row["n_bytes"])
        values = [max(value(row), 1e-3) for row in line]
        dashes = {"dashes": (3, 1.5)} if is_peer else {}
        axis.plot(
            [row["n_bytes"] for row in line], values, color=colour, linewidth=1.8, marker="o", markersize=3.5, **dashes
        )
        ends.append((values[-1], name, colour))
    log_scale(axis.yaxis)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(FixedLocator(list(SIZES)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda n_bytes, _: SIZES[int(n_bytes)]))
    low, high = axis.get_ylim()
    last = max(SIZES)
    places = spread([math.log(end / low) / math.log(high / low) for end, _, _ in ends], 0.06, 0.0, 1.0)
    for (end, name, colour), y in zip(ends, places, strict=True):
        at = low * (high / low) ** y
        axis.plot([last, 2.2 * last, 3.0 * last], [end, at, at], color=colour, linewidth=0.5, clip_on=False)
        axis.annotate(
            name, (3.0 * last, at), xytext=(2, 0), textcoords="offset points", va="center", fontsize=8, color=colour,
            annotation_clip=False,
        )  # fmt: skip
    axis.set_xlim(5, 2.2 * last)
    axis.set_ylim(low, high)
    axis.set_xlabel("size of the vector")


if __name__ == "__main__":
    main()
