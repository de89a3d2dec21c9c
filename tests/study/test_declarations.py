"""Every declared study runs at its smallest size, resumes, and makes its page."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dsgd.__main__ import main
from dsgd.cli.study import STUDIES
from dsgd.errors import DsgdError, InvalidParameterError
from dsgd.study import DataSource, Study, read_rows, run_study, study_page
from dsgd.study.svm_problems import PROBLEMS
from web_page import check_page

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
TINY = [DataSource("a9a-like", 400)]
#: By study: its smallest size, how many runs it then has, and the same on the command line.
SMALLEST: dict[str, tuple[dict[str, Any], int, str]] = {
    "collectives": (
        {"wires": ("inproc",), "ranks": (2,), "sizes": (8, 4096), "algorithms": ("ring", "binomial"), "repeats": 1},
        4,
        "--wires inproc --ranks 2 --sizes 8,4096 --algorithms ring,binomial --repeats 1",
    ),
    "dnn": (
        {"models": ("mlp",), "ways": ("local", "gtopk"), "ranks": (2,), "network": "10GbE", "rows": 200, "looks": (1,)},
        3, "--model mlp -s local -s gtopk --ranks 2 --simulated --rows 200 --looks 1",
    ),
    "elimination": (
        {"problems": (replace(PROBLEMS["checkerboard"], rows=250),), "presets": ("multi",), "caches": ("small",),
         "ranks": (), "repeats": 1, "n_threads": 1}, 3,
        "--problem checkerboard --rows 250 --presets multi --cache small --ranks none --repeats 1 --threads 1",
    ),
    "failures": (
        {"data": TINY, "strategies": ("local:every=25",), "ranks": (2,), "rates": (2.0,), "every": (600.0,),
         "seeds": (0,)}, 4,
        "-d a9a-like --rows 400 -s local:every=25 --ranks 2 --rates 2 --every 600 --seeds 1",
    ),
    "features": (
        {"data": [DataSource("ijcnn1-clusters", 400)], "agents": 4, "rows_per_agent": (5,), "features": 8,
         "steps": 10, "components": (20,), "epochs": (1,), "seeds": (0,)}, 9,
        "-d ijcnn1-clusters --rows 400 --agents 4 --rows-per-agent 5 --features 8 --steps 10 --components 20 "
        "--epochs 1 --seeds 1",
    ),
    "gtopk": (
        {"tasks": ("lstm",), "ways": ("gtop-k",), "rows": 200, "epochs": 1, "seeds": (0,), "timing": False}, 2,
        "--model lstm -s gtop-k --rows 200 --epochs 1 --seeds 1 --no-timing",
    ),
    "msf": (
        {"data": TINY, "ranks": (2,), "every": (1, 512), "seeds": (0,), "epochs": 2, "dtype": "float64"}, 3,
        "-d a9a-like --rows 400 --ranks 2 --every 1,512 --seeds 1 --epochs 2 --dtype float64",
    ),
    "speedup": (
        {"data": TINY, "epochs": (1,), "seeds": (0,)}, 5, "-d a9a-like --rows 400 --epochs 1 --seeds 1",
    ),
    "strategies": (
        {"data": TINY, "strategies": {"local": "local", "asgd": "asgd"}, "ranks": (3,), "network": "1GbE",
         "seeds": (0,), "epochs": 2, "schedule": "optimal"}, 3,
        "-d a9a-like --rows 400 -s local -s asgd --ranks 3 --simulated --seeds 1 --epochs 2 --schedule optimal",
    ),
    "transports": (
        {"ways": ("none",), "sizes": (4,), "models": ("logistic",), "repeats": 1}, 2,
        "--ways none --sizes 4 --models logistic --repeats 1",
    ),
    "tuning": (
        {"data": TINY, "every": (8, 64), "rules": ("auto",), "seeds": (0,), "epochs": 3, "repeats": 1}, 4,
        "-d a9a-like --rows 400 --every 8,64 -r auto --seeds 1 --epochs 3 --repeats 1",
    ),
    "variance": (
        {"data": TINY, "rows": 400, "epochs": 2, "seeds": (0,), "sizes": (100,), "repeats": 1}, 16,
        "-d a9a-like --rows 400 --epochs 2 --seeds 1 --sizes 100 --repeats 1",
    ),
}  # fmt: skip


#: By study: values that it cannot have, and what the error names.
WRONG: dict[str, list[tuple[dict[str, Any], str]]] = {
    "collectives": [
        ({"wires": ("pigeon",)}, "wires"), ({"algorithms": ("fast",)}, "algorithms"), ({"ranks": (1,)}, "ranks"),
        ({"sizes": (6,)}, "sizes"),
    ],
    "dnn": [
        ({"models": ("rnn",)}, "models"), ({"ways": ("pigeon",)}, "ways"), ({"ranks": (1,)}, "ranks"),
        ({"looks": (4, 1)}, "looks"), ({"momentum": 1.0}, "momentum"), ({"network": "string"}, "network"),
    ],
    "elimination": [
        ({"presets": ("fast",)}, "aggressive"), ({"caches": ("big",)}, "small, fits"), ({"caches": ()}, "caches"),
        ({"cache_share": 1.0}, "cache_share"), ({"ranks": (0,)}, "ranks"), ({"tol": 0.0}, "tol"),
        ({"problems": ()}, "problems"), ({"problems": (PROBLEMS["clean"], PROBLEMS["clean"])}, "twice"),
    ],
    "failures": [
        ({"rates": (0.0,)}, "rates"), ({"policies": ("hope",)}, "policies"), ({"network": "string"}, "network"),
        ({"strategies": ("pigeon",)}, "pigeon"),
    ],
    "gtopk": [
        ({"tasks": ("rnn",)}, "tasks"), ({"density": 2.0}, "density"), ({"momentum": 1.0}, "momentum"),
        ({"warm_up": (0.0,)}, "warm_up"), ({"networks": ("x",)}, "networks"), ({"ranks": 12}, "power of two"),
    ],
    "msf": [({"network": "carrier pigeon"}, "network"), ({"partition": "sorted"}, "contiguous")],
    "strategies": [
        ({"strategies": {}}, "at least one"), ({"strategies": {"sequential": "local"}}, "always runs"),
        ({"stragglers": "heavy-tail"}, "simulated ranks"), ({"strategies": {"hogwild": "hogwild"}}, "share no memory"),
    ],
    "transports": [
        ({"ways": ()}, "transports"), ({"ways": ("pigeon",)}, "transports"), ({"sizes": (6,)}, "transports"),
        ({"repeats": 0}, "transports"),
    ],
}  # fmt: skip


def study_of(name: str) -> Study:
    """Return the study of a name."""
    study: Study = import_module(f"dsgd.study.{name}").STUDY
    return study


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_studied_is_refused(name: str) -> None:
    """A value out of its domain, and values that do not go together, are refused with the name of the option."""
    for values, named in WRONG[name]:
        with pytest.raises(InvalidParameterError, match=named):
            study_of(name).replace(**values)


@pytest.mark.parametrize("name", sorted(set(STUDIES) - {"elimination", "scaling"}))
def test_a_page_is_made_of_any_part_of_the_rows(name: str) -> None:
    """The rows of the documentation, a half of them and a single one make a page, or the error says what is missing."""
    rows = read_rows(FIGURES / f"{name}_study.jsonl")
    study = study_of(name)
    made = []
    for part in (rows, rows[: len(rows) // 2], rows[len(rows) // 2 :], rows[:1], rows[-1:]):
        try:
            made.append(len(study_page(study, part).rows) >= len(part))
        except DsgdError as error:
            made.append(len(part) < len(rows) and "run it first" in str(error))
    assert made == [True] * 5


def test_every_study_has_a_smallest_size() -> None:
    """A study that is declared is run below, but for one that has no runs."""
    assert set(SMALLEST) == set(STUDIES) - {"scaling"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dsgd.errors.DivergenceWarning")
@pytest.mark.parametrize("name", SMALLEST)
def test_a_study_runs_and_resumes(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows are on disk as they are made, what is there is not made again, and the page needs nothing but rows."""
    if name in ("dnn", "gtopk"):
        pytest.importorskip("torch")
    values, count, command = SMALLEST[name]
    study = study_of(name).replace(**values)
    assert study.count() == count
    runs = run_study(study, tmp_path)
    begun = [next(runs).row for _ in range(2)]
    runs.close()
    kept = read_rows(tmp_path / "rows.jsonl")
    every = list(run_study(study, tmp_path))
    assert [run.row for run in every if run.resumed] == kept
    assert kept[:2] == begun
    check_page(study_page(study, [run.row for run in every]).render())
    assert main(["study", name, *command.split(), "--out", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["n_runs"] == count
    assert len(read_rows(tmp_path / "rows.jsonl")) == count  # the command asks for the same runs
