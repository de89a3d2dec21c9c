"""What the docstrings say is true and complete."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from numpydoc.validate import validate

import dsgd
import dsgd.datasets
import dsgd.svm

ROOT = Path(__file__).resolve().parents[1]
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

# The checks that catch prose gone stale, and what a reader cannot do without. Taste is left to review.
CHECKS = {
    "GL08": "there is no docstring",
    "SS01": "there is no summary",
    "PR01": "a parameter is not documented",
    "PR02": "a parameter is documented that does not exist",
    "PR07": "a parameter has no description",
}


def _public_objects() -> Iterator[tuple[str, Any]]:
    seen = set()
    for module_name in MODULES:
        if module_name.startswith("dsgd.cli"):  # commands are documented by their help
            continue
        module = importlib.import_module(module_name)
        for name in module.__all__:
            item = getattr(module, name)
            ours = getattr(item, "__module__", "").startswith("dsgd")
            if ours and (inspect.isfunction(item) or inspect.isclass(item)) and id(item) not in seen:
                seen.add(id(item))
                yield f"{module_name}.{name}", item


PUBLIC = dict(_public_objects())


def _findings(path: str) -> list[str]:
    report = validate(path)
    # A short function says its parameters in its summary; a table, where there is one, must be complete.
    has_table = "Parameters\n---" in report["docstring"]
    return [
        f"{path}: {CHECKS[code]} ({message})"
        for code, message in report["errors"]
        if code in CHECKS and (code != "PR01" or has_table)
    ]


def _own_methods(item: type) -> Iterator[str]:
    for name, member in vars(item).items():
        if not name.startswith("_") and callable(member):
            yield name


@pytest.mark.parametrize("path", sorted(PUBLIC))
def test_docstring_of_public_name_is_complete(path: str) -> None:
    """A public function, class or method documents its parameters, all of them, and none it does not have."""
    item = PUBLIC[path]
    findings = _findings(path)
    if inspect.isclass(item):
        for name in _own_methods(item):
            findings += _findings(f"{path}.{name}")
    assert not findings, "\n".join(findings)


@pytest.mark.parametrize("name", MODULES)
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
