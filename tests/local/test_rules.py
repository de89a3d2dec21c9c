"""Local minibatch rules against their plain-numpy twins, and what averaging does to their memory."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dsgd import SGDClassifier
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.local import LARS, SGD, AbstractRule, Adagrad, Adam, Momentum, Objective, make_shard
from dsgd.local.objective import n_params
from dsgd.runtime import run_on_threads
from dsgd.runtime.train import TrainData, TrainJob, train
from dsgd.sync import DESLOC, SCAFFOLD, AnytimeSGD, LocalSGD, MinibatchSGD, carry_over
from gangs import run_gang
from reference.rules import minibatches

#: Every rule with its twin.
RULES: list[tuple[AbstractRule, tuple[str, tuple[float, ...]]]] = [
    (Momentum(0.0, batch=7), ("momentum", (0.0,))),
    (Momentum(0.8, batch=7), ("momentum", (0.8,))),
    (Momentum(0.8, nesterov=True, batch=7), ("nesterov", (0.8,))),
    (Adagrad(1e-6, batch=7), ("adagrad", (1e-6,))),
    (Adam(0.8, 0.95, 1e-6, batch=7), ("adam", (0.8, 0.95, 1e-6))),
    (Adam(0.8, 0.95, 1e-6, is_decoupled=True, batch=7), ("adamw", (0.8, 0.95, 1e-6))),
    (LARS(0.8, 0.02, batch=7), ("lars", (0.8, 0.02))),
]
SETTINGS: dict[str, Any] = {"schedule": "invscaling", "eta0": 0.1, "power_t": 0.25}


def rows(n: int = 60, d: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n, d))
    return X, np.sign(X @ rng.standard_normal(d) + 0.3 * rng.standard_normal(n)), rng.uniform(0.2, 1.0, n)


def run(rule: AbstractRule, shard: Any, n_epochs: int = 2, n_outputs: int = 1, **changes: Any) -> np.ndarray:
    optimizer = SGD(Objective("log_loss", "l2", 0.05, n_outputs=n_outputs, **changes), **SETTINGS, rule=rule)
    params, state = np.zeros(n_params(shard.n_features, n_outputs), shard.dtype), optimizer.init(shard)
    for _ in range(n_epochs):
        state.start_epoch()
        optimizer.run(params, shard, 0, shard.n_rows, state)
    return params


@pytest.mark.parametrize(("rule", "twin"), RULES, ids=lambda value: repr(value))
def test_rules_equal_their_twins(rule: AbstractRule, twin: Any) -> None:
    """Every rule gives the model of the plain-numpy twin, to rounding, and pickles as the value it is."""
    X, y, weights = rows()
    expected = minibatches(X, y, weights, twin, n_epochs=2, batch=7, loss_name="log_loss", alpha=0.05, **SETTINGS)
    np.testing.assert_allclose(run(rule, make_shard(X, y, weights, shuffle=False)), expected, rtol=1e-9, atol=1e-12)
    assert pickle.loads(pickle.dumps(rule)) == rule


@pytest.mark.parametrize("rule", [rule for rule, _ in RULES], ids=repr)
def test_rules_know_how_weights_lie(rule: AbstractRule) -> None:
    """Sparse rows with all entries stored give the weights of dense ones, for several outputs, in float32 as well."""
    X, _, weights = rows()
    y = np.arange(60) % 3.0

    def weights_for(X: Any, dtype: Any = np.float64) -> np.ndarray:
        shard = make_shard(X, y, weights, dtype=dtype, shuffle=False)
        return run(rule, shard, n_outputs=3, fit_intercept=False)[:-3]

    dense = weights_for(X).reshape(3, 5)
    np.testing.assert_allclose(weights_for(sp.csr_array(X)).reshape(5, 3).T, dense, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(weights_for(X, np.float32).reshape(3, 5), dense, rtol=2e-3, atol=1e-4)


def test_lars_does_not_see_the_scale_of_gradients() -> None:
    """Without a penalty a step of LARS is as long as its share of the weights, whatever the scale of the gradient."""
    optimizer = SGD(Objective("squared_error", None), "constant", eta0=0.5, rule=LARS(0.0, 0.1))
    shard = make_shard(np.zeros((1, 4)), np.zeros(1))
    gradient = np.array([1.0, -2.0, 3.0, 0.5, 0.0])
    steps = []
    for scale in (1.0, 1000.0):
        params = np.array([3.0, 4.0, 0.0, 0.0, 7.0])
        optimizer.step(params, scale * gradient, 1, optimizer.init(shard))
        steps.append(np.array([3.0, 4.0, 0.0, 0.0, 7.0]) - params)
    np.testing.assert_allclose(steps[0], steps[1], rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(steps[0]), 0.5 * 0.1 * 5.0, rtol=1e-12)


@pytest.mark.parametrize("policy", ["keep", "zero", "average"])
def test_what_becomes_of_momentum(policy: Any) -> None:
    """Memory is left alone, forgotten, or replaced by its mean weighted by rows."""

    def program(group: Any) -> np.ndarray:
        memory = np.full(3, 1.0 + group.rank)
        carry_over(policy, group, [memory], [0.25, 0.75][group.rank])
        return memory

    expected = {"keep": (1.0, 2.0), "zero": (0.0, 0.0), "average": (1.75, 1.75)}[policy]
    assert [float(memory[0]) for memory in run_gang("inproc", 2, program)] == list(expected)


@pytest.mark.parametrize("periods", [(1, 1), (2, 3), (5, 2)])
def test_moments_are_averaged_at_periods_of_their_own(periods: tuple[int, int]) -> None:
    """Models, first and second moments of Adam meet at three periods, as in plain numpy."""
    X, y, _ = rows(120)
    parts, beta1, beta2, epsilon = [slice(0, 60), slice(60, 120)], 0.8, 0.95, 1e-6
    x, u, v, t = np.zeros((2, 6)), np.zeros((2, 6)), np.zeros((2, 6)), 0
    for averages, start in enumerate([0, 15, 30, 45] * 3, 1):
        for first in range(start, start + 15, 5):
            t += 1
            for rank, part in enumerate(parts):
                batch, target = X[part][first : first + 5], y[part][first : first + 5]
                slope = -target / (1.0 + np.exp(target * (batch @ x[rank, :5] + x[rank, 5]))) / 5
                g = np.r_[batch.T @ slope + 0.05 * x[rank, :5], slope.sum()]
                u[rank] = beta1 * u[rank] + (1 - beta1) * g
                v[rank] = beta2 * v[rank] + (1 - beta2) * g**2
                x[rank] -= 0.1 * u[rank] / (1 - beta1**t) / (np.sqrt(v[rank] / (1 - beta2**t)) + epsilon)
        for vectors, period in ((x, 1), (u, periods[0]), (v, periods[1])):
            if averages % period == 0:
                vectors[:] = vectors.mean(axis=0)

    sgd = SGD(Objective("log_loss", "l2", 0.05), "constant", eta0=0.1, rule=Adam(beta1, beta2, epsilon, batch=5))
    job = TrainJob(sgd, DESLOC(15, *periods), np.zeros(n_params(5, 1)), max_iter=3, tol=None, n_iter_no_change=5)
    data = [TrainData(make_shard(X[part], y[part], shuffle=False)) for part in parts]
    result = run_on_threads(train, data, (job,)).value
    np.testing.assert_allclose(result.params, x[0], rtol=1e-9, atol=1e-12)


def test_moments_that_meet_seldom_send_half_of_local_adam() -> None:
    """Over six averages 6 + 2 + 1 vectors are sent and not 18, beside the counts of steps."""
    X, y, _ = rows(240)
    fit = {"max_iter": 1, "tol": None, "n_jobs": 2, "random_state": 0, "optimizer": Adam(batch=5)}
    sent = [
        SGDClassifier(**fit, sync=sync).fit(X, y).ledger_.totals()["bytes_sent"]
        for sync in (DESLOC(20), LocalSGD(20, momentum="average"), LocalSGD(20))
    ]
    vector, counts = sent[2] / 6, (sent[1] - 3 * sent[2]) / 6
    assert sent[0] == 9 * vector + counts


def test_policies_differ_where_models_are_averaged() -> None:
    """The three policies give three models, and an average of the memory costs its bytes."""
    X, y, _ = rows(200)
    fit = {"learning_rate": "constant", "eta0": 0.01, "max_iter": 2, "tol": None, "n_jobs": 2, "random_state": 0}
    models = {
        policy: SGDClassifier(**fit, sync=LocalSGD(every=20, momentum=policy), optimizer=Momentum(0.9, batch=5)).fit(
            X, y
        )
        for policy in ("keep", "zero", "average")
    }
    assert len({model.coef_.tobytes() for model in models.values()}) == 3
    sent = {policy: model.ledger_.totals()["bytes_sent"] for policy, model in models.items()}
    assert sent["keep"] == sent["zero"] < sent["average"]


def test_the_rate_warms_up_to_the_scale_of_the_batch() -> None:
    """The factor starts near 1, grows in a straight line, and ends at batch over base batch; without a base it is 1."""
    strategy = MinibatchSGD(batch=256, base_batch=32, warmup=2.0)
    factors = [strategy.rate_factor(step / 4) for step in range(1, 13)]
    np.testing.assert_allclose(factors, [1 + 7 * min(1, (i + 1) / 8) for i in range(12)])
    assert MinibatchSGD(batch=256).rate_factor(0.25) == 1.0
    X, y, _ = rows()
    fit = {"learning_rate": "constant", "max_iter": 2, "tol": None, "shuffle": False}
    scaled = SGDClassifier(**fit, eta0=0.01, sync=MinibatchSGD(batch=20, base_batch=5)).fit(X, y)
    plain = SGDClassifier(**fit, eta0=0.04, sync=MinibatchSGD(batch=20)).fit(X, y)
    np.testing.assert_allclose(scaled.coef_, plain.coef_, rtol=1e-12)


@pytest.mark.parametrize(
    ("sync", "rule", "named"),
    [
        (MinibatchSGD(), Momentum(batch=8), "MinibatchSGD.*Momentum"),
        (AnytimeSGD(), Adam(), "AnytimeSGD.*Adam"),
        (LocalSGD(momentum="zero"), None, "momentum='zero'.*optimizer"),
        (SCAFFOLD(), Momentum(0.9), "SCAFFOLD.*Momentum"),
    ],
)
def test_what_does_not_go_together_is_refused(sync: Any, rule: Any, named: str) -> None:
    """A strategy and a rule that contradict each other are refused before rows are looked at, both named."""
    with pytest.raises(IncompatiblePartsError, match=named):
        SGDClassifier(sync=sync, optimizer=rule).fit(np.eye(2), [0, 1])


@pytest.mark.parametrize(
    "make",
    [
        lambda: LocalSGD(overlap=True, momentum="zero"),
        lambda: MinibatchSGD(warmup=3),
        lambda: SGDClassifier(optimizer="fast").fit(np.eye(2), [0, 1]),
    ],
)
def test_uses_that_cannot_be_are_refused(make: Any) -> None:
    """What needs another parameter, or a name that there is, says so."""
    with pytest.raises(InvalidParameterError, match=r"must|goes|needs"):
        make()
