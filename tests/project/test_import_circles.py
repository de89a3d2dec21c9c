"""The modules of the package form no circle of imports: each can be read after those that it imports."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

import dsgd
import dsgd.datasets
import dsgd.svm

FOLDERS = {"dsgd": dsgd, "dsgd.svm": dsgd.svm, "dsgd.datasets": dsgd.datasets}


def modules() -> dict[str, Path]:
    """Return the file of every module but the `__init__`s, which hand on what the modules of their folder define."""
    found = {}
    for package, module in FOLDERS.items():
        folder = Path(next(iter(module.__path__)))
        for path in folder.rglob("*.py"):
            if path.name != "__init__.py":
                found[".".join((package, *path.relative_to(folder).with_suffix("").parts))] = path
    return found


def imported(path: Path) -> set[str]:
    """Return the names that a file imports, at its top, in a function or for its types only."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def test_modules_form_no_circle_of_imports() -> None:
    """No module imports, over others, itself; imports inside functions and those for types count as all others do."""
    files = modules()
    places = {name: place for place, name in enumerate(files)}
    arrows = [(places[name], places[other]) for name in files for other in imported(files[name]) if other in places]
    rows, columns = np.transpose(arrows)
    graph = coo_array((np.ones(len(rows)), (rows, columns)), shape=(len(files), len(files)))
    _, labels = connected_components(graph, connection="strong")
    circles = [[name for name in files if labels[places[name]] == k] for k in np.flatnonzero(np.bincount(labels) > 1)]
    assert len(arrows) > 1000
    assert circles == []
