"""The study of collectives: tables and claims from rows alone, bytes of the closed form, parts of a box."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from dsgd.collectives import allreduce_cost, allreduce_seconds, choose_algorithm
from dsgd.collectives.cost import ALGORITHMS, DEFAULT_LINK
from dsgd.study import Study, run_study, study_page
from dsgd.study.collectives import STUDY
from dsgd.study.parts import best_part, measure_parts
from study_rows import made_rows

SMALL = STUDY.replace(wires=("inproc",), ranks=(2, 3), sizes=(8, 65_536), repeats=2)
ONE = SMALL.replace(ranks=(3,), repeats=4)


def rows_of(study: Study, noise: float = 0.0, **slower: float) -> list[dict[str, Any]]:
    """Return rows of sums that took what the model says, or so many times longer by algorithm, and more or less."""

    def found(run: Any) -> dict[str, Any]:
        seconds = allreduce_seconds(run.algorithm, run.n_bytes, run.ranks, DEFAULT_LINK)
        taken, number = seconds * slower.get(run.algorithm, 1.0), ALGORITHMS.index(run.algorithm)
        times = [taken * math.exp(noise * math.sin(3 * repeat + number / 2)) for repeat in range(study.repeats)]
        return {
            **vars(DEFAULT_LINK), "seconds": taken, "fastest_s": taken, "times_s": times, "predicted_s": seconds,
            "bytes_sent": 1, "messages": 1,
        }  # fmt: skip

    return made_rows(study, found)


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """Return the verdicts of some rows."""
    return [claim.verdict for claim in study_page(SMALL, rows).claims]


def test_rows_have_times_and_the_bytes_of_the_closed_form(tmp_path: Path) -> None:
    """Each sum has as many times as repetitions, the median of them, and what the cost of its algorithm says."""
    for row in (run.row for run in run_study(SMALL, tmp_path)):
        assert row["seconds"] >= row["fastest_s"] == min(row["times_s"]) > 0
        assert len(row["times_s"]) == SMALL.repeats
        assert row["predicted_s"] > 0
        costs = [allreduce_cost(r, row["ranks"], row["n_bytes"] // 4, 4, row["algorithm"]) for r in range(row["ranks"])]
        assert row["bytes_sent"] == sum(cost.n_bytes for cost in costs)


def test_tables_and_claims_follow_from_rows() -> None:
    """Where times are those of the model it predicts all of them and auto is fastest; where they are not it is said."""
    page = study_page(SMALL, rows_of(SMALL))
    assert all(claim.holds for claim in page.claims)
    assert [row[0] for row in page.tables[1].rows] == ["8 B", "64 KiB"]
    assert page.tables[1].rows[0][-1] == "recursive doubling 1.00"
    assert [row[-1] for row in page.data[0].rows] == ["100%", "100%"]
    slow = {choose_algorithm(n_bytes, 3): 2.0 for n_bytes in (8, 65_536)}
    assert verdicts(rows_of(ONE, **slow))[0] == "fails"


def test_claims_that_noise_or_other_work_could_turn_are_undecided() -> None:
    """One repetition, noise between repetitions, a busy machine and rows without single times decide nothing."""
    rows = rows_of(ONE)
    bare = [{name: value for name, value in row.items() if name != "times_s"} for row in rows]
    slower = {choose_algorithm(n_bytes, 3): 1.2 for n_bytes in (8, 65_536)}
    once, noisy = rows_of(ONE.replace(repeats=1)), rows_of(ONE, noise=1.0, **slower)
    for uncertain in (once, noisy, bare, [row | {"load_at_start": 9.0} for row in rows]):
        assert verdicts(uncertain) == ["undecided", "undecided"]
    assert verdicts([row | {"load_at_start": 9.0, "cluster": "scheduler"} for row in rows]) == ["holds", "holds"]


def test_predictions_of_several_calibrations_vary_as_these_do() -> None:
    """With one calibration the interval is over repetitions, which agree; with three it is over what they predict."""
    rows = rows_of(ONE)
    again = [row | {"latency_s": 2.0 * k, "predicted_s": row["predicted_s"] * k} for k in (1, 2, 4) for row in rows]
    once, often = (study_page(SMALL, found).claims[1].interval for found in (rows, again))
    assert once == pytest.approx((1.0, 1.0, 1.0))
    assert often is not None
    assert often[0] == pytest.approx(2.0)
    assert often[1] < 1.0 < 4.0 < often[2]


def test_parts_of_a_box_are_counted_once_and_trees_gain_what_links_allow() -> None:
    """Sets are as many as there are, alike ones are one; what trees gain is near the ratio of capacities."""
    parts = measure_parts(("DGX-1P",), (3, 5))
    assert [(part.members, part.n_sets) for part in parts if len(part.members) == 3] == [
        ((0, 1, 2), 8),
        ((0, 1, 4), 24),
    ]
    assert sum(part.n_sets for part in parts if len(part.members) == 5) == math.comb(8, 5)
    for part in parts:
        assert 0.8 < part.ratio / part.bound < 1.05
    most = best_part(parts)
    # One link of 20 GB/s both ways for n bytes, and PCIe of 10 GB/s for 2 (P - 1) / P of them.
    assert (most.n_rings, most.bound) == (0, pytest.approx(3.2))
