"""The loss that all classes share: its kernels against their plain-numpy twin, and what refuses it."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import log_softmax, softmax

from dsgd.errors import IncompatiblePartsError
from dsgd.kernels.jit import kernel
from dsgd.kernels.softmax import loss_and_slopes
from dsgd.local import SAGA, SGD, Importance, Momentum, Objective, make_shard
from dsgd.local.objective import evaluate, n_params, pack, unpack
from reference import softmax as twin

N_ROWS, N_FEATURES, K, N_EPOCHS = 60, 7, 4, 3
CLASS_WEIGHTS = (0.5, 1.0, 2.0, 1.5)


@pytest.fixture(scope="module")
def problem():
    """Rows with zeros, an empty one in ten, classes and weights."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_ROWS, N_FEATURES)) * (rng.random((N_ROWS, N_FEATURES)) < 0.6)
    X[::10] = 0.0
    y = (X @ rng.normal(0, 3, (N_FEATURES, K)) + rng.standard_normal((N_ROWS, K))).argmax(axis=1).astype(float)
    return X, y, rng.uniform(0.2, 1.0, N_ROWS)


def make(penalty="l2", schedule="optimal", alpha=0.05, average=0, **parts):
    """Return an optimiser of the shared loss."""
    objective = Objective("softmax", penalty, alpha, n_outputs=K, positive_weights=CLASS_WEIGHTS)
    return SGD(objective, schedule, eta0=0.02, power_t=0.3, average=average, **parts)


def train(optimizer, shard, edges=(0, N_ROWS)):
    """Return model and state after some epochs, each cut at the edges."""
    params, state = np.zeros(n_params(N_FEATURES, K), shard.dtype), optimizer.init(shard)
    for _ in range(N_EPOCHS):
        state.start_epoch()
        for start, stop in pairwise(edges):
            optimizer.run(params, shard, start, stop, state)
    return params, state


@kernel
def row_loss(scores, target):
    """Call the scalar function as kernels do."""
    return loss_and_slopes(scores, np.uint64(target))


def test_loss_and_slopes_keep_their_digits():
    """They are those of scipy; scores of any size overflow nothing, and a sure prediction costs nothing."""
    for scores in ([0.3, -1.2, 2.0], [0.0, 0.0, 0.0], [700.0, -700.0, 1e300], [30.0, -20.0, -9.0]):
        for target in range(3):
            slopes, expected = np.array(scores), softmax(scores)
            loss = row_loss(slopes, target)
            expected[target] = -np.delete(expected, target).sum()
            np.testing.assert_allclose(slopes, expected, rtol=1e-12, atol=0)
            if loss > 1e-8:
                np.testing.assert_allclose(loss, -log_softmax(scores)[target], rtol=1e-7)
    sure = np.array([800.0, 0.0, -5.0])
    assert row_loss(sure, 0) == 0.0
    np.testing.assert_array_equal(sure, 0.0)
    # Of this loss log(1 + small) would keep eight digits.
    assert row_loss(np.array([20.0, 0.0]), 0) == pytest.approx(np.log1p(np.exp(-20.0)), rel=1e-14)
    assert not np.isfinite(row_loss(np.array([np.inf, 0.0]), 1))
    assert np.isnan(row_loss(np.array([np.nan, 0.0]), 1))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    ("penalty", "schedule", "alpha"),
    [("l2", "optimal", 0.05), ("l1", "invscaling", 0.05), ("elasticnet", "constant", 0.1), ("l2", "per_epoch", 0.5)],
)
def test_steps_equal_their_twin(problem, sparse, penalty, schedule, alpha):
    """Models, averages and losses are those of plain numpy, with weights of rows and classes, however calls are cut."""
    X, y, weights = problem
    optimizer = make(penalty, schedule, alpha, average=20)
    shard = make_shard(sp.csr_array(X) if sparse else X, y, weights, shuffle=False)
    params, state = train(optimizer, shard, (0, 5, 6, 40, N_ROWS))
    # An L1 penalty that is owed is paid when a row has the column: sparse rows pay later.
    if sparse and penalty != "l2":
        shard = make_shard(sp.csr_array(X + 0.1), y, weights, shuffle=False)
        X = X + 0.1
        params, state = train(optimizer, shard)
    W, b, mean_W, mean_b, loss_sum = twin.sequential(
        X,
        y,
        weights,
        class_weight=CLASS_WEIGHTS,
        n_epochs=N_EPOCHS,
        alpha=alpha,
        share=optimizer.objective.l1_share,
        schedule=schedule,
        eta0=0.02,
        power_t=0.3,
        average=20,
        intercept_decay=0.01 if sparse else 1.0,
    )
    for got, expected in ((params, (W, b)), (state.averaged, (mean_W, mean_b))):
        coef, intercept = unpack(got, N_FEATURES, K, sparse=sparse)
        np.testing.assert_allclose(coef, expected[0], rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(intercept, expected[1], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose([state.loss_sum, *state.output_losses], [loss_sum, loss_sum], rtol=1e-9)
    assert state.is_finite
    single, _ = train(optimizer, make_shard(shard_rows(X, sparse), y, weights, shuffle=False))
    np.testing.assert_allclose(single, params, rtol=1e-3, atol=1e-4)


def shard_rows(X, sparse):
    """Return rows in float32."""
    return (sp.csr_array(X) if sparse else X).astype(np.float32)


@pytest.mark.parametrize("sparse", [False, True])
def test_gradient_objective_and_minibatches_equal_their_twin(problem, sparse):
    """The summed gradient is numpy's, a rule steps along it, and the objective is one number."""
    X, y, weights = problem
    coef, intercept = np.random.default_rng(1).standard_normal((K, N_FEATURES)), np.arange(K) / 3
    params, shard = pack(coef, intercept, sparse=sparse), make_shard(shard_of(X, sparse), y, weights, shuffle=False)
    optimizer, out = make(), np.full(n_params(N_FEATURES, K), np.nan)
    state = optimizer.init(shard)
    optimizer.gradient(params, shard, 5, 41, out, state)
    costs = weights * np.array(CLASS_WEIGHTS)[y.astype(int)]
    expected = twin.gradient(X[5:41], y[5:41], costs[5:41], coef, intercept)
    np.testing.assert_allclose(np.column_stack(unpack(out, N_FEATURES, K, sparse=sparse)), expected, rtol=1e-10)
    losses = -log_softmax(X @ coef.T + intercept, axis=1)[np.arange(N_ROWS), y.astype(int)]
    bare = SGD(Objective("softmax", n_outputs=K, fit_intercept=False), "constant", eta0=0.1)
    bare.gradient(params, shard, 5, 41, out, bare.init(shard))
    np.testing.assert_array_equal(unpack(out, N_FEATURES, K, sparse=sparse)[1], 0.0)
    objective = losses[5:41].sum() + 36 * 0.05 / 2 * (coef**2).sum()
    np.testing.assert_allclose(optimizer.objective_sums(params, shard, state), [objective], rtol=1e-12)
    found = evaluate(params, shard, optimizer.objective)
    np.testing.assert_allclose(found.loss_sum, costs @ losses, rtol=1e-12)
    hits = (X @ coef.T + intercept).argmax(axis=1) == y
    np.testing.assert_allclose(found.accuracy, weights @ hits / weights.sum(), rtol=1e-12)
    # A batch of one rule is the mean gradient and a step.
    ruled = make(schedule="constant", rule=Momentum(0.0, batch=N_ROWS))
    stepped, state = params.copy(), ruled.init(shard)
    ruled.run(stepped, shard, 0, N_ROWS, state)
    moved = twin.gradient(X, y, costs, coef, intercept) / N_ROWS
    moved[:, :-1] += 0.05 * coef
    moved[:, -1] *= 0.01 if sparse else 1.0
    got = np.column_stack(unpack(stepped, N_FEATURES, K, sparse=sparse))
    np.testing.assert_allclose(got, np.column_stack([coef, intercept]) - 0.02 * moved, rtol=1e-10)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_score_that_is_not_finite_shows(problem, sparse, wrong):
    """Steps and gradients note it, also where it is not that of the row's class, and a loss is none."""
    X, y, weights = problem
    shard, optimizer = make_shard(shard_of(X, sparse), y, weights, shuffle=False), make()
    intercept = np.zeros(K)
    intercept[1 if y[0] != 1 else 2] = wrong
    params = pack(np.zeros((K, N_FEATURES)), intercept, sparse=sparse)
    assert not np.isfinite(evaluate(params, shard, optimizer.objective, 0, 1).loss_sum)
    for look in (optimizer.run, lambda *given: optimizer.gradient(*given[:4], np.zeros_like(params), given[4])):
        state = optimizer.init(shard)
        look(params.copy(), shard, 0, 1, state)
        assert not state.is_finite


def shard_of(X, sparse):
    """Return rows in either form."""
    return sp.csr_array(X) if sparse else X


def test_what_takes_one_class_at_a_time_refuses():
    """What remembers or draws by slopes of single classes says so, and takes one output, which is log loss."""
    with pytest.raises(IncompatiblePartsError, match=r"sampling=.*softmax"):
        make(sampling=Importance())
    with pytest.raises(IncompatiblePartsError, match=r"SAGA.*softmax"):
        SGD(make().objective, "constant", eta0=1.0, reduction=SAGA())
    SGD(Objective("softmax"), "constant", eta0=1.0, reduction=SAGA())
