"""Weights of classes, and classes that a fold or a bootstrap lacks, as scikit-learn has them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import linear_model as plain_linear
from sklearn import svm as plain
from sklearn.base import clone
from sklearn.ensemble import BaggingClassifier
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
CLASSIFIERS = [SVC(), NuSVC(nu=0.1), LinearSVC(), LogisticRegression(), SGDClassifier()]


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


def test_a_class_of_weight_zero_is_as_in_liblinear_or_refused_by_name():
    """LinearSVC trains without the losses of the class; where no machine follows, an error names the class."""
    weights, two = {0: 0.0}, Y[:56]
    ours, theirs = PAIRS[2]
    ours, theirs = (clone(model).set_params(class_weight=weights).fit(X[:56], two) for model in (ours, theirs))
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-4)
    for model in (SVC(), NuSVC(nu=0.1), LogisticRegression()):
        with pytest.raises(InvalidParameterError, match=r"class_weight=.*weight zero: \[0\]"):
            clone(model).set_params(class_weight=weights).fit(X[:56], two)


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


def test_a_path_forgets_classes_without_weight():
    """Each point of a grid forgets them anew."""
    path = svm_path(X, Y, Cs=[1.0, 10.0], gammas=[0.5, 1.0], sample_weight=np.where(Y == 1, 0.0, 1.0))
    for number in range(4):
        point = path.points[number]
        other = SVC(C=point.C, gamma=point.gamma).fit(X[Y != 1], Y[Y != 1])
        np.testing.assert_array_equal(path.estimator(number).predict(X), other.predict(X))


@pytest.mark.filterwarnings("ignore:The margin between")
@pytest.mark.parametrize("model", [SVC(), NuSVC(nu=0.02), LinearSVC()], ids=name_of)
def test_bootstraps_may_miss_a_class(model):
    """Bagging gives rows that were not drawn the weight zero, and so all of a rare class now and then."""
    y = np.where(np.arange(60) < 58, Y % 2, 2)
    bag = BaggingClassifier(model, n_estimators=10, random_state=0).fit(X, y)
    assert set(bag.predict(X)) <= {0, 1, 2}
