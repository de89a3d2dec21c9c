"""Reports: pages from a few objects, tables that sort as numbers do, figures for pages and files."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import time
from collections import namedtuple
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import psutil
import pytest
from matplotlib.figure import Figure as Canvas

from dsgd.errors import DsgdError
from dsgd.report import Axis, Claim, Figure, Level, Line, Page, Panel, Table, page, png
from dsgd.report.figures import series, texts_at
from dsgd.report.png import canvas, draw, spread, vectors
from dsgd.report.provenance import load
from dsgd.report.tables import sort_value
from dsgd.report.theme import BLUE, GREEN, GRID, SERIES, TEXT, VERMILION, ramp
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


def test_a_page_of_words_alone_needs_no_figures(tmp_path) -> None:
    """What is not given leaves no heading; what to cite is always there."""
    text = Page("What?", "That.").write(tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(text) < 30_000
    assert re.findall(r"<h2>(\w+)</h2>", text) == ["Cite"]


def test_pictures_lie_beside_the_page(tmp_path) -> None:
    """`save` leaves a picture of each figure, of a few colours and few bytes."""
    small_page().save(tmp_path)
    (picture,) = (tmp_path / "figures").iterdir()
    assert picture.name == "time.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 150_000


@pytest.mark.parametrize("dark", [False, True])
def test_every_mark_is_drawn(dark) -> None:
    """A figure with everything is a picture on either ground."""
    assert draw(EVERY_MARK, dark=dark).startswith(b"\x89PNG")


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


def test_a_picture_lays_out_only_the_ticks_that_it_shows(monkeypatch) -> None:
    """Neither minor ticks nor those beyond the ends of a logarithmic axis are made."""
    panel = Panel("", Axis(scale="log"), Axis(scale="log"), [Line("a", [1.0, 100.0], [2.0, 900.0])])
    seen: list[Canvas] = []
    monkeypatch.setattr(png, "picture", lambda canvas: seen.append(canvas) or b"")
    draw(Figure("a", "", "", [panel]))
    for axis in (seen[0].axes[0].xaxis, seen[0].axes[0].yaxis):
        low, high = axis.get_view_interval()
        assert len(axis.get_minorticklocs()) == 0
        assert all(low <= tick <= high for tick in axis.get_majorticklocs())


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


def test_an_axis_shows_a_little_more_than_there_is() -> None:
    """Ends lie beyond the values, on a logarithmic axis by a factor; given ends stay; a single value has room."""
    assert Axis().limits([0.0, 1.0]) == pytest.approx((-0.04, 1.04))
    low, high = Axis(scale="log").limits([1.0, 100.0, 0.0])
    assert 0.8 < low < 1.0
    assert 100.0 < high < 125.0
    assert Axis(low=0.0).limits([3.0, 4.0])[0] == 0.0
    low, high = Axis().limits([5.0])
    assert low < 5.0 < high
    assert Axis(scale="log").limits([])[0] > 0.0


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


@pytest.mark.parametrize(
    ("axis", "value", "text"),
    [
        (Axis(unit="%"), 0.125, "12.5%"), (Axis(unit="x"), 2.0, "2x"), (Axis(unit="s"), 0.002, "2 ms"),
        (Axis(unit="s"), 3e-6, "3 µs"), (Axis(unit="s"), 90.0, "90 s"), (Axis(unit="B"), 2500, "2.5 kB"),
        (Axis(ticks={2.0: "two"}), 2.0, "two"), (Axis(), 1234.5, "1,234"), (Axis(), 1e-7, "1e-07"),
    ],
)  # fmt: skip
def test_values_are_said_with_their_unit(axis, value, text) -> None:
    """Shares in per cent, seconds and bytes in the unit that suits them, names where a tick has one."""
    assert axis.text(value) == text


def test_series_differ_in_colour_or_dashes_and_each_colour_shows_on_both_grounds() -> None:
    """No two of the first ten series look the same, and lightness of every colour differs from its ground's."""
    assert len({series(number) for number in range(2 * len(SERIES))}) == 2 * len(SERIES)
    for colour in (*SERIES, *ramp(7)):
        assert contrast(colour.light, "#ffffff") > 1.7
        assert contrast(colour.dark, "#161b22") > 3.0
    assert all(contrast(colour.light, "#ffffff") > 3.0 for colour in SERIES)


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_claims_say_what_they_came_to() -> None:
    """A claim holds, does not, or was not run; tables have as many cells as columns."""
    said = [Claim("c", "d", "1", "2", holds, "").verdict for holds in (True, False, None)]
    assert said == ["holds", "fails", "not run"]
    marks = [{"exceeds": True}, {"holds": None, "undecided": True}, {"trivial": True}]
    said = [replace(Claim("c", "d", "1", "2", False, ""), **mark).verdict for mark in marks]
    assert said == ["exceeds", "undecided", "no claim"]
    assert "b" in str(Table("t", ("a",), [("b",)]).rows)


def test_labels_that_would_touch_are_moved_apart_and_stay_in_order() -> None:
    """Places with room stay; the others end at least the room apart, around where they wanted to be."""
    assert spread([0.0, 5.0, 10.0], 2.0) == [0.0, 5.0, 10.0]
    assert spread([1.0, 1.0], 2.0) == [0.0, 2.0]
    rng = np.random.default_rng(0)
    for _ in range(50):
        places = rng.uniform(0, 1, 7)
        moved = np.array(spread(list(places), 0.1))
        order = np.argsort(places)
        assert (np.diff(moved[order]) >= 0.1 - 1e-9).all()
        assert moved.mean() == pytest.approx(places.mean())


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


def test_a_process_that_computes_beside_is_load() -> None:
    """Even where it has to share its core with other tests."""
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    ) as other:
        try:
            other.stdout.readline()
            assert load() > 0.2
        finally:
            other.kill()
