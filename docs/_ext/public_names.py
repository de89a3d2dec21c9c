"""Every public name of dsgd has a place in the reference, and a name in single backticks links there.

A page of the reference says ``public-module`` for a package: what its `__all__` holds is public, and documented under
the shortest path that exports it. The directive links these names; the package and each object have pages of their own.

The role ``py:name`` is the default: `LocalSGD` links to the class wherever it is written. Internals, parameters,
expressions and names of other libraries stay plain code. A name that begins with ``dsgd.`` and that does not exist is a
warning.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from types import FunctionType, GenericAlias, ModuleType, UnionType
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PyXRefRole
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

_PRIVATE = ("__version__",)
_METHODS = (FunctionType, property, cached_property, classmethod, staticmethod)
_GENERATED = "generated"
_LONGEST_VALUE = 60  # characters; beyond that a value tells nobody anything

logger = logging.getLogger(__name__)


@cache
def modules() -> tuple[str, ...]:
    """Return the packages that pages of the reference name."""
    pages = (Path(__file__).parents[1] / "api").glob("*.rst")
    named = (re.findall(r"^\.\. public-module:: (\S+)$", page.read_text("utf-8"), flags=re.MULTILINE) for page in pages)
    return tuple(name for page in named for name in page)


@cache
def _homes() -> dict[tuple[str, str], str]:
    """Return for each (module, public name) the module that documents it."""
    found: dict[tuple[str, str], str] = {}
    shortest: dict[tuple[str, int], list[str]] = {}
    for module_name in sorted(modules(), key=lambda name: (name.count("."), name)):
        module = importlib.import_module(module_name)
        for name in module.__all__:
            if name not in _PRIVATE:
                item = getattr(module, name)
                homes = shortest.setdefault((name, id(item)), [])
                # Equal numbers and texts may be one object: they are the same name only in a package and its modules.
                same = [home for home in homes if not isinstance(item, int | float | str) or _is_in(module_name, home)]
                found[module_name, name] = same[0] if same else module_name
                if not same:
                    homes.append(module_name)
    return found


def _is_in(module: str, package: str) -> bool:
    return module.startswith(f"{package}.")


class PublicModule(SphinxDirective):
    """Show what a module is for and the names it is the home of; the module and each object have pages of their own."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return a sentence, links, and a hidden entry of the table of contents."""
        name = self.arguments[0]
        sentence = _sentence(importlib.import_module(name))
        links = " · ".join(_link(name, public) for public in _owned(name))
        page = f"{_GENERATED}/module-{name}"
        lines = [
            f"{sentence} :doc:`Details <{page}>`.",
            "",
            links,
            "",
            ".. toctree::",
            "   :hidden:",
            "",
            f"   {page}",
        ]
        return self.parse_text_to_nodes("\n".join(lines))


class NameRole(PyXRefRole):
    """A link to what has this name; plain code if the text is not the name of anything that is documented."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return a reference to be resolved, or code."""
        if re.fullmatch(r"[~.]*[A-Za-z_]\w*(\.\w+)*(\(\))?", self.text) and re.search(r"[A-Z._].", self.text):
            return super().run()
        return [nodes.literal(self.rawtext, self.text, classes=["code"])], []


def _owned(module: str) -> list[str]:
    """Return the names that are documented under a module."""
    return sorted(public for (origin, public), home in _homes().items() if origin == home == module)


def _docstring_of(module: str) -> list[str]:
    parent, _, last = module.rpartition(".")
    # A function may have the name of its module; then the module itself cannot be indexed as well.
    if parent and last in importlib.import_module(parent).__all__:
        return [f".. py:currentmodule:: {module}", ""]
    return [f".. automodule:: {module}", "   :no-members:", ""]


def _table(rows: Iterable[tuple[str, str]]) -> list[str]:
    lines = [".. list-table::", "   :class: names", "   :widths: auto", ""]
    for name, about in rows:
        lines += [f"   * - {name}", f"     - {about}"]
    return lines


def _link(module: str, name: str) -> str:
    return f":py:obj:`{name} <{module}.{name}>`"


def _about(module: str, name: str) -> str:
    item = getattr(importlib.import_module(module), name)
    if _is_type(item) or not callable(item):
        return _first_sentence(_comment(module, name) or _value(item))
    return _sentence(item)


def _is_type(item: Any) -> bool:
    """Return whether something is a type that is made of others."""
    return isinstance(item, GenericAlias | UnionType) or hasattr(item, "__origin__")


def _comment(module: str, name: str) -> str:
    """Return what the comment above a constant says where it is made, if that is not the module that documents it."""
    item = _item(module, name)
    loaded = sorted(place for place in sys.modules if place.startswith("dsgd."))
    places = [module, *(place for place in loaded if vars(sys.modules[place]).get(name) is item)]
    comments = (ModuleAnalyzer.for_module(place).find_attr_docs().get(("", name)) for place in places)
    return " ".join(" ".join(next(filter(None, comments), [])).split())


def _item(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _value(item: Any) -> str:
    """Return what can be said of a constant itself: what it is made of, or its entries if they are names."""
    if isinstance(item, ModuleType):
        return _sentence(item)
    if _is_type(item):
        return f"A type: ``{item}``."
    if not isinstance(item, Mapping | tuple | frozenset):
        return f"``{item!r}``" if isinstance(item, int | float | str) else ""
    entries = sorted(item) if isinstance(item, frozenset) else list(item)
    are_names = all(isinstance(entry, int | float | str) for entry in entries)
    names = ", ".join(f"``{entry!r}``" for entry in entries)
    count = "1 entry" if len(entries) == 1 else f"{len(entries)} entries"
    return f"{count}: {names}." if are_names else f"{count}."


def _sentence(item: Any) -> str:
    """Return the first sentence of a docstring, in one line."""
    return _first_sentence((inspect.getdoc(item) or "").partition("\n\n")[0])


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", " ".join(text.split()) + " ", maxsplit=1)[0].rstrip() or "\\ "


def _page_of(module: str, name: str) -> str:
    """Return the name of an object's page; file systems may not tell `Ledger` from `ledger`."""
    twins = [other for other in _owned(module) if other.lower() == name.lower()]
    return f"{module}.{name}" + (f"-{twins.index(name)}" if len(twins) > 1 and twins.index(name) else "")


def _module_page(module: str) -> str:
    rows = ((_link(module, public), _about(module, public)) for public in _owned(module))
    pages = [f"   {_page_of(module, public)}" for public in _owned(module)]
    lines = [module, "=" * len(module), "", *_docstring_of(module), *_table(rows), ""]
    return "\n".join([*lines, ".. toctree::", "   :hidden:", "", *pages])


def _object_page(module: str, name: str) -> str:
    item = getattr(importlib.import_module(module), name)
    lines = [name, "=" * len(name), "", f".. py:currentmodule:: {module}", ""]
    used = [f".. minigallery:: {module}.{name}", "   :add-heading: Examples", "   :heading-level: -", ""]
    body = [*_entry(module, name, item, take_all=True), *_background(module, item)]
    return "\n".join([*lines, *body, "", *(used if callable(item) else [])])


def _background(module: str, item: Any) -> list[str]:
    """Return what the file of a method says of its update, cost and source, if that is on no other page."""
    where = getattr(item, "__module__", "") if callable(item) else ""
    if not where.startswith("dsgd.") or where in _homes().values() or where == module:
        return []
    told = (inspect.getdoc(importlib.import_module(where)) or "").partition("\n\n")[2]
    return ["", "Background", "----------", "", told, ""] if "Source" in told or "Update" in told else []


def _write_pages(app: Sphinx) -> None:
    """Write the pages of packages and objects; those that did not change stay as they are."""
    texts = {_page_of(module, name): _object_page(module, name) for module in modules() for name in _owned(module)}
    texts |= {f"module-{name}": _module_page(name) for name in modules()}
    into = Path(app.srcdir) / "api" / _GENERATED
    into.mkdir(exist_ok=True)
    for name, text in texts.items():
        path = into / f"{name}.rst"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for path in into.glob("*.rst"):
        if path.stem not in texts:
            path.unlink()


def _entry(module: str, name: str, item: Any, *, take_all: bool) -> list[str]:
    """Return the directive for what Sphinx does not see as a member, with `take_all` for anything; else nothing."""
    defined = getattr(item, "_defn", None)
    if defined is not None:  # an intrinsic of Numba: a function of kernels alone, which is made from their types
        arguments = ", ".join(list(inspect.signature(defined).parameters)[1:])
        about = [f"   {line}" for line in (inspect.getdoc(defined) or "").splitlines()]
        return [f".. py:function:: {name}({arguments})", f"   :module: {module}", "", *about, ""]
    if callable(item) and not _is_type(item):
        kind = "autoclass" if isinstance(item, type) else "autofunction"
        return [f".. {kind}:: {module}.{name}", ""] if take_all else []
    shown = repr(item) if isinstance(item, int | float | str) else ""
    value = [f"   :value: {shown}"] if 0 < len(shown) <= _LONGEST_VALUE else []
    told = [_comment(module, name), *([] if value else [_value(item)])]
    about = [line for text in told if text for line in ("", f"   {text}")]
    return [f".. py:data:: {name}", f"   :module: {module}", *value, *about, ""]


def _skip(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    del skip, options
    if name.startswith("set_") and name.endswith("_request"):
        return True  # scikit-learn makes these, with texts that refer to its own documentation
    if what == "class":  # fields are described by the docstring of their class
        return None if isinstance(obj, _METHODS) else True
    module = app.env.temp_data.get("autodoc:module") or app.env.ref_context.get("py:module", "")
    if what != "module" or (module, name) not in _homes():
        return None
    elsewhere = _homes()[module, name] != module
    return elsewhere or bool(_entry(module, name, obj, take_all=False))


def _plain_defaults(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Write defaults as in a call: ``numpy.float64``, not how Python shows the class; a factory's is not known."""
    del app, what, name, obj, options
    named = re.sub(r"<(?:class '|(?:built-in )?function )([\w.]+)'?>", r"\1", signature or "")
    return re.sub(r"<factory>|<function [\w.]*<lambda>>", "...", named) if signature else signature, returns


def _link_name(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement) -> nodes.Node | None:
    """Resolve what the domain could not: a name without its module, or what is no name of ours."""
    if node.get("refdomain") != "py" or node.get("reftype") != "name":
        return None
    objects = env.domaindata["py"]["objects"]
    for full in _spellings(node["reftarget"]):
        if full in objects:
            found = objects[full]
            return make_refnode(app.builder, node["refdoc"], found.docname, found.node_id, content, full)
    return content if not node["reftarget"].startswith("dsgd.") or _exists(node["reftarget"]) else None


def _exists(name: str) -> bool:
    """Return whether there is a module, an object, or a field of one with this name."""
    for path, field in ((name, ""), tuple(name.rsplit(".", 1))):
        try:
            item = pkgutil.resolve_name(path)
        except (AttributeError, ImportError):
            continue
        return not field or field in getattr(item, "__annotations__", {})
    return False


def _spellings(target: str) -> Iterator[str]:
    """Yield the names under which what is called `target` may be documented, the most exact first."""
    parts = target.split(".")
    places = [(".".join(parts[:cut]), parts[cut], parts[cut + 1 :]) for cut in range(1, len(parts))]
    homes = [(_homes()[module, name], name, rest) for module, name, rest in places if (module, name) in _homes()]
    bare = {home for (_, public), home in _homes().items() if public == parts[0]}
    bare_homes = [(home, parts[0], parts[1:]) for home in sorted(bare, key=lambda home: (home.count("."), home))]
    for home, name, rest in [*homes, *bare_homes]:
        yield ".".join((home, name, *rest))
        yield f"{home}.{name}"  # fields are described by the docstring of their class


def _check(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of constants and types that nothing is said about."""
    del app, env
    for home, name in sorted({(home, name) for (_, name), home in _homes().items()}):
        item = _item(home, name)
        is_constant = _is_type(item) or not (callable(item) or isinstance(item, ModuleType))
        if is_constant and not _comment(home, name):
            logger.warning("constant %s.%s has no comment (#: ...) that says what it is", home, name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_directive("public-module", PublicModule)
    app.add_role_to_domain("py", "name", NameRole())
    app.connect("builder-inited", _write_pages)
    app.connect("missing-reference", _link_name)
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-signature", _plain_defaults, priority=900)  # after numpydoc
    app.connect("env-check-consistency", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
