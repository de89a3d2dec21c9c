"""A small page that has one of everything, for tests of reports."""

from __future__ import annotations

from typing import Any

from dsgd.report import Axis, Band, Bars, Claim, Figure, Level, Line, Page, Panel, Table, Words, period_axis
from dsgd.report.figures import BLUE, GREEN, MUTED, VERMILION

PERIODS = [1, 16, 256]
EVERY_MARK = Figure(
    "time",
    "Time",
    "Seconds against the period.",
    [
        Panel(
            "made up",
            period_axis("every", PERIODS),
            Axis("seconds", "log", unit="s"),
            [
                Line("others", PERIODS, [3.0, 0.4, 0.2], MUTED, pale=True),
                Line("2 ranks", PERIODS, [2.0, 0.3, 0.1], BLUE, "circle", ranges=[(1.9, 2.2), (0.2, 0.3), (0.1, 0.1)]),
                Line("4 ranks", PERIODS, [1.0, 0.2, 0.1], VERMILION, "square", "dashed", hollow=True, steps=True,
                     names=("a", "b", "c"), written={"c": "c, d"}),
                Line("best", [16], [0.2], GREEN, "diamond", width=0.0, ranges=[(8, 32)], ranges_along="x"),
                Level(0.5, "sequential"),
                Level(64, "published", along="x", dash="dotted"),
                Band(0.3, 0.6, "near it"),
            ],
        ),
        Panel(
            "shares",
            period_axis("every", PERIODS),
            Axis("share", unit="%", low=0.0, high=1.1, grid=False, reverse=False),
            [
                Bars("wait", [0.7, 11, 180], [1.4, 22, 360], [0, 0, 0], [0.9, 0.5, 0.1], BLUE),
                Words(PERIODS, [0.9, 0.5, 0.1], ["2 s", "0.3 s", "0.1 s"]),
            ],
        ),
    ],
    share="x",
)  # fmt: skip
#: As they stand, and as numbers rise: words, figures with units, and a cell that has no number.
TABLE = Table(
    "Results",
    ("ranks", "time", "sent"),
    [("ten", "2 s", "900 B"), ("four", "30 ms", "1.5 kB"), ("two", "not reached", "-"), ("one", "1,000 s", "12 B")],
    "Medians.",
)


def small_page(**more: Any) -> Page:
    """Return a page with one of everything, or with other things in it."""
    given: dict[str, Any] = {
        "title": "How often?",
        "answer": "Every 16 rows.",
        "ran": [("Command", "dsgd study"), ("Machine", "two cores")],
        "highlights": [("10x", "faster")],
        "doubts": ["Made up."],
        "data": [TABLE],
        "claims": [
            Claim("It is fast", "all", "10x", "9x", False, "Nearly."),
            Claim("It works", "-", "-", "-", None, ""),
        ],
        "source": "Nobody, never.",
        "figures": [EVERY_MARK],
        "tables": [TABLE],
        "details": [TABLE],
        "rows": [{"key": "a", "s": 1.5, "curve": [1, 2]}, {"key": 'b,"c"', "s": None, "more": "x"}],
    }
    return Page(**(given | more))
