"""Every public name of dsgd is in the reference, once.

A name is public when the `__all__` of a module holds it. It is documented under the shortest path that exports it:
`dsgd.sync.LocalSGD`, not `dsgd.sync.local_sgd.LocalSGD`. A page of the reference says ``automodule`` for a module; what
another, shorter path documents is left out there. The build warns, and so fails, for each public name that is on no
page.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import dsgd
import dsgd.datasets
import dsgd.svm

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


def _skip(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    del skip, options
    if name.startswith("set_") and name.endswith("_request"):
        return True  # scikit-learn makes these, with texts that refer to its own documentation
    if what == "class":  # fields are described by the docstring of their class
        return None if isinstance(obj, _METHODS) else True
    module = app.env.temp_data.get("autodoc:module") or app.env.ref_context.get("py:module", "")
    if what != "module" or (module, name) not in app.env.dsgd_homes:  # type: ignore[attr-defined]
        return None
    return bool(app.env.dsgd_homes[module, name] != module)  # type: ignore[attr-defined]


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
    app.connect("env-before-read-docs", _prepare)
    app.connect("autodoc-skip-member", _skip)
    app.connect("env-check-consistency", _check)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
