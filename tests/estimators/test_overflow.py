"""Rows so large that numbers end: fits say so, and say what to do, as scikit-learn's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import SGDClassifier as PlainClassifier
from sklearn.linear_model import SGDRegressor as PlainRegressor

from dsgd import SGDClassifier, SGDRegressor
from dsgd.errors import InvalidDataError
from dsgd.sim import SimulatedCluster

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
@pytest.mark.parametrize("call", ["fit", "partial_fit"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_where_scikit_learn_raises_so_do_we(form: str, call: str, dtype: Any) -> None:
    """Squared errors on rows of 1e20 (1e200 in float64) overflow in the first epoch, theirs and ours."""
    X, y = rows(1e20 if dtype is np.float32 else 1e200, dtype)
    X = FORMS[form](X)
    with pytest.raises(ValueError, match="under-/overflow"):
        getattr(PlainRegressor(random_state=0), call)(X, y)
    with pytest.raises(InvalidDataError, match=r"under-/overflow occurred at epoch #1.*StandardScaler"):
        getattr(SGDRegressor(random_state=0), call)(X, y)


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


def test_large_targets_are_no_overflow() -> None:
    """Targets of 1e30 are large, and the model that predicts them is none the worse for it."""
    X, y = rows(1.0, np.float32)
    model = SGDRegressor(random_state=0, max_iter=3, tol=None).fit(X, 1e30 * y)
    assert np.isfinite(model.predict(X)).all()
