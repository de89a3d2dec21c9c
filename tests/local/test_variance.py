"""SAGA and SVRG: their twins, the exact optimum on one rank and on several, and what is kept of rows."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression

from dsgd import Gang, SGDClassifier, SGDRegressor
from dsgd.compress import ErrorFeedback, TopK
from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError
from dsgd.kernels.state import INTERCEPT_RATE
from dsgd.local import SAGA, SGD, SVRG, Importance, Momentum, Objective, make_shard
from dsgd.local.objective import n_params
from dsgd.sim import SimulatedCluster
from dsgd.sync import ASGD, AnytimeSGD, Hogwild, LocalSGD, MinibatchSGD
from reference.variance import reduced

METHODS = [SAGA(), SVRG()]
ALPHA = 0.05
FIT: dict[str, Any] = {"loss": "log_loss", "alpha": ALPHA, "tol": None, "random_state": 1}


def problem(n: int = 80, d: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n, d))
    return X, np.sign(X @ rng.standard_normal(d) + 0.5 * rng.standard_normal(n)), rng.uniform(0.2, 1.0, n)


def optimum(X: np.ndarray, y: np.ndarray, weights: Any = None) -> LogisticRegression:
    """Return the peer at the optimum of the same objective."""
    total = len(y) if weights is None else weights.sum()
    saga = LogisticRegression(solver="saga", C=1.0 / (total * ALPHA), tol=1e-12, max_iter=100_000)
    return saga.fit(X, y, sample_weight=weights)


def plan(reduction: Any, n_outputs: int = 1, loss: str = "log_loss") -> SGD:
    objective = Objective(loss, "l2", ALPHA, n_outputs=n_outputs)
    return SGD(objective, schedule="constant", eta0=1.0, reduction=reduction)


def begun(sgd: SGD, shard: Any, n_epochs: int) -> tuple[np.ndarray, Any]:
    """Return model and state after some epochs."""
    params, state = np.zeros(n_params(shard.n_features, sgd.n_outputs), shard.dtype), sgd.init(shard)
    assert sgd.reduction is not None
    state.rate_factor = sgd.reduction.length(sgd.reduction.curvature(shard, sgd.objective)[0])
    for _ in range(n_epochs):
        state.start_epoch()
        sgd.arrange(shard, state)
        sgd.run(params, shard, 0, shard.n_rows, state)
        sgd.settle(params, shard, state, is_last=False)
    return params, state


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("reduction", [SAGA(0.1), SVRG(0.1), SVRG(0.1, every=2)], ids=repr)
def test_methods_equal_their_twins(reduction: Any, kind: str, n_outputs: int) -> None:
    """Both methods give the model of their plain-numpy twins, to rounding, for dense and lazily updated sparse rows."""
    X, y, weights = problem()
    X = np.where(np.abs(X) > 0.7, X, 0.0)
    y = y if n_outputs == 1 else np.arange(80) % 3.0
    shard = make_shard(X if kind == "dense" else sp.csr_array(X), y, weights, shuffle=False)
    params, state = begun(plan(reduction, n_outputs), shard, 4)
    W, b = reduced(
        X,
        y,
        weights,
        method=type(reduction).__name__.lower(),
        n_epochs=4,
        step=0.1,
        loss_name="log_loss",
        alpha=ALPHA,
        key=int(state.reduction.key),
        n_outputs=n_outputs,
        every=getattr(reduction, "every", 1),
    )
    own = params[:-n_outputs].reshape(4, n_outputs).T if kind == "csr" else params[:-n_outputs].reshape(n_outputs, 4)
    np.testing.assert_allclose(own, W, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(params[-n_outputs:], b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("reduction", METHODS, ids=repr)
def test_the_expected_step_is_that_of_the_mean_gradient(reduction: Any, kind: str) -> None:
    """The mean of one step over all rows is exactly a step of full gradient descent, whatever is remembered."""
    X, y, weights = problem()
    shard = make_shard(X if kind == "dense" else sp.csr_array(X), y, weights, shuffle=False)
    sgd = plan(reduction)
    model, state = begun(sgd, shard, 3)
    model += 0.3
    gradient, full = np.empty_like(model), SGD(Objective("log_loss", "l2", ALPHA), "constant", eta0=state.rate_factor)
    full_state = full.init(shard)
    full_state.constants[INTERCEPT_RATE] = 1.0  # of sparse rows a hundredth, else
    full.gradient(model, shard, 0, 80, gradient, full_state)
    expected = model.copy()
    full.step(expected, gradient / 80, 80, full_state)
    seen: dict[int, np.ndarray] = {}
    while len(seen) < 80:
        at, step = copy.deepcopy(state), model.copy()
        sgd.run(step, shard, len(seen), len(seen) + 1, at)
        seen[int(at.reduction.rows[0])] = step
        state.start_epoch()
    steps = list(seen.values())
    np.testing.assert_allclose(np.mean(steps, axis=0), expected, rtol=1e-10, atol=1e-13)
    assert np.std(steps, axis=0).max() > 1e-4


@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("reduction", METHODS, ids=repr)
def test_the_optimum_is_that_of_the_peer(reduction: Any, kind: str) -> None:
    """Weights and intercept are within 1e-8 of those of scikit-learn's solver, with and without sample weights."""
    X, y, weights = problem()
    rows = X if kind == "dense" else sp.csr_array(X)
    for given in (None, weights):
        peer = optimum(X, y, given)
        model = SGDClassifier(**FIT, optimizer=reduction, max_iter=300).fit(rows, y, sample_weight=given)
        np.testing.assert_allclose(model.coef_, peer.coef_, atol=1e-8)
        np.testing.assert_allclose(model.intercept_, peer.intercept_, atol=1e-8)


@pytest.mark.parametrize(
    ("reduction", "sync"),
    [(SAGA(0.4), MinibatchSGD(20)), (SVRG(0.4), MinibatchSGD(20)), (SVRG(), LocalSGD(16)), (SVRG(), LocalSGD(80))],
    ids=repr,
)
def test_ranks_find_the_optimum_of_all_rows(reduction: Any, sync: Any) -> None:
    """With gradients exchanged both, and with models averaged SVRG, are exact on uneven ranks of different rows."""
    X, y, _ = problem(100)
    order = np.argsort(X[:, 0])
    blocks = [(X[part], y[part]) for part in np.split(order, [15, 60])]
    peer = optimum(X, y)
    cluster = SimulatedCluster(3, "10GbE")
    model = SGDClassifier(**FIT, optimizer=reduction, sync=sync, max_iter=300, client=cluster).fit(blocks)
    np.testing.assert_allclose(model.coef_, peer.coef_, atol=1e-8)
    np.testing.assert_allclose(model.intercept_, peer.intercept_, atol=1e-8)


@pytest.mark.parametrize("sync", [MinibatchSGD(4), MinibatchSGD(20), LocalSGD(5)], ids=repr)
@pytest.mark.parametrize("ranks", [1, 3])
def test_corrected_steps_are_those_of_full_gradients(ranks: int, sync: Any) -> None:
    """Where all rows have one curvature a, a step of SVRG on any rank leaves (1 - step a) of the way to the minimum.

    The gradient of a row less that at the anchor is then ``a (w - anchor)``, whatever the row: with the full gradient
    at the anchor, summed over ranks, it is the full gradient at w.
    """
    a, step, y = 0.25, 0.02, np.random.default_rng(0).normal(3.0, 1.0, 60)
    blocks = [(np.full((part.size, 1), np.sqrt(a)), part) for part in np.array_split(np.sort(y), ranks)]
    fit: dict[str, Any] = {"penalty": None, "fit_intercept": False, "tol": None, "optimizer": SVRG(step)}
    fit |= {"sync": sync, "random_state": 0}
    cluster = SimulatedCluster(ranks, "10GbE")
    first, last = (SGDRegressor(**fit, max_iter=n, client=cluster).fit(blocks) for n in (1, 4))
    minimum = y.mean() / np.sqrt(a)
    left = (last.coef_[0] - minimum) / (first.coef_[0] - minimum)
    assert left == pytest.approx((1.0 - step * a) ** (last.t_ - first.t_), rel=1e-9)
    assert abs(left - 1.0) > 0.03


@pytest.mark.parametrize("reduction", METHODS, ids=repr)
def test_other_rows_or_ranks_begin_anew(reduction: Any, tmp_path: Path) -> None:
    """After a call on as many other rows, and on other ranks than a checkpoint's, the optimum is that of the rows."""
    X, y, _ = problem(100)
    model = SGDClassifier(**FIT, optimizer=reduction).partial_fit(X[::-1] + 1.0, y, classes=[-1, 1])
    for _ in range(100):
        model.partial_fit(X, y)
    np.testing.assert_allclose(model.coef_, optimum(X, y).coef_, atol=1e-6)
    fit = {**FIT, "sync": MinibatchSGD(20), "optimizer": type(reduction)(0.4)}
    SGDClassifier(**fit, n_jobs=3, max_iter=3, client=Gang(checkpoint=tmp_path)).fit(X, y)
    other = SGDClassifier(**fit, n_jobs=2, max_iter=200, client=Gang(resume_from=tmp_path)).fit(X, y)
    np.testing.assert_allclose(other.coef_, optimum(X, y).coef_, atol=1e-6)


@pytest.mark.slow
def test_rows_may_be_in_a_file_or_in_single_precision() -> None:
    """Rows in a file give the bits of rows in memory; float32 ones come as near to the optimum as they can."""
    X, y, _ = problem()
    fit = {**FIT, "optimizer": SVRG(), "max_iter": 100}
    inside = SGDClassifier(**fit).fit(X, y)
    assert SGDClassifier(**fit, client=Gang(out_of_core=True)).fit(X, y).coef_.tobytes() == inside.coef_.tobytes()
    for reduction in METHODS:
        single = SGDClassifier(**{**fit, "optimizer": reduction}).fit(X.astype(np.float32), y)
        np.testing.assert_allclose(single.coef_, inside.coef_, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"loss": "hinge"}, "SAGA.*corner.*log_loss.*'hinge'"),
        ({"loss": "quantile"}, "SAGA.*corner.*'quantile'"),
        ({"loss": "poisson"}, r"SAGA.*length.*loss='poisson'.*SAGA\(step=...\)"),
        ({"penalty": "l1"}, "SAGA.*L1"),
        ({"average": True}, "SAGA.*average"),
        ({"sampling": "importance"}, "SAGA.*Importance"),
        ({"sync": Hogwild()}, "Hogwild.*SAGA"),
        ({"sync": AnytimeSGD()}, "AnytimeSGD.*SAGA"),
        ({"sync": ASGD()}, "ASGD.*SAGA"),
        ({"sync": MinibatchSGD(compressor=ErrorFeedback(TopK(0.1)))}, "TopK.*SAGA"),
        ({"client": Gang(out_of_core=True)}, "out_of_core.*SAGA"),
        ({"optimizer": SAGA(1000.0), "alpha": 0.01}, "step.*alpha"),
    ],
)
def test_what_cannot_be_exact_is_refused(options: dict[str, Any], named: str) -> None:
    """Losses, penalties and parts with which a method would not be what it says are refused, both named."""
    kind = SGDRegressor if options.get("loss") in SGDRegressor.loss_functions else SGDClassifier
    with pytest.raises(IncompatiblePartsError, match=named):
        kind(**{"loss": "log_loss", "optimizer": SAGA(), **options}).fit(np.eye(2), [0, 1])


@pytest.mark.parametrize(
    "make",
    [
        lambda: SAGA(0.0),
        lambda: SGD(Objective("log_loss"), "constant", eta0=0.1, reduction=SAGA()),
        lambda: SGD(Objective("log_loss"), "constant", eta0=1.0, rule=Momentum(), reduction=SAGA()),
    ],
)
def test_values_out_of_range_are_refused(make: Any) -> None:
    """Every parameter is checked."""
    with pytest.raises(InvalidParameterError, match=r"must|steps of its own"):
        make()
    assert Importance(0.5) == Importance()


@pytest.mark.parametrize("reduction", METHODS, ids=repr)
@pytest.mark.parametrize("value", [1e30, 1e200, 1e6])
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_row_that_leaves_no_step_for_others_is_refused(reduction: Any, value: float, n_jobs: int) -> None:
    """Where the curvature of one row overflows, or stops all others from moving the model, a fit says so."""
    X, y, _ = problem()
    rows = X.copy()
    rows[3, 1] = value
    for kind in (np.float64, np.float32) if value < 1e38 else (np.float64,):
        with pytest.raises(InvalidDataError, match="scale it with RobustScaler"):
            SGDClassifier(**FIT, optimizer=reduction, n_jobs=n_jobs).fit(rows.astype(kind), y)
    rows[3, 1] = 30.0
    SGDClassifier(**FIT, optimizer=reduction, n_jobs=n_jobs, max_iter=2).fit(rows, y)
