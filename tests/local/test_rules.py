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
from dsgd.sync import SCAFFOLD, AnytimeSGD, LocalSGD, MinibatchSGD, carry_over
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
