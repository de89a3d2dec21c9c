"""Configuration of the documentation; built from the installed package, with warnings as errors and no network."""

from __future__ import annotations

import sys
from pathlib import Path

import dsgd

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "dsgd"
author = "The dsgd developers"
project_copyright = author
version = release = dsgd.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "numpydoc",
    "command_help",
    "public_names",
    "sources",
]
exclude_patterns = ["_build", "_ext"]
default_role = "code"  # a single backtick in a docstring is a piece of code

html_theme = "alabaster"
html_static_path = ["_static"]
html_theme_options = {
    "description": dsgd.__doc__.splitlines()[0] if dsgd.__doc__ else "",
    "fixed_sidebar": True,
    "page_width": "1100px",
}

autodoc_default_options = {"members": True, "undoc-members": True}
autodoc_member_order = "groupwise"
autodoc_typehints = "none"  # numpydoc states types, with shapes
numpydoc_show_class_members = False

# Inventories of other projects would have to be downloaded, so names of theirs cannot be resolved.
nitpick_ignore_regex = [
    (
        "py:.*",
        r"(builtins|collections|dask|distributed|numpy|pandas|scipy|sklearn|socket|threading|torch|types|typing)(\..*)?",
    ),
    ("py:.*", r"(array|iterable|mapping|sequence|self|callable)"),
]
