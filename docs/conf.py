"""Configuration of the documentation; built from the installed package, with warnings as errors and no network."""

from __future__ import annotations

import logging
import sys
from importlib.util import find_spec
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
    "myst_nb",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "command_help",
    "diffs",
    "formulas",
    "llms",
    "offline",
    "public_names",
    "sources",
]
exclude_patterns = ["_build", "_ext", "_theme", "gallery", "**.md", "auto_examples/*.ipynb", "**.ipynb_checkpoints"]
default_role = "py:name"  # single backticks link what is ours, and are code otherwise

# Pages load nothing from elsewhere: MathJax is copied from an installed package, as one file that needs no fonts.
_mathjax = find_spec("sphinx-mathjax-offline")
assert _mathjax is not None
assert _mathjax.origin is not None
mathjax_path = "tex-svg.js"

html_theme = "pydata_sphinx_theme"
html_title = "dsgd"
html_static_path = ["_static", "_theme/dsgd.css", str(Path(_mathjax.origin).parent / "static/mathjax" / mathjax_path)]
html_css_files = ["dsgd.css"]
html_show_sourcelink = False
html_use_index = False  # the search and the tables of the reference find more, in less
html_domain_indices = False
html_copy_source = False
html_context = {"default_mode": "auto"}  # the theme asks for one, and complains in the console without it
html_theme_options = {
    "header_links_before_dropdown": 8,
    "navbar_persistent": ["search-button"],
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "show_nav_level": 1,
    "collapse_navigation": True,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "footer_start": ["copyright"],
    "footer_end": [],
}

logging.getLogger("dsgd").setLevel(logging.ERROR)  # examples need not tell of kernels that the build compiles

# Examples run in the build; those whose text has not changed since the last one are not run again.
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_examples",
    "backreferences_dir": "auto_examples/used",
    "doc_module": ("dsgd",),
    "within_subsection_order": "gallery_order.ByPurpose",
    "remove_config_comments": True,
    "show_signature": False,
    "write_computation_times": False,  # that page would load its table from another server
    "copyfile_regex": r"GALLERY_HEADER\.rst",
    "image_srcset": ["2x"],
}
# Notebooks are kept without outputs and run in every build, which fails with a cell. What compiling kernels writes to
# stderr is no part of a lesson.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # seconds of a cell
nb_merge_streams = True
nb_output_stderr = "remove"
nb_ipywidgets_js = {}  # these would come from another server
myst_update_mathjax = False

copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = "$ "

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
    ("py:obj", r"\w+_"),  # fitted attributes that are properties of a base, which has no page
]
