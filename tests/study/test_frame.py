"""Laws of the frame of studies: grids, options, rows that are made once, failures, commands."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dsgd.__main__ import main
from dsgd.cli import study_command
from dsgd.errors import DsgdError, InvalidParameterError
from dsgd.report import Table
from dsgd.study import DataSource, read_rows
from dsgd.study.frame.study import Batch, Grid, Option, Run, Study, run_study, study_page
from study_rows import made_rows
from web_page import check_page

CALLS: list[list[int]] = []


def measure(batch: Batch, runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Square a number; note what is made together, and fail on seven."""
    CALLS.append([run.number for run in runs])
    for run in runs:
        if run.number == 7:
            raise DsgdError("seven cannot be squared")
        yield {"square": run.number**2 + batch.study.more}


def report(study: Study, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a page with a table of squares."""
    table = Table.of(
        "Squares", rows, {"number": lambda row: str(row["number"]), "square": lambda row: str(row["square"])}
    )
    return {"answer": f"{len(rows)} squares.", "tables": [table], "facts": {"more": study.more}}


SQUARES = Study(
    "squares", "What is a square?", (),
    options={
        "kinds": Option(("odd", "even"), "Kinds.", choices=("odd", "even", "none")),
        "numbers": Option((1, 2, 3, 4), "Numbers.", numbers=True, least=1, demo=(1, 2)),
        "more": Option(0, "What is added.", least=0, above=-1),
    },
    grids=[
        Grid(
            lambda s: {"kind": s.kinds, "number": s.numbers}, measure, ("more",), together=("kind",),
            where=lambda run: (run.number % 2 == 1) == (run.kind == "odd"), derive=lambda run: {"definition": 2},
        )
    ],
    report=report, columns=("kind",),
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_calls() -> None:
    """Begin with nothing measured."""
    CALLS.clear()


def test_a_grid_is_the_product_of_its_axes_without_what_is_refused() -> None:
    """The outermost axis comes first, equal values count once, and rows say all that decides a run."""
    runs = SQUARES.replace(numbers=(1, 2, 3, 3, 1)).runs()
    assert [(run.kind, run.number) for run in runs] == [("odd", 1), ("odd", 3), ("even", 2)]
    assert runs[0].settings() == {"kind": "odd", "number": 1, "more": 0, "definition": 2}
    assert SQUARES.count() == 4
    assert SQUARES.demo().count() == 2
    assert len({run.key for study in (SQUARES, SQUARES.replace(more=1)) for run in study.runs()}) == 8


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"numbers": ()}, "numbers"), ({"numbers": (0,)}, "1 or more"), ({"kinds": ("big",)}, "odd, even"),
        ({"more": float("nan")}, "more"), ({"length": 3}, "length"),
    ],
)  # fmt: skip
def test_values_out_of_their_domain_are_refused(values: dict[str, Any], named: str) -> None:
    """The error names the option, and what there is to choose from."""
    with pytest.raises(InvalidParameterError, match=named):
        SQUARES.replace(**values)


def test_runs_are_made_once_and_together(tmp_path: Path) -> None:
    """An interrupted study goes on where it ended; what has a row is not measured again, but with force."""
    runs = run_study(SQUARES, tmp_path)
    first = next(runs)
    runs.close()
    every = list(run_study(SQUARES, tmp_path))
    assert [run.resumed for run in every] == [True, False, False, False]
    assert every[0].row == first.row
    assert CALLS == [[1, 3], [3], [2, 4]]
    assert [run.row for run in every] == read_rows(tmp_path / "rows.jsonl")
    assert all(run.resumed for run in run_study(SQUARES, tmp_path))
    assert not any(run.resumed for run in run_study(SQUARES, tmp_path, force=True))


def test_a_run_that_fails_leaves_those_before_it(tmp_path: Path) -> None:
    """The error comes through, finished rows are on disk, and the others are made without it."""
    with pytest.raises(DsgdError, match="seven"):
        list(run_study(SQUARES.replace(numbers=(1, 7, 9, 2)), tmp_path))
    assert [row["number"] for row in read_rows(tmp_path / "rows.jsonl")] == [1]
    assert [run.resumed for run in run_study(SQUARES.replace(numbers=(1, 9, 2)), tmp_path)] == [True, False, False]


def test_sets_are_loaded_once_and_named_in_rows(tmp_path: Path) -> None:
    """An axis of sets gives name and sizes to rows; its loader sees each set once."""
    loaded = []

    class Numbers:
        name, y, y_test = "ones", (1,) * 5, (1,)

    def load(source: DataSource, dtype: str, rows: Sequence[Any]) -> Numbers:
        loaded.append((source.name, dtype, len(rows)))
        return Numbers()

    def rows_of(batch: Batch, runs: Sequence[Run]) -> list[dict[str, Any]]:
        return [{"sum": sum(batch.data.y)} for _ in runs]

    axes = {"ranks": (1, 2), "dataset": (DataSource("a"),), "seed": (0, 1)}
    study = Study("sums", "?", (), {"dtype": Option("float32")}, [Grid(lambda s: axes, rows_of, load=load)], report)
    rows = [run.row for run in run_study(study, tmp_path)]
    assert loaded == [("a", "float32", 0)]
    assert [(row["dataset"], row["rows"], row["test_rows"], row["ranks"], row["sum"]) for row in rows] == [
        ("ones", 5, 1, ranks, 5) for ranks in (1, 1, 2, 2)
    ]


def test_a_page_says_what_is_missing_and_what_is_doubtful() -> None:
    """Runs that are missing, other work of the machine and rows of several versions are named; no rows are refused."""
    rows = made_rows(SQUARES, lambda run: {"square": run.number**2}, load_at_start=4.0)
    rows[0]["versions"] = {"dsgd": "1"}
    page = study_page(SQUARES, rows[:3])
    check_page(page.render())
    said = " ".join(page.doubts)
    assert "1 of 4 runs are missing" in said
    assert len(page.doubts) >= 3
    with pytest.raises(DsgdError, match="no finished run"):
        study_page(SQUARES, [])


def test_a_command_is_made_of_the_declaration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options are read by their kinds, the small form is a preset, JSON has the facts, and help names every option."""
    monkeypatch.setattr(study_command, "STUDIES", {"squares": "What is a square?"})
    monkeypatch.setattr(study_command, "import_module", lambda name: type("module", (), {"STUDY": SQUARES}))
    command = ["study", "squares", "--out", str(tmp_path), "--json"]
    assert main([*command, "--demo", "--more", "5"]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (facts["n_runs"], facts["more"], facts["claims"]) == (2, 5, [])
    assert main([*command, "--numbers", "2,4", "--kinds", "even"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["n_runs"] == 2
    assert main([*command, "--numbers", "2,x"]) == 2
    assert "--numbers" in capsys.readouterr().err
    assert main(["study", "squares", "--help"]) == 0
    assert all(f"--{name}" in capsys.readouterr().out for name in ("numbers",))
    assert os.path.exists(tmp_path / "report.html")
