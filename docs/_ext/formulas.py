"""Indented blocks that are not Python are not coloured as if they were: update rules, layouts of bytes, trees."""

from __future__ import annotations

import ast

from docutils import nodes
from sphinx.application import Sphinx


def _uncolour(app: Sphinx, doctree: nodes.document) -> None:
    del app
    for block in doctree.findall(nodes.literal_block):
        if "language" not in block and not block.astext().startswith(">>>"):
            try:
                ast.parse(block.astext())
            except SyntaxError:
                block["language"] = "none"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("doctree-read", _uncolour)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
