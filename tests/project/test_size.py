"""The size of the house: a change that makes it larger raises a number here, and says why."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("dsgd", "svm", "datasets")

#: What there is at most. Lower them with every change that takes something away.
MOST = {"files": 346, "code": 64_518, "docstrings": 19_713, "tests": 37_691, "benchmarks": 4_590}


def files_of(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the lines that docstrings take."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                found.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found


def lines_of(paths: list[Path]) -> tuple[int, int]:
    """Return the lines of code, neither blank nor comment nor docstring, and those of docstrings."""
    code = docstrings = 0
    for path in paths:
        text = path.read_text()
        told = docstring_lines(ast.parse(text))
        docstrings += len(told)
        for number, line in enumerate(text.splitlines(), 1):
            code += number not in told and bool(line.strip()) and not line.lstrip().startswith("#")
    return code, docstrings


@cache
def sizes() -> dict[str, int]:
    """Return what there is."""
    own = files_of(*FOLDERS)
    code, docstrings = lines_of(own)
    tests, benchmarks = (lines_of(files_of(folder))[0] for folder in ("tests", "benchmarks"))
    return {"files": len(own), "code": code, "docstrings": docstrings, "tests": tests, "benchmarks": benchmarks}


@pytest.mark.parametrize("what", MOST)
def test_the_house_does_not_grow(what):
    """Nobody maintains what has grown one feature at a time."""
    assert sizes()[what] <= MOST[what], f"{what}: say in the change what a user has of it, and raise the number"


def asked_of_strategies() -> Iterator[str]:
    """Yield where code outside `dsgd.sync` asks of what class a strategy is."""
    for path in files_of("dsgd", "svm"):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith("dsgd/sync/"):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if re.search(r"isinstance\([\w.]*strategy,", line):
                    yield f"{name}:{number}"


def test_what_a_strategy_does_is_declared():
    """A strategy of the user's own is served like those of the package: nobody asks for its class."""
    assert list(asked_of_strategies()) == []
