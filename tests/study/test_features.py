"""The study of features: agents against their twin, errors and claims from rows alone, the page, the command."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dsgd import SGDRegressor
from dsgd.__main__ import main
from dsgd.comm.topology.mixing import mixing_matrix
from dsgd.errors import DsgdError, InvalidParameterError
from dsgd.local import GradientDescent
from dsgd.study import DataSource, read_rows
from dsgd.study.features import (
    GRAPHS,
    FeatureStudy,
    best_table,
    check_feature_claims,
    error_table,
    feature_page,
    feature_verdict,
    machine_table,
    run_feature_study,
    speedup_table,
    summarise_agents,
    summarise_machines,
    summarise_values,
)
from dsgd.study.features.agents import Agents, blocks_of, models_after, one_machine, weights_of
from dsgd.study.features.machines import data_of_machines, run_machines, run_values
from dsgd.study.frame.missing import MissingData
from dsgd.sync import DPSGD
from reference.decentralised import after, decentralised
from web_page import check_page

STUDY = FeatureStudy(
    (DataSource("ijcnn1-clusters", 200, 100),), 25, (10, 1_000), (12,), 100, 200, 100, (100, 400), (2, 5), (0, 1, 2)
)
#: The lowest excess risk over that of one machine, with few and with many rows.
OVER = {"cycle": (2.0, 1.02), "grid": (1.3, 1.0), "expander": (1.2, 1.0), "complete": (1.0, 1.0), "alone": (9.0, 5.0)}


def made_rows(cycle: tuple[float, float] = OVER["cycle"], power: float = -0.8, behind: float = 0.003) -> list[Any]:
    """Return rows of agents whose errors fall so with their rows, of kernel values, and of machines so far behind."""
    about = {
        "when": "2026-01-01T00:00:00+00:00", "versions": {"dsgd": "0"}, "load_at_start": 0.1, "commit": None,
        "command": "dsgd study", "cluster": "local", "ranks": None,
        "machine": {"cpu": "<one>", "cores": 2, "memory_gib": 8, "system": "Linux"},
    }  # fmt: skip
    rows = []
    for size in STUDY.sizes():
        for seed in STUDY.seeds:
            for run in STUDY.of_agents(*size, seed):
                over = {**OVER, "cycle": cycle, "one machine": (1.0, 1.0)}[run.graph][run.rows > 500]
                # Seeds are as far apart as graphs are: only ratios of one seed must count.
                best = over * (1.0 + seed) * run.rows**power
                curve = [{"steps": k, "error": f * best, "worst": best} for k, f in ((1, 4), (10, 1), (100, 2))]
                own = {"gap": 0.1, "neighbours": 2, "best": best, "best_steps": 10, "worst": best, "curve": curve}
                rows.append({"key": run.key, **run.settings(), **about, **own})
    for value in STUDY.values():
        error = (1.0 + value.seed) / np.sqrt(value.features)
        rows.append({"key": value.key, **value.settings(), **about, "plain": error, "orthogonal": 0.5 * error})
    for machine in STUDY.machines("ijcnn1-clusters", 200, 100):
        accuracy = 0.9 + 0.01 * machine.seed - (behind if machine.features else 0.0)
        seconds = 0.001 * machine.features or 0.2
        own = {
            "source": "<made>", "columns": 22, "gamma": 0.1, "checksum": "0", "majority_accuracy": 0.5,
            "accuracy": accuracy, "seconds": seconds,
        }  # fmt: skip
        rows.append({"key": machine.key, **machine.settings(), **about, **own})
    return rows


@pytest.mark.filterwarnings("ignore::dsgd.errors.DivergenceWarning")
@pytest.mark.parametrize("n_rows", [5, 30])
def test_agents_are_those_of_the_paper_and_of_the_estimator(n_rows: int) -> None:
    """On every graph, with few rows and with many, agents take the steps of the twin, and those that a fit takes."""
    blocks = list(blocks_of(9, n_rows, 12, 1))
    data = Agents.of(blocks, 12, 1)
    *_, models = models_after(data, weights_of([*GRAPHS, "alone"], 9), [1, 3, 20])
    for number, matrix in enumerate([*(mixing_matrix(graph, 9) for graph in GRAPHS.values()), np.eye(9)]):
        np.testing.assert_allclose(models[:, :, number], decentralised(blocks, matrix, 1.0, 20), rtol=1e-9, atol=1e-12)
    F, y = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    *_, alone = one_machine(data, [1, 20])
    np.testing.assert_allclose(alone, after(F, y, 1.0, 20), rtol=1e-8, atol=1e-11)
    np.testing.assert_allclose(models[4, :, 3], alone, rtol=1e-8, atol=1e-11)
    fitted = SGDRegressor(
        penalty=None, fit_intercept=False, learning_rate="constant", eta0=1.0, max_iter=20, tol=None,
        optimizer=GradientDescent(), sync=DPSGD(10**9, GRAPHS["grid"], keep_models=True),
    ).fit(blocks)  # fmt: skip
    np.testing.assert_allclose(fitted.rank_coef_, models[:, :, 1], rtol=1e-9, atol=1e-12)


def test_agents_are_held_against_one_machine() -> None:
    """Errors are ratios by seed, and the speed-up counts the rows of gradients until an agent has caught up."""
    sizes = summarise_agents(made_rows())
    assert [(size.rows, size.features) for size in sizes] == [(10, 200), (1_000, 200), (100, 12)]
    few, many = sizes[:2]
    assert few.over_one("cycle").estimate == pytest.approx(2.0)
    assert few.speedups("cycle") == {0: 0.0, 1: 0.0, 2: 0.0}
    assert few.speedups("complete") == {seed: pytest.approx(25.0) for seed in range(3)}
    # Between the steps 1 and 10 errors fall by a factor of 4: log-linear, as steps rise by one of 10.
    late = 10 ** (np.log(4 / (1.1 / 1.02)) / np.log(4)) / 10 ** (np.log(4 / 1.1) / np.log(4))
    assert many.speedups("cycle")[1] == pytest.approx(25.0 / late)
    assert speedup_table([few, many]).rows[0] == ("10", "-", "-", "-", "25x")
    assert error_table([few]).rows[0] == ("10", "2x", "1.3x", "1.2x", "1x", "9x")
    assert best_table([few]).columns[2:] == ("cycle", "grid", "expander", "complete", "alone", "one machine")


@pytest.mark.parametrize(
    ("changes", "verdicts"),
    [
        ({}, ["holds"] * 6),
        ({"cycle": (1.05, 1.5)}, ["fails", "fails", "fails", "holds", "holds", "holds"]),
        ({"power": -0.2, "behind": 0.05}, ["holds", "holds", "holds", "fails", "holds", "fails"]),
    ],
)
def test_claims_are_decided_by_the_rows(changes: dict[str, Any], verdicts: list[str]) -> None:
    """Errors over one machine decide about agents, powers about rates, differences of accuracy about machines."""
    rows = made_rows(**changes)
    claims = check_feature_claims(summarise_agents(rows), summarise_values(rows), summarise_machines(rows))
    assert [claim.verdict for claim in claims] == verdicts
    assert len({claim.key for claim in claims}) == 6


@pytest.mark.slow
def test_a_page_is_made_from_rows_alone(tmp_path: Any) -> None:
    """The report has its figures, needs no network, stands parts that are missing, and refuses to report nothing."""
    rows = made_rows()
    check_page(feature_page(STUDY, rows).save(tmp_path).read_text(encoding="utf-8"))
    names = {path.stem.removeprefix("features_") for path in (tmp_path / "figures").glob("*.png")}
    assert names == {"steps", "rows", "speedup", "number", "machines", "values"}
    text = feature_verdict(summarise_agents(rows), summarise_machines(rows))
    assert "1.02x the error of one machine with 1,000 rows each, and 2x with 10" in text
    assert "400 features end 0.30 points below SVC, in 2x its time" in text
    assert machine_table(summarise_machines(rows)).rows[1][2:5] == ("2", "90.70%", "-0.30 points")
    for part in ("agents", "values", "machines"):
        assert feature_page(STUDY, [row for row in rows if row["part"] == part]).figures
    few = [row for row in rows if row.get("graph") in (None, "grid")]
    assert check_feature_claims(summarise_agents(few))[0].verdict == "not run"
    with pytest.raises(DsgdError, match="no finished run"):
        feature_page(STUDY, [])


def test_features_come_near_the_exact_machine() -> None:
    """On clusters no set is needed for, more features end nearer to the exact machine; values have less error too."""
    data = data_of_machines(DataSource("ijcnn1-clusters", 400, 400), [])
    assert (data.X.shape, len(np.unique(data.y))) == ((400, 22), 2)
    study = FeatureStudy(components=(5, 300), epochs=(5,), seeds=(0,))
    exact, few, many = run_machines(data, study.machines(data.name, 400, 400))
    assert few["accuracy"] + 0.1 < many["accuracy"] <= exact["accuracy"] + 0.03
    errors = list(run_values(study.values()))
    assert errors[0]["plain"] > 4 * errors[1]["plain"] > 4 * errors[1]["orthogonal"] > 0


def test_what_was_begun_with_a_set_does_not_go_on_with_clusters(monkeypatch: Any) -> None:
    """Where rows of a real set are there and the set is not, they are kept; without them clusters stand in."""
    monkeypatch.delenv("DSGD_DATA", raising=False)
    source = DataSource("covtype-subset", 200, 100)
    assert data_of_machines(source, []).name == "covtype-subset-clusters"
    kept = [{"dataset": "covtype-subset", "rows": 200, "test_rows": 100}]
    assert isinstance(data_of_machines(source, kept), MissingData)


@pytest.mark.slow
def test_the_command_resumes_and_reports(tmp_path: Any, capsys: Any) -> None:
    """Rows that are there are not made again, with the same errors in a repetition; the command prints one object."""
    study = FeatureStudy(
        (DataSource("ijcnn1-clusters", 100, 100),), 4, (5,), (8,), 5, 8, 10, (20,), (1,), (0,)
    )  # fmt: skip
    runs = run_feature_study(study, tmp_path)
    begun = [next(runs) for _ in range(4)]
    runs.close()
    every = list(run_feature_study(study, tmp_path))
    assert [run.resumed for run in every] == [True] * 9
    assert [run.row for run in every[:4]] == [run.row for run in begun]
    assert [run.row for run in every] == read_rows(tmp_path / "rows.jsonl")
    assert len(every) == study.count()
    again = {run.row["key"]: run.row for run in run_feature_study(study, tmp_path / "again")}
    for name in ("best", "accuracy", "plain"):
        assert all(again[run.row["key"]].get(name) == run.row.get(name) for run in every)
    options = ["-d", "ijcnn1-clusters", "--rows", "100", "--agents", "4", "--rows-per-agent", "5", "--features", "8"]
    more = ["--steps", "10", "--components", "20", "--epochs", "1", "--seeds", "1"]
    assert main(["study", "features", *options, *more, "--out", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(facts["best"]) == {"5 rows, 300 features", "100 rows, 8 features"}


@pytest.mark.parametrize("values", [{"agents": 2}, {"rows_per_agent": (0,)}, {"seeds": ()}, {"components": (0,)}])
def test_what_cannot_be_studied_is_refused(values: dict[str, Any]) -> None:
    """A study with a value out of its domain is refused when it is made."""
    with pytest.raises(InvalidParameterError, match="FeatureStudy"):
        FeatureStudy(**values)
