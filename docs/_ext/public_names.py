"""Every public name of dsgd is in the reference, once.

A name is public when the `__all__` of a module holds it. It is documented under the shortest path that exports it:
`dsgd.sync.LocalSGD`, not `dsgd.sync.local_sgd.LocalSGD`. A page of the reference says ``public-module`` for a module,
which documents what the module is the home of. The build warns, and so fails, for each public name on no page.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import FunctionType, GenericAlias
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import dsgd
import dsgd.datasets
import dsgd.svm
from dsgd.study.frame.statement import Source, Statement

# Its commands are documented by their help texts, and a test holds that each of them is on the page.
_DOCUMENTED_AS_COMMANDS = ("dsgd.cli", "dsgd.__main__")
_PRIVATE = ("__version__",)
_METHODS = (FunctionType, property, cached_property, classmethod, staticmethod)

logger = logging.getLogger(__name__)


def modules() -> Iterator[str]:
    """Yield the name of every module; mapped folders are asked themselves, as an import hook maps them."""
    yield "dsgd"
    seen = {"dsgd"}
    for package in (dsgd, dsgd.datasets, dsgd.svm):
        for name in [
            package.__name__,
            *(m.name for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")),
        ]:
            if name not in seen and not name.startswith(_DOCUMENTED_AS_COMMANDS):
                seen.add(name)
                yield name


def homes() -> dict[tuple[str, str], str]:
    """Return for each (module, public name) the module that documents it."""
    found: dict[tuple[str, str], str] = {}
    shortest: dict[tuple[str, int], str] = {}
    for module_name in sorted(modules(), key=lambda name: (name.count("."), name)):
        module = importlib.import_module(module_name)
        for name in module.__all__:
            if name not in _PRIVATE:
                key = (name, id(getattr(module, name)))
                found[module_name, name] = shortest.setdefault(key, module_name)
    return found


class PublicModule(SphinxDirective):
    """Document a module: its docstring, its classes and functions, and its constants, which autodoc would leave out."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return what autodoc makes of the module."""
        name = self.arguments[0]
        parent, _, last = name.rpartition(".")
        # A function may have the name of its module; then the module itself cannot be indexed as well.
        is_taken = parent and last in importlib.import_module(parent).__all__
        module = importlib.import_module(name)
        lines = [f".. py:currentmodule:: {name}" if is_taken else f".. automodule:: {name}", ""]
        for (origin, public), home in sorted(homes().items()):
            if origin == home == name:
                lines += _entry(name, public, getattr(module, public), take_all=bool(is_taken))
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def _entry(module: str, name: str, item: Any, *, take_all: bool) -> list[str]:
    """Return the directive for a constant or a type alias, with `take_all` for anything; else nothing."""
    if isinstance(item, GenericAlias) or hasattr(item, "__origin__"):
        return [f".. py:data:: {name}", f"   :module: {module}", "", f"   A type: ``{item}``.", ""]
    if isinstance(item, (Source, Statement)):
        return [f".. py:data:: {name}", f"   :module: {module}", "", f"   {_said(item)}", ""]
    if callable(item):
        kind = "autoclass" if isinstance(item, type) else "autofunction"
        return [f".. {kind}:: {module}.{name}", ""] if take_all else []
    value = [] if isinstance(item, int | float | str) else ["   :no-value:"]
    return [f".. autodata:: {module}.{name}", *value, ""]


def _said(item: Source | Statement) -> str:
    """Return what a published statement or its source says."""
    if isinstance(item, Source):
        return f"{item.reference}. {item.proposes} Switched on by ``{item.switched_on}``."
    return f"{item.source.system}, {item.where}: {item.text}. Published: {item.figure}."


def _skip(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    del skip, options
    if name.startswith("set_") and name.endswith("_request"):
        return True  # scikit-learn makes these, with texts that refer to its own documentation
    if what == "class":  # fields are described by the docstring of their class
        return None if isinstance(obj, _METHODS) else True
    module = app.env.temp_data.get("autodoc:module") or app.env.ref_context.get("py:module", "")
    if what != "module" or (module, name) not in app.env.dsgd_homes:  # type: ignore[attr-defined]
        return None
    elsewhere = app.env.dsgd_homes[module, name] != module  # type: ignore[attr-defined]
    return elsewhere or bool(_entry(module, name, obj, take_all=False))


def _prepare(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    del app, docnames
    env.dsgd_homes = homes()  # type: ignore[attr-defined]


def _check(app: Sphinx, env: BuildEnvironment) -> None:
    del app
    documented = set(env.domaindata["py"]["objects"])
    for home, name in sorted({(home, name) for (_, name), home in homes().items()}):
        if f"{home}.{name}" not in documented:
            page = Path(env.srcdir) / "api"
            logger.warning("public name %s.%s is on no page of the reference (%s)", home, name, page)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_directive("public-module", PublicModule)
    app.connect("env-before-read-docs", _prepare)
    app.connect("autodoc-skip-member", _skip)
    app.connect("env-check-consistency", _check)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
