"""What sample weights mean: the objective, for any weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsgd import SGDRegressor
from dsgd.local import SAGA

RNG = np.random.default_rng(0)
X = RNG.standard_normal((200, 4))
Y = X @ [1.0, -2.0, 0.0, 0.5] + 1.0 + RNG.standard_normal(200)
WEIGHTS = {
    "below a half": np.full(200, 0.3),
    "just below one and a half": np.full(200, 1.5 - 1e-9),
    "just above": np.full(200, 1.5 + 1e-9),
    "drawn": RNG.uniform(0.0, 4.0, 200),
    "tiny and zero": np.where(RNG.random(200) < 0.3, 0.0, 1e-3 * RNG.random(200)),
    "whole": RNG.integers(0, 4, 200).astype(float),
    "large": RNG.uniform(10.0, 300.0, 200),
}


def minimum(weights: np.ndarray, alpha: float) -> tuple[np.ndarray, float]:
    """Return the least squares of weighted rows with a squared penalty, by its normal equations in rational form."""
    share = weights / weights.sum()
    centre, mean = share @ X, float(share @ Y)
    A, b = X - centre, Y - mean
    coef = np.linalg.solve((A * share[:, None]).T @ A + alpha * np.eye(4), (A * share[:, None]).T @ b)
    return coef, mean - centre @ coef


@pytest.mark.parametrize("name", sorted(WEIGHTS))
def test_the_loss_is_the_mean_by_the_weights_as_given(name: str) -> None:
    """The model minimises the mean loss by the weights plus the penalty, whatever their size and however rounded."""
    coef, intercept = minimum(WEIGHTS[name], 0.5)
    options: dict[str, Any] = {"alpha": 0.5, "optimizer": SAGA(), "learning_rate": "constant", "tol": None}
    eta0 = 0.02 / max(1.0, WEIGHTS[name].max() / WEIGHTS[name].mean() / 4)
    for n_jobs in (1, 2):
        model = SGDRegressor(max_iter=200, eta0=eta0, random_state=0, n_jobs=n_jobs, **options)
        model.fit(X, Y, sample_weight=WEIGHTS[name])
        np.testing.assert_allclose(model.coef_, coef, atol=2e-4 if n_jobs == 1 else 2e-2)
        np.testing.assert_allclose(model.intercept_, intercept, atol=2e-4 if n_jobs == 1 else 2e-2)
