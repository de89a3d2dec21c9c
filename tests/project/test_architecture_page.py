"""The page on the architecture: the files, functions and constants that it names exist."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "architecture.rst"
SCRIPT = runpy.run_path(str(REPOSITORY / "docs" / "figures" / "architecture.py"))
PATHS: dict[str, list[Any]] = SCRIPT["PATHS"]


def defined(file: str) -> set[str]:
    """Return the qualified names of the functions and classes of a file."""
    names = set()

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef):
                names.add(prefix + child.name)
                visit(child, f"{prefix}{child.name}." + ("" if isinstance(child, ast.ClassDef) else "<locals>."))
            else:
                visit(child, prefix)

    visit(ast.parse((REPOSITORY / file).read_text(encoding="utf-8")), "")
    return names


def test_what_the_page_names_is_there() -> None:
    """Every file is in the repository, and holds the function that the drawing, a table or the text names with it."""
    places = [(hop.file, hop.function) for path in PATHS.values() for hop in path]
    places += [(box.file, box.function) for box in SCRIPT["BOXES"].values()]
    assert [place for place in places if place[1] not in defined(place[0])] == []
    text = PAGE.read_text(encoding="utf-8")
    files = re.findall(r"``((?:dsgd|svm|datasets|docs|tests)/[\w/]+\.py)``", text)
    assert len(files) >= 4
    assert [file for file in files if not (REPOSITORY / file).exists()] == []
    # A function that the text names with its file in parentheses.
    named = re.findall(r"``([\w.]+)``\s+\(``([\w/]+\.py)``\)", text)
    assert len(named) >= 15
    assert [place for place in named if place[0] not in defined(place[1])] == []
