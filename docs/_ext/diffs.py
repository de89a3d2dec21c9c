"""Differences between two files name them as the repository does, wherever that lies on the machine that builds."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx


def _shorten(app: Sphinx, doctree: nodes.document) -> None:
    for block in doctree.findall(nodes.literal_block):
        if block.get("language") == "udiff":
            text = block.astext().replace(f"{app.srcdir}/", "docs/")
            block[:] = [nodes.Text(text)]
            block.rawsource = text


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("doctree-read", _shorten)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
