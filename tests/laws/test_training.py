"""What training with a strategy does: limit cases, rates of convergence, the same bits everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dsgd import Gang
from dsgd.local import Momentum, make_shard
from dsgd.sim import SimulatedCluster
from dsgd.sync import ADMM, SCAFFOLD, DiLoCo, LeaderSGD, LocalSGD, MinibatchSGD, SlowMo
from laws.gang import train_on
from laws.oracles import LINEAR, ORACLES
from members import FAMILY, Member, having

ONE_STEP = Momentum(0.0, batch=8)
OTHERS = [oracle for oracle in ORACLES if oracle != LINEAR]
#: A mean beside the steps: no exchange by itself has a twin.
BESIDE = Member(LocalSGD(8, overlap=True))
#: Those that need no mailboxes.
MEETING = [*(m for m in FAMILY if m.strategy.talks != "by mailbox"), BESIDE]


@pytest.mark.parametrize(
    ("oracle", "size"), [*((LINEAR, size) for size in (1, 2, 4)), *((o, 3) for o in OTHERS)], ids=str
)
@pytest.mark.parametrize("member", having("synchronous"), ids=repr)
def test_synchronous_sgd_is_a_limit_case(member: Member, oracle: Any, size: int) -> None:
    """With an exchange after every step, the strategy takes the steps of minibatch SGD, to 1e-10."""
    rows = [40] * size
    rule = replace(ONE_STEP, momentum=0.6) if member.synchronous == LocalSGD(8, momentum="average") else ONE_STEP
    expected = oracle.train("threads", rows, MinibatchSGD(8 * size), replace(rule, batch=None))[0].params
    found = oracle.train("threads", rows, member.synchronous, rule)[0].params
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("oracle", ORACLES, ids=repr)
@pytest.mark.parametrize("nesterov", [False, True])
def test_outer_momentum_of_one_step_is_momentum(oracle: Any, nesterov: bool) -> None:
    """SlowMo (DiLoCo) that exchanges after every step is minibatch SGD with heavy-ball (Nesterov) momentum."""
    expected = oracle.train("threads", [40] * 4, MinibatchSGD(32), Momentum(0.7, nesterov=nesterov))[0].params
    outer = DiLoCo(8, 1.0, 0.7) if nesterov else SlowMo(8, 0.7)
    found = oracle.train("threads", [40] * 4, outer, ONE_STEP)[0].params
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("oracle", "kind"), [(LINEAR, "tcp"), (LINEAR, "shm"), *((o, "shm") for o in OTHERS)], ids=str)
@pytest.mark.parametrize("member", MEETING, ids=repr)
def test_every_wire_gives_the_same_bits(member: Member, oracle: Any, kind: str) -> None:
    """Uneven ranks that are threads and ranks over sockets or shared memory end in the same model, equal on all."""
    rows = [40, 0, 53]
    rule = Momentum(0.9, batch=4) if member.strategy.momentum != "keep" else None
    threads = oracle.train("threads", rows, member.strategy, rule)
    others = oracle.train(kind, rows, member.strategy, rule)
    assert len({result.params.tobytes() for result in [*threads, *others]}) == 1
    assert np.isfinite(threads[0].params).all()


@pytest.mark.parametrize("oracle", ORACLES, ids=repr)
@pytest.mark.parametrize("member", [*FAMILY, BESIDE], ids=repr)
def test_simulated_ranks_give_the_same_bits(member: Member, oracle: Any) -> None:
    """Ranks on a virtual clock end in the model of ranks that are threads, to the bit."""
    X, y = problem(90)
    rule = Momentum(0.9, batch=4) if member.strategy.momentum != "keep" else None
    fit: dict[str, Any] = {"max_iter": 2, "shuffle": False}
    strategy = member.strategy
    threads = oracle.estimator(strategy, rule, n_jobs=3, **fit).fit(X, y)
    cluster = SimulatedCluster(3, "10GbE", stragglers="heavy-tail")
    simulated = oracle.estimator(strategy, rule, client=cluster, **fit).fit(X, y)
    assert oracle.model(simulated) == oracle.model(threads)


def problem(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and classes with some noise."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, 5))
    return X, X @ np.linspace(-1, 1, 5) + 0.3 * rng.standard_normal(n_rows) > 0


@pytest.mark.parametrize("oracle", ORACLES, ids=repr)
@pytest.mark.parametrize("member", FAMILY, ids=repr)
def test_every_strategy_goes_on_from_a_checkpoint(member: Member, oracle: Any, tmp_path: Any) -> None:
    """Training resumed from a checkpoint ends in the bits of training in one go; other ranks of torch can resume too.

    Of linear models `test_trajectories` says where others go on to.
    """
    X, y = problem(120)
    rule = Momentum(0.9, batch=4) if member.strategy.momentum != "keep" else None
    fit: dict[str, Any] = {"strategy": member.strategy, "rule": rule, "n_jobs": 3}
    whole = oracle.estimator(**fit, max_iter=4).fit(X, y)
    # The second epoch is not the last one planned: one-shot averaging waits for that.
    oracle.estimator(**fit, max_iter=2, client=Gang(checkpoint=tmp_path)).fit(X, y)
    resumed = oracle.estimator(**fit, max_iter=4, client=Gang(resume_from=tmp_path)).fit(X, y)
    if "OneShot" not in repr(member):
        assert oracle.model(resumed) == oracle.model(whole)
    if oracle != LINEAR:
        fewer = oracle.estimator(**{**fit, "n_jobs": 2}, max_iter=4, client=Gang(resume_from=tmp_path)).fit(X, y)
        assert fewer.score(X, y) > 0.7


def squared_distance(strategy: Any, n_rows: int, size: int, seed: int) -> float:
    """Return the squared distance to the optimum after one pass over fresh rows of a least-squares problem."""
    rng = np.random.default_rng(seed)
    truth = np.linspace(-1.0, 1.0, 32)
    X = 0.5 * rng.standard_normal((n_rows * size, 32))
    shard = make_shard(X, X @ truth + 0.5 * rng.standard_normal(len(X)), shuffle=False)
    shards = [shard.rows(k * n_rows, (k + 1) * n_rows) for k in range(size)]
    found = train_on("threads", shards, strategy, max_iter=1, loss="squared_error", alpha=0.5, schedule="optimal")
    # Rows have covariance I / 4, so the penalised optimum is truth / 4 over 1 / 4 + alpha.
    return float(np.sum((found[0].params[:32] - truth / 3.0) ** 2))


#: One of each class that has a period.
WITH_PERIODS = list({type(m.strategy): m.strategy for m in reversed(FAMILY) if "every" in vars(m.strategy)}.values())


@pytest.mark.parametrize("strategy", WITH_PERIODS, ids=repr)
def test_the_rate_is_that_of_sgd(strategy: Any) -> None:
    """On least squares with steps like 1 / t the squared distance to the optimum falls like 1 / T, within 0.15."""
    strategy = replace(strategy, every=16)
    if isinstance(strategy, LeaderSGD):
        # In theory pulls fall with the rate; fixed ones, to a leader that few rows have chosen, leave a bias.
        strategy = replace(strategy, pull=0.01, global_pull=0.01)
    few, many = (np.mean([squared_distance(strategy, n, 2, seed) for seed in range(3)]) for n in (500, 8000))
    assert abs(np.log(many / few) / np.log(16.0) + 1.0) < 0.15


@pytest.mark.parametrize("rows", [[64, 64], [48, 48, 48]])
def test_controls_remove_the_bias_of_local_steps(rows: list[int]) -> None:
    """Where ranks have rows of different kinds, local SGD stalls beside the optimum, and SCAFFOLD and ADMM reach it."""
    rng = np.random.default_rng(1)
    parts = []
    for k, n in enumerate(rows):
        X = rng.standard_normal((n, 3)) * [1.0, 0.3 + k, 1.5 - 0.5 * k]
        parts.append((X, X @ rng.standard_normal(3)))
    X, y = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    best = np.linalg.solve(X.T @ X + 0.01 * len(X) * np.eye(3), X.T @ y)
    # The rows four times over: four steps along the gradient of all rows between two exchanges, on every rank.
    shards = [make_shard(np.tile(X, (4, 1)), np.tile(y, 4), shuffle=False) for X, y in parts]
    rule, options = Momentum(0.0, batch=rows[0]), {"loss": "squared_error", "eta0": 0.05, "fit_intercept": False}
    local, controlled, priced = (
        np.linalg.norm(train_on("threads", shards, strategy, rule, 400, **options)[0].params[:3] - best)
        for strategy in (LocalSGD(10**6), SCAFFOLD(10**6), ADMM(10**6, 0.5))
    )
    assert local > 1e-3
    assert controlled < 1e-6
    assert priced < 1e-6
