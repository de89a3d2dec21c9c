"""Draw docs/_static/leaders.png from leaders.jsonl, the rows of benchmarks/training/leaders.py.

Lines are medians over seeds, bands reach from the lower to the upper quartile.

python docs/figures/leaders.py
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from dsgd.report.png import picture, settings

HERE = Path(__file__).parent


def main() -> None:
    """Draw the figure."""
    rows = [json.loads(line) for line in (HERE / "leaders.jsonl").read_text(encoding="utf-8").splitlines()]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    strategies = list(dict.fromkeys(row["strategy"] for row in rows))
    with mpl.rc_context(settings()):
        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        for axis, case in zip(figure.subplots(1, len(cases)), cases, strict=True):
            for strategy in strategies:
                curves = np.array([row["curve"] for row in rows if (row["case"], row["strategy"]) == (case, strategy)])
                low, middle, high = np.quantile(np.maximum(curves, 1e-5), [0.25, 0.5, 0.75], axis=0)
                rounds = np.arange(1, curves.shape[1] + 1)
                (line,) = axis.plot(rounds, middle, label=strategy)
                axis.fill_between(rounds, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
            ridge = next(row["ridge"] for row in rows if row["case"] == case)
            axis.axhline(ridge, color="0.5", linestyle=":", label="on the ridge")
            axis.set_yscale("log")
            axis.set_title(case)
            axis.set_xlabel("exchanges")
        figure.axes[0].set_ylabel("loss of the model that is returned")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        (HERE.parent / "_static" / "leaders.png").write_bytes(picture(figure))


if __name__ == "__main__":
    main()
