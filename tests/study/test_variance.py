"""The study of variance: errors, costs and claims from rows alone, the page, courses and draws, the command."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dsgd.__main__ import main
from dsgd.errors import DsgdError, InvalidParameterError
from dsgd.local import make_shard
from dsgd.study import DataSource, read_rows
from dsgd.study.variance import (
    METHODS,
    VarianceStudy,
    check_variance_claims,
    course_table,
    draw_table,
    run_variance_study,
    summarise_draws,
    summarise_variance,
    variance_page,
    variance_verdict,
)
from dsgd.study.variance.courses import Course, lowest_objective
from dsgd.study.variance.problems import FAR, TOY, far_targets, one_of_many
from web_page import check_page

STUDY = VarianceStudy((DataSource("a9a-like", 200, 100),), 200, 2, (0, 1, 2), (1_000, 1_000_000), 3)
LOWEST = 0.25
ERRORS = {"SGD, drawn": 0.08, "SGD, each once": 0.02, "SRG": 0.01, "SAGA": 1e-12, "SVRG": 1e-10}


def made_rows(errors: dict[str, float] = ERRORS, drawn_ns: float = 70.0, load: float = 0.1) -> list[dict[str, Any]]:
    """Return rows of courses with these errors on every problem, and of steps, of which drawn ones take so long."""
    about = {
        "when": "2026-01-01T00:00:00+00:00", "versions": {"dsgd": "0"}, "load_at_start": load, "commit": None,
        "command": "dsgd study", "cluster": "local", "ranks": None,
        "machine": {"cpu": "<one>", "cores": 2, "memory_gib": 8, "system": "Linux"},
    }  # fmt: skip
    rows = []
    for dataset in (TOY, FAR, "a9a-like"):
        for run in STUDY.courses(dataset, 200):
            # Seeds are as far apart as methods are: only ratios of one seed must count.
            at = LOWEST + errors[run.method] * (1.0 + run.seed)
            curve = [{"passes": float(k), "seconds": 0.1 * k, "objective": at} for k in (1, 2)]
            rows.append(
                {
                    "key": run.key, **run.settings(), **about, "source": "<made>", "features": 3, "checksum": "0",
                    "loss": "log_loss", "alpha": 0.1, "lowest": LOWEST, "plateau": at, "after": at, "reached": at,
                    "seconds": 0.2, "curve": curve,
                }
            )  # fmt: skip
    for size in STUDY.sizes:
        for draw in STUDY.draws(size):
            slower = 1.0 + draw.repeat
            times = {"drawn_ns": drawn_ns * slower, "uniform_ns": 60.0 * slower, "walk_ns": 50.0 * slower}
            rows.append({"key": draw.key, **draw.settings(), **about, **times})
    return rows


def test_errors_are_distances_to_the_minimum() -> None:
    """The minimum is the lowest of all that was reached, and the error of a method the mean over its seeds."""
    problems = summarise_variance(made_rows())
    assert [problem.dataset for problem in problems] == [TOY, FAR, "a9a-like"]
    assert [problem.has_outliers for problem in problems] == [True, True, False]
    cell = problems[0].cells["SRG"]
    assert cell.errors() == {seed: pytest.approx(0.01 * (1 + seed)) for seed in range(3)}
    assert problems[0].times("SGD, drawn", "SRG") == pytest.approx(8.0)
    table = {row[1]: row for row in course_table(problems).rows[:5]}
    assert list(table) == list(METHODS)
    assert table["SRG"][2:4] == ("2.0e-02", "8x")
    assert table["SAGA"][3] == "over 1,000,000x"
    lower = made_rows()
    lower[0]["reached"] = LOWEST - 0.01
    assert summarise_variance(lower)[0].cells["SRG"].error() == pytest.approx(0.03)


def test_draws_are_held_against_uniform_ones_and_the_walk() -> None:
    """A step costs what its shortest repetition takes, and a draw reads a group on each level of the tree."""
    draws = summarise_draws(made_rows())
    assert [cell.size for cell in draws] == [1_000, 1_000_000]
    assert draws[1].over("uniform_ns") == pytest.approx(70 / 60)
    assert draw_table(draws).rows[1] == ["1,000,000", "70", "60", "50", "1.17x", "1.4x", "7"]


@pytest.mark.parametrize(
    ("errors", "drawn_ns", "verdicts"),
    [
        ({}, 70.0, ["holds"] * 7),
        ({"SRG": 0.02}, 95.0, ["fails", "fails", "holds", "holds", "holds", "holds", "fails"]),
        ({"SRG": 0.1, "SAGA": 1e-5}, 70.0, ["fails", "fails", "fails", "undecided", "holds", "holds", "holds"]),
    ],
)
def test_claims_are_decided_by_the_rows(errors: dict[str, float], drawn_ns: float, verdicts: list[str]) -> None:
    """Errors decide over drawn rows and exact methods, nanoseconds over the draw, each with its published margin."""
    rows = made_rows({**ERRORS, **errors}, drawn_ns)
    claims = check_variance_claims(summarise_variance(rows), summarise_draws(rows))
    assert [claim.verdict for claim in claims] == verdicts


def test_seconds_of_a_busy_machine_decide_nothing() -> None:
    """Under load the claim about nanoseconds is undecided, those about errors are not."""
    rows = made_rows(load=4.0)
    claims = check_variance_claims(summarise_variance(rows), summarise_draws(rows))
    assert [claim.verdict for claim in claims] == ["holds"] * 6 + ["undecided"]
    short = [row for row in rows if row["rows"] != 1_000_000]
    assert check_variance_claims([], summarise_draws(short))[-1].verdict == "not run"


@pytest.mark.slow
def test_a_page_is_made_from_rows_alone(tmp_path: Any) -> None:
    """The report has its figures, needs no network, and is refused where there is nothing to report."""
    rows = made_rows()
    page = variance_page(STUDY, rows)
    check_page(page.save(tmp_path).read_text(encoding="utf-8"))
    assert {path.stem for path in (tmp_path / "figures").glob("*.png")} == {"variance", "variance_seconds", "draws"}
    assert "leaves 0.13 of the error" in variance_verdict(summarise_variance(rows), summarise_draws(rows))
    assert variance_page(STUDY, [row for row in rows if row["part"] == "draws"]).figures[0].name == "draws"
    with pytest.raises(DsgdError, match="no finished run"):
        variance_page(STUDY, [])


def test_a_course_ends_where_its_method_does() -> None:
    """SAGA ends at the known minimum of the outlier of 40, plain SGD does not; passes count full gradients."""
    problem = one_of_many()
    minimum = 0.5 * np.var(problem.y)
    assert lowest_objective(problem, 3) == pytest.approx(minimum, abs=1e-16)
    found = {}
    for name, method in METHODS.items():
        course = Course(problem, make_shard(problem.X, problem.y, seed=0), method, 0)
        found[name] = course.row(90)
        assert len(found[name]["curve"]) == 18
        assert course.passes == (180 if name == "SVRG" else 90)
    assert found["SAGA"]["after"] - minimum < 1e-15 < found["SGD, drawn"]["plateau"] - minimum
    assert np.count_nonzero(np.abs(far_targets(400).y) > 15.0) <= 20


@pytest.mark.slow
def test_the_command_resumes_and_reports(tmp_path: Any, capsys: Any) -> None:
    """Rows that are there are not made again, with the same errors in a repetition; the command prints one object."""
    study = VarianceStudy((DataSource("a9a-like", 100, 100),), 100, 2, (0,), (100,), 1)
    runs = run_variance_study(study, tmp_path)
    begun = [next(runs) for _ in range(4)]
    runs.close()
    every = list(run_variance_study(study, tmp_path))
    assert [run.resumed for run in every] == [True] * 4 + [False] * 12
    assert [run.row for run in every[:4]] == [run.row for run in begun]
    assert [run.row for run in every] == read_rows(tmp_path / "rows.jsonl")
    assert len(every) == study.count()
    again = {run.row["key"]: run.row for run in run_variance_study(study, tmp_path / "again")}
    assert all(again[run.row["key"]].get("plateau") == run.row.get("plateau") for run in every)
    options = ["-d", "a9a-like", "--rows", "100", "--epochs", "2", "--seeds", "1", "--sizes", "100", "--repeats", "1"]
    assert main(["study", "variance", *options, "--out", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["n_runs"] == study.count()
    assert set(facts["errors"]) == {TOY, FAR, "a9a-like"}


@pytest.mark.parametrize("values", [{"rows": 50}, {"epochs": 1}, {"seeds": ()}, {"sizes": (1,)}, {"repeats": 0}])
def test_what_cannot_be_studied_is_refused(values: dict[str, Any]) -> None:
    """A study with a value out of its domain is refused when it is made."""
    with pytest.raises(InvalidParameterError, match="VarianceStudy"):
        VarianceStudy(**values)
