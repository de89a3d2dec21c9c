"""Draw docs/_static/gossip.png from gossip.jsonl, the rows of benchmarks/training/gossip.py.

python docs/figures/gossip.py
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from dsgd.report.png import picture, settings

HERE = Path(__file__).parent
PANELS = [("undisturbed", "one slow link"), ("more work", "ranks that stall")]
TITLES = ["16 simulated ranks, 10 GbE", "The same, with more work per row"]


def main() -> None:
    """Draw the figure."""
    rows = [json.loads(line) for line in (HERE / "gossip.jsonl").read_text(encoding="utf-8").splitlines()]
    found = {(row["case"], row["strategy"]): row["epoch_ms"] for row in rows}
    strategies = list(dict.fromkeys(row["strategy"] for row in rows))
    width = 0.8 / len(strategies)
    with mpl.rc_context(settings()):
        figure = Figure(figsize=(9.0, 3.8), layout="constrained")
        for axis, cases, title in zip(figure.subplots(1, 2), PANELS, TITLES, strict=True):
            for k, strategy in enumerate(strategies):
                places = [place + (k - (len(strategies) - 1) / 2) * width for place in range(len(cases))]
                bars = axis.bar(places, [found[case, strategy] for case in cases], width=0.92 * width, label=strategy)
                axis.bar_label(bars, fmt="%.3g", fontsize=8, padding=2)
            axis.set_yscale("log")
            axis.margins(y=0.12)
            axis.set_xticks(range(len(cases)), list(cases))
            axis.grid(visible=False, axis="x")
            axis.set_title(title)
        figure.axes[0].set_ylabel("milliseconds an epoch (virtual)")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        (HERE.parent / "_static" / "gossip.png").write_bytes(picture(figure))


if __name__ == "__main__":
    main()
