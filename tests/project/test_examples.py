"""The examples of the documentation run, and print what the documentation says of them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

_DOCS = Path(__file__).parents[2] / "docs"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", _DOCS / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.cluster
def test_the_tutorial_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """From scikit-learn to sixteen simulated machines and back, every model is as good as the first."""
    _load("tutorial").main()
    out = capsys.readouterr().out
    scores = [float(text) for text in re.findall(r"^[\w ,.\-]+: +(0\.\d{4})", out, flags=re.MULTILINE)]
    assert len(scores) == 11
    assert max(scores) - min(scores) < 0.005
    assert int(re.findall(r"(\d+) of 1000 epochs", out)[0]) < 1000


def test_a_period_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    """The period that ranks find sends far less than averaging often; it begins at a sixteenth of their rows."""
    _load("tuning_period").main()
    out = capsys.readouterr().out
    sent = {line.split()[0]: float(line.split()[3]) for line in out.splitlines()[1:5]}
    assert sent["auto"] < sent["256"] < sent["16"]
    assert "what auto chose:\n  after      0 rows of a rank: every   312 rows (start)" in out


@pytest.mark.slow
def test_an_svm_runs_on_machines_that_are_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """The bytes of an SVM do not depend on the network, its seconds of communication do."""
    _load("svm_simulated").main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:7]]
    slow, fast = lines[:3], lines[3:]
    assert [line[1] for line in slow] == [line[1] for line in fast] == ["2", "4", "16"]
    assert [line[3:] for line in slow] == [line[3:] for line in fast]
    assert all(float(a[2]) > 5 * float(b[2]) for a, b in zip(slow, fast, strict=True))


def test_the_first_example_of_the_readme_runs_as_it_stands(capsys):
    """Who pastes it into an interpreter needs nothing else, and sees where the seconds went."""
    text = (_DOCS.parent / "README.md").read_text(encoding="utf-8")
    exec(text.split("```python\n")[1].split("```")[0], {})
    assert "compute" in capsys.readouterr().out
