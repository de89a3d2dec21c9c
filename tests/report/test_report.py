"""Reports: pages from a few objects, tables that sort as numbers do, figures for pages and files."""

from __future__ import annotations

import io
import itertools
import json
import re
import time
from collections import namedtuple
from itertools import combinations
from xml.etree import ElementTree

import psutil
import pytest

from dsgd.errors import DsgdError
from dsgd.report import Axis, Figure, Level, Line, Panel, Table, page, show_tables
from dsgd.report.figures import BLUE, GREEN, GRID, TEXT, VERMILION, texts_at
from dsgd.report.page import load
from dsgd.report.png import canvas, draw, vectors
from dsgd.report.tables import sort_value
from report_page import EVERY_MARK, small_page
from web_page import check_page


def test_a_page_is_one_file_that_asks_for_nothing(tmp_path) -> None:
    """Tags are balanced, addresses are inside, text is escaped, and the rows are in it as they were."""
    made = small_page(answer="<one> & only", rows=[{"key": "a", "note": "</script>"}])
    text = made.write(tmp_path / "new" / "report.html").read_text(encoding="utf-8")
    tags = check_page(text)
    assert tags.count("figure") == 1
    assert "&lt;one&gt; &amp; only" in text
    start = text.index('id="all-rows">') + len('id="all-rows">')
    assert json.loads(text[start : text.index("</script>", start)]) == [{"key": "a", "note": "</script>"}]


def test_pictures_lie_beside_the_page(tmp_path) -> None:
    """`save` leaves a picture of each figure, whose marks are all drawn on either ground."""
    small_page().save(tmp_path)
    (picture,) = (tmp_path / "figures").iterdir()
    assert picture.name == "time.png"
    for drawn in (picture.read_bytes(), draw(EVERY_MARK), draw(EVERY_MARK, dark=True)):
        assert drawn.startswith(b"\x89PNG")


def test_drawings_of_pages_say_what_points_are_and_follow_the_ground() -> None:
    """Every point and bar has its name and values with their range, colours two forms, and nothing else has a name."""
    drawn = ElementTree.fromstring(vectors(canvas(EVERY_MARK), EVERY_MARK))
    said = [title.text for title in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert len(said) == 3 + 3 + 1 + 3
    assert said[1] == "2 ranks\nevery: 16\nseconds: 300 ms (200 ms to 300 ms)"
    assert said[4] == "b\nevery: 16\nseconds: 200 ms"
    assert said[6] == "best\nevery: 16 (8 to 32)\nseconds: 200 ms"
    assert said[7] == "wait\nshare: 90%"
    styles = " ".join(element.get("style", "") for element in drawn.iter())
    assert {f"light-dark({light}, {dark})" for light, dark in (BLUE, VERMILION, GREEN, TEXT, GRID)} <= set(
        re.findall(r"light-dark\(#\w+, #\w+\)", styles)
    )
    assert not re.search(r": #", styles)


def test_no_point_is_called_another() -> None:
    """Where a point of a line cannot be drawn, its points say nothing."""
    figure = Figure("a", "", "", [Panel("", Axis(), Axis(), [Line("b", [1.0, 2.0, 3.0], [1.0, float("nan"), 2.0])])])
    assert "<title>" not in vectors(canvas(figure), figure)


def test_missing_extras_are_named_with_the_command_that_gets_them(monkeypatch) -> None:
    """A page without matplotlib is not begun, and the error says what to install."""
    monkeypatch.setattr(page, "find_spec", lambda name: None if name == "matplotlib" else object())
    with pytest.raises(DsgdError, match=r"needs matplotlib: run `pip install 'dsgd\[study\]'`"):
        small_page().render()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234", 1234.0), ("98.4%", 98.4), ("-0.25 points", -0.25), ("1.5 kB", 1500.0), ("2 MiB", 2.0**21),
        ("250 ms", 0.25), ("3e-05", 3e-05), ("12 (13)", 12.0), ("16x", 16.0), ("93.10%*", 93.1), ("-", None),
        ("not reached", None), ("", None),
    ],
)  # fmt: skip
def test_cells_sort_by_the_number_they_begin_with(text, value) -> None:
    """Units count, what follows the number does not, and words have none."""
    assert sort_value(text) == pytest.approx(value)


def test_points_over_each_other_have_one_text():
    """Names at the same place, to two per cent of both coordinates, are written once and together."""
    points = {"a": (1.0, 50.0), "b": (2.0, 50.0), "c": (1.01, 50.5), "d": (1.0, 0.0), "e": (1.0, 0.0)}
    assert texts_at(points) == {"a": "a, c", "b": "b", "d": "d, e"}


def test_shared_sides_have_the_same_ends() -> None:
    """All panels of a figure that shares a side show the union of what each needs, levels included."""
    marks = ([Line("a", [0, 1], [0, 1])], [Line("a", [5, 6], [0, 1]), Level(9.0, "top")])
    panels = [EVERY_MARK.panels[0].__class__("", Axis(), Axis(), shown) for shown in marks]
    assert Figure("a", "", "", panels, share="x").limits("x") == [pytest.approx((-0.24, 6.24))] * 2
    assert Figure("a", "", "", panels).limits("y")[1][1] > 9.0


def test_load_is_what_others_use_now(monkeypatch) -> None:
    """What this process did, before or meanwhile, is no other work, nor is waiting for a disk."""
    Times = namedtuple("Times", ["user", "system", "idle", "iowait", "guest"])
    # A minute of work of this process is over; of the quarter second now it takes a tenth, and others half a core.
    seconds = {"others": 500.0, "own": 60.0}
    monkeypatch.setattr(psutil, "cpu_times", lambda: Times(sum(seconds.values()), 1.0, 900.0, 5.0, 30.0))
    monkeypatch.setattr(time, "process_time", lambda: seconds["own"])
    clock = itertools.count(0.0, 0.25)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))

    def wait(length_s):
        seconds["others"] += 0.5 * length_s
        seconds["own"] += 0.1

    monkeypatch.setattr(time, "sleep", wait)
    assert load() == pytest.approx(0.5)
    monkeypatch.setattr(time, "sleep", lambda length_s: None)
    assert load() == 0.0


def test_names_of_a_cluster_cover_neither_each_other_nor_points() -> None:
    """Points closer to each other than a name is high have their names on different sides."""
    x, y, names = [2.00, 2.03, 2.06], [1.50, 1.47, 1.44], ["first", "second", "third"]
    line = Line("", x, y, BLUE, "circle", width=0.0, names=names, written=dict(zip(names, names, strict=True)))
    drawn = canvas(Figure("a", "", "", [Panel("", Axis(low=1.0, high=3.0), Axis(low=1.0, high=2.0), [line])]))
    boxes, to_pixels = [text.get_window_extent() for text in drawn.axes[0].texts], drawn.axes[0].transData.transform
    assert len(boxes) == 3
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert not any(box.contains(*to_pixels(at)) for box in boxes for at in zip(x, y, strict=True))


@pytest.mark.parametrize("n_figures", [1, 3, 12])
def test_a_wide_table_is_cut_into_parts_that_say_what_their_rows_are(n_figures: int) -> None:
    """In a file: no line is longer than 100 columns, every figure is there, and no two rows of a part begin alike."""
    keys = list(itertools.product(("fit of a machine", "prediction"), ("60", "100"), ("two classes", "ten classes")))
    heads = ["what", "rows", "classes", *(f"figure {k} of many" for k in range(n_figures))]
    rows = [(*key, *(f"{100 * k + number}.25" for k in range(n_figures))) for number, key in enumerate(keys)]
    out = io.StringIO()
    show_tables([Table("", heads, rows)], out)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    found = [line.split() for line in lines if ".25" in line]
    assert sorted(cell for line in found for cell in line if ".25" in cell) == sorted(
        cell for row in rows for cell in row[3:]
    )
    begins = [" ".join(cell for cell in line if ".25" not in cell) for line in found]
    n_parts = len(begins) // len(keys)
    assert all(len(set(begins[k : k + len(keys)])) == len(keys) for k in range(0, n_parts * len(keys), len(keys)))
