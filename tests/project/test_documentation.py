"""What the documentation shows runs as it stands, and what it names is there."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsgd import SGDClassifier
from dsgd.runtime.metrics import METRICS
from dsgd.sim import SimulatedCluster
from dsgd.study.published import SOURCES
from dsgd.svm import SVC, LinearSVC

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.cluster
def test_the_tutorial_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """From scikit-learn to sixteen simulated machines and back, every model is as good as the first."""
    runpy.run_path(str(DOCS / "examples" / "tutorial.py"))["main"]()
    out = capsys.readouterr().out
    scores = [float(text) for text in re.findall(r"^[\w ,.\-]+: +(0\.\d{4})", out, flags=re.MULTILINE)]
    assert len(scores) == 11
    assert max(scores) - min(scores) < 0.005
    assert int(re.findall(r"(\d+) of 1000 epochs", out)[0]) < 1000


def test_the_first_example_of_the_readme_runs_as_it_stands(capsys):
    """Who pastes it into an interpreter needs nothing else, and sees where the seconds went."""
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    exec(text.split("```python\n")[1].split("```")[0], {})
    assert "compute" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("library", ["sklearn", "dask-ml", "libsvm", "spark", "torch-ddp"])
def test_the_example_for_those_from_elsewhere_runs(library: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It needs nothing from the rest of its page, and prints what it found."""
    page = (DOCS / "coming-from.rst").read_text(encoding="utf-8").partition(f".. _from-{library}:")[2]
    block = re.search(r"\.\. code-block:: python\n\n((?:   .*\n|\n)+)", page)
    assert block is not None
    exec(compile(textwrap.dedent(block[1]), library, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


@cache
def extension() -> dict[str, Any]:
    """Return what the extension of the documentation defines, which imports Sphinx."""
    return runpy.run_path(str(DOCS / "_ext" / "sources.py"))


@pytest.mark.slow
@pytest.mark.parametrize("key", [key for key in SOURCES if key not in ("ring", "blink", "shrinking", "zerocopy")])
def test_the_lines_of_a_page_switch_its_source_on(key: str) -> None:
    """At most three lines train a model with what the page is about."""
    lines = extension()["lines_of"](SOURCES[key])
    assert len(lines) <= 3
    X = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    names = {"X": X, "y": X[:, 0] > 0}
    exec("\n".join(lines).replace(").fit(", ", n_jobs=2, max_iter=1, tol=None).fit("), names)
    assert names["clf"].coef_.shape == (1, 2000 if key == "rff" else 3)


@pytest.mark.parametrize("path", sorted((DOCS / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_nothing_of_a_run_is_kept_in_a_notebook(path: Path) -> None:
    """Outputs and counts are those of the build, which executes it."""
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


def test_the_keys_of_the_report_are_those_of_fits():
    """The page on the ledger lists the keys of every kind of model, under the kinds that have them."""
    text = (DOCS / "ledger.rst").read_text(encoding="utf-8")
    text = text[text.index(".. begin: keys of fit_report_") : text.index(".. end: keys of fit_report_")]
    of_all, of_sgd, of_linear, _, of_svms, of_linear_svms = (
        {key for line in re.findall(r"^``.*``$", part, re.MULTILINE) for key in re.findall(r"``(\w+)``", line)}
        for part in re.split(r"^(?:Models|linear|torch|kernel|and linear)\b.*$", text, flags=re.MULTILINE)
    )
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = X[:, 0] > 0

    def keys(estimator):
        return set(estimator.fit(X, y).fit_report_)

    assert keys(SGDClassifier(n_jobs=2)) == of_all | of_sgd | of_linear
    assert keys(SVC(client=SimulatedCluster(2))) == of_all | of_svms
    assert keys(LinearSVC(client=SimulatedCluster(2))) == of_all | of_linear_svms


def test_the_dashboard_asks_for_every_metric_and_no_other() -> None:
    """Each query of the dashboard names metrics that there are, with labels that they have; all are on it."""
    board = json.loads((DOCS / "grafana" / "dsgd.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    asked = {name for query in queries for name in re.findall(r"\bdsgd_\w+", query)}
    assert asked == set(METRICS)
    for query in queries:
        labels = {METRICS[name].label for name in re.findall(r"\bdsgd_\w+", query)}
        used = {*re.findall(r"by \((\w+)\)", query), *re.findall(r"{(\w+)=", query)}
        assert used <= labels | {"instance"}, query
        rates = re.findall(r"(?:rate|increase)\((dsgd_\w+)", query)
        assert {name for name in re.findall(r"\bdsgd_\w+", query) if name.endswith("_total")} == set(rates)


def test_the_logging_configuration_of_the_page_works(tmp_path: Path) -> None:
    """Dask takes the configuration as it stands on the page, and a record becomes a line of JSON with its job."""
    text = (DOCS / "monitoring.rst").read_text(encoding="utf-8")
    block = text[text.index("   logging:\n") :].split("\n\n", 1)[0]
    (tmp_path / "logging.yaml").write_text(textwrap.dedent(block))
    code = (
        "import distributed, logging; from dsgd.runtime.logs import working_for\n"
        "with working_for('j', 1, 4): logging.getLogger('dsgd.runtime').info('pack took %d s', 3)\n"
    )
    command, env = [sys.executable, "-c", code], os.environ | {"DASK_CONFIG": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    line = json.loads(done.stderr)
    assert (line.pop("time")[-1], line) == (
        "Z",
        {"level": "INFO", "logger": "dsgd.runtime", "message": "pack took 3 s", "job": "j", "formed": 1, "rank": 4},
    )


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

    visit(ast.parse((DOCS.parent / file).read_text(encoding="utf-8")), "")
    return names


def test_what_the_page_names_is_there() -> None:
    """Every file is in the repository, and holds the function that the drawing, a table or the text names with it."""
    drawing = runpy.run_path(str(DOCS / "figures" / "architecture.py"))
    places = [(hop.file, hop.function) for path in drawing["PATHS"].values() for hop in path]
    places += [(box.file, box.function) for box in drawing["BOXES"].values()]
    assert [place for place in places if place[1] not in defined(place[0])] == []
    text = (DOCS / "architecture.rst").read_text(encoding="utf-8")
    files = re.findall(r"``((?:dsgd|svm|datasets|docs|tests)/[\w/]+\.py)``", text)
    assert len(files) >= 4
    assert [file for file in files if not (DOCS.parent / file).exists()] == []
    # A function that the text names with its file in parentheses.
    named = re.findall(r"``([\w.]+)``\s+\(``([\w/]+\.py)``\)", text)
    assert len(named) >= 15
    assert [place for place in named if place[0] not in defined(place[1])] == []
