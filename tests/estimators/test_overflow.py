"""Fits whose objective rises, and rows so large that numbers end, say so and what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import SGDClassifier as PlainClassifier

from dsgd import SGDClassifier, SGDRegressor
from dsgd.errors import DivergenceWarning, InvalidDataError
from dsgd.kernels.losses import LOSSES
from dsgd.local import SAGA, Objective, make_shard
from dsgd.local.objective import evaluate
from dsgd.sim import SimulatedCluster
from dsgd.sync import LocalSGD, MinibatchSGD

# What is tested here are fits that diverge.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

FORMS = {"dense": np.asarray, "sparse": sp.csr_array}


def rows(scale: float, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of some length, and targets that follow from them."""
    X = np.random.default_rng(0).standard_normal((200, 5))
    return (X * scale).astype(dtype), X @ np.arange(5.0)


def advice_of(call: Callable[[], Any]) -> str:
    """Return what a call says that refuses its rows; nothing if it takes them."""
    try:
        call()
    except InvalidDataError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("scale", [1e15, 1e20, 1e25, 1e30])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ranks", [{}, {"n_jobs": 2}, {"client": SimulatedCluster(3)}], ids=["one", "threads", "sim"])
@pytest.mark.parametrize("loss", ["squared_error", "huber", "squared_epsilon_insensitive"])
def test_a_regressor_never_predicts_what_is_no_number(scale: float, form: str, ranks: Any, loss: str) -> None:
    """On rows of float32 a fit, or a part of one, ends in finite predictions or in the advice to scale them."""
    X, y = rows(scale, np.float32)
    X = FORMS[form](X)
    for call in ("fit", "partial_fit"):
        model = SGDRegressor(loss=loss, max_iter=5, tol=None, random_state=0, **ranks)
        advice = advice_of(lambda call=call, model=model: getattr(model, call)(X, y))
        assert "Scaling input data" in advice or np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [1e10, 1e20])
def test_where_scikit_learn_trains_so_do_we(form: str, scale: float) -> None:
    """Steps of a hinge are bounded: a classifier learns such rows; our decisions are finite where theirs are NaN."""
    X, y = rows(scale, np.float32)
    X, y = FORMS[form](X), y > 0
    PlainClassifier(random_state=0, max_iter=20, tol=None).fit(X, y)
    model = SGDClassifier(random_state=0, max_iter=20, tol=None).fit(X, y)
    assert np.isfinite(model.decision_function(X)).all()
    assert model.score(X, y) > 0.7


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ranks", [{}, {"n_jobs": 2}], ids=["one", "threads"])
@pytest.mark.parametrize("loss", ["hinge", "log_loss", "modified_huber", "squared_hinge"])
@pytest.mark.parametrize("scale", [1e15, 1e25, 1e30])
def test_a_classifier_never_decides_by_what_is_no_number(form: str, ranks: Any, loss: str, scale: float) -> None:
    """Where decisions leave the range of float32 a classifier has them in float64, or its fit gives the advice."""
    X, y = rows(scale, np.float32)
    X, y = FORMS[form](X), y > 0
    model = SGDClassifier(loss=loss, random_state=0, max_iter=5, tol=None, **ranks)
    advice = advice_of(lambda: model.fit(X, y))
    assert "Scaling input data" in advice or np.isfinite(model.decision_function(X)).all()
    assert advice or model.score(X, y) > 0.6


RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 5)) * [1.0, 1.0, 30.0, 1.0, 1.0]
SCALED = X / X.std(axis=0)
SIGNAL = SCALED @ [1.0, 2.0, 0.1, 0.0, 1.0]
MEANS = np.exp(0.5 * SIGNAL)
LABELS = np.digitize(SIGNAL, [-1.0, 1.0])
RARE = np.arange(300) % 20 == 0
FAST = {"learning_rate": "constant", "eta0": 10.0, "random_state": 0, "max_iter": 30}


@pytest.mark.parametrize(
    ("estimator", "X", "y"),
    [
        (SGDRegressor(random_state=0, eta0=0.1), X, SIGNAL),
        (SGDRegressor(random_state=0, loss="poisson", max_iter=20), X, MEANS),
        (SGDRegressor(random_state=0, loss="gamma", max_iter=20), X, MEANS),
        (SGDRegressor(random_state=0, loss="tweedie", max_iter=20), X, MEANS),
        (SGDRegressor(random_state=0, average=True, eta0=0.1), sp.csr_array(X), SIGNAL),
        (SGDRegressor(random_state=0, optimizer=SAGA(step=0.4), max_iter=20), SCALED, SIGNAL),
        (SGDRegressor(**FAST, loss="huber", epsilon=1.0), X, SIGNAL),
        (SGDRegressor(**FAST, loss="huber", epsilon=1.0, n_jobs=2, sync=LocalSGD(8)), X, SIGNAL),
        (SGDRegressor(**FAST, loss="huber", epsilon=1.0, n_jobs=2, sync=MinibatchSGD(8)), X, SIGNAL),
        (SGDClassifier(**FAST, tol=None), SCALED, RARE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_fit_that_rises_says_so_and_has_not_converged(estimator: Any, X: Any, y: Any) -> None:
    """One warning names both objectives and the remedy; it is not advice to train on."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = estimator.fit(X, y)
    (warning,) = caught
    assert warning.category is DivergenceWarning
    assert warning.filename == __file__
    text = str(warning.message)
    assert "StandardScaler" in text
    assert repr(model.optimizer if model.optimizer else model.eta0) in text
    assert not model.fit_report_["converged"]


@pytest.mark.parametrize("y", [SIGNAL, MEANS, LABELS, LABELS > 0])
def test_fits_that_fall_say_nothing(y: Any) -> None:
    """Nor do perceptrons, whose loss of a model of zeros is its least, or fits that go on from a good model."""
    is_values = y.dtype == np.float64
    losses = [n for n, row in LOSSES.items() if (row.task == "regression") == is_values]
    for loss in losses if is_values and y.min() > 0.0 else [n for n in losses if not LOSSES[n].has_log_link]:
        kind: Any = SGDRegressor if is_values else SGDClassifier
        model = kind(loss=loss, random_state=0, eta0=0.001, learning_rate="constant", tol=None, max_iter=5)
        model.set_params(warm_start=True).fit(SCALED, y)
        assert model.fit(SCALED, y).fit_report_["diverged"] is False


@pytest.mark.parametrize("loss", sorted(set(LOSSES) - {"softmax"}))
def test_the_loss_of_zeros_is_that_of_the_kernels(loss: str) -> None:
    """In numpy, without a row, as the kernel that evaluates a model of zeros."""
    row = LOSSES[loss]
    targets = RNG.choice([-1.0, 1.0], 50) if row.task == "classification" else RNG.gamma(1.0, 2.0, 50)
    targets = targets if row.has_log_link or row.task == "classification" else targets - 1.0
    parameter = 1.5 if loss == "tweedie" else 0.3
    shard = make_shard(np.zeros((50, 1)), targets, shuffle=False)
    found = evaluate(np.zeros(2), shard, Objective(loss, epsilon=parameter))
    assert row.at_zero(targets, parameter).mean() == pytest.approx(found.mean_loss)
