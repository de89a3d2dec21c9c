"""Examples of the gallery can be imported by the processes that they start, and are in the order of the page."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_ext"))
from gallery_order import ByPurpose

_EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "gallery").glob("plot_*.py"))


def _runs(statement: ast.stmt) -> bool:
    """Return whether a statement does more than to name something."""
    is_named = isinstance(statement, ast.Import | ast.ImportFrom | ast.FunctionDef)
    is_constant = isinstance(statement, ast.Assign) and not any(
        isinstance(node, ast.Call) for node in ast.walk(statement)
    )
    return not (is_named or is_constant)


@pytest.mark.parametrize("path", _EXAMPLES, ids=lambda path: path.stem)
def test_what_starts_processes_is_guarded(path: Path) -> None:
    """An example begins with its title; one with a client of Dask works under ``if __name__ == "__main__"`` alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    title, line = (ast.get_docstring(tree) or "").splitlines()[:2]
    assert len(title) == len(line)
    assert set(line) == {"="}
    if "Client(" in ast.unparse(ast.Module(tree.body[1:], [])):
        assert [ast.unparse(one.test) for one in tree.body[1:] if isinstance(one, ast.If)] == ["__name__ == '__main__'"]
        assert [ast.unparse(one) for one in tree.body[1:] if _runs(one) and not isinstance(one, ast.If)] == []
        assert "with Client(" in ast.unparse(tree)  # its processes end


def test_the_order_has_all_examples() -> None:
    """What the page shows first is there, and what is there has a place."""
    places = [ByPurpose("")(path.name)[0] for path in _EXAMPLES]
    assert sorted(places) == list(range(len(_EXAMPLES)))
