"""Tables of the docs that are made of measured rows."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

FIGURES = Path(__file__).parents[2] / "docs" / "figures"


def test_the_tables_of_strategies_are_those_of_their_rows():
    """The tables on the page say what the rows say, and every row passes."""
    rows = [json.loads(line) for line in (FIGURES / "strategies.jsonl").read_text(encoding="utf-8").splitlines()]
    for name, text in runpy.run_path(str(FIGURES / "strategies.py"))["tables"]().items():
        assert (FIGURES / name).read_text(encoding="utf-8") == text, f"run docs/figures/strategies.py: {name} is old"
    newest = {(row["case"], row["gang"], row["ranks"], row["strategy"]): row for row in rows}
    assert [key for key, row in newest.items() if row["score"] < row["sequential"] - 0.01] == []
