"""Pictures of the documentation come from commands that are known."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_every_picture_is_a_figure_or_says_what_takes_it() -> None:
    """No picture of the documentation is from a command that nobody knows."""
    listed = runpy.run_path(str(DOCS / "figures" / "listed.py"))
    known = {name for one in listed["FIGURES"] for name in one.files} | set(listed["TAKEN"])
    pictures = {f"_static/{path.name}" for path in (DOCS / "_static").iterdir() if path.name != ".gitkeep"}
    assert pictures == {name for name in known if name.startswith("_static/")}
    used = "".join(page.read_text(encoding="utf-8") for page in (*DOCS.glob("*.rst"), *DOCS.glob("sources/*.rst")))
    assert not [name for name in known if name not in used]
