"""Figures of the documentation: drawn from rows that measure the code as it is."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def stamps() -> Iterator[ModuleType]:
    """The module that knows all figures."""
    spec = importlib.util.spec_from_file_location("stamps", DOCS / "figures" / "stamps.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["stamps"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["stamps"]


@pytest.mark.slow
def test_no_figure_is_older_than_what_it_measures(stamps: ModuleType) -> None:
    """Rows measure the code as it is, and what is drawn is what script and rows give; the message says what to run."""
    assert list(stamps.stale()) == []


def test_every_picture_is_a_figure_or_says_what_takes_it(stamps: ModuleType) -> None:
    """No picture of the documentation is from a command that nobody knows."""
    known = {name for one in stamps.FIGURES for name in one.files} | set(stamps.TAKEN)
    pictures = {f"_static/{path.name}" for path in (DOCS / "_static").iterdir() if path.name != ".gitkeep"}
    assert pictures == {name for name in known if name.startswith("_static/")}
    used = "".join(page.read_text(encoding="utf-8") for page in (*DOCS.glob("*.rst"), *DOCS.glob("sources/*.rst")))
    assert not [name for name in known if name not in used]


def test_a_change_makes_only_its_own_figures_stale(stamps: ModuleType) -> None:
    """Another digest of SCAFFOLD is told of the rows that have it, by part, and of nothing else."""
    known = stamps.read()
    path = "dsgd/sync/scaffold.py"
    for stamp in known.values():
        for part in stamp["measured"].values():
            part.update({path: "then"} if path in part else {})
    told = list(stamps.stale(stamps=known))
    assert [line.partition(":")[0] for line in told] == ["claims 'skewed'", "comparing", "strategies 'scaffold'"]
    assert all(path in line for line in told)
    assert "dsgd claims --only skewed" in told[0]


def test_words_are_no_change_of_code_and_rows_are_one_of_a_figure(stamps: ModuleType) -> None:
    """Comments, docstrings and blanks have no part in the digest of code; other rows make what is drawn stale."""
    code = 'def f(x):\n    """Say."""\n    # why\n    return "# x" + x  # because\n'
    bare = 'def f(x):\n\n    return "# x" + x\n'
    assert stamps.without_words(code) == stamps.without_words(bare) == 'def f(x): return "# x" + x'
    assert stamps.without_words(bare) != stamps.without_words(bare.replace('"# x"', '"# y"'))
    known = stamps.read()
    known["gossip"]["drawn"]["rows"] = "others"
    assert [line.partition(":")[0] for line in stamps.stale(stamps=known)] == ["gossip"]


def test_rows_that_were_not_measured_again_need_a_reason(stamps: ModuleType) -> None:
    """A stamp is not renewed for the rows of before, unless somebody says why they are true."""
    gossip = next(one for one in stamps.FIGURES if one.name == "gossip")
    with pytest.raises(SystemExit, match="say why they stay true"):
        stamps.measured(gossip)
    assert stamps.measured(gossip, because="another name")["because"] == {"": "another name"}
