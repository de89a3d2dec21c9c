"""Draw docs/_static/elimination-*.png from elimination.jsonl, rows of ``dsgd study elimination``.

dsgd study elimination --demo --repeats 3 --out study/
python docs/figures/elimination.py study/rows.jsonl    # keep what the figures need of these rows, and draw
python docs/figures/elimination.py                     # draw from what was kept
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dsgd.study.elimination import plots, summarise_elimination
from dsgd.study.rows import Row, read_rows

HERE = Path(__file__).parent
KEPT = HERE / "elimination.jsonl"
SHOWN = ("active", "work", "time", "ranks")


def main() -> None:
    """Keep rows, if some are given, and draw the figures."""
    if len(sys.argv) > 1:
        kept = [shorten(row) for row in read_rows(sys.argv[1])]
        KEPT.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in kept), encoding="utf-8")
    summary = summarise_elimination(read_rows(KEPT))
    for spec in plots.FIGURES:
        picture = plots.draw_elimination(spec, summary) if spec.name in SHOWN else None
        if picture is not None:
            (HERE.parent / "_static" / f"elimination-{spec.name}.png").write_bytes(picture)


def shorten(row: Row) -> Row:
    """Return a row with the curve only where a figure shows it: the first repetition with the small cache."""
    if "curve" not in row or (row["repeat"] == 0 and row["cache"] == "small" and row["ranks"] is None):
        return row
    return row | {"curve": {name: column[:1] for name, column in row["curve"].items()}}


if __name__ == "__main__":
    main()
