"""Losses of the user's own: the bits of those of the table that they repeat, and errors before training."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from dsgd import CustomLoss, Gang, SGDClassifier, SGDRegressor
from dsgd.errors import CheckpointError, IncompatiblePartsError, InvalidParameterError, ModelFileError
from dsgd.local import SAGA
from dsgd.model_selection import SGDSearchCV

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 6))
Y = X @ RNG.standard_normal(6) + RNG.standard_normal(300)
LABELS = (Y > 0.3).astype(int)


def log_loss(y: float, p: float) -> float:
    """The log loss, written as in the kernel."""
    z = p * y
    return math.log1p(math.exp(-abs(z))) + max(-z, 0.0)


def log_slope(y: float, p: float) -> float:
    """Its slope."""
    z = p * y
    decay = math.exp(-abs(z))
    return -y * (decay if z > 0.0 else 1.0) / (1.0 + decay)


def half_square(y: float, p: float) -> float:
    """Half the squared error."""
    return 0.5 * (p - y) * (p - y)


def difference(y: float, p: float) -> float:
    """Its slope."""
    return p - y


def huber(y: float, p: float) -> float:
    """The Huber loss of threshold 0.1."""
    r = p - y
    slope = min(max(r, -0.1), 0.1)
    return slope * (r - 0.5 * slope)


def huber_slope(y: float, p: float) -> float:
    """Its slope."""
    return min(max(p - y, -0.1), 0.1)


LOG_LOSS = CustomLoss(log_loss, log_slope, curvature=0.25)
SQUARED_ERROR = CustomLoss(half_square, difference, curvature=1.0)
HUBER = CustomLoss(huber, huber_slope, curvature=1.0)


def fitted(kind: type, loss: Any, rows: Any, y: Any, **options: Any) -> Any:
    """Return a model after three epochs."""
    return kind(loss=loss, max_iter=3, tol=None, random_state=0, **options).fit(rows, y)


def assert_same(own: Any, named: Any) -> None:
    """Check that two models and their training losses have the same bits."""
    assert own.coef_.tobytes() == named.coef_.tobytes()
    assert own.intercept_.tobytes() == named.intercept_.tobytes()
    assert own.loss_curve_ == named.loss_curve_


@pytest.mark.parametrize(
    ("kind", "own", "name", "y"),
    [
        (SGDClassifier, LOG_LOSS, "log_loss", LABELS),
        (SGDClassifier, LOG_LOSS, "log_loss", np.digitize(Y, [-0.5, 0.5])),
        (SGDRegressor, SQUARED_ERROR, "squared_error", Y),
        (SGDRegressor, HUBER, "huber", Y),
    ],
)
@pytest.mark.parametrize("rows", [X, sp.csr_array(np.where(np.abs(X) > 0.5, X, 0.0))], ids=["dense", "csr"])
def test_functions_that_repeat_a_loss_give_its_bits(kind: type, own: CustomLoss, name: str, y: Any, rows: Any) -> None:
    """By row and in fused rounds of threads, of one output and of several."""
    for options in ({}, {"n_jobs": 2, "sync": 20}):
        assert_same(*(fitted(kind, loss, rows, y, **options) for loss in (own, name)))


@pytest.mark.parametrize("options", [{"optimizer": SAGA()}, {"sampling": "importance"}, {"early_stopping": True}])
def test_other_kernels_call_the_functions_too(options: dict[str, Any]) -> None:
    """Reduced variance, with steps from the curvature, drawn rows and evaluation give the bits of the named loss."""
    own, named = (fitted(SGDClassifier, loss, X, LABELS, **options) for loss in (LOG_LOSS, "log_loss"))
    assert_same(own, named)
    assert [line.get("valid_score") for line in own.history_] == [line.get("valid_score") for line in named.history_]


def test_columns_of_a_search_call_the_functions() -> None:
    """A search over losses finds the scores of the named ones."""
    base = SGDRegressor(max_iter=3, tol=None, random_state=0)
    search = SGDSearchCV(base, {"loss": [HUBER, "huber", SQUARED_ERROR]}, cv=3)
    own, named, other = search.fit(X, Y).cv_results_["mean_test_score"]
    assert own == named != other


def test_rows_of_files_call_the_functions(tmp_path: Any) -> None:
    """Tables read from a path, and rows kept on disk, train to the bits of the named loss."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path = str(tmp_path / "rows.parquet")
    pandas.DataFrame(X, columns=list("abcdef")).assign(y=LABELS).to_parquet(path)
    for options in ({}, {"n_jobs": 2, "sync": 20, "client": Gang(out_of_core=True)}):
        own, named = (fitted(SGDClassifier, loss, path, "y", **options) for loss in (LOG_LOSS, "log_loss"))
        assert_same(own, named)
        np.testing.assert_array_equal(own.predict(path), named.predict(path))


def test_it_travels_and_continues(tmp_path: Any) -> None:
    """Clones, pickles and checkpoints go on with the same functions, to the same bits."""
    whole = fitted(SGDRegressor, HUBER, X, Y)
    assert clone(whole).loss == HUBER == pickle.loads(pickle.dumps(HUBER)) == CustomLoss(huber, huber_slope, 1.0)
    assert_same(clone(pickle.loads(pickle.dumps(whole))).fit(X, Y), whole)
    folder = tmp_path / "checkpoints"
    clone(whole).set_params(max_iter=2, client__checkpoint=folder).fit(X, Y)
    assert_same(clone(whole).set_params(client__resume_from=folder).fit(X, Y), whole)
    parts = SGDRegressor(HUBER, shuffle=False, random_state=0)
    for _ in range(3):
        parts = pickle.loads(pickle.dumps(parts)).partial_fit(X, Y)
    assert parts.coef_.tobytes() == fitted(SGDRegressor, "huber", X, Y, shuffle=False).coef_.tobytes()


def expectile(level: float) -> CustomLoss:
    """The expectile loss of a level, in functions that have one name for all levels."""
    return CustomLoss(
        lambda y, p: (level if y > p else 1.0 - level) * (p - y) ** 2,
        lambda y, p: 2.0 * (level if y > p else 1.0 - level) * (p - y),
    )


def test_a_checkpoint_of_another_loss_is_refused(tmp_path: Any) -> None:
    """Losses whose functions have equal names and other numbers or code are others; the same, made again, goes on."""
    folder, whole = tmp_path / "checkpoints", fitted(SGDRegressor, expectile(0.9), X, Y)
    fitted(SGDRegressor, expectile(0.9), X, Y, client=Gang(checkpoint=folder))
    assert_same(fitted(SGDRegressor, expectile(0.9), X, Y, client=Gang(resume_from=folder)), whole)
    with pytest.raises(CheckpointError, match=r"loss\.value was .*lambda"):
        fitted(SGDRegressor, expectile(0.8), X, Y, client=Gang(resume_from=folder))
    square, half = (
        CustomLoss(lambda y, p: (p - y) ** 2, lambda y, p: 2.0 * (p - y)),
        CustomLoss(lambda y, p: 0.5 * (p - y) ** 2, lambda y, p: p - y),
    )
    fitted(SGDRegressor, square, X, Y, client=Gang(checkpoint=tmp_path / "square"))
    with pytest.raises(CheckpointError, match=r"loss\.slope was .*lambda"):
        fitted(SGDRegressor, half, X, Y, client=Gang(resume_from=tmp_path / "square"))


def test_what_needs_the_name_of_a_loss_is_refused_or_left_out(tmp_path: Any) -> None:
    """Files say what to do instead, there are no probabilities, and scikit-learn's model predicts the same."""
    model = fitted(SGDClassifier, LOG_LOSS, X, LABELS)
    with pytest.raises(ModelFileError, match=r"SGDClassifier\(loss=...\) is.*CustomLoss.*joblib"):
        model.save(tmp_path / "model.dsgd")
    assert not hasattr(model, "predict_proba")
    np.testing.assert_array_equal(model.to_sklearn().predict(X), model.predict(X))


@pytest.mark.parametrize(
    ("value", "slope", "message"),
    [
        (lambda y: y, difference, "value=.*two arguments"),
        (half_square, 3, r"slope=.*must be a function"),
        (half_square, lambda y, p: str(p), "slope=.*cannot compile"),
        (half_square, lambda y, p: 2.0 * (p - y), "slope of .* is not that of its value. At y=1.0 and p=0.0 it is -2"),
        (lambda y, p: 0.5 * p * p, lambda y, p: p * p / p, "slope of .* must be finite. At y=1.0 and p=0.0 it is nan"),
        (lambda y, p: math.sqrt(p), lambda y, p: 0.5, "value of .* must be finite"),
    ],
)
def test_bad_functions_are_refused_before_training(value: Any, slope: Any, message: str) -> None:
    """The message names the function, and where it is wrong."""
    with pytest.raises(InvalidParameterError, match=message):
        SGDRegressor(CustomLoss(value, slope)).fit(X, Y)


def test_a_missing_curvature_is_missed() -> None:
    """Steps whose length comes from it ask for it, and a wrong one is no curvature."""
    with pytest.raises(IncompatiblePartsError, match=r"curvature=\.\.\."):
        fitted(SGDClassifier, CustomLoss(log_loss, log_slope), X, LABELS, optimizer=SAGA())
    with pytest.raises(InvalidParameterError, match="curvature"):
        CustomLoss(log_loss, log_slope, curvature=0.0)
