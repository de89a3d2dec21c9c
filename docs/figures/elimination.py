"""Draw docs/_static/elimination-*.png from elimination.jsonl, rows of ``dsgd study elimination``.

dsgd study elimination --demo --repeats 1 --ranks none --no-reference --out study/
python docs/figures/elimination.py study/rows.jsonl    # keep what the figures need of these rows, and draw
python docs/figures/elimination.py                     # draw from what was kept
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dsgd.report.png import draw
from dsgd.study.elimination_report import elimination_figures, summarise
from dsgd.study.frame.rows import Row, read_rows

HERE = Path(__file__).parent
KEPT = HERE / "elimination.jsonl"
SHOWN = ("active", "work")


def main() -> None:
    """Keep rows, if some are given, and draw the figures."""
    if len(sys.argv) > 1:
        kept = [shorten(row) for path in sys.argv[1:] for row in read_rows(path)]
        KEPT.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in kept), encoding="utf-8")
    summary = summarise(read_rows(KEPT))
    for figure in elimination_figures(summary):
        if figure.name in SHOWN:
            (HERE.parent / "_static" / f"elimination-{figure.name}.png").write_bytes(draw(figure))


#: What the figures and the page need, and where a row comes from.
COLUMNS = (
    "key", "problem", "rows", "classes", "method", "cache", "cache_mb", "solver", "ranks", "repeat", "tol", "seconds",
    "n_iter", "n_support", "converged", "gap", "objective", "samples", "rounds", "n_eliminated", "n_returned",
    "n_reconstructions", "kernel_evaluations", "cache_share", "curve",
    "communication_s", "commit", "when",
)  # fmt: skip


def shorten(row: Row) -> Row:
    """Return what is needed of a row; the curve only where it is shown: first repetition, small cache."""
    row = {name: row[name] for name in COLUMNS if name in row}
    if "curve" not in row or (row["repeat"] == 0 and row["cache"] == "small" and row["ranks"] is None):
        return row
    return row | {"curve": {name: column[:1] for name, column in row["curve"].items()}}


if __name__ == "__main__":
    main()
