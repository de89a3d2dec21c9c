"""The study of the period: rows that are resumed, regret and claims from rows alone, the page, the command."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from distributed import LocalCluster

from dsgd.__main__ import main
from dsgd.errors import DsgdError, InvalidParameterError
from dsgd.study import DataSource, read_rows
from dsgd.study.tuning import (
    RULES,
    TuningStudy,
    check_tuning_claims,
    demo_tuning_study,
    regret_table,
    run_tuning_study,
    summarise_tuning,
    sweep_table,
    tuning_page,
    tuning_verdict,
)
from dsgd.study.tuning.runner import _by_turns as by_turns
from dsgd.study.tuning.summary import seconds_to
from gang_cluster import start_cluster
from web_page import check_page

STUDY = TuningStudy(
    data=(DataSource("ijcnn1-like", 400, 200),), every=(8, 64), rules=("auto",), seeds=(0,), epochs=3, repeats=1
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Give two workers, threads of this process: what they take is not what these tests are about."""
    with start_cluster(2, processes=False) as cluster:
        yield cluster


def made_rows(seconds: dict[str, float], accuracy: dict[str, float] | None = None) -> list[dict[str, Any]]:
    """Return rows of policies that reach the target after two epochs of so many seconds."""
    every = tuple(int(name) for name in seconds if name.isdigit())
    rules = tuple(name for name in seconds if not name.isdigit())
    study = TuningStudy(data=STUDY.data, every=every, rules=rules, seeds=(0, 1, 2), epochs=3)
    rows = []
    for spec in study.runs("made", 400, 200):
        # Seeds are as far apart as rules are: only the medians must count.
        step = (1.0 + spec.seed) / 2.0 * seconds.get(spec.policy, 1.0)
        curve = [{"epoch": e, "seconds": e * step, "objective": 1.0 / e} for e in (1, 2, 3)]
        rows.append(
            {
                "key": spec.key, **spec.settings(), "source": "<made>", "features": 22, "density": 0.5,
                "curve": curve[1:2] if spec.policy == "sequential" else curve, "complete": step < 100.0,
                "test_accuracy": (accuracy or {}).get(spec.policy, 0.9), "share": 0.1, "rounds": 3,
                "periods": [] if spec.every else [{"rows": 0, "seconds": 0.0, "period": 64, "why": "start"}],
                "when": "2026-01-01T00:00:00+00:00", "versions": {"dsgd": "0"}, "load_at_start": 0.1, "commit": None,
                "command": "dsgd study", "cluster": "local",
                "machine": {"cpu": "<one>", "cores": 2, "memory_gib": 8, "system": "Linux"},
            }
        )  # fmt: skip
    return rows


def test_regret_is_against_the_best_period() -> None:
    """Regret is the median time to the target over that of the fixed period with the lowest median."""
    (found,) = summarise_tuning(made_rows({"1": 200.0, "64": 2.0, "4096": 3.0, "auto": 2.2, "qsr": 5.0}))
    assert found.best.period == 64
    assert found.best.seconds == pytest.approx(4.0)
    assert [round(found.regret(cell), 9) for cell in found.rules] == [1.1, 2.5]
    assert found.sweep[0].accuracy is None
    assert [line[1] for line in regret_table([found]).rows] == ["1.10x", "2.50x"]
    assert len(sweep_table(found).rows) == 5


@pytest.mark.parametrize(
    ("auto", "accuracy", "verdicts"),
    [(2.2, 0.898, [True, True, True]), (2.26, 0.9, [True, True, False]), (2.4, 0.896, [False, False, False])],
)
def test_claims_are_decided_by_the_rows(auto: float, accuracy: float, verdicts: list[bool]) -> None:
    """At most 1.15 on a set, 1.10 in the mean, and 0.3 points of accuracy less: each holds or does not."""
    sets = summarise_tuning(made_rows({"64": 2.0, "512": 9.0, "auto": auto}, {"auto": accuracy}))
    assert [claim.holds for claim in check_tuning_claims(sets)] == verdicts
    assert "64 on made" in tuning_verdict(sets)


def test_a_rule_that_its_figure_shows_behind_does_not_hold() -> None:
    """With 53 ms against 13 a regret of 0.26, which a stalled run of the best period gives, decides nothing."""
    rows = made_rows({"16": 13.0, "64": 50.0, "256": 13.5, "auto": 53.0})
    at_target = {"16": (13.0, 13.0, 200.0), "64": (50.0,) * 3, "256": (200.0, 13.0, 14.0), "auto": (53.0,) * 3}
    for row in rows:
        if row["policy"] in at_target:
            for point in row["curve"]:
                point["seconds"] = point["epoch"] / 2 * at_target[row["policy"]][row["seed"]] / 1e3
    (found,) = summarise_tuning(rows)
    assert found.regret(found.rules[0]) == pytest.approx(0.265)
    assert found.rules[0].seconds / found.best.seconds > 3.0
    claims = [claim for claim in check_tuning_claims([found]) if "fast" in claim.name]
    assert [claim.verdict for claim in claims] == ["undecided", "undecided"]
    assert "53.00 ms" in claims[0].note


def test_a_target_that_no_period_reaches_decides_nothing() -> None:
    """Where all fixed periods miss the target as well, a rule that does is not behind them; else it is."""
    said = []
    for missed in (("16", "64", "auto"), ("auto",)):
        rows = made_rows({"16": 2.0, "64": 3.0, "auto": 2.0})
        for point in (point for row in rows if row["policy"] in missed for point in row["curve"]):
            point["objective"] += 10.0
        said.append(check_tuning_claims(summarise_tuning(rows)))
    assert [claim.verdict for claim in said[0]] == ["not run", "not run"]
    assert "No fixed period reaches" in said[0][0].note
    assert [claim.verdict for claim in said[1]] == ["fails", "holds", "fails"]


def test_time_to_target_is_read_between_two_points() -> None:
    """Seconds are interpolated between two scores; none before the first; a target that is missed takes for ever."""
    row = {"curve": [{"seconds": 1.0, "objective": 0.8}, {"seconds": 3.0, "objective": 0.4}]}
    assert seconds_to(row, 0.6) == pytest.approx(2.0)
    assert seconds_to(row, 0.9) == 1.0
    assert seconds_to(row, 0.3) == math.inf


def test_regret_is_not_against_the_luckiest_period() -> None:
    """Thirteen equal periods and a rule as fast: the least of their times is too small, the regret is one."""
    rng, plain, fair = np.random.default_rng(0), [], []
    for _ in range(100):
        rows = made_rows({str(2**power): 2.0 for power in range(13)} | {"auto": 2.0})
        for row in rows:
            for point in row["curve"]:
                point["seconds"] *= rng.lognormal(0.0, 0.1)
        (found,) = summarise_tuning(rows)
        plain.append(found.rules[0].seconds / found.best.seconds)
        fair.append(found.regret(found.rules[0]))
    assert np.mean(plain) > 1.05
    assert np.mean(fair) == pytest.approx(1.0, abs=0.02)


def test_a_policy_that_stalls_once_is_not_left_out() -> None:
    """One slow first epoch may be the machine's, two are the policy's."""

    class Curve:
        patience, objective = 2.0, 1.0

        def __init__(self, spec: Any, *seconds: float) -> None:
            self.spec, self.seconds, self.looks = spec, list(seconds), list[int]()

        @property
        def first_s(self) -> float:
            return min(self.seconds[: len(self.looks)])

        def look(self, epochs: int) -> None:
            self.looks.append(epochs)

    study = replace(STUDY, epochs=8)
    spec = study.runs("made", 400, 200)[0]
    curves: list[Any] = [Curve(spec, *[1.0] * 9), Curve(spec, 9.0, *[1.0] * 9), Curve(spec, *[9.0] * 9)]
    by_turns(curves, target=0.0)
    looks = study.looks()
    assert [curve.looks for curve in curves] == [looks, [looks[0], *looks], [looks[0]] * 2]


def test_a_page_is_made_from_rows_alone(tmp_path: Any) -> None:
    """The report has its figures, needs no network, and is refused where there is nothing to report."""
    rows = made_rows({"16": 4.0, "64": 2.0, "auto": 2.2})
    page = tuning_page(STUDY, rows).save(tmp_path)
    check_page(page.read_text(encoding="utf-8"))
    assert {path.stem for path in (tmp_path / "figures").glob("*.png")} == {"tuning_seconds", "tuning_periods"}
    with pytest.raises(DsgdError, match="nothing to report"):
        tuning_page(STUDY, rows[:1])


@pytest.mark.slow
def test_the_command_resumes_and_reports(tmp_path: Any, cluster: LocalCluster, capsys: Any) -> None:
    """Rows that are there are not made again; the command prints tables, or one JSON object."""
    study = replace(STUDY, seeds=(0, 1))
    runs = run_tuning_study(study, tmp_path, scheduler=cluster.scheduler_address)
    begun = [next(runs) for _ in range(3)]  # policies of a seed take turns, and are finished together
    runs.close()
    every = list(run_tuning_study(study, tmp_path, scheduler=cluster.scheduler_address))
    assert [run.resumed for run in every] == [True] * 5 + [False] * 3
    assert [run.row for run in every[:3]] == [run.row for run in begun]
    assert [run.row for run in every] == read_rows(tmp_path / "rows.jsonl")
    assert len(every) == study.count()
    assert every[-1].row["periods"][0]["why"] == "start"
    options = ["-d", "ijcnn1-like", "--rows", "400", "--every", "8,64", "-r", "auto", "--seeds", "1", "--epochs", "3"]
    command = ["study", "tuning", *options, "--out", str(tmp_path / "again"), "--json"]
    assert main([*command, "--scheduler", cluster.scheduler_address]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["n_runs"] == 4
    assert set(facts["sets"][0]["regret"]) == {"auto"}


def test_simulated_ranks_take_the_same_every_time(tmp_path: Any) -> None:
    """On a virtual clock a study makes the same rows again, but for when and where it ran."""
    study = replace(STUDY, network="10GbE")
    rows = [[run.row for run in run_tuning_study(study, tmp_path / name)] for name in ("one", "two")]
    assert [[point["objective"] for point in row["curve"]] for row in rows[0]] == [
        [point["objective"] for point in row["curve"]] for row in rows[1]
    ]
    assert [row["curve"] for row in rows[0][1:]] == [row["curve"] for row in rows[1][1:]]
    assert [row["periods"] for row in rows[0]] == [row["periods"] for row in rows[1]]
    assert rows[0][1]["cluster"] == "simulated"


@pytest.mark.parametrize("values", [{"every": ()}, {"rules": ("guess",)}, {"ranks": 1}, {"loss": "l"}, {"data": ()}])
def test_what_cannot_be_studied_is_refused(values: dict[str, Any]) -> None:
    """A study with a value out of its domain is refused when it is made."""
    with pytest.raises(InvalidParameterError, match="TuningStudy"):
        TuningStudy(**values)


def test_the_demo_has_the_default_rule() -> None:
    """The demo compares ``sync="auto"``, and every rule of the library has a name in the study."""
    assert "auto" in demo_tuning_study().rules
    assert len(set(map(type, RULES.values()))) == len(RULES) == 8
