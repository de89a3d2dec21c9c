"""Rows that several fits train on: the bits of arrays, nothing done twice, nothing left behind."""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from dsgd import Gang, Rows, SGDClassifier, SGDRegressor
from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.local import Momentum
from dsgd.sim import SimulatedCluster
from dsgd.svm import SVC, LinearSVC, OneClassSVM

#: Stages that a fit on rows whose order is kept has no need of.
OF_INGEST = {"check", "order", "pack"}


def make(kind: str = "dense", dtype: Any = np.float64, n: int = 2400) -> tuple[Any, np.ndarray]:
    """Return rows of a kind and labels."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n, 7)).astype(dtype)
    y = (X @ rng.standard_normal(7) > 0).astype(int)
    if kind == "csr":
        X = sparse.csr_array(np.where(np.abs(X) < 0.6, 0, X))
    elif kind == "duplicates":  # entries of one place that must be added up
        twice = np.repeat(np.arange(7), 2)
        X = sparse.csr_array((np.repeat(X.ravel(), 2), np.tile(twice, n), np.arange(0, 14 * n + 1, 14)), shape=X.shape)
    elif kind == "whole":
        X = np.round(3 * X).astype(np.int64)
    elif kind == "columns first":
        X = np.asfortranarray(X)
    elif kind == "table":
        X = pytest.importorskip("pandas").DataFrame(X, columns=list("abcdefg"))
    return X, y


def stages(model: Any) -> set[str]:
    """Return the stages of the last fit that took time, or touched bytes."""
    return {
        entry["stage"] for entry in model.fit_report_["stages"] if entry["bytes"] or entry["stage"] not in OF_INGEST
    }


def same(one: Any, other: Any) -> bool:
    """Return whether two models are equal to the bit."""
    return one.coef_.tobytes() == other.coef_.tobytes() and one.intercept_.tobytes() == other.intercept_.tobytes()


@pytest.mark.parametrize("kind", ["dense", "csr", "duplicates", "whole", "columns first", "table"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_jobs": 2},
        {"n_jobs": 2, "early_stopping": True},
        {"early_stopping": True, "class_weight": "balanced"},
        {"shuffle": False},
        {"client": Gang(out_of_core=True)},
        {"average": True, "optimizer": Momentum(0.5, batch=4), "learning_rate": "constant"},
        {"client": SimulatedCluster(3, "10GbE")},
    ],
    ids=str,
)
def test_a_fit_on_rows_is_that_on_arrays(kind: str, options: dict[str, Any]) -> None:
    X, y = make(kind)
    weights = np.random.default_rng(1).integers(0, 4, len(y)).astype(float) if "n_jobs" in options else None
    parameters = {"max_iter": 3, "tol": None, "random_state": 0, **options}
    rows = Rows(X, y, weights)
    plain = SGDClassifier(**parameters).fit(X, y, sample_weight=weights)
    for _ in range(2):
        model = SGDClassifier(**parameters).fit(rows)
        assert same(model, plain)
        assert model.loss_curve_ == plain.loss_curve_
        assert model.n_features_in_ == 7
        assert list(getattr(model, "feature_names_in_", [])) == list(getattr(plain, "feature_names_in_", []))
    assert model.score(rows) == plain.score(X, y, weights)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_partial_fit_and_regression(dtype: Any) -> None:
    X, _ = make(dtype=dtype)
    target = X[:, 0] - X[:, 1]
    rows, plain, model = Rows(X, target), SGDRegressor(random_state=0), SGDRegressor(random_state=0)
    for _ in range(3):
        plain.partial_fit(X, target)
        model.partial_fit(rows)
        assert same(model, plain)
    assert model.coef_.dtype == dtype
    assert OF_INGEST.isdisjoint(stages(model))
    assert model.score(rows) == plain.score(X, target)


def test_what_parameters_do_not_change_is_done_once() -> None:
    X, y = make()
    rows = Rows(X, y)
    first = SGDClassifier(random_state=0, max_iter=2, tol=None).fit(rows)
    assert stages(first) & OF_INGEST == {"order"}  # they were checked when `rows` were made
    again = SGDClassifier(random_state=0, max_iter=3, tol=None, alpha=0.1, loss="log_loss").fit(rows)
    assert OF_INGEST.isdisjoint(stages(again))
    # Another seed has another order of the same rows, and so has an average.
    for other in (SGDClassifier(random_state=1), SGDClassifier(random_state=0, average=True)):
        other.set_params(max_iter=2, tol=None).fit(rows)
        assert stages(other) & OF_INGEST == {"order"}


@pytest.mark.parametrize(("keep", "is_kept"), [(0, False), (1, False), (2, True)])
def test_so_many_orders_are_kept(keep: int, is_kept: bool) -> None:
    X, y = make()
    rows = Rows(X, y, keep=keep)
    model = SGDClassifier(max_iter=1, tol=None)
    for seed in (0, 1, 0):
        model.set_params(random_state=seed).fit(rows)
    assert ("order" not in stages(model)) is is_kept
    model.fit(rows)
    assert ("order" not in stages(model)) is (keep > 0)
    rows.release()
    model.fit(rows)
    assert "order" in stages(model)


def test_packed_rows_end_with_the_rows() -> None:
    X, y = make()
    with Rows(X, y) as rows:
        model = SGDClassifier(random_state=0, max_iter=1, tol=None).fit(rows)
    assert sys.getrefcount(rows) == 2
    model.fit(rows)  # what was released is made again
    assert "order" in stages(model)


def test_fits_in_several_threads_share_them() -> None:
    X, y = make()
    rows = Rows(X, y)
    plain = SGDClassifier(random_state=0, max_iter=3, tol=None).fit(X, y)
    with ThreadPoolExecutor(4) as pool:
        fits = pool.map(lambda _: SGDClassifier(random_state=0, max_iter=3, tol=None).fit(rows), range(8))
        assert all(same(model, plain) for model in fits)


def test_rows_that_were_changed_are_refused() -> None:
    X, y = make()
    rows = Rows(X, y)
    X *= 2.0
    with pytest.raises(InvalidDataError, match="were changed after"):
        SGDClassifier().fit(rows)
    X /= 2.0
    SGDClassifier(max_iter=1, tol=None).fit(rows)


def test_what_cannot_be_trained_on_is_refused_at_once() -> None:
    X, y = make()
    for given, options, error, match in (
        ((np.where(X > 2.5, np.inf, X), y), {}, ValueError, "infinity"),
        ((np.where(X > 2.5, np.nan, X).tolist(), y), {}, ValueError, "NaN"),
        ((X, y[:7]), {}, InvalidDataError, "2400 rows and y has 7"),
        ((X, y, -np.ones(len(y))), {}, InvalidDataError, "Negative values"),
        ((X, y), {"keep": -1}, InvalidParameterError, r"Rows\(keep="),
        ((X, y), {"client": SimulatedCluster(2, "10GbE")}, InvalidParameterError, "simulated cluster"),
    ):
        with pytest.raises(error, match=match):
            Rows(*given, **options)  # type: ignore[arg-type]
    rows = Rows(X, y)
    with pytest.raises(InvalidDataError, match="Got Rows"):
        Rows(rows)
    for model in (SGDClassifier(), LinearSVC()):
        with pytest.raises(InvalidDataError, match="must be None where X is Rows"):
            model.fit(rows, y)
    with pytest.raises(InvalidDataError, match="are no array"):
        LinearSVC().fit(X, rows)
    with pytest.raises(InvalidDataError, match="predict"):
        SGDClassifier(max_iter=1, tol=None).fit(rows).predict(rows)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(rows)
    with pytest.raises(InvalidDataError, match="targets"):
        SGDClassifier().fit(Rows(X))


def test_names_of_columns_are_compared() -> None:
    X, y = make("table")
    model = SGDClassifier(random_state=0).partial_fit(Rows(X, y), classes=[0, 1])
    with pytest.raises(ValueError, match="feature names"):
        model.partial_fit(Rows(X[list("gfedcba")], y))
    with pytest.raises(ValueError, match="feature names"):
        model.partial_fit(Rows(X[["a", "b"]], y))


@pytest.mark.parametrize("machine", [SVC(), LinearSVC(random_state=0), OneClassSVM()], ids=repr)
def test_other_estimators_take_what_rows_hold(machine: Any) -> None:
    X, y = make(n=120)
    weights = np.linspace(0.5, 2.0, len(y))
    rows = Rows(X, y, weights)
    found = machine.fit(rows).decision_function(X)
    np.testing.assert_array_equal(found, machine.fit(X, y, sample_weight=weights).decision_function(X))
