"""The study of elimination: claims and figures from rows alone, and what a run says of itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import study_rows
from dsgd.errors import InvalidParameterError
from dsgd.study import run_study, study_page
from dsgd.study.elimination import CURVE_COLUMNS, STUDY, curve, reuse
from dsgd.study.elimination_report import REFERENCE, SOLVERS, summarise
from dsgd.study.svm_problems import PROBLEMS, Problem, load_problem
from dsgd.svm import SVC, EliminationRecord

SMALL = STUDY.replace(
    problems=(replace(PROBLEMS["clean"], rows=300), replace(PROBLEMS["noisy"], rows=300)),
    presets=("multi", "auto"), ranks=(), repeats=2, n_threads=1,
)  # fmt: skip


def made_row(run, *, seconds=1.0, values=1e8, gap=5e-4, objective=-100.0, returned=0, **more):
    """What is found of a run that was never made."""
    if run.method == REFERENCE:
        values = gap = objective = None
    n = next(problem.rows for problem in run.study.problems if problem.name == run.problem)
    return {
        "rows": n, "text": "<made & up>", "classes": 2, "seconds": seconds, "cpu_s": seconds, "n_iter": 1000,
        "n_support": n // 5, "converged": True, "gap": gap, "objective": objective, "samples": n, "rounds": 10,
        "n_eliminated": 200, "n_returned": returned, "n_reconstructions": 1, "kernel_evaluations": values,
        "cache_share": 0.5, "n_free": 3,
        "cache_mb": max(1.0, 4 * run.study.cache_share * n * n / 2**20),
        "curve": {
            "n_iter": [0, 500, 500, 1000], "seconds": [0.0, 0.1, 0.2, seconds], "n_active": [n, n, n // 2, n // 2],
            "gap": [2.0, 0.1, 0.1, 9e-4], "cache_hits": [0, 1, 1, 5], "kernel_evaluations": [0, 10, 10, 20],
        },
    } | more  # fmt: skip


def made_rows(study=SMALL, **by_method):
    """Rows of a study; a keyword names a method and gives what its rows hold."""
    return study_rows.made_rows(study, lambda run: made_row(run, **by_method.get(run.method.replace("-", "_"), {})))


def claim_on(rows, start, problem="clean"):
    claims = study_page(SMALL, rows).claims
    return next(claim for claim in claims if claim.name.startswith(start) and claim.dataset == problem)


# -- grid and problems ---------------------------------------------------------------------------------------------


def test_grid_always_holds_the_run_without_elimination_and_methods_take_turns():
    """Every repetition runs every method with every cache, the baseline included, and begins with another."""
    runs = [run for run in SMALL.runs(300) if run.problem == "clean"]
    assert len({run.key for run in runs}) == len(runs) == 2 * 2 * 4
    assert [run.method for run in runs[:4]] == ["none", "multi", "auto", REFERENCE]
    assert [run.method for run in runs[8:12]] == ["multi", "auto", REFERENCE, "none"]
    wide = STUDY.replace(problems=SMALL.problems[:1], presets=(), ranks=(1, 2), repeats=1).runs(10_000)
    small, fits = (next(run for run in wide if run.cache == cache) for cache in ("small", "fits"))
    assert fits.cache_mb * 2**20 >= 8e8
    assert small.cache_mb * 2**20 == pytest.approx(0.1 * 4e8, rel=1e-2)
    assert [(run.ranks, run.solver, run.method) for run in wide if run.ranks is not None] == [
        (n, solver, preset) for n in (1, 2) for solver in SOLVERS for preset in ("none", "multi")
    ]


@pytest.mark.parametrize(("fields", "named"), [({"rows": 5}, "100 rows"), ({"rows": 500, "C": 0.0}, "C must")])
def test_a_bad_problem_is_refused(fields, named):
    """Too few rows and a cost of zero are named."""
    with pytest.raises(InvalidParameterError, match=named):
        Problem(**({"name": "clean", "C": 1.0} | fields))


@pytest.mark.parametrize("name", ["clean", "noisy", "checkerboard", "free-svs"])
def test_generated_problems_are_the_same_every_time_and_have_both_classes(name):
    """Rows are those of a seed, in the given number."""
    first, second = (load_problem(replace(PROBLEMS[name], rows=200)) for _ in range(2))
    assert np.array_equal(first.X, second.X)
    assert np.array_equal(first.y, second.y)
    assert first.X.shape[0] == 200
    assert set(np.unique(first.y)) == {-1.0, 1.0}
    assert "generated" in first.source


def test_a_real_set_that_is_not_there_is_left_out(monkeypatch, tmp_path):
    """The others are run, and the page says how many runs are missing."""
    monkeypatch.delenv("DSGD_DATA", raising=False)
    monkeypatch.setenv("DSGD_CACHE", str(tmp_path))
    study = SMALL.replace(
        problems=(SMALL.problems[0], PROBLEMS["a9a"]), presets=(), caches=("small",), repeats=1, with_reference=False
    )
    rows = [run.row for run in run_study(study, tmp_path)]
    assert [row["problem"] for row in rows] == ["clean"]
    assert "1 of 2 runs are missing" in study_page(study, rows).doubts[0]


# -- what a run tells of itself --------------------------------------------------------------------------------------


def record(event, n_iter, n_active, hits, values, seconds=0.0, gap=1.0):
    return EliminationRecord(event, n_iter, n_active, gap, hits, values, seconds)


def test_values_are_told_apart_by_what_they_were_computed_for():
    """Blocks, renewals and the proof add up to all; hits count with the length of the rows they saved."""
    history = [
        record("block", 10, 100, 0, 1000), record("eliminate", 10, 40, 0, 1100), record("block", 20, 40, 5, 1300),
        record("reconstruct", 20, 100, 5, 1700), record("verify", 20, 100, 5, 2000),
    ]  # fmt: skip
    found = reuse([history])
    assert found["block_evaluations"] == 1200
    assert found["reconstruct_evaluations"] == 500
    assert found["verify_evaluations"] == 300
    assert found["cache_share"] == pytest.approx(200 / 1400)


def test_curve_starts_with_everyone_and_keeps_jumps_and_the_end():
    """A long run is thinned to some sixty points, and both sides of an elimination stay."""
    history = [record("block", 10 * k, 100 if k < 301 else 30, k, 7 * k, 0.1 * k, 2.0 / (k + 1)) for k in range(1, 901)]
    points = curve([history])
    assert set(points) == set(CURVE_COLUMNS)
    assert {len(column) for column in points.values()} == {len(points["n_iter"])}
    assert len(points["n_iter"]) < 70
    assert (points["n_iter"][0], points["n_active"][0]) == (0, 100)
    assert (points["n_iter"][-1], points["cache_hits"][-1]) == (9000, 900)
    place = points["n_active"].index(30)
    assert (points["n_iter"][place - 1], points["n_iter"][place]) == (3000, 3010)


def test_curves_of_pairs_are_added_at_equal_shares_of_their_runs():
    """Steps and samples are summed over the pairs, the gap is the widest."""
    one = [record("block", 100, 50, 0, 10, 1.0, 0.5), record("verify", 100, 20, 0, 20, 2.0, 1e-4)]
    two = [record("block", 300, 70, 0, 10, 1.0, 0.2), record("verify", 300, 70, 0, 20, 2.0, 1e-3)]
    points = curve([one, two])
    assert points["n_active"][0] == 120
    assert (points["n_iter"][-1], points["n_active"][-1], points["gap"][-1]) == (400, 90, 1e-3)


# -- claims --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "holds"), [(0.69, True), (0.71, False)])
def test_time_claim_compares_the_best_preset_with_none(seconds, holds):
    """Thirty per cent less time holds, a little less does not."""
    claim = claim_on(made_rows(multi={"seconds": seconds}, auto={"seconds": 0.9}), "30-60 %")
    assert claim.holds is holds
    assert claim.ours == f"{100 * (1 - seconds):.0f} %"
    assert "multi" in claim.note


def test_sequential_claim_is_the_ratio_to_scikit_learn():
    """Up to 26 times: more than half of it holds; the note says what is there without elimination."""
    rows = made_rows(scikit_learn={"seconds": 13.0}, auto={"seconds": 0.65})
    claim = claim_on(rows, "Up to 26x")
    assert (claim.ours, claim.holds) == ("20.0x", True)
    assert "13.0x already" in claim.note
    assert claim_on(made_rows(), "Up to 26x").holds is False


def test_optimum_claim_fails_for_one_preset_that_ends_elsewhere_or_open():
    """A dual objective farther than 1e-5 away fails it, and so does a run that did not converge."""
    assert claim_on(made_rows(), "Every preset").holds is True
    assert claim_on(made_rows(auto={"objective": -100.01}), "Every preset").holds is False
    stopped = claim_on(made_rows(multi={"converged": False, "gap": 0.2}), "Every preset")
    assert stopped.holds is False
    assert (
        "2 runs stopped"
        in claim_on(made_rows(SMALL.replace(caches=("small",)), multi={"converged": False}), "Eve").note
    )


def test_promises_of_auto_are_judged_by_values_and_time():
    """Both halves must hold; slower by more than a tenth is seen."""
    fast = made_rows(auto={"seconds": 0.7, "values": 3e7})
    for row in fast:
        row["cache_mb"] = 0.01 * 4 * row["rows"] ** 2 / 2**20
    assert claim_on(fast, "auto, small cache").holds is True
    large = [row | {"cache_mb": 10 * row["cache_mb"]} for row in fast]
    assert claim_on(large, "auto, small cache").verdict == "not run"
    assert "1/100" in claim_on(large, "auto, small cache").note
    many = [row | {"cache_mb": 0.0035} for row in made_rows(auto={"seconds": 0.7})]
    assert claim_on(many, "auto, small cache").holds is False
    assert claim_on(fast, "auto is nowhere").holds is True
    assert claim_on(made_rows(auto={"seconds": 1.2}), "auto is nowhere").holds is False


def test_ratios_are_taken_within_a_repetition():
    """A repetition in which the machine was ten times slower changes no ratio."""
    rows = made_rows(auto={"seconds": 0.5})
    for row in rows:
        if row["repeat"] == 1:
            row["seconds"] *= 10
    summary = summarise(rows)
    ratio = summary.cell("clean", "auto", "small").ratio(summary.cell("clean", "none", "small"), "seconds")
    assert (ratio.low, ratio.median, ratio.high) == (0.5, 0.5, 0.5)


def test_what_was_not_run_is_not_judged():
    """A study of none alone leaves every claim open."""
    claims = study_page(SMALL, [row for row in made_rows() if row["method"] == "none"]).claims
    assert claims
    assert {claim.holds for claim in claims} == {None}


def test_a_page_has_a_figure_for_each_question():
    """Times by ranks have a table, and seconds that were measured once are doubted."""
    study = SMALL.replace(ranks=(1, 2), rank_problems=("clean",), repeats=1)
    page = study_page(study, made_rows(study))
    assert {figure.name for figure in page.figures} == {"active", "work", "time", "sequential"}
    assert {row[3] for row in page.tables[-1].rows} == {"1", "2"}
    assert "made once" in page.doubts[0]


# -- for real --------------------------------------------------------------------------------------------------------


def test_rows_hold_what_the_machine_says(tmp_path):
    """Counts are those of a fit, and parts add up."""
    study = SMALL.replace(problems=SMALL.problems[:1], repeats=1, cache_share=0.05, caches=("small",))
    rows = {run.row["method"]: run.row for run in run_study(study, tmp_path)}
    assert len(rows) == study.count() == 4
    data = load_problem(study.problems[0])
    row = rows["multi"]
    model = SVC(C=data.problem.C, cache_size=row["cache_mb"], elimination="multi", n_jobs=1).fit(data.X, data.y)
    assert row["kernel_evaluations"] == model.n_kernel_evaluations_
    assert (row["n_eliminated"], row["n_returned"]) == (model.n_eliminated_, model.n_returned_)
    assert row["objective"] == pytest.approx(model.dual_objective_, rel=1e-9)
    assert row["gap"] < study.tol
    assert row["curve"]["n_active"][0] == 300
    parts = [row[f"{kind}_evaluations"] for kind in ("block", "reconstruct", "verify")]
    assert sum(parts) == pytest.approx(row["kernel_evaluations"])


@pytest.mark.slow
@pytest.mark.cluster
def test_both_solvers_run_on_worker_processes(tmp_path):
    """Two ranks end at the optimum of one, and say what they sent and how long that took."""
    study = SMALL.replace(problems=SMALL.problems[:1], presets=(), ranks=(1, 2), repeats=1, with_reference=False)
    rows = [run.row for run in run_study(study, tmp_path) if run.row["ranks"] is not None]
    found = [(row["ranks"], row["solver"], row["method"]) for row in rows]
    assert found == [(n, solver, preset) for n in (1, 2) for solver in SOLVERS for preset in ("none", "multi")]
    assert all(row["converged"] for row in rows)
    assert max(row["objective"] for row in rows) == pytest.approx(min(row["objective"] for row in rows), rel=1e-5)
    for row in rows[4:]:
        assert row["communication_s"] > 0
        assert row["bytes_sent"] > 0
        assert row["rounds"] == row["n_iter"] or row["solver"] == "block"
