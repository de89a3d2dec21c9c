"""Warnings and errors lead to what the user wrote: the line, the name, what to do."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import is_classifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dsgd import SGDClassifier, SGDRegressor
from dsgd.kernel_approximation import Nystroem
from dsgd.linear_model import ElasticNet, Lasso, LogisticRegression, PoissonRegressor
from dsgd.svm import SVC, SVR, LinearSVC, LinearSVR, NuSVC, OneClassSVM

RNG = np.random.default_rng(0)
X = RNG.standard_normal((120, 6))
SIGNAL = X @ RNG.standard_normal(6) + RNG.standard_normal(120)
LABELS = (SIGNAL > 0.0).astype(int)
#: Fits that warn.
WARN = [
    SGDClassifier(max_iter=1),
    SGDClassifier(max_iter=1, n_jobs=2),
    SGDClassifier(power_t=-0.5, learning_rate="invscaling", tol=None, max_iter=1),
    SGDRegressor(eta0=50.0, max_iter=2),
    SVC(max_iter=1),
    SVC(probability=True),
    NuSVC(max_iter=1),
    SVR(max_iter=1),
    OneClassSVM(max_iter=1),
    LinearSVC(max_iter=1, tol=1e-12),
    LinearSVR(max_iter=1, tol=1e-12),
    Lasso(alpha=1e-4, max_iter=1, tol=1e-12),
    ElasticNet(alpha=1e-4, max_iter=1, tol=1e-12),
    LogisticRegression(max_iter=1, tol=1e-12),
    PoissonRegressor(max_iter=1, tol=1e-12),
    Nystroem(n_components=1000),
]


def targets(estimator: Any) -> Any:
    """Return targets that suit an estimator."""
    if isinstance(estimator, PoissonRegressor):
        return np.exp(SIGNAL)
    return LABELS if is_classifier(estimator) else SIGNAL


@pytest.mark.parametrize("is_piped", [False, True])
@pytest.mark.parametrize("estimator", WARN, ids=str)
def test_warnings_are_of_the_line_that_called(estimator: Any, is_piped: bool) -> None:
    """However deep in the package, and in scikit-learn around it, a warning is met."""
    model = make_pipeline(StandardScaler(), estimator) if is_piped else estimator
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, targets(estimator))
    assert caught
    assert {warning.filename for warning in caught} == {__file__}
