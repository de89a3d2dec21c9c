"""A report in a real browser: it draws, sorts, changes its ground, and asks for nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from report_page import small_page

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]  # which is opened once for all of them

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a browser saw of a small report that was used in it once."""
    executable = next(filter(None, map(shutil.which, _NAMES)), None)
    if executable is None:
        pytest.skip(f"needs a browser on the PATH: {', '.join(_NAMES)} (Debian: apt-get install chromium)")
    path = small_page().write(tmp_path_factory.mktemp("report") / "report.html")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "browser_check.py"), str(path), executable],
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_page_draws_without_a_word_of_complaint(seen) -> None:
    """Every figure is as large as it says, every table has a caption, and the console no error or warning."""
    assert seen["title"] == "How often? - dsgd"
    assert seen["headings"] == ["How often?", "Figures", "Claims", "Tables", "What was run", "Rows", "Cite"]
    assert seen["sizes"] == [[749, 322]]
    assert seen["captions"]
    assert seen["said"] == []


def test_no_request_leaves_the_page(seen) -> None:
    """All the browser ever asks for is the file."""
    assert len(seen["asked"]) >= 1
    assert {address.partition(":")[0] for address in seen["asked"]} <= {"file", "blob", "data", "about"}


def test_a_table_sorts_both_ways_numbers_as_numbers(seen) -> None:
    """30 ms comes before 2 s and 1,000 s, what has no number stays last, and the keyboard sorts as the pointer does."""
    assert seen["up"] == ["four", "ten", "one", "two"]
    assert seen["state"] == "ascending"
    assert seen["down"] == ["one", "ten", "four", "two"]
    assert seen["by_key"] == ["one", "ten", "four", "two"]
    assert seen["words"] == ["four", "one", "ten", "two"]


def test_a_pointer_on_a_point_meets_what_it_is(seen) -> None:
    """The element under the pointer has a title, which browsers show, with the series and both values."""
    assert seen["tip"] == "2 ranks\nevery: 1\nseconds: 2 s (1.9 s to 2.2 s)"


def test_rows_come_out_of_the_page(seen) -> None:
    """JSON lines hold the rows as they went in, CSV their columns with quotes where they must be."""
    lines = [json.loads(line) for line in seen["files"]["rows.jsonl"].splitlines()]
    assert lines == list(small_page().rows)
    assert seen["files"]["rows.csv"].splitlines() == ["key,s,curve,more", 'a,1.5,"[1,2]",', '"b,""c""",,,x']


def test_the_switch_changes_the_ground_of_page_and_figures(seen) -> None:
    """Light, dark and light again."""
    light, dark, again = seen["grounds"]
    assert light == again
    assert all(one != other for one, other in zip(light, dark, strict=True))


def test_the_page_fits_a_phone(seen) -> None:
    """Nothing but tables, each within its frame, is wider than the screen."""
    assert seen["fits"]
