"""What a soak has found: ``python -m chaos.table build/soak.jsonl`` prints a line for each fault.

A run that is there several times counts once, as it ended last: what failed may have been mended and run again. That it
has passed since does not show that it was: the last column says how many runs have ever failed.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ENDS = ("model", "error", "interrupted", "killed")
COMPLAINTS = ("wrong end", "left behind", "harmed")


def newest(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the last row of each run of a seed; ``failed_before`` says whether any row of the run has failed."""
    found: dict[tuple[int, int], Mapping[str, Any]] = {}
    for row in rows:
        if row.get("number") is not None:
            run = row["seed_of_soak"], row["number"]
            failed = "complaint" in row or found.get(run, {}).get("failed_before", False)
            found[run] = {**row, "failed_before": failed}
    return list(found.values())


def summary(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return for each fault how many runs ended how, what was wrong, and the worst seconds to an end."""
    faults: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        faults[row["fault"]].append(row)
    return {
        fault: {
            "runs": len(found),
            **{end: Counter(row.get("outcome") for row in found)[end] for end in ENDS},
            "worst_s": max((row["seconds"] for row in found if row.get("seconds") is not None), default=None),
            **{what: sum(row.get("complaint") == what for row in found) for what in COMPLAINTS},
            "ever failed": sum(row["failed_before"] for row in found),
        }
        for fault, found in sorted(faults.items())
    }


def tabulate(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return the table of all runs."""
    rows = newest(rows)
    commits = Counter(str(row.get("commit", "")) for row in rows)
    table = Table(title=f"{len(rows):,} runs: " + ", ".join(f"{n} on {commit}" for commit, n in commits.items()))
    table.add_column("fault")
    for head in ("runs", *ENDS, "worst (s)", *COMPLAINTS, "ever failed"):
        table.add_column(head, justify="right")
    total: Counter[str] = Counter()
    for fault, found in summary(rows).items():
        worst = found.pop("worst_s")
        total.update(found)
        counts = [str(value) for value in found.values()]
        table.add_row(fault, *counts[:5], "" if worst is None else f"{worst:.2f}", *counts[5:])
    table.add_section()
    counts = [str(total[name]) for name in ("runs", *ENDS, *COMPLAINTS, "ever failed")]
    table.add_row("all", *counts[:5], "", *counts[5:])
    return table


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text().splitlines()
    Console(width=160).print(tabulate(json.loads(line) for line in lines))
