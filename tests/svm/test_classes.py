"""Weights of classes, and classes that a fold or a bootstrap lacks, as scikit-learn has them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import linear_model as plain_linear
from sklearn import svm as plain
from sklearn.base import clone
from sklearn.model_selection import KFold, cross_val_predict

from dsgd import SGDClassifier
from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.linear_model import LogisticRegression
from dsgd.svm import SVC, LinearSVC, NuSVC, svm_path

X = np.random.default_rng(0).normal(size=(60, 2))
#: The last class is rare, and the last of folds in order has it alone.
Y = np.r_[np.arange(56) % 2, [2] * 4]
PAIRS = [
    (SVC(tol=1e-6), plain.SVC(tol=1e-6)),
    (NuSVC(nu=0.1, tol=1e-6), plain.NuSVC(nu=0.1, tol=1e-6)),
    (LinearSVC(tol=1e-8), plain.LinearSVC(tol=1e-8, random_state=0)),
    (LogisticRegression(tol=1e-8), plain_linear.LogisticRegression(tol=1e-8)),
]
CLASSIFIERS = [SVC(), NuSVC(nu=0.1), LinearSVC(), LogisticRegression(), SGDClassifier(alpha=0.05, random_state=0)]


def name_of(value: object) -> str | None:
    return type(value).__name__ if hasattr(value, "fit") else None


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=name_of)
def test_weights_may_name_classes_that_a_fold_lacks(ours, theirs):
    """A cross-validation whose folds lack a class takes the weights of all classes, and predicts as scikit-learn's."""
    weights = {0: 1.0, 1: 2.0, 2: 10.0}
    if isinstance(ours, NuSVC):
        weights = dict.fromkeys(weights, 1.0)  # theirs ignores them
    found = [
        cross_val_predict(clone(model).set_params(class_weight=weights), X, Y, cv=KFold(5)) for model in (ours, theirs)
    ]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("model", CLASSIFIERS, ids=name_of)
@pytest.mark.parametrize("weights", [{0: -1.0}, {0: 1.0, 5: 1.0}, {"a": 1.0}, {0: np.nan}, {0: "x"}, [1, 2], "other"])
def test_wrong_weights_of_classes_are_named(model, weights):
    """Weights below zero, of no number, and of classes that are not there while others have none, are our errors."""
    with pytest.raises(InvalidParameterError, match="class_weight"):
        clone(model).set_params(class_weight=weights).fit(X, Y)


@pytest.mark.parametrize("model", CLASSIFIERS, ids=name_of)
def test_no_class_has_weight(model):
    """Weights of zero for all classes, or for those that a fold has, are our error, which names the classes."""
    weights = {0: 0.0, 1: 0.0, 2: 1.0}
    with pytest.raises(InvalidParameterError, match=r"class_weight=.*all classes of y the weight zero: \[0, 1\]"):
        clone(model).set_params(class_weight=weights).fit(X[:56], Y[:56])


@pytest.mark.parametrize("way", ["class_weight", "sample_weight", "balanced"])
@pytest.mark.parametrize("model", CLASSIFIERS, ids=name_of)
def test_a_class_of_weight_zero_has_no_influence(model, way):
    """Whichever weight is zero, it is never predicted, and predictions of exact models are those without its rows."""
    y = np.where(np.arange(60) % 4 == 0, 3, Y)
    kept = y != 1
    other = clone(model)
    if way == "class_weight":
        found = clone(model).set_params(class_weight={1: 0.0, 2: 3.0}).fit(X, y)
        other.set_params(class_weight={2: 3.0})
    else:
        options = {"class_weight": "balanced" if way == "balanced" else None}
        found = clone(model).set_params(**options).fit(X, y, sample_weight=kept.astype(float))
        other.set_params(**options)
    assert 1 not in found.predict(X)
    # Weights of classes are those of an output's own rows in LIBLINEAR: others see them as the rest.
    if not isinstance(model, SGDClassifier) and (way != "class_weight" or not isinstance(model, LinearSVC)):
        other.fit(X[kept], y[kept])
        np.testing.assert_array_equal(found.predict(X), other.predict(X))
        scores = found.decision_function(X)[:, np.isin(found.classes_, other.classes_)]
        np.testing.assert_allclose(scores, other.decision_function(X), atol=1e-5)


@pytest.mark.parametrize("rare", [1, 2])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("pair", PAIRS[2:], ids=lambda pair: name_of(pair[0]))
def test_a_class_of_weight_zero_is_as_in_scikit_learn(pair, fit_intercept, rare):
    """Linear models keep the class, which may leave one only, and its probability is next to nothing."""
    y = np.where(Y == 2, rare, Y)
    options = {"class_weight": {rare: 0.0}, "fit_intercept": fit_intercept}
    ours, theirs = (clone(model).set_params(**options).fit(X, y) for model in pair)
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    if hasattr(ours, "predict_proba"):
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-3)
    else:
        np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-3)


def test_a_warm_start_takes_up_a_class_that_had_no_weight():
    """A class that gets weight after a fit without is trained as from the start."""
    model = LogisticRegression(tol=1e-10, warm_start=True).fit(X, Y, Y != 2)
    other = LogisticRegression(tol=1e-10).fit(X, Y)
    np.testing.assert_allclose(model.fit(X, Y).intercept_, other.intercept_, atol=1e-4)
    with pytest.raises(InvalidDataError, match="both a sample weight and a class weight"):
        LogisticRegression(class_weight={0: 0.0}).fit(X, Y, Y == 0)


@pytest.mark.parametrize("model", [SVC(C=10.0), NuSVC(nu=0.1)], ids=name_of)
@pytest.mark.parametrize("options", [{}, {"class_weight": "balanced"}, {"class_weight": {2: 3.0}}], ids=str)
def test_a_class_without_weight_is_as_if_its_rows_were_not_there(model, options):
    """Rows of weight zero count for nothing, and those of a whole class, or of all but two, are no exception."""
    weights = np.where(Y == 1, 0.0, 1.0)
    other = clone(model).set_params(**options).fit(X[Y != 1], Y[Y != 1])
    found = clone(model).set_params(**options).fit(X, Y, sample_weight=weights)
    np.testing.assert_array_equal(found.classes_, [0, 2])
    np.testing.assert_array_equal(found.predict(X), other.predict(X))
    np.testing.assert_array_equal(found.decision_function(X), other.decision_function(X))
    np.testing.assert_array_equal(found.to_sklearn().predict(X), other.predict(X))
    with pytest.raises(InvalidDataError, match="same class"):
        clone(model).fit(X, Y, sample_weight=(Y == 1).astype(float))


@pytest.mark.parametrize("model", [SVC(tol=1e-8), NuSVC(nu=0.1, tol=1e-8)], ids=name_of)
def test_balanced_weights_count_rows_and_sample_weights_repeat_them(model):
    """Balanced weights are those of the rows as given; with them, a whole sample weight is copies of its row."""
    repeats = np.random.default_rng(1).integers(1, 4, size=len(Y))
    counted = {label: len(Y) / (3 * np.sum(label == Y)) for label in range(3)}
    found = clone(model).set_params(class_weight="balanced").fit(X, Y, sample_weight=repeats)
    copied = clone(model).set_params(class_weight=counted).fit(np.repeat(X, repeats, axis=0), np.repeat(Y, repeats))
    np.testing.assert_allclose(found.decision_function(X), copied.decision_function(X), atol=1e-5)


def test_a_path_forgets_classes_without_weight():
    """Each point of a grid forgets them anew."""
    path = svm_path(X, Y, Cs=[1.0, 10.0], gammas=[0.5, 1.0], sample_weight=np.where(Y == 1, 0.0, 1.0))
    for number in range(4):
        point = path.points[number]
        other = SVC(C=point.C, gamma=point.gamma).fit(X[Y != 1], Y[Y != 1])
        np.testing.assert_array_equal(path.estimator(number).predict(X), other.predict(X))
