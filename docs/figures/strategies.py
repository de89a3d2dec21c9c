"""Write the tables of docs/strategies.rst from strategies.jsonl, the rows of benchmarks/training/strategies.py.

Accuracy and bytes are those of simulated ranks, the same on every machine; of worker processes there are the seconds
alone.

python docs/figures/strategies.py
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from dsgd.sync import STRATEGIES

HERE = Path(__file__).parent
SIMULATED = [("simulated", 2), ("simulated", 4), ("simulated", 16)]
TIMED = [("workers", 2), ("workers", 4), ("simulated", 16)]
HEAD = ["", *("accuracy, 2", "4", "16"), *("MB, 2", "4", "16"), "control, 16", *("s, 2", "4", "16")]


def table(rows: list[dict[str, Any]], case: str) -> str:
    """Return the table of a set as CSV: a line per strategy, the newest row of each gang."""
    found = {(row["strategy"], row["gang"], row["ranks"]): row for row in rows if row["case"] == case}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEAD)
    # In the order of the page, whatever order they were run in; what combines several parts comes last.
    names = dict.fromkeys(row["strategy"] for row in rows)
    for name in [n for n in STRATEGIES if n in names] + [n for n in names if n not in STRATEGIES]:
        runs, timed = ([found.get((name, *gang)) for gang in gangs] for gangs in (SIMULATED, TIMED))
        line = [f"``{name}``" if name in STRATEGIES else name]
        line += ["--" if run is None else f"{100 * run['score']:.2f}" for run in runs]
        line += ["--" if run is None else f"{run['bytes_sent'] / 1e6:.3g}" for run in runs]
        line += ["--" if run is None else f"{run['control_bytes_sent'] / 1e6:.3f}" for run in runs[-1:]]
        line += ["--" if run is None else f"{run['trained_s']:.3g}" for run in timed]
        writer.writerow(line)
    return out.getvalue()


def tables() -> dict[str, str]:
    """Return the text of every file by its name."""
    rows = [json.loads(line) for line in (HERE / "strategies.jsonl").read_text(encoding="utf-8").splitlines()]
    return {f"strategies-{case}.csv": table(rows, case) for case in dict.fromkeys(row["case"] for row in rows)}


def main() -> None:
    """Write them."""
    for name, text in tables().items():
        (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
