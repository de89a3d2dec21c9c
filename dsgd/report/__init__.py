"""Reports: one self-contained HTML page with sortable tables and figures.

::

    from dsgd.report import Axis, Figure, Line, Page, Panel, Table, origin, ran

    seconds = Panel(
        "ijcnn1",
        Axis("period", "log", ticks={1: "1", 64: "64"}),
        Axis("seconds", "log"),
        [Line("2 ranks", [1, 64], [1.2, 0.1], marker="circle")],
    )
    page = Page(
        title="How often must ranks synchronise?",          # the question
        answer="Every 64 rows: training is 12 times as fast.",
        ran=[("Command", "dsgd study msf"), *ran(rows)],    # names and texts; see `origin` and `ran`
        figures=[Figure("time", "Time", "How to read it.", [seconds])],
        tables=[Table("Results", ("every", "s"), [("1", "1.2"), ("64", "0.1")])],
        claims=[Claim(...)],
        rows=rows,                                          # dicts that JSON can hold; to download
    )
    page.write("study/report.html")   # the page alone
    page.save("study/")               # report.html, and figures/*.png

A figure is said once, in `Panel` with `Line`, `Bars`, `Level`, `Band` and `Words`; matplotlib draws it, as SVG in the
page and as PNG in files. Colours come from `dsgd.report.figures`, each for light and dark grounds. matplotlib and
jinja2 are loaded when something is written; `check_extras` raises early if one is missing.
"""

from dsgd.report.figures import Axis, Band, Bars, Figure, Level, Line, Mark, Panel, Words, period_axis, series
from dsgd.report.page import (
    Page,
    Publication,
    check_extras,
    is_busy,
    library_bibtex,
    load_doubts,
    origin,
    origin_doubts,
    ran,
)
from dsgd.report.tables import Claim, Table, byte_text, claims_table, figure_text, seconds_text, show_tables, span_of

__all__ = [
    "Axis",
    "Band",
    "Bars",
    "Claim",
    "Figure",
    "Level",
    "Line",
    "Mark",
    "Page",
    "Panel",
    "Publication",
    "Table",
    "Words",
    "byte_text",
    "check_extras",
    "claims_table",
    "figure_text",
    "is_busy",
    "library_bibtex",
    "load_doubts",
    "origin",
    "origin_doubts",
    "period_axis",
    "ran",
    "seconds_text",
    "series",
    "show_tables",
    "span_of",
]
