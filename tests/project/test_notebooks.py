"""Notebooks of the documentation are kept as they are written: without outputs, listed, and with code that can run.

The build of the documentation executes them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

_FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
_NOTEBOOKS = sorted(_FOLDER.glob("*.ipynb"))
_KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}

notebooks = pytest.mark.parametrize("path", _NOTEBOOKS, ids=lambda path: path.stem)


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
