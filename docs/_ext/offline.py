"""A page that would load a script or a style sheet from another server is a warning, and so fails the build."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)


def _check(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    del app, templatename, doctree
    for kind in ("script_files", "css_files"):
        for file in context.get(kind, ()):
            name = str(getattr(file, "filename", file))
            if "//" in name:
                logger.warning(
                    "%s is loaded from elsewhere; pages must work without a network", name, location=pagename
                )


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx, after all that add files."""
    app.connect("html-page-context", _check, priority=999)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
