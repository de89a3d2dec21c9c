"""Draw docs/_static/svm-choice.png from svm_choice.jsonl, the rows of benchmarks/svm/choice.py.

python docs/figures/svm_choice.py
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from dsgd.report.png import log_scale, picture, settings, spread
from dsgd.report.theme import BLUE, GREEN, MUTED, VERMILION

HERE = Path(__file__).parent
METHODS = {"SVC": BLUE.light, "LinearSVC": GREEN.light, "SGDClassifier": VERMILION.light}
PEER = "scikit-learn "
#: Names that stand further above the ends of their lines than others, in points: there are lines in between.
ABOVE = {"SGDClassifier": 24}


def main() -> None:
    """Draw the figure."""
    rows = [json.loads(line) for line in (HERE / "svm_choice.jsonl").read_text(encoding="utf-8").splitlines()]
    with mpl.rc_context(settings()):
        figure = Figure(figsize=(11.5, 4.3), layout="constrained")
        left, right = figure.subplots(1, 2)
        times(left, rows)
        accuracies(right, rows)
        path = HERE.parent / "_static" / "svm-choice.png"
        path.write_bytes(picture(figure))


def times(axis: Any, rows: list[dict[str, Any]]) -> None:
    """Draw training seconds against rows, each line named at its end."""
    ends = []
    for method, line in by_method(rows).items():
        axis.plot([row["n"] for row in line], [row["seconds"] for row in line], **style(method))
        ends.append((line[-1]["n"], line[-1]["seconds"], method))
    log_scale(axis.yaxis)
    sizes = sorted({row["n"] for row in rows})
    thousands(axis, sizes)
    low, high = axis.get_ylim()
    places = spread([place(end[1], low, high) for end in ends], 0.055, 0.0, 1.0)
    right = 1.12 * sizes[-1]
    axis.set_xlim(0.9 * sizes[0], right)
    for (n, seconds, method), y in zip(ends, places, strict=True):
        at = low * (high / low) ** y
        axis.plot([n, right, 1.08 * right], [seconds, at, at], color=colour(method), linewidth=0.5, clip_on=False)
        axis.annotate(
            method, (1.08 * right, at), xytext=(2, 0), textcoords="offset points", va="center", fontsize=8,
            color=colour(method), annotation_clip=False,
        )  # fmt: skip
    axis.set_ylim(low, high)
    axis.set_xlabel("training rows")
    axis.set_ylabel("training time, s")
    axis.set_title("Time against rows")


def accuracies(axis: Any, rows: list[dict[str, Any]]) -> None:
    """Draw test accuracy against training seconds; the ends of our lines are named."""
    for method, line in by_method(rows).items():
        seconds, accuracy = [row["seconds"] for row in line], [100 * row["test_accuracy"] for row in line]
        axis.plot(seconds, accuracy, **style(method))
        if not method.startswith(PEER):
            axis.annotate(
                f"{method}, {line[-1]['n'] // 1000}k rows", (seconds[-1], accuracy[-1]),
                xytext=(-4, ABOVE.get(method, 7)), textcoords="offset points", fontsize=8,
                ha="center" if method == "SVC" else "left", color=colour(method),
            )  # fmt: skip
    log_scale(axis.xaxis)
    commonest = 100 * rows[0]["commonest"]
    axis.annotate(
        f"always the commonest label: {commonest:.1f}%", (0.98, 0.03), xycoords="axes fraction", ha="right", fontsize=8,
        color=MUTED.light,
    )  # fmt: skip
    axis.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    axis.margins(x=0.12, y=0.12)
    axis.set_xlabel("training time, s")
    axis.set_ylabel("test accuracy")
    axis.set_title("Accuracy that time buys")


def by_method(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each method, by rising n."""
    names = [*METHODS, *(PEER + name for name in METHODS)]
    lines = {name: sorted((row for row in rows if row["method"] == name), key=lambda row: row["n"]) for name in names}
    return {name: line for name, line in lines.items() if line}


def colour(method: str) -> str:
    """Return the colour of a method; scikit-learn's has that of ours."""
    return METHODS[method.removeprefix(PEER)]


def style(method: str) -> dict[str, Any]:
    """Return how a line looks: ours solid with full marks, scikit-learn's dashed with open ones."""
    marker = "osD"[list(METHODS).index(method.removeprefix(PEER))]
    found: dict[str, Any] = {"color": colour(method), "marker": marker, "markersize": 4.5, "linewidth": 1.8}
    return found | ({"dashes": (3, 1.5), "markerfacecolor": "white"} if method.startswith(PEER) else {})


def place(value: float, low: float, high: float) -> float:
    """Return where a value lies on a logarithmic axis, from 0 to 1."""
    return math.log(value / low) / math.log(high / low)


def thousands(axis: Any, sizes: list[int]) -> None:
    """Make the horizontal axis logarithmic with a tick per size."""
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(FixedLocator(sizes))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:g}k"))


if __name__ == "__main__":
    main()
