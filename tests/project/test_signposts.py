"""What the first lines of a package name is there."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted((ROOT / "dsgd").rglob("__init__.py"))


@pytest.mark.parametrize("init", PACKAGES, ids=lambda path: path.parent.relative_to(ROOT).as_posix())
def test_a_package_names_modules_that_it_has(init: Path) -> None:
    """A newcomer begins there: a module that was merged into another sends them astray."""
    package = importlib.import_module(".".join(init.parent.relative_to(ROOT).parts))
    text = ast.get_docstring(ast.parse(init.read_text())) or ""
    lost = []
    for name in re.findall(r"(?<![`:])`([a-z]\w*)`(?!`)", text):
        is_module = any((init.parent / place).exists() for place in (f"{name}.py", name))
        if not is_module and not hasattr(package, name):
            lost.append(name)
    assert lost == []
