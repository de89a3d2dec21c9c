"""Data that a study was made with and that are not on this machine any more.

A study that is resumed keeps what was measured: its rows stay in the folder and in the report. It does not go on with a
generated twin in the place of a set that it began with, and what it cannot run is said: when it ends, and on its page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dsgd.study.frame.rows import Row


@dataclass(frozen=True)
class MissingData:
    """What rows tell of data that are not here: their name and their numbers of rows."""

    name: str
    y: Sequence[Any]
    y_test: Sequence[Any]


def sizes_of(name: str, rows: Sequence[Row], asked: int | None, asked_test: int | None) -> MissingData | None:
    """Return what rows of data tell of what is asked for; None if no row is of so many."""
    sizes = {(row["rows"], row["test_rows"]) for row in rows}
    inside = [
        (n, n_test)
        for n, n_test in sizes
        if (asked is None or n <= asked) and (asked_test is None or n_test <= asked_test)
    ]
    if not inside:
        return None
    n, n_test = max(inside)
    return MissingData(name, range(n), range(n_test))


def missing_runs(found: int, asked: int) -> str:
    """Return the sentence that says how many runs of a study are missing, empty where none is."""
    if found >= asked:
        return ""
    return (
        f"{asked - found} of {asked} runs are missing: their data are not on this machine, or the study was "
        "interrupted. What was measured before is kept. To run the others, name the folder of the data in DSGD_DATA "
        "and give the same command."
    )
