"""The study of collectives: rows that are resumed, tables and claims from rows alone, the figure, the command."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from dsgd.__main__ import main
from dsgd.collectives import DEFAULT_LINK, allreduce_cost, allreduce_seconds, choose_algorithm
from dsgd.collectives.model import ALGORITHMS
from dsgd.errors import DsgdError, InvalidParameterError
from dsgd.report import Line
from dsgd.study import collectives, read_rows
from dsgd.study.collectives import (
    CollectiveStudy,
    best_part,
    check_collective_claims,
    collective_page,
    collective_table,
    collective_verdict,
    link_table,
    measure_parts,
    parts_figure,
    parts_table,
    run_collective_study,
    summarise_collectives,
)
from web_page import check_page

STUDY = CollectiveStudy(wires=("inproc",), ranks=(2, 3), sizes=(8, 65_536), repeats=2)


def made_rows(study: CollectiveStudy, noise: float = 0.0, **slower: float) -> list[dict[str, Any]]:
    """Return rows of sums that took what the model says, or so many times longer by algorithm, and more or less."""
    rows = []
    for gang in study.gangs():
        for run in study.runs(*gang):
            seconds = allreduce_seconds(run.algorithm, run.n_bytes, run.ranks, DEFAULT_LINK)
            taken = seconds * slower.get(run.algorithm, 1.0)
            number = study.algorithms.index(run.algorithm)
            times = [taken * math.exp(noise * math.sin(3 * repeat + number / 2)) for repeat in range(study.repeats)]
            rows.append(
                {
                    "key": run.key, **vars(run), **vars(DEFAULT_LINK), "seconds": taken, "fastest_s": taken,
                    "times_s": times, "predicted_s": seconds, "bytes_sent": 1, "messages": 1,
                    "when": "2026-01-01T00:00:00+00:00",
                    "versions": {"dsgd": "0"}, "load_at_start": 0.0, "commit": None, "command": "dsgd study",
                    "machine": {"cpu": "<one>", "cores": 2, "memory_gib": 8, "system": "Linux"},
                }
            )  # fmt: skip
    return rows


def test_what_is_run_once_is_not_run_again(tmp_path) -> None:
    """Rows hold times, predictions and the bytes of the closed form; a second call finds all of them."""
    first = list(run_collective_study(STUDY, tmp_path))
    assert len(first) == STUDY.count() == 2 * 2 * len(ALGORITHMS)
    assert not any(run.resumed for run in first)
    for run in first:
        row = run.row
        assert row["seconds"] >= row["fastest_s"] == min(row["times_s"]) > 0
        assert len(row["times_s"]) == STUDY.repeats
        assert row["predicted_s"] > 0
        costs = [allreduce_cost(r, row["ranks"], row["n_bytes"] // 4, 4, row["algorithm"]) for r in range(row["ranks"])]
        assert row["bytes_sent"] == sum(cost.n_bytes for cost in costs)
    second = list(run_collective_study(STUDY, tmp_path))
    assert all(run.resumed for run in second)
    assert [run.row for run in second] == [run.row for run in first] == read_rows(tmp_path / "rows.jsonl")


def test_tables_and_claims_follow_from_rows() -> None:
    """Where times are those of the model it predicts all of them and auto is fastest; where they are not it is said."""
    gangs = summarise_collectives(made_rows(STUDY))
    assert all(claim.holds for claim in check_collective_claims(gangs))
    assert "100% of 24 times" in collective_verdict(gangs)
    table = collective_table(gangs[1])
    assert [row[0] for row in table.rows] == ["8 B", "64 KiB"]
    assert table.rows[0][-1] == "recursive doubling 1.00"
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert len(link_table(gangs).rows) == 2
    slow = {choose_algorithm(n_bytes, 3): 2.0 for n_bytes in (8, 65_536)}
    late = summarise_collectives(made_rows(STUDY, **slow))[1]
    assert late.auto_ratio(8) > 1.25
    assert check_collective_claims([late])[0].verdict == "fails"


def test_claims_that_noise_or_other_work_could_turn_are_undecided() -> None:
    """One repetition, noise between repetitions, a busy machine and rows without single times decide nothing."""
    study = replace(STUDY, wires=("inproc",), ranks=(3,), repeats=4)
    rows = made_rows(study)
    bare = [{name: value for name, value in row.items() if name != "times_s"} for row in rows]
    slower = {choose_algorithm(n_bytes, 3): 1.2 for n_bytes in (8, 65_536)}
    once, noisy = made_rows(replace(study, repeats=1)), made_rows(study, noise=1.0, **slower)
    for uncertain in (once, noisy, bare, [row | {"load_at_start": 9.0} for row in rows]):
        claims = check_collective_claims(summarise_collectives(uncertain))
        assert [claim.verdict for claim in claims] == ["undecided", "undecided"]
    elsewhere = [row | {"load_at_start": 9.0, "cluster": "scheduler"} for row in rows]
    assert all(claim.holds for claim in check_collective_claims(summarise_collectives(elsewhere)))


def test_predictions_of_several_calibrations_vary_as_these_do() -> None:
    """With one calibration the interval is over repetitions, which agree; with three it is over what they predict."""
    study = replace(STUDY, wires=("inproc",), ranks=(3,), repeats=4)
    rows = made_rows(study)
    again = [row | {"latency_s": 2.0 * k, "predicted_s": row["predicted_s"] * k} for k in (1, 2, 4) for row in rows]
    once, often = (summarise_collectives(found)[0].prediction() for found in (rows, again))
    assert once is not None
    assert often is not None
    assert (once.low, once.high, once.n) == (pytest.approx(1.0), pytest.approx(1.0), 4)
    assert often.low < 1.0 < 4.0 < often.high
    assert (often.estimate, often.n) == (pytest.approx(2.0), 3)
    assert "over 3 calibrations" in check_collective_claims(summarise_collectives(again))[1].note


@pytest.mark.slow
def test_the_command_writes_a_report(tmp_path, capsys, monkeypatch) -> None:
    """One command runs the study, prints what it says and leaves a page that needs no network."""
    monkeypatch.setattr(collectives, "measure_parts", partial(measure_parts, ("DGX-1P",), (3, 5)))
    options = [
        "--wires",
        "inproc",
        "--ranks",
        "2",
        "--sizes",
        "8,4096",
        "--repeats",
        "1",
        "--algorithms",
        "ring,binomial",
    ]
    assert main(["study", "collectives", *options, "--out", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["n_runs"] == 4
    assert main(["study", "collectives", *options, "--out", str(tmp_path)]) == 0
    assert "What a message costs" in capsys.readouterr().out
    check_page((tmp_path / "report.html").read_text())
    for name in ("collectives", "collectives_parts"):
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 5_000


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
    assert [row[2:5] for row in parts_table(parts).rows] == [["32", "2", "24"], ["56", "3", "32"]]
    assert sum(len(mark.x) for mark in parts_figure(parts).panels[0].marks if isinstance(mark, Line)) == 5


def test_what_cannot_be_studied_is_refused() -> None:
    """Unknown wires and algorithms, one rank, and lengths that are no whole numbers of elements."""
    for wrong in ({"wires": ("pigeon",)}, {"algorithms": ("fast",)}, {"ranks": (1,)}, {"sizes": (6,)}, {"repeats": 0}):
        with pytest.raises(InvalidParameterError, match=next(iter(wrong))):
            CollectiveStudy(**wrong)
    with pytest.raises(DsgdError, match="no finished run"):
        collective_page(STUDY, [])
