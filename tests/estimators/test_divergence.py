"""Fits that end above the objective that they began at say so."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dsgd import SGDClassifier, SGDRegressor
from dsgd.errors import DivergenceWarning
from dsgd.kernels.losses import LOSSES
from dsgd.local import SAGA, Objective, make_shard
from dsgd.local.objective import evaluate
from dsgd.sync import LocalSGD, MinibatchSGD

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


def test_a_classifier_that_is_right_is_not_said_to_diverge() -> None:
    """Scores that are far too large decide as well as others; but above its start a fit has not converged."""
    noisy = np.where(np.arange(300) % 10 == 0, SIGNAL < 0.0, SIGNAL > 0.0)
    model = SGDClassifier(**FAST).fit(SCALED, noisy)
    assert model.score(SCALED, noisy) > 0.6
    assert model.history_[-1, "train_loss"] > 1.0
    assert not model.fit_report_["converged"]
    assert not model.fit_report_["diverged"]


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
