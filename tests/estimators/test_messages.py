"""Warnings and errors lead to what the user wrote: the line, the name, what to do."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dsgd import SGDClassifier, SGDRegressor
from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.kernel_approximation import Nystroem
from dsgd.linear_model import ElasticNet, Lasso, LogisticRegression, PoissonRegressor, Ridge
from dsgd.local import SAGA, SVRG, Adagrad, Adam, Momentum
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
    return (
        LABELS
        if type(estimator).__name__ in ("SGDClassifier", "LogisticRegression") or "SVC" in str(estimator)
        else SIGNAL
    )


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


@pytest.mark.parametrize("estimator", [SGDClassifier(), SVC(), LinearSVC(), Ridge(), LogisticRegression()], ids=str)
def test_queries_and_missing_targets_say_what_to_do(estimator: Any) -> None:
    """A query of Polars names its ``collect``, of rows and of targets; missing targets name the rows to drop."""
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(X, schema=list("abcdef"))
    labels = polars.Series("y", LABELS)
    with pytest.raises(InvalidDataError, match=r"X is a LazyFrame of polars.*Pass X\.collect\(\)"):
        estimator.fit(frame.lazy(), LABELS)
    with pytest.raises(InvalidDataError, match=r"y is a LazyFrame of polars.*Pass y\.collect\(\)"):
        estimator.fit(frame, labels.to_frame().lazy())
    missing = polars.Series("y", [None, *LABELS[1:].tolist()])
    with pytest.raises(InvalidDataError, match="rop the rows without a value"):
        estimator.fit(frame, missing)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("adam", Adam()),
        ("momentum:0.8", Momentum(0.8)),
        ("adagrad", Adagrad()),
        ("saga", SAGA()),
        ("svrg:every=2", SVRG(every=2)),
    ],
)
def test_a_rule_may_be_named(name: str, rule: Any) -> None:
    """The model of the name is that of the object, to the bit; other texts, such as paths of code, are refused."""
    options: dict[str, Any] = {
        "learning_rate": "constant",
        "loss": "log_loss",
        "random_state": 0,
        "tol": None,
        "max_iter": 3,
    }
    named, made = (SGDClassifier(optimizer=one, **options).fit(X, LABELS) for one in (name, rule))
    np.testing.assert_array_equal(named.coef_, made.coef_)
    assert named.get_params()["optimizer"] == name
    for text in ("sgd", "os:system:command=true", "Adam", "none"):
        with pytest.raises(InvalidParameterError, match="adam, lars, gd, saga, svrg"):
            SGDClassifier(optimizer=text, **options).fit(X, LABELS)
