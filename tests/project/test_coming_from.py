"""The example of each page for those who come from another library runs as it stands."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

_PAGES = sorted((Path(__file__).parents[2] / "docs").glob("from-*.rst"))


@pytest.mark.slow
@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_the_example_runs(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It needs nothing from the rest of its page, and prints what it found."""
    blocks = re.findall(r"\.\. code-block:: python\n\n((?:   .*\n|\n)+)", page.read_text(encoding="utf-8"))
    assert len(blocks) == 1
    exec(compile(textwrap.dedent(blocks[0]), page.name, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()
