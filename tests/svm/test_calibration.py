"""Calibration curves of SVMs: scikit-learn's for the same folds, and of machines that never saw the rows."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn.svm
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import StratifiedKFold

import dsgd
from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.linear_model.fits import Packer
from dsgd.runtime import run_on_threads
from dsgd.svm import SVC, LinearSVC, NuSVC
from dsgd.svm.calibration import couple, fit_curve
from dsgd.svm.distributed.linear import LinearPacker, train_linear
from dsgd.svm.estimators.kernel_base import near_start
from svm_gangs import blocks_of, fit_on_ranks

METHODS = ("sigmoid", "isotonic")


def blobs(n_classes: int, n: int = 240) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows of classes that overlap, some of them twice, their names, and weights, some of them zero."""
    rng = np.random.default_rng(0)
    y = rng.integers(n_classes, size=n)
    X = rng.normal(size=(n, 4)) + 1.5 * np.eye(3, 4)[y]
    X[50:60], y[50:60] = X[40:50], y[40:50]
    return X, np.array(["eel", "bee", "ape"])[y], rng.choice([0.0, 0.5, 1.0, 2.0], size=n)


def folds_of(random_state: int | None) -> StratifiedKFold:
    """Return scikit-learn's folds of a random_state."""
    return StratifiedKFold(5, shuffle=random_state is not None, random_state=random_state)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("ours", "theirs", "n_classes"),
    [
        (SVC(gamma=0.2, C=3.0, class_weight="balanced", tol=1e-8), sklearn.svm.SVC, 2),
        (NuSVC(gamma=0.2, nu=0.3, tol=1e-8), sklearn.svm.NuSVC, 2),
        (LinearSVC(loss="hinge", tol=1e-9, max_iter=10**5), sklearn.svm.LinearSVC, 2),
        (LinearSVC(C=2.0, class_weight="balanced", tol=1e-10), sklearn.svm.LinearSVC, 3),
        (LinearSVC(penalty="l1", dual=False, tol=1e-10, max_iter=10**4), sklearn.svm.LinearSVC, 3),
    ],
    ids=["svc", "nu", "hinge", "three", "l1 of three"],
)
def test_probabilities_are_those_of_calibrated_classifier_cv(ours, theirs, n_classes, method):
    """With weights, equal rows and names of classes the curves are scikit-learn's; labels are those without curves."""
    X, y, weights = blobs(n_classes)
    for random_state, rows, counts in ((None, X, weights), (3, sp.csr_matrix(X), None)):
        model = clone(ours).set_params(probability=method, random_state=random_state).fit(rows, y, counts)
        known = theirs().get_params()
        settings = {name: value for name, value in ours.get_params().items() if name in known}
        plain = theirs(**settings)
        cv = folds_of(random_state)
        twin = CalibratedClassifierCV(plain, method=method, cv=cv, ensemble=False).fit(X, y, counts)
        # Scores that are equal at the optimum may be in either order here and there.
        apart = np.abs(model.predict_proba(X) - twin.predict_proba(X))
        assert np.quantile(apart, 0.9) < 2e-4
        assert np.abs(apart).mean() < 2e-3
    bare = clone(ours).set_params(random_state=3).fit(rows, y)
    np.testing.assert_array_equal(model.decision_function(rows), bare.decision_function(rows))
    assert not hasattr(bare, "predict_proba")


@pytest.mark.parametrize("method", METHODS)
def test_several_classes_are_coupled_from_curves_of_their_pairs(method):
    """The curve of a pair is that of machines of four fifths of its rows, by the stratified folds of all rows."""
    X, y, weights = blobs(3)
    model = SVC(gamma=0.2, tol=1e-8, probability=method, random_state=5).fit(X, y, weights)
    fold = np.empty(len(y), dtype=int)
    for number, (_, out) in enumerate(folds_of(5).split(X, y)):
        fold[out] = number
    positive = []
    for (a, b), curve in zip(combinations(model.classes_, 2), model._curves[1], strict=True):
        rows = np.flatnonzero((y == a) | (y == b))
        scores = np.empty(len(rows))
        for number in range(5):
            kept, out = rows[fold[rows] != number], np.flatnonzero(fold[rows] == number)
            machine = sklearn.svm.SVC(gamma=0.2, tol=1e-8).fit(X[kept], y[kept], weights[kept])
            scores[out] = -machine.decision_function(X[rows[out]])
        expected = fit_curve(method, scores, y[rows] == a, weights[rows])
        column = -sklearn.svm.SVC(gamma=0.2, tol=1e-8).fit(X[rows], y[rows], weights[rows]).decision_function(X)
        if method == "sigmoid":
            np.testing.assert_allclose(curve, expected, rtol=1e-4)
            positive.append(1 / (1 + np.exp(curve[0, 0] * column + curve[1, 0])))
        else:
            np.testing.assert_allclose(np.interp(column, *curve), np.interp(column, *expected), atol=1e-4)
            positive.append(np.interp(column, *curve))
    np.testing.assert_allclose(model.predict_proba(X), couple(np.column_stack(positive), 3), atol=1e-4)


@pytest.mark.parametrize("make", [SVC, NuSVC, LinearSVC])
def test_curves_are_saved_and_handed_to_scikit_learn(make, tmp_path: Path):
    """Files keep the curves to the bit, scikit-learn's estimator has them, and pairs of three classes are refused."""
    for method in METHODS:
        X, y, _ = blobs(2)
        model = make(probability=method, random_state=1, **{"nu": 0.2} if make is NuSVC else {}).fit(X, y)
        p = model.predict_proba(X)
        model.save(tmp_path / method)
        np.testing.assert_array_equal(dsgd.load(tmp_path / method).predict_log_proba(X)[p > 0], np.log(p[p > 0]))
        theirs = model.to_sklearn()
        assert type(theirs) is CalibratedClassifierCV
        np.testing.assert_allclose(theirs.predict_proba(X), p, atol=1e-10)
        other = METHODS[method == METHODS[0]]
        with pytest.raises(NotFittedError, match=f"not fitted with probability='{other}'"):
            clone(model).fit(X, y).set_params(probability=other).predict_proba(X)
        X, y, _ = blobs(3)
        model.fit(X, y)
        if make is LinearSVC:
            np.testing.assert_array_equal(model.to_sklearn().predict_proba(X), model.predict_proba(X))
        else:
            with pytest.raises(InvalidParameterError, match="calibrates each class against the rest"):
                model.to_sklearn()


@pytest.mark.parametrize("make", [SVC, LinearSVC])
def test_what_cannot_be_calibrated_is_refused(make):
    """Classes with fewer rows than folds, and kinds of curves that there are none of."""
    X, y, weights = blobs(2)
    few = np.r_[np.flatnonzero(y == "eel"), np.flatnonzero(y == "bee")[:4]]
    with pytest.raises(InvalidDataError, match=r"less than 5 examples for at least one class: \['bee'\]"):
        make(probability="sigmoid").fit(X[few], y[few])
    with pytest.raises(InvalidParameterError, match=r'"sigmoid" or "isotonic"\. Got \'temperature\''):
        make(probability="temperature").fit(X, y)
    if make is SVC:
        weights[y == "bee"] = 0.0
        weights[np.flatnonzero(y == "bee")[0]] = 1.0
        with pytest.raises(InvalidDataError, match="same class where a fifth of the rows is held out"):
            SVC(probability="sigmoid").fit(X, y, weights)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("method", METHODS)
def test_ranks_fit_the_curves_of_one_process(method, n_classes):
    """Ranks draw the folds of all rows, whoever holds them; pairs that are dealt out bring their curves along."""
    X, y, weights = blobs(n_classes)
    model = SVC(gamma=0.2, tol=1e-8, probability=method, random_state=2)
    expected = clone(model).fit(X, y, weights)
    fit_on_ranks(model, X, blocks_of(X, y, weights, 2), np.unique(y))
    np.testing.assert_allclose(model.predict_proba(X), expected.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize(("n_classes", "loss"), [(2, "hinge"), (3, "squared_hinge")])
def test_ranks_fit_the_curves_of_a_linear_machine(n_classes, loss):
    """Scores are computed where rows are; the curves are those of one process, on every number of ranks."""
    X, y, weights = blobs(n_classes)
    model = LinearSVC(loss=loss, tol=1e-9, max_iter=10**5, probability="sigmoid", random_state=2)
    expected = clone(model).fit(X, y, weights)
    model.classes_ = np.unique(y)
    job = model._make_job(0)
    packer = LinearPacker(Packer(model.classes_, X.shape[1], "float64", sparse=False), bias=1.0, seed=0, holds_out=True)
    for n_ranks in (1, 2):
        parts = [packer(part, number) for number, part in enumerate(blocks_of(X, y, weights, n_ranks))]
        found = run_on_threads(train_linear, parts, (job,), timeout_s=30.0).value
        np.testing.assert_allclose(np.hstack(found.curves), np.hstack(expected._curves[1]), atol=1e-3)


@given(st.integers(2, 30), st.integers(0, 1000))
def test_a_start_near_a_solution_is_feasible(n, seed):
    """Whatever rows are held out, it is within the bounds, the sum of y α is zero, and no variable was raised."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    alpha = np.minimum(rng.exponential(size=n), 1.0)
    upper = np.where(rng.random(n) < 0.2, 0.0, 1.0)
    start = near_start(y, alpha, upper)
    assert abs(y @ start) < 1e-12 * n
    assert (start >= 0).all()
    assert (start <= np.minimum(alpha, upper)).all()
    kept = np.minimum(alpha, upper)
    # What is taken away is no more than the sides differ by.
    assert (kept - start).sum() == pytest.approx(abs(y @ kept), abs=1e-12)
