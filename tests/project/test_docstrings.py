"""What the docstrings say is true and complete."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from numpydoc.validate import Validator, get_doc_object
from sklearn.base import BaseEstimator

import dsgd
import dsgd.datasets
import dsgd.svm

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    {
        name
        # Mapped folders are asked themselves: an editable install finds them by a hook, which pkgutil does not ask.
        for package in (dsgd, dsgd.datasets, dsgd.svm)
        for name in [
            package.__name__,
            *(module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")),
        ]
        if not name.endswith("__main__") and not (name.startswith("dsgd.torch") and find_spec("torch") is None)
    }
)
PUBLIC = re.findall(r"^\.\. public-module:: (\S+)$", (ROOT / "docs/api/index.rst").read_text("utf-8"), re.MULTILINE)


@cache
def _public_objects() -> dict[str, Any]:
    found, seen = {}, set()
    for module_name in PUBLIC:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            item = getattr(module, name)
            ours = getattr(item, "__module__", "").startswith("dsgd")
            if ours and (inspect.isfunction(item) or inspect.isclass(item)) and id(item) not in seen:
                seen.add(id(item))
                found[f"{module_name}.{name}"] = item
    return found


def _findings(path: str, item: Any) -> list[str]:
    """Say where prose has gone stale, and what a reader cannot do without. Taste is left to review.

    All checks of numpydoc would read the source of every function, some times over.
    """
    doc = Validator(get_doc_object(item))
    if not doc.raw_doc:
        return [f"{path}: there is no docstring"]
    found = [] if doc.summary else [f"{path}: there is no summary"]
    # A short function says its parameters in its summary; a table, where there is one, must be complete.
    has_table = "Parameters\n---" in doc.clean_doc
    codes = set() if _speaks_for_others(path) else {"PR01", "PR02"} if has_table else {"PR02"}
    found += [f"{path}: {message}" for code, message in doc.parameter_mismatches if code in codes]
    named = [name for name, (_, text) in doc.doc_all_parameters.items() if not text]
    return [*found, *(f"{path}: the parameter {name} has no description" for name in named)]


def _speaks_for_others(path: str) -> bool:
    """Return whether a docstring describes parameters that the classes derived from this one have."""
    item = _public_objects().get(path)
    return inspect.isclass(item) and issubclass(item, BaseEstimator) and item.__name__.startswith("Abstract")


def _own_methods(item: type) -> Iterator[str]:
    for name, member in vars(item).items():
        if not name.startswith("_") and callable(member):
            yield name


def test_docstrings_of_public_names_are_complete() -> None:
    """A public function, class or method documents its parameters, all of them, and none it does not have."""
    findings = []
    for path, item in _public_objects().items():
        findings += _findings(path, item)
        if inspect.isclass(item):
            for name in _own_methods(item):
                findings += _findings(f"{path}.{name}", getattr(item, name))
    assert not findings, "\n".join(findings)


def _has_examples(name: str) -> bool:
    spec = find_spec(name)
    return spec is None or spec.origin is None or ">>>" in Path(spec.origin).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in MODULES if _has_examples(name)])
def test_examples_give_what_they_show(name: str) -> None:
    """The examples in the docstrings of a module run, and give what they show."""
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_every_command_is_in_the_documentation() -> None:
    """The page on the command line shows the help of every command and sub-command."""
    import typer

    from dsgd.cli import app

    page = (ROOT / "docs" / "command-line.rst").read_text(encoding="utf-8")

    def paths(command: Any, prefix: str) -> Iterator[str]:
        for name, inner in getattr(command, "commands", {}).items():
            yield f"{prefix}{name}"
            yield from paths(inner, f"{prefix}{name} ")

    missing = [path for path in paths(typer.main.get_command(app), "") if f".. command-help:: {path}\n" not in page]
    assert not missing
