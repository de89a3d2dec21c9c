"""The study of variance: verdicts from rows alone, and courses that end where their methods do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsgd.local import make_shard
from dsgd.study import DataSource
from dsgd.study.frame.study import study_page
from dsgd.study.variance import METHODS, STUDY, Course, check_claims, far_targets, lowest_objective, one_of_many
from study_rows import made_rows

SMALL = STUDY.replace(data=[DataSource("a9a-like", 200, 100)], seeds=(0, 1, 2), sizes=(1_000, 1_000_000), repeats=3)
LOWEST = 0.25
ERRORS = {"SGD, drawn": 0.08, "SGD, each once": 0.02, "SRG": 0.01, "SAGA": 1e-12, "SVRG": 1e-10}


def rows_of(errors: dict[str, float] | None = None, drawn_ns: float = 70.0, **about: Any) -> list[dict[str, Any]]:
    """Return rows of courses with these errors on every problem, and of steps, of which drawn ones take so long."""

    def found(run: Any) -> dict[str, Any]:
        if run.part == "draws":
            times = {"drawn_ns": drawn_ns, "uniform_ns": 60.0, "walk_ns": 50.0}
            return {name: (1.0 + run.repeat) * ns for name, ns in times.items()}
        # Seeds are as far apart as methods are: only ratios of one seed must count.
        at = LOWEST + (ERRORS | (errors or {}))[run.method] * (1.0 + run.seed)
        curve = [{"passes": float(k), "seconds": 0.1 * k, "objective": at} for k in (1, 2)]
        return {"loss": "l", "alpha": 0.1, "lowest": LOWEST, "plateau": at, "after": at, "reached": at, "seconds": 0.2,
                "curve": curve}  # fmt: skip

    return made_rows(SMALL, found, **about)


def test_errors_are_distances_to_the_lowest_objective_of_all() -> None:
    """The error of a method is the mean over its seeds; what any of them reached lowers the minimum."""
    page = study_page(SMALL, rows_of())
    table = {(row[0], row[1]): row[2:4] for row in page.tables[0].rows}
    assert table["one of 40", "SRG"] == ["2.0e-02", "8x"]
    assert table["one of 40", "SAGA"][1] == "over 1,000,000x"
    assert page.tables[1].rows[1] == ["1,000,000", "70", "60", "50", "1.17x", "1.4x", "7"]
    lower = rows_of()
    next(row for row in lower if row["part"] == "course")["reached"] = LOWEST - 0.01
    assert study_page(SMALL, lower).tables[0].rows[2][2] == "3.0e-02"


@pytest.mark.parametrize(
    ("errors", "drawn_ns", "verdicts"),
    [
        ({}, 70.0, ["holds"] * 5 + ["arithmetic", "holds"]),
        ({"SRG": 0.02}, 95.0, ["fails", "fails", "holds", "holds", "holds", "arithmetic", "fails"]),
        ({"SRG": 0.1, "SAGA": 1e-5}, 70.0, ["fails", "fails", "fails", "undecided", "holds", "arithmetic", "holds"]),
    ],
)
def test_claims_are_decided_by_the_rows(errors: dict[str, float], drawn_ns: float, verdicts: list[str]) -> None:
    """Errors decide over drawn rows and exact methods, nanoseconds over the draw, each with its published margin."""
    assert [claim.verdict for claim in check_claims(rows_of(errors, drawn_ns))] == verdicts


def test_seconds_of_a_busy_machine_decide_nothing() -> None:
    """Under load the claim about nanoseconds is undecided, those about errors are not."""
    rows = rows_of(load_at_start=4.0)
    assert [claim.verdict for claim in check_claims(rows)] == ["holds"] * 5 + ["arithmetic", "undecided"]
    short = [row for row in rows if row["part"] == "draws" and row["rows"] != 1_000_000]
    assert [claim.verdict for claim in check_claims(short)] == ["arithmetic", "not run"]


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
