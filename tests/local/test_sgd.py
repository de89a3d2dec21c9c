"""The local optimiser against its plain-numpy twin, against itself in other forms, and against scikit-learn."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import SGDClassifier, SGDRegressor

from dsgd.errors import InvalidParameterError
from dsgd.kernels.losses import LOSSES
from dsgd.kernels.state import SCHEDULES
from dsgd.local import SGD, Objective, make_shard
from dsgd.local.objective import evaluate, n_params, pack, unpack
from dsgd.local.sgd import is_finite
from reference import sgd as twin

N_ROWS, N_FEATURES, N_EPOCHS = 60, 19, 3
PENALTIES = ("l2", "l1", "elasticnet", None)


def problem(seed=0, n_outputs=1, task="classification", density=1.0, n_rows=N_ROWS, n_features=N_FEATURES):
    """Return rows, targets and weights with a separator and some noise; one row in ten is all zeros."""
    rng = np.random.default_rng(seed)
    X = (
        0.5
        * n_features**-0.5
        * rng.standard_normal((n_rows, n_features))
        * (rng.random((n_rows, n_features)) < density)
    )
    X[::10] = 0.0
    scores = X @ rng.normal(0, 3, (n_features, n_outputs)) + 0.3 * rng.standard_normal((n_rows, n_outputs))
    if n_outputs > 1:
        y = scores.argmax(axis=1).astype(float)
    else:
        y = np.where(scores[:, 0] > 0, 1.0, -1.0) if task == "classification" else scores[:, 0]
    return X, y, rng.uniform(0.2, 1.0, n_rows)


def train(optimizer, shard, n_epochs=N_EPOCHS, cuts=()):
    """Return the model and the state after some epochs from zero, each epoch cut into runs."""
    params = np.zeros(n_params(shard.n_features, optimizer.objective.n_outputs), shard.dtype)
    state = optimizer.init(shard)
    edges = [0, *cuts, shard.n_rows]
    for _ in range(n_epochs):
        state.start_epoch()
        for start, stop in pairwise(edges):
            optimizer.run(params, shard, start, stop, state)
    return params, state


def make(loss="hinge", penalty="l2", schedule="optimal", alpha=0.01, average=0, **changes):
    """Return an optimiser with an alpha that shows and a rate that does not diverge."""
    objective = Objective(loss, penalty, alpha, epsilon=twin.parameter_of(loss, 0.1), **changes)
    return SGD(objective, schedule, eta0=0.02, power_t=0.3, average=average)


def run_twin(optimizer, X, y, weights, **changes):
    """Return what the twin makes of the same problem."""
    o = optimizer.objective
    settings = {
        "n_epochs": N_EPOCHS, "loss_name": o.loss, "penalty": o.penalty, "alpha": o.alpha, "l1_ratio": o.l1_ratio,
        "epsilon": o.epsilon, "schedule": optimizer.schedule, "eta0": optimizer.eta0, "power_t": optimizer.power_t,
        "fit_intercept": o.fit_intercept, "average": optimizer.average, "positive_weight": o.positive_weights[0],
        "negative_weight": o.negative_weights[0],
    }  # fmt: skip
    return twin.sequential(X, y, weights, **{**settings, **changes})


@pytest.mark.parametrize("loss", LOSSES)
def test_every_member_equals_its_twin(loss):
    """Every loss with every penalty and schedule gives the model of the plain-numpy twin, to rounding."""
    X, y, weights = problem(task=LOSSES[loss].task)
    y = twin.targets_of(loss, y)
    for penalty, schedule in product(PENALTIES, SCHEDULES):
        optimizer = make(loss, penalty, schedule, alpha=0.5 if schedule in ("pegasos", "per_epoch") else 0.01)
        params, state = train(optimizer, make_shard(X, y, weights, shuffle=False))
        w, b, _, _, loss_sum = run_twin(optimizer, X, y, weights)
        member = f"{penalty}, {schedule}"
        np.testing.assert_allclose(params, np.r_[w, b], rtol=1e-9, atol=1e-11, err_msg=member)
        np.testing.assert_allclose(state.loss_sum, loss_sum, rtol=1e-9, err_msg=member)
        assert state.is_finite, member
        assert (state.t, state.n_seen, state.epoch) == (N_EPOCHS * N_ROWS + 1, N_ROWS, N_EPOCHS), member


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_sparse_rows_equal_dense_rows(penalty, schedule):
    """Rows with all entries stored give the same model sparse and dense, up to the slower sparse intercept."""
    X, y, weights = problem()
    X[::10] = 1.0
    optimizer = make("squared_hinge", penalty, schedule, alpha=0.3, fit_intercept=False, average=7)
    dense, dense_state = train(optimizer, make_shard(X, y, weights))
    sparse, sparse_state = train(optimizer, make_shard(sp.csr_array(X), y, weights))
    np.testing.assert_allclose(sparse, dense, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(sparse_state.averaged, dense_state.averaged, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("average", [0, 5])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rows_with_zeros_need_not_store_them(schedule, average):
    """Without L1 a sparse row equals the dense row with its zeros, whatever is shrunk or wiped between its entries."""
    X, y, weights = problem(density=0.2)
    optimizer = make("hinge", "l2", schedule, alpha=0.3, average=average)
    w, b, mean_w, mean_b, _ = run_twin(optimizer, X, y, weights, intercept_decay=0.01)
    params, state = train(optimizer, make_shard(sp.csr_array(X), y, weights, shuffle=False), cuts=(3, 4, 40))
    np.testing.assert_allclose(params, np.r_[w, b], rtol=1e-9, atol=1e-12)
    if average:
        np.testing.assert_allclose(state.averaged, np.r_[mean_w, mean_b], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("average", [1, 50])
def test_average_is_the_average_of_the_iterates(average, penalty):
    """The averaged model equals the mean of all models from step `average` on."""
    X, y, weights = problem(density=0.5)
    optimizer = make("log_loss", penalty, "optimal", average=average)
    params, state = train(optimizer, make_shard(X, y, weights, shuffle=False), cuts=(11, 30))
    w, b, mean_w, mean_b, _ = run_twin(optimizer, X, y, weights)
    np.testing.assert_allclose(params, np.r_[w, b], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(state.averaged, np.r_[mean_w, mean_b], rtol=1e-9, atol=1e-12)
    assert state.n_averaged == N_EPOCHS * N_ROWS - average + 1


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    ("penalty", "schedule"), [("l2", "optimal"), ("elasticnet", "invscaling"), ("l2", "per_epoch")]
)
def test_outputs_in_one_pass_equal_separate_runs(penalty, schedule, sparse):
    """K one-vs-rest outputs trained in one pass equal K binary runs, class weights and averages included."""
    k = 5
    X, y, weights = problem(n_outputs=k, density=0.6)
    data = sp.csr_array(X) if sparse else X
    positive, negative = tuple(np.linspace(0.5, 2.0, k)), tuple(np.linspace(1.5, 1.0, k))
    optimizer = make(
        "modified_huber", penalty, schedule, 0.2, 9, n_outputs=k, positive_weights=positive, negative_weights=negative
    )
    params, state = train(optimizer, make_shard(data, y, weights, shuffle=False))
    coef, intercept = unpack(params, N_FEATURES, k, sparse=sparse)
    mean_coef, mean_intercept = unpack(state.averaged, N_FEATURES, k, sparse=sparse)
    loss_sum = 0.0
    for c in range(k):
        own = {"positive_weights": positive[c : c + 1], "negative_weights": negative[c : c + 1]}
        single = replace(optimizer, objective=replace(optimizer.objective, n_outputs=1, **own))
        alone, alone_state = train(single, make_shard(data, np.where(y == c, 1.0, -1.0), weights, shuffle=False))
        np.testing.assert_allclose(np.r_[coef[c], intercept[c]], alone, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(np.r_[mean_coef[c], mean_intercept[c]], alone_state.averaged, rtol=1e-9, atol=1e-12)
        loss_sum += alone_state.loss_sum
    np.testing.assert_allclose(state.loss_sum, loss_sum, rtol=1e-9)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_an_epoch_in_pieces_equals_an_epoch_in_one(penalty, sparse):
    """run(0, n) equals run(0, k) then run(k, n): the scale folded between calls changes rounding only."""
    X, y, weights = problem(density=0.7)
    shard = make_shard(sp.csr_array(X) if sparse else X, y, weights)
    optimizer = make("squared_hinge", penalty, average=4)
    whole, whole_state = train(optimizer, shard)
    pieces, pieces_state = train(optimizer, shard, cuts=(0, 1, 2, 33))
    np.testing.assert_allclose(pieces, whole, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(pieces_state.averaged, whole_state.averaged, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_float32_stays_float32_and_close(n_outputs, sparse):
    """In float32 the model stays float32, within rounding of the float64 twin; the average of its steps is float64."""
    X, y, _ = problem(n_outputs=n_outputs, n_features=300, density=0.5)
    data = sp.csr_array(X) if sparse else X
    optimizer = make("log_loss", average=1, n_outputs=n_outputs)
    single, state = train(optimizer, make_shard(data.astype(np.float32), y, shuffle=False))
    double, _ = train(optimizer, make_shard(data, y, shuffle=False))
    assert single.dtype == np.float32
    assert state.averaged.dtype == np.float64
    np.testing.assert_allclose(single, double, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("sparse", [False, True])
def test_gradient_equals_its_twin(loss, sparse):
    """The summed gradient of a slice equals the twin's, and adds the losses of the slice."""
    X, y, weights = problem(task=LOSSES[loss].task, density=0.5)
    y, parameter = twin.targets_of(loss, y), twin.parameter_of(loss, 0.1)
    rng = np.random.default_rng(1)
    params = rng.standard_normal(N_FEATURES + 1)
    shard = make_shard(sp.csr_array(X) if sparse else X, y, weights, shuffle=False)
    optimizer = make(loss, positive_weights=(2.0,))
    state = optimizer.init(shard)
    out = np.full_like(params, np.nan)
    optimizer.gradient(params, shard, 5, 41, out, state)
    scaled = weights * np.where(y > 0, 2.0, 1.0)
    expected = twin.gradient(X[5:41], y[5:41], scaled[5:41], params[:-1], params[-1], loss, parameter)
    np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-12)
    scores = X[5:41] @ params[:-1] + params[-1]
    losses = [twin.loss(loss, t, p, parameter) for p, t in zip(scores, y[5:41], strict=True)]
    np.testing.assert_allclose(state.loss_sum, sum(losses), rtol=1e-10)
    assert state.n_seen == 36


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_step_on_one_row_equals_a_run_on_it(penalty, schedule):
    """The gradient of one row followed by a step is the sequential step on that row."""
    X, y, weights = problem()
    optimizer = make("huber", penalty, schedule, average=3)
    # First rates per epoch are so high that in some orders rounding grows a million times; in this one it does not.
    shard = make_shard(X, y, weights, shuffle=False)
    expected, expected_state = train(optimizer, shard, n_epochs=1)
    params, out = np.zeros(N_FEATURES + 1), np.empty(N_FEATURES + 1)
    state = optimizer.init(shard)
    state.start_epoch()
    for i in range(N_ROWS):
        optimizer.gradient(params, shard, i, i + 1, out, state)
        optimizer.step(params, out, 1, state)
        optimizer.step(params, out, 0, state)
    np.testing.assert_allclose(params, expected, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(state.averaged, expected_state.averaged, rtol=1e-10, atol=1e-13)
    assert state.t == expected_state.t
    assert state.loss_sum == pytest.approx(expected_state.loss_sum)


SHARED = ("constant", "optimal", "invscaling", "adaptive")


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", SGDClassifier.loss_functions)
def test_coefficients_equal_scikit_learns(loss, sparse):
    """In the order given, the coefficients after some epochs are those of scikit-learn's SGD."""
    task = LOSSES[loss].task
    X, y, weights = problem(task=task, density=0.5)
    data = sp.csr_array(X) if sparse else X
    peer_class = SGDClassifier if task == "classification" else SGDRegressor
    for penalty, schedule in product(PENALTIES, SHARED):
        peer = peer_class(
            loss=loss,
            penalty=penalty,
            alpha=0.01,
            max_iter=N_EPOCHS,
            tol=None,
            shuffle=False,
            learning_rate=schedule,
            eta0=0.02,
            power_t=0.3,
        )
        peer.fit(data, y, sample_weight=weights)
        params, _ = train(make(loss, penalty, schedule), make_shard(data, y, weights, shuffle=False))
        expected, member = np.r_[peer.coef_.ravel(), peer.intercept_], f"{penalty}, {schedule}"
        np.testing.assert_allclose(params, expected, rtol=1e-6, atol=1e-10, err_msg=member)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_evaluation_equals_numpy(n_outputs, sparse):
    """The sums of an evaluation are those numpy makes, and survive a round trip through a vector."""
    X, y, weights = problem(n_outputs=n_outputs, density=0.5)
    coef, intercept = np.random.default_rng(3).standard_normal((n_outputs, N_FEATURES)), np.zeros(n_outputs)
    objective = Objective("hinge", n_outputs=n_outputs, positive_weights=(2.0,) * n_outputs)
    shard = make_shard(sp.csr_array(X) if sparse else X, y, weights, shuffle=False)
    found = evaluate(pack(coef, intercept, sparse=sparse), shard, objective)
    scores = X @ coef.T
    signs = y[:, None] if n_outputs == 1 else np.where(np.arange(n_outputs) == y[:, None], 1.0, -1.0)
    losses = np.maximum(0.0, 1 - signs * scores) * np.where(signs > 0, 2.0, 1.0) * weights[:, None]
    hits = (scores[:, 0] > 0) == (y > 0) if n_outputs == 1 else scores.argmax(axis=1) == y
    np.testing.assert_allclose(found.loss_sum, losses.sum())
    np.testing.assert_allclose(found.n_correct, weights[hits].sum())
    np.testing.assert_allclose(found.weight_sum, weights.sum())
    assert found.n_rows == N_ROWS
    assert type(found).from_vector(found.as_vector()) == found
    halves = evaluate(pack(coef, intercept, sparse=sparse), shard, objective, 0, 20).as_vector()
    halves += evaluate(pack(coef, intercept, sparse=sparse), shard, objective, 20).as_vector()
    np.testing.assert_allclose(halves, found.as_vector())


@pytest.mark.parametrize("sparse", [False, True])
def test_divergence_is_seen(sparse):
    """A model that overflows is reported by the state and by the check of the model."""
    X, y, _ = problem(task="regression")
    X = (X * 1e30).astype(np.float32)
    shard = make_shard(sp.csr_array(X) if sparse else X, y)
    params, state = train(SGD(Objective("squared_error", None), "constant", eta0=1.0), shard)
    assert not state.is_finite
    assert not is_finite(params)
    assert is_finite(np.ones(3))
    assert is_finite(np.empty(0))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("shape", [(0, 4), (5, 1), (1, 1), (6, 0)])
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_small_shapes_train(shape, sparse, n_outputs):
    """No rows, one column, one row and no column all train, step and evaluate."""
    X = np.ones(shape)
    y = np.ones(shape[0])
    shard = make_shard(sp.csr_array(X) if sparse else X, y)
    optimizer = make("log_loss", "elasticnet", average=1, n_outputs=n_outputs)
    params, state = train(optimizer, shard)
    out = np.empty_like(params)
    optimizer.gradient(params, shard, 0, shard.n_rows, out, state)
    optimizer.step(params, out, shard.n_rows, state)
    assert np.isfinite(params).all()
    assert evaluate(params, shard, optimizer.objective).n_rows == shape[0]


def test_wrong_parameters_are_refused_by_name():
    """A wrong value gets an error that names the parameter."""
    for changes in ({"loss": "hnige"}, {"penalty": "l3"}, {"alpha": -1.0}, {"l1_ratio": 2.0}, {"epsilon": np.nan},
                    {"n_outputs": 0}, {"positive_weights": (1.0, 2.0)}):  # fmt: skip
        with pytest.raises(InvalidParameterError, match=next(iter(changes))):
            Objective(**changes)
    for changes in ({"schedule": "fast"}, {"schedule": "constant", "eta0": 0.0}, {"average": -1}):
        with pytest.raises(InvalidParameterError, match=list(changes)[-1]):
            SGD(Objective(), **changes)
    with pytest.raises(InvalidParameterError, match="alpha"):
        SGD(Objective(alpha=0.0), "pegasos")
