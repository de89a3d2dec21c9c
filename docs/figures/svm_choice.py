"""Draw docs/_static/svm-choice.png from svm_choice.jsonl, the rows of benchmarks/svm/choice.py.

python docs/figures/svm_choice.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from dsgd.report.figures import BLUE, GREEN, MUTED, VERMILION
from dsgd.report.png import log_scale, picture, settings

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
    """Draw training seconds against rows."""
    for method, line in by_method(rows).items():
        axis.plot([row["n"] for row in line], [row["seconds"] for row in line], label=method, **style(method))
    log_scale(axis.yaxis)
    thousands(axis, sorted({row["n"] for row in rows}))
    axis.legend(fontsize=8)
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


def thousands(axis: Any, sizes: list[int]) -> None:
    """Make the horizontal axis logarithmic with a tick per size."""
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(FixedLocator(sizes))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:g}k"))


if __name__ == "__main__":
    main()
