"""The study of features: agents against their twin, verdicts from rows alone, machines on clusters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsgd import SGDRegressor
from dsgd.comm.topology import mixing_matrix
from dsgd.local import GradientDescent
from dsgd.study import DataSource, study_page
from dsgd.study.agents import GRAPHS, Agents, blocks_of, models_after, one_machine, weights_of
from dsgd.study.features import STUDY, data_of_machines, run_machines, run_values
from dsgd.study.frame.data import MissingData
from dsgd.study.frame.study import Batch
from dsgd.sync import DPSGD
from reference.decentralised import after, decentralised
from study_rows import made_rows

SMALL = STUDY.replace(
    data=[DataSource("ijcnn1-clusters", 200, 100)], rows_per_agent=(10, 1_000), features=200,
    steps=100, components=(100, 400), epochs=(2, 5),
)  # fmt: skip
#: The lowest excess risk over that of one machine, with few and with many rows.
OVER = {"cycle": (2.0, 1.02), "grid": (1.3, 1.0), "expander": (1.2, 1.0), "complete": (1.0, 1.0), "alone": (9.0, 5.0)}


def rows_of(cycle: tuple[float, float] = OVER["cycle"], power: float = -0.8, behind: float = 0.003) -> list[Any]:
    """Return rows of agents whose errors fall so with their rows, of kernel values, and of machines so far behind."""

    def found(run: Any) -> dict[str, Any]:
        if run.part == "values":
            error = (1.0 + run.seed) / np.sqrt(run.features)
            return {"plain": error, "orthogonal": 0.5 * error}
        if run.part == "machines":
            accuracy = 0.9 + 0.01 * run.seed - (behind if run.features else 0.0)
            return {"columns": 22, "gamma": 0.1, "accuracy": accuracy, "seconds": 0.001 * run.features or 0.2,
                    "features": run.features}  # fmt: skip
        over = {**OVER, "cycle": cycle, "one machine": (1.0, 1.0)}[run.graph][run.rows > 500]
        # Seeds are as far apart as graphs are: only ratios of one seed must count.
        best = over * (1.0 + run.seed) * run.rows**power
        curve = [{"steps": k, "error": f * best, "worst": best} for k, f in ((1, 4), (10, 1), (100, 2))]
        return {"gap": 0.1, "neighbours": 2, "best": best, "best_steps": 10, "worst": best, "curve": curve}

    return made_rows(SMALL, found)


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
        penalty=None,
        fit_intercept=False,
        learning_rate="constant",
        eta0=1.0,
        max_iter=20,
        tol=None,
        optimizer=GradientDescent(),
        sync=DPSGD(10**9, GRAPHS["grid"], keep_models=True),
    ).fit(blocks)
    np.testing.assert_allclose(fitted.rank_coef_, models[:, :, 1], rtol=1e-9, atol=1e-12)


def test_agents_are_held_against_one_machine() -> None:
    """Errors are ratios by seed, and the speed-up counts the rows of gradients until an agent has caught up."""
    machines, speedups, errors, best, _ = study_page(SMALL, rows_of()).tables
    # Between the steps 1 and 10 errors fall by a factor of 4: log-linear, as steps rise by one of 10.
    late = 10 ** (np.log(4 / (1.1 / 1.02)) / np.log(4)) / 10 ** (np.log(4 / 1.1) / np.log(4))
    assert speedups.rows[0] == ("10", "-", "-", "-", "25x")
    assert speedups.rows[1][1] == f"{25.0 / late:.3g}x"
    assert errors.rows[0] == ("10", "2x", "1.3x", "1.2x", "1x", "9x")
    assert best.columns[1:] == ("cycle", "grid", "expander", "complete", "alone", "one machine")
    assert machines.rows[1][2:5] == ("2", "90.70%", "-0.30 points")


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
    claims = study_page(SMALL, rows_of(**changes)).claims
    assert [claim.verdict for claim in claims] == verdicts
    assert len({claim.key for claim in claims}) == 6


def test_features_come_near_the_exact_machine() -> None:
    """On clusters no set is needed for, more features end nearer to the exact machine; values have less error too."""
    data = data_of_machines(DataSource("ijcnn1-clusters", 400, 400), "float32", [])
    assert (data.X.shape, len(np.unique(data.y))) == ((400, 22), 2)  # type: ignore[union-attr]
    study = SMALL.replace(components=(5, 300), epochs=(5,), seeds=(0,))
    runs = {part: [run for run in study.runs(400, 400) if run.part == part] for part in ("machines", "values")}
    batch = Batch(study, data, None, lambda **columns: [], [])
    exact, few, many = run_machines(batch, runs["machines"])
    assert few["accuracy"] + 0.1 < many["accuracy"] <= exact["accuracy"] + 0.03
    errors = list(run_values(batch, runs["values"]))
    assert errors[0]["plain"] > 4 * errors[1]["plain"] > 4 * errors[1]["orthogonal"] > 0


def test_what_was_begun_with_a_set_does_not_go_on_with_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rows of a real set are there and the set is not, they are kept; without them clusters stand in."""
    monkeypatch.delenv("DSGD_DATA", raising=False)
    source = DataSource("covtype-subset", 200, 100)
    assert data_of_machines(source, "float32", []).name == "covtype-subset-clusters"
    kept = [{"dataset": "covtype-subset", "rows": 200, "test_rows": 100}]
    assert isinstance(data_of_machines(source, "float32", kept), MissingData)
