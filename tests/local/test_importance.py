"""Rows drawn by their gradients: the sum tree, the twin, steps that are right on average, and what is kept of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dsgd import Gang, SGDClassifier
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.kernels import importance as kernels
from dsgd.kernels.importance import build, find_all, sum_levels, total, update_all
from dsgd.kernels.jit import kernel
from dsgd.local import SGD, Importance, Momentum, Objective, make_shard
from dsgd.local.objective import n_params
from dsgd.sim import SimulatedCluster
from dsgd.sync import ASGD, DPSGD, AnytimeSGD, Hogwild, LocalSGD, MinibatchSGD
from reference.importance import reweighted

SETTINGS: dict[str, Any] = {"schedule": "invscaling", "eta0": 0.1, "power_t": 0.25}
FIT: dict[str, Any] = {"loss": "log_loss", "learning_rate": "constant", "eta0": 0.05, "tol": None, "random_state": 1}


@kernel
def _update_each(tree: Any, levels: Any, places: Any, weights: Any) -> None:
    for first in range(0, len(places), 10):
        for k in range(first, first + 10):
            tree[places[k]] = weights[k]
        update_all(tree, levels, places[first:], np.uint64(10))


@kernel
def _find_each(tree: Any, levels: Any, shares: Any, out: Any) -> None:
    which = np.arange(len(shares)).astype(np.uint64)
    find_all(tree, levels, which, np.uint64(len(shares)), shares * total(tree, levels), out)


def problem(n: int = 60, d: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n, d)) * rng.uniform(0.1, 2.0, (n, 1))
    return X, np.sign(X @ rng.standard_normal(d) + 0.3 * rng.standard_normal(n)), rng.uniform(0.2, 1.0, n)


def begun(sgd: SGD, shard: Any, n_epochs: int) -> tuple[np.ndarray, Any]:
    """Return model and state after some epochs."""
    params, state = np.zeros(n_params(shard.n_features, sgd.n_outputs), shard.dtype), sgd.init(shard)
    for _ in range(n_epochs):
        state.start_epoch()
        sgd.arrange(shard, state)
        sgd.run(params, shard, 0, shard.n_rows, state)
    return params, state


@pytest.mark.parametrize("n", [1, 7, 8, 9, 64, 65, 700])
def test_a_share_of_the_weights_falls_on_its_place(n: int) -> None:
    """Of whole weights, every unit of their sum leads to the place that it belongs to, and none to a weight of zero."""
    weights = np.random.default_rng(n).integers(0, 4, n).astype(float)
    weights[n // 2] = 3.0
    levels = sum_levels(n)
    tree = np.zeros(levels[-1])
    tree[:n] = weights
    build(tree, levels)
    units, found = np.arange(int(weights.sum())), np.empty(int(weights.sum()), np.uint64)
    _find_each(tree, levels, (units + 0.5) / weights.sum(), found)
    np.testing.assert_array_equal(found, np.repeat(np.arange(n), weights.astype(int)))


@pytest.mark.parametrize("n", [1, 8, 65, 700])
def test_changes_leave_no_trace_of_what_was(n: int) -> None:
    """After many changes the tree is that of its weights to the bit, and extreme weights lead to a place of theirs."""
    rng, levels = np.random.default_rng(0), sum_levels(n)
    tree = np.zeros(levels[-1])
    places = rng.integers(0, n, 3000)
    _update_each(tree, levels, places.astype(np.uint64), 10.0 ** rng.uniform(-200, 200, 3000))
    again = np.zeros_like(tree)
    again[: levels[1]] = tree[: levels[1]]
    build(again, levels)
    assert tree.tobytes() == again.tobytes()
    found = np.empty(1000, np.uint64)
    _find_each(tree, levels, np.r_[rng.uniform(0, 1, 998), 0.0, np.nextafter(1.0, 0.0)], found)
    assert np.all(tree[found] > 0.0)


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_reweighted_gradients_equal_their_twin(kind: str, n_outputs: int) -> None:
    """Model, norms and losses are those of the plain-numpy twin, to rounding, for dense and sparse rows."""
    X, y, weights = problem()
    y = y if n_outputs == 1 else np.arange(60) % 3.0
    shard = make_shard(X if kind == "dense" else sp.csr_array(X), y, weights, shuffle=False)
    sgd = SGD(Objective("log_loss", "l2", 0.05, n_outputs=n_outputs), **SETTINGS, sampling=Importance(0.3), seed=5)
    params, state = sgd_without_decay(sgd, shard, 4)
    W, b, norms, total = reweighted(
        X,
        y,
        weights,
        n_epochs=4,
        uniform=0.3,
        key=int(state.sampling.key),
        n_outputs=n_outputs,
        loss_name="log_loss",
        alpha=0.05,
        **SETTINGS,
    )
    own = params[:-n_outputs].reshape(5, n_outputs).T if kind == "csr" else params[:-n_outputs].reshape(n_outputs, 5)
    np.testing.assert_allclose(own, W, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(params[-n_outputs:], b, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(state.sampling.norms[:60], norms, rtol=1e-9)
    assert state.loss_sum == pytest.approx(total)


def sgd_without_decay(sgd: SGD, shard: Any, n_epochs: int) -> tuple[np.ndarray, Any]:
    """As `begun`, with an intercept that takes whole steps on sparse rows too."""
    params, state = np.zeros(n_params(shard.n_features, sgd.n_outputs), shard.dtype), sgd.init(shard)
    state.constants[kernels.state.INTERCEPT_RATE] = 1.0
    for _ in range(n_epochs):
        state.start_epoch()
        sgd.arrange(shard, state)
        sgd.run(params, shard, 0, shard.n_rows, state)
    return params, state


@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
def test_the_expected_step_is_that_of_the_mean_gradient(loss: str) -> None:
    """Summed over all rows with their probabilities, one step is exactly that of full gradient descent: no bias."""
    X, y, weights = problem()
    shard = make_shard(X, y, weights, shuffle=False)
    sgd = SGD(Objective(loss, "l2", 0.05), "constant", eta0=0.2, sampling=Importance(0.3), seed=5)
    model, state = begun(sgd, shard, 3)
    full = SGD(Objective(loss, "l2", 0.05), "constant", eta0=0.2)
    gradient = np.empty_like(model)
    full.gradient(model, shard, 0, 60, gradient, full.init(shard))
    expected = model.copy()
    full.step(expected, gradient / 60, 60, full.init(shard))

    state.sampling.begin_epoch()
    norms = state.sampling.norms[:60].copy()
    p = 0.3 / 60 + 0.7 * norms / norms.sum()
    seen: dict[int, np.ndarray] = {}
    state.start_epoch()
    while len(seen) < 60:
        state.start_epoch()
        state.sampling.norms[:60] = norms
        state.sampling.begin_epoch()
        step = model.copy()
        sgd.run(step, shard, 0, 1, state)
        row = int(state.sampling.rows[0])
        assert abs(state.sampling.scales[0]) == pytest.approx(1 / (60 * p[row]), rel=1e-12)
        seen[row] = step
    assert p.sum() == pytest.approx(1.0, rel=1e-12)
    np.testing.assert_allclose(sum(p[row] * step for row, step in seen.items()), expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("sync", [LocalSGD(8), MinibatchSGD(12), DPSGD(8), ASGD(4)], ids=repr)
def test_ranks_draw_from_their_own_rows(sync: Any) -> None:
    """Ranks of any strategy learn with drawn rows, and threads and simulated ranks end in the same bits."""
    X, y, _ = problem(203)
    fit = {**FIT, "sync": sync, "max_iter": 20, "sampling": Importance(0.4)}
    threads = SGDClassifier(**fit, n_jobs=3).fit(X, y)
    assert threads.score(X, y) > 0.85
    if not sync.n_servers:
        simulated = SGDClassifier(**fit, client=SimulatedCluster(3, "10GbE")).fit(X, y)
        assert simulated.coef_.tobytes() == threads.coef_.tobytes()


def test_a_rule_steps_on_drawn_batches() -> None:
    """Momentum of zero on batches of drawn rows equals exchanging their gradients on one rank."""
    X, y, _ = problem()
    fit = {**FIT, "max_iter": 4, "sampling": "importance"}
    local = SGDClassifier(**fit, optimizer=Momentum(0.0, batch=12)).fit(X, y)
    exchanged = SGDClassifier(**fit, sync=MinibatchSGD(batch=12)).fit(X, y)
    np.testing.assert_allclose(local.coef_, exchanged.coef_, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"sampling": "often"}, InvalidParameterError, "'importance'.*often"),
        (
            {"sampling": Importance(0.5), "client": Gang(out_of_core=True)},
            IncompatiblePartsError,
            "out_of_core.*Importance",
        ),
        ({"sampling": "importance", "sync": Hogwild()}, IncompatiblePartsError, "Hogwild.*Importance"),
        ({"sampling": "importance", "sync": AnytimeSGD()}, IncompatiblePartsError, "AnytimeSGD.*Importance"),
    ],
)
def test_what_does_not_go_with_drawn_rows_is_refused(options: dict[str, Any], error: Any, named: str) -> None:
    """What contradicts drawn rows is refused before rows are looked at, both named; so is a share out of range."""
    with pytest.raises(error, match=named):
        SGDClassifier(**options).fit(np.eye(2), [0, 1])
    with pytest.raises(InvalidParameterError, match="uniform"):
        Importance(0.0)
