"""The documentation is read without a network: its configuration names nothing to load from elsewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

_DOCS = Path(__file__).parents[2] / "docs"


def _settings() -> dict[str, ast.expr]:
    tree = ast.parse((_DOCS / "conf.py").read_text(encoding="utf-8"))
    named = [(node.targets[0], node.value) for node in tree.body if isinstance(node, ast.Assign)]
    return {target.id: value for target, value in named if isinstance(target, ast.Name)}


def test_no_setting_names_another_server() -> None:
    """Mathematics is set by a copy of MathJax beside the pages, and no setting holds an address."""
    settings = _settings()
    assert ast.literal_eval(settings["mathjax_path"]) == "tex-svg.js"
    assert "mathjax" in ast.unparse(settings["html_static_path"])
    texts = [node.value for value in settings.values() for node in ast.walk(value) if isinstance(node, ast.Constant)]
    assert [text for text in texts if "//" in str(text)] == []
    assert "offline" in ast.literal_eval(settings["extensions"])  # fails the build for what an extension adds


def test_no_page_or_style_brings_scripts_of_its_own() -> None:
    """Neither raw HTML nor a style sheet loads from an address."""
    sources = [*_DOCS.glob("*.rst"), *_DOCS.glob("*/*.rst"), *_DOCS.glob("_theme/*.css")]
    assert len(sources) > 50
    loads = re.compile(r"<script|<link|url\(\s*['\"]?(https?:)?//|@import", re.IGNORECASE)
    assert [path.name for path in sources if loads.search(path.read_text(encoding="utf-8"))] == []
