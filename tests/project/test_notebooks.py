"""Notebooks of the documentation are kept as they are written: without outputs, listed, and with code that can run.

The build of the documentation executes them.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

_FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
_NOTEBOOKS = sorted(_FOLDER.glob("*.ipynb"))
_KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}

notebooks = pytest.mark.parametrize("path", _NOTEBOOKS, ids=lambda path: path.stem)


def _cells(path: Path, kind: str) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


@notebooks
def test_nothing_of_a_run_is_kept(path: Path) -> None:
    """A notebook of format 4.5 has no output or count, and no metadata but its kernel and what its pictures show."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert sorted(notebook) == ["cells", "metadata", "nbformat", "nbformat_minor"]
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"] == _KERNEL
    own = {"markdown": {}, "code": {"outputs": [], "execution_count": None}}
    for cell in notebook["cells"]:
        rest = {name: value for name, value in cell.items() if name not in ("id", "cell_type", "source")}
        drawn = "plt.show()" in "".join(cell["source"])
        alt = rest.pop("metadata").get("mystnb", {}).get("image", {}) if drawn else rest.pop("metadata")
        assert sorted(alt) == ["alt"] * drawn  # what a picture shows, for those who cannot see it
        assert rest == own[cell["cell_type"]]
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]{1,64}", name) for name in names)


@notebooks
def test_a_lesson_has_a_title_prose_and_code_that_compiles(path: Path) -> None:
    """It begins with its one title, explains most of what it does, and needs neither magics nor a network."""
    texts, codes = _cells(path, "markdown"), _cells(path, "code")
    titles = [line for text in texts for line in text.splitlines() if line.startswith("# ")]
    assert titles == [texts[0].splitlines()[0]]
    assert len(texts) >= len(codes) / 2
    code = "\n".join(codes)
    ast.parse(code)  # a magic or a shell command is no Python
    assert "://" not in code
    assert ("LocalCluster(" in code) == ("cluster.close()" in code) == ("client.close()" in code)  # processes end


@notebooks
def test_pages_that_a_lesson_leads_to_are_there(path: Path) -> None:
    """A link in a text is to a page beside the notebooks' folder."""
    links = re.findall(r"\]\(([^)]*)\)", "".join(_cells(path, "markdown")))
    assert links
    assert [link for link in links if not (_FOLDER / link).resolve().is_file()] == []


def test_every_notebook_is_listed_and_can_be_downloaded() -> None:
    """The page of notebooks has each in its tree of pages, with a sentence and its file."""
    page = (_FOLDER / "index.rst").read_text(encoding="utf-8")
    wanted = [path.stem for path in _NOTEBOOKS]
    assert len(wanted) >= 4
    table, _, tree = page.partition(".. toctree::")
    assert sorted(re.findall(r"^   (\w+)$", tree, re.MULTILINE)) == wanted
    found = re.findall(r"\* - :doc:`(\w+)`\n +- (.+\.)\n +- :download:`Download <(\w+)\.ipynb>`", table)
    assert sorted(name for name, _, _ in found) == sorted(file for _, _, file in found) == wanted
    assert "notebooks/index" in (_FOLDER.parent / "index.rst").read_text(encoding="utf-8")


def test_every_notebook_runs_in_the_build() -> None:
    """The build executes each, and fails with a cell; nothing is read from an earlier run."""
    tree = ast.parse((_FOLDER.parent / "conf.py").read_text(encoding="utf-8"))
    settings = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    assert "myst_nb" in ast.literal_eval(settings["extensions"])
    assert ast.literal_eval(settings["nb_execution_mode"]) == "force"
    assert ast.literal_eval(settings["nb_execution_raise_on_error"]) is True
    assert 0 < ast.literal_eval(settings["nb_execution_timeout"]) <= 600
