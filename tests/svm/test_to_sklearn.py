"""to_sklearn and from_sklearn of every SVM give the other's estimator, fitted, with the same predictions."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import svm as plain
from sklearn.datasets import make_classification
from sklearn.metrics.pairwise import rbf_kernel

from dsgd.svm import SVC, SVR, LinearSVC, LinearSVR, NuSVC, NuSVR, OneClassSVM

MACHINES = [SVC, NuSVC, SVR, NuSVR, OneClassSVM]


def inner(A: Any, B: Any) -> Any:
    """A user's kernel function."""
    return np.asarray((A @ B.T).todense() if sp.issparse(A) else A @ B.T) / 4.0


def check_same(model: Any, X: Any) -> None:
    """Check types and predictions of what to_sklearn gives, after a pickle, and of what from_sklearn makes of it."""
    other = pickle.loads(pickle.dumps(model.to_sklearn()))
    assert type(other) is getattr(plain, type(model).__name__)
    check_predictions(model, other, X)
    check_predictions(type(model).from_sklearn(other), other, X)


def check_predictions(model: Any, other: Any, X: Any) -> None:
    """Check that our estimator and scikit-learn's predict the same."""
    ours, theirs = model.predict(X), other.predict(X)
    if hasattr(model, "decision_function"):
        values = model.decision_function(X)
        np.testing.assert_allclose(other.decision_function(X), values, rtol=1e-9, atol=1e-9)
        is_certain = np.abs(values.reshape(len(ours), -1)).min(axis=1) > 1e-9
        assert np.array_equal(ours[is_certain], theirs[is_certain])
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    assert getattr(other, "n_features_in_", X.shape[1]) == model.n_features_in_


@pytest.mark.parametrize("form", ["dense", "float32", "csr"])
@pytest.mark.parametrize("kernel", ["linear", "rbf", "poly", "sigmoid", "precomputed", inner])
@pytest.mark.parametrize(("machine", "n_classes"), [*((machine, 2) for machine in MACHINES), (SVC, 4), (NuSVC, 4)])
def test_kernel_machines(machine, kernel, form, n_classes):
    """A machine of any kernel, form of rows and number of classes predicts the same as scikit-learn's."""
    X, y = make_classification(
        90, 6, n_informative=5, n_redundant=0, n_classes=n_classes, class_sep=2.0, random_state=0
    )
    if kernel == "precomputed":
        if form == "csr":
            return  # refused by both
        X = rbf_kernel(X)
    X = sp.csr_matrix(X) if form == "csr" else X.astype(np.float32 if form == "float32" else np.float64)
    options = {"nu": 0.6} if machine in (NuSVC, NuSVR, OneClassSVM) else {}
    check_same(machine(kernel=kernel, coef0=0.3, **options).fit(X, y), X)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("machine", [LinearSVC, LinearSVR])
def test_linear_machines(machine, fit_intercept, form, n_classes):
    """A linear machine predicts the same as scikit-learn's with its weights."""
    X, y = make_classification(90, 6, n_informative=5, n_redundant=0, n_classes=n_classes, random_state=0)
    X = sp.csr_matrix(X) if form == "csr" else X
    check_same(machine(fit_intercept=fit_intercept).fit(X, y), X)


def test_labels_names_and_votes_are_kept():
    """Labels of any type, names of features, class weights and the shape of decision values go along."""
    pandas = pytest.importorskip("pandas")
    X, y = make_classification(120, 4, n_informative=4, n_redundant=0, n_classes=3, random_state=0)
    frame = pandas.DataFrame(X, columns=list("abcd"))
    model = SVC(decision_function_shape="ovo", class_weight="balanced").fit(frame, np.array(["u", "v", "w"])[y])
    other = model.to_sklearn()
    assert list(other.feature_names_in_) == list("abcd")
    assert np.array_equal(other.predict(frame), model.predict(frame))
    assert other.decision_function(frame).shape == (120, 3)
    np.testing.assert_allclose(other.class_weight_, model.class_weight_)
    np.testing.assert_allclose(other.dual_coef_, model.dual_coef_)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities_go_along(n_classes):
    """A machine with probabilities gives the same ones there, but for where LIBSVM stops to couple those of pairs."""
    X, y = make_classification(120, 4, n_informative=4, n_redundant=0, n_classes=n_classes, random_state=0)
    model = SVC(probability=True, random_state=0).fit(X, y)
    other = model.to_sklearn()
    np.testing.assert_allclose(other.predict_proba(X), model.predict_proba(X), atol=5e-3)
    np.testing.assert_allclose(SVC.from_sklearn(other).predict_proba(X), model.predict_proba(X), rtol=1e-9)


def test_machines_that_are_not_fitted_say_so():
    """to_sklearn before fit raises as predict does."""
    for machine in (SVC, LinearSVR):
        with pytest.raises(ValueError, match="not fitted"):
            machine().to_sklearn()


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("kernel", ["linear", "rbf", "precomputed", inner])
@pytest.mark.parametrize("machine", MACHINES)
def test_machines_of_libsvm_are_taken_over(machine, kernel, form):
    """What LIBSVM has trained predicts the same here, whatever its kernel, rows and labels, and can be saved."""
    X, y = make_classification(90, 6, n_informative=5, n_redundant=0, n_classes=3, class_sep=2.0, random_state=0)
    if kernel == "precomputed" and form == "csr":
        return  # refused by both
    X = rbf_kernel(X) if kernel == "precomputed" else sp.csr_matrix(X) if form == "csr" else X
    target = np.array(["u", "v", "w"])[y] if machine in (SVC, NuSVC) else X[:, [0]].sum(axis=1) if form == "csr" else y
    other = getattr(plain, machine.__name__)(kernel=kernel, cache_size=17).fit(X, np.asarray(target).ravel())
    if form == "csr" and machine not in (SVC, NuSVC):
        other._n_support = np.array([5, 0], dtype=np.int32)  # as theirs may say where there are no classes
    model = machine.from_sklearn(other)
    check_predictions(model, other, X)
    check_predictions(model, model.to_sklearn(), X)
    assert model.cache_size == 17
    assert model.n_support_.sum() == len(other.support_)


@pytest.mark.parametrize("machine", [LinearSVC, LinearSVR])
def test_machines_of_liblinear_are_taken_over(machine):
    """What LIBLINEAR has trained predicts the same here."""
    X, y = make_classification(90, 6, n_informative=5, n_redundant=0, n_classes=3, random_state=0)
    other = getattr(plain, machine.__name__)(C=0.3, random_state=0).fit(X, y)
    check_predictions(machine.from_sklearn(other), other, X)


def test_texts_under_a_kernel_function_are_taken_over():
    """Rows that are no vectors go along in both directions."""

    def common(A: Any, B: Any) -> Any:
        return np.array([[len(set(a) & set(b)) for b in B] for a in A], dtype=float)

    texts, y = ["sun", "gun", "run", "tea", "sea", "pea"], [0, 0, 0, 1, 1, 1]
    model = SVC(kernel=common).fit(texts, y)
    again = SVC.from_sklearn(model.to_sklearn())
    assert again.decision_function(["fun", "lea"]).tolist() == model.decision_function(["fun", "lea"]).tolist()


def test_from_sklearn_takes_the_class_of_its_name():
    """Another class, or one that is not fitted, is an error that says what is taken."""
    X, y = make_classification(40, 4, random_state=0)
    with pytest.raises(ValueError, match=r"\(model=\.\.\.\) must be a fitted sklearn\.svm\.SVC\. Got NuSVC"):
        SVC.from_sklearn(plain.NuSVC().fit(X, y))
    with pytest.raises(ValueError, match="not fitted"):
        LinearSVC.from_sklearn(plain.LinearSVC())


@pytest.mark.parametrize(
    ("model", "X", "y"),
    [
        (SVC(kernel="linear"), [[0.0], [0.0], [1.0], [1.0]], [0, 1, 0, 1]),
        (SVC(gamma=1.0), [[-1.0], [1.0]], [0, 1]),
        (NuSVC(kernel="linear"), [[-1.0], [1.0]], [0, 1]),
        (SVC(kernel="linear"), [[-1.0], [1.0], [5.0]], [0, 1, 2]),
        (OneClassSVM(kernel="linear", nu=0.5), [[0.0]] * 4, None),
    ],
    ids=["equal rows", "rbf", "NuSVC", "three classes", "OneClassSVM"],
)
def test_a_score_of_zero_names_the_class_of_libsvm(model, X, y):
    """On the border the second class of a pair is named, and an outlier, before and after conversion."""
    on_border = [[0.0]]
    model.fit(X, y)
    scores = model.decision_function(on_border)
    assert y == [0, 1, 2] or scores[0] == 0.0
    other = model.to_sklearn()
    expected = type(other)(**other.get_params()).fit(X, y).predict(on_border)
    for machine in (model, other, type(model).from_sklearn(other)):
        np.testing.assert_array_equal(machine.predict(on_border), expected)
