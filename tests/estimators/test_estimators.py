"""The estimators in this process: scikit-learn's contract, and what dsgd adds to it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import make_blobs, make_classification, make_regression
from sklearn.linear_model import SGDClassifier as PlainClassifier
from sklearn.linear_model import SGDRegressor as PlainRegressor
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from dsgd import Gang, SGDClassifier, SGDRegressor
from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.inputs.blocks import count_threads
from dsgd.kernel_approximation import RandomFeatures
from dsgd.local import Adam, Momentum
from dsgd.sim import SimulatedCluster
from dsgd.sync import ASGD, MinibatchSGD


@pytest.fixture(scope="module")
def two_classes() -> tuple[np.ndarray, np.ndarray]:
    """A separable-but-noisy binary problem."""
    X, y = make_classification(600, 12, n_informative=8, class_sep=1.5, random_state=0)
    return StandardScaler().fit_transform(X), y


@pytest.fixture(scope="module")
def line() -> tuple[np.ndarray, np.ndarray]:
    """A linear regression problem with little noise."""
    X, y = make_regression(500, 8, noise=1.0, random_state=0)
    return X, y / y.std()


# As wide as the rows of the checks are.
FEATURED = [
    SGDClassifier(max_iter=5, features=RandomFeatures(50, gamma=0.1)),
    SGDRegressor(max_iter=30, tol=None, eta0=0.1, features=RandomFeatures(100, gamma=0.02)),
]


# The checks list the rows anew, and visits are by their numbers: scikit-learn expects it of its own SGD, too.
BY_NUMBER = {
    f"check_sample_weight_equivalence_on_{kind}_data": "another listing of the rows is another order of visits"
    for kind in ("dense", "sparse")
}


@parametrize_with_checks(
    [
        SGDClassifier(max_iter=5),
        SGDRegressor(max_iter=5),
        SGDRegressor(max_iter=5, loss="poisson"),
        SGDClassifier(max_iter=5, sync="auto"),
        *FEATURED,
    ],
    expected_failed_checks=lambda estimator: BY_NUMBER,
    xfail_strict=False,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_sklearn_contract(estimator, check):
    """Both estimators keep scikit-learn's contract, but for what it does not expect of its own."""
    check(estimator)


@pytest.mark.parametrize("estimator", [SGDClassifier, SGDRegressor])
def test_defaults_are_sklearns(estimator):
    """Every parameter that scikit-learn's class has too has the same default here."""
    plain = {SGDClassifier: PlainClassifier, SGDRegressor: PlainRegressor}[estimator]().get_params()
    ours = estimator().get_params()
    assert {name: ours[name] for name in plain} == plain


@pytest.mark.parametrize("loss", ["log_loss", "modified_huber"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities(loss, n_classes):
    """Probabilities are between 0 and 1, add up to one and agree with scikit-learn's at the same coefficients."""
    X, y = make_blobs(200, centers=n_classes, random_state=2)
    model = SGDClassifier(loss=loss, random_state=0, max_iter=20, tol=None).fit(X, y)
    proba = model.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0)
    assert ((proba >= 0) & (proba <= 1)).all()
    np.testing.assert_allclose(proba, model.to_sklearn().predict_proba(X), atol=1e-12)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(model.predict_log_proba(X), np.log(proba))


@pytest.mark.parametrize(
    "options",
    [
        {"sync": MinibatchSGD(16)},
        {"sync": MinibatchSGD(16, base_batch=4, warmup=2.5)},
        {"sync": ASGD(16)},
        {"optimizer": Momentum(0.0, batch=16)},
    ],
    ids=str,
)
def test_partial_fit_goes_on_with_rates_by_minibatch(two_classes, options):
    """If a step is a minibatch, the rates of the next call continue from the steps, not from the samples."""
    X, y = two_classes
    options = {"learning_rate": "invscaling", "eta0": 0.1, "random_state": 0, "n_jobs": 1, **options}
    whole = SGDClassifier(max_iter=3, tol=None, **options).fit(X, y)
    pieces = SGDClassifier(**options)
    for _ in range(3):
        pieces.partial_fit(X, y, classes=[0, 1])
    np.testing.assert_allclose(pieces.coef_, whole.coef_, rtol=1e-10)
    assert pieces.t_ == whole.t_ == 3 * -(-len(X) // 16) + 1


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("options", [{}, {"n_jobs": 3}, {"client": SimulatedCluster(3)}], ids=str)
@pytest.mark.parametrize("make", [SGDClassifier, SGDRegressor])
def test_early_stopping_needs_rows_to_validate_on(make, options):
    """Where the share for validation comes to no row at all, fit says so; one row of one rank is enough."""
    X = np.arange(24.0).reshape(12, 2)
    y = np.arange(12) % 2
    model = make(early_stopping=True, validation_fraction=0.01, random_state=0, eta0=1e-4, **options)
    with pytest.raises(InvalidDataError, match=r"of 12 rows on [13] rank\(s\) validation_fraction leaves none"):
        model.fit(X, y)
    scores = [
        epoch["validation_score"] for epoch in model.set_params(validation_fraction=0.3).fit(X, y).fit_report_["epochs"]
    ]
    assert np.isfinite(scores).all()


def test_more_ranks_than_rows_or_cores_are_not_silent():
    """Threads without rows are left out, which is said where their number was given; a crowd on few cores is named."""
    X, y = np.eye(6), np.arange(6) % 2
    with pytest.warns(UserWarning, match=r"n_jobs=9 is more than the 6 rows: trained on 6 rank\(s\)"):
        model = SGDClassifier(n_jobs=9, max_iter=2, tol=None, sync=256).fit(X, y)
    assert model.fit_report_["ranks"] == 6
    with pytest.warns(UserWarning, match=r"n_jobs=1000 makes 1000 ranks share \d+ cores"):
        assert count_threads(1000, 10**6) == 1000
    assert count_threads(-1, 1) == 1


@pytest.mark.parametrize("make", [SGDClassifier, SGDRegressor])
def test_few_rows_train_on_few_threads(make):
    """By default as many threads train as have a thousand rows each; with a strategy given, all of n_jobs train."""
    X = np.random.default_rng(0).standard_normal((2500, 3))
    for n_rows, sync, n_ranks in ((150, None, 1), (1999, None, 1), (2500, None, 2), (150, 256, 3)):
        model = make(n_jobs=3, sync=sync, max_iter=2, tol=None, random_state=0).fit(X[:n_rows], X[:n_rows, 0] > 0)
        assert model.fit_report_["ranks"] == n_ranks
    small = X[:150], X[:150, 0] > 0
    one, three = (make(n_jobs=n, random_state=0).fit(*small).coef_ for n in (1, 3))
    np.testing.assert_array_equal(one, three)


@pytest.mark.parametrize("average", [False, True, 70])
@pytest.mark.parametrize("task", ["two classes", "regression"])
def test_from_sklearn(two_classes, line, task, average):
    """A model of scikit-learn predicts the same here and trains on as there, with averages too; others are refused."""
    ours, theirs = (SGDRegressor, PlainRegressor) if task == "regression" else (SGDClassifier, PlainClassifier)
    X, y = line if task == "regression" else two_classes
    other = theirs(average=average, shuffle=False, max_iter=2, tol=None, alpha=0.01).fit(X, y)
    model = ours.from_sklearn(other)
    assert np.array_equal(model.predict(X), other.predict(X))
    assert model.alpha == 0.01
    other.partial_fit(X[::-1], y[::-1])
    model.partial_fit(X[::-1], y[::-1])
    np.testing.assert_allclose(model.coef_, other.coef_, rtol=1e-9)
    np.testing.assert_allclose(model.intercept_, other.intercept_, rtol=1e-9)
    with pytest.raises(InvalidParameterError, match=rf"fitted sklearn\.linear_model\.{theirs.__name__}"):
        ours.from_sklearn(model)


def test_verbose_prints(two_classes, capsys):
    """Nothing prints by default; verbose=1 prints the epochs."""
    SGDClassifier(max_iter=2, tol=None).fit(*two_classes)
    assert capsys.readouterr().out == ""
    SGDClassifier(max_iter=2, tol=None, verbose=1).fit(*two_classes)
    assert "training loss" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"loss": "hing"}, r"SGDClassifier\(loss=...\) must be one of 'hinge'"),
        ({"penalty": "l3"}, "penalty"),
        ({"learning_rate": "fast"}, "learning_rate"),
        ({"alpha": -1}, "alpha"),
        ({"alpha": 0.0}, "greater than zero"),
        ({"l1_ratio": 2.0}, "l1_ratio"),
        ({"max_iter": 0}, "max_iter"),
        ({"max_iter": 2.5}, "max_iter"),
        ({"eta0": 0.0}, "eta0"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"fit_intercept": "yes"}, "fit_intercept"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"average": -1}, "average"),
        ({"class_weight": "even"}, "class_weight"),
        ({"sync": 0}, "every"),
        ({"sync": "always"}, "sync"),
        ({"sync": 1.5}, "sync"),
    ],
    ids=lambda value: str(value),
)
def test_bad_parameters(two_classes, options, match):
    """A bad parameter is refused before training, by name, with what was got."""
    with pytest.raises(InvalidParameterError, match=match):
        SGDClassifier(**options).fit(*two_classes)


def test_bad_data(two_classes):
    """One class, and weights that balance classes of which not all have come, are clear errors."""
    X, y = two_classes
    with pytest.raises(InvalidDataError, match="greater than one; got 1 class"):
        SGDClassifier().fit(X, np.zeros(len(X)))
    with pytest.raises(InvalidParameterError, match="balanced"):
        SGDClassifier(class_weight="balanced").partial_fit(X, y, classes=[0, 1])


def test_many_classes_are_no_regression() -> None:
    """Scikit-learn warns where more than half of the targets differ, and so do we, but not of many classes as such."""
    X, y = np.eye(30)[np.arange(300) % 30], np.arange(300) % 30
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SGDClassifier(max_iter=2, tol=None).fit(X, y)
    with pytest.warns(UserWarning, match="unique classes"):
        SGDClassifier(max_iter=2, tol=None).fit(X[:40], np.r_[y[:30], y[:10]])


@pytest.mark.parametrize("form", [np.asarray, np.asfortranarray, sp.csr_matrix, sp.coo_matrix])
@pytest.mark.parametrize(
    "options",
    [
        {},
        *({"loss": loss} for loss in ("log_loss", "modified_huber", "squared_hinge", "perceptron", "huber")),
        {"n_jobs": 2, "sync": 64},
        {"n_jobs": 2, "sync": "auto"},
        {"n_jobs": 2, "sync": MinibatchSGD(16)},
        {"shuffle": False},
        {"client": Gang(out_of_core=True)},
        {"early_stopping": True},
        {"penalty": "l1", "average": True},
        {"optimizer": Adam()},
        {"sampling": "importance"},
    ],
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_refused_in_the_words_of_scikit_learn(form, options, value):
    """Whichever pass finds it, the error is the one that scikit-learn's estimator raises."""
    X, y = np.random.default_rng(0).standard_normal((300, 4)), np.arange(300) % 3
    X[7, 1] = value
    with pytest.raises(ValueError, match="contains") as theirs:
        PlainClassifier().fit(form(X), y)
    for targets in (y, y > 0):
        with pytest.raises(ValueError, match="contains") as ours:
            SGDClassifier(**options).fit(form(X), targets)
        assert str(ours.value) == str(theirs.value)


def test_a_row_of_no_weight_must_be_finite():
    """As in scikit-learn, although no step is taken on it."""
    X, y = np.random.default_rng(0).standard_normal((300, 4)), np.arange(300) % 2
    X[7, 1] = np.nan
    with pytest.raises(ValueError, match="contains NaN"):
        SGDClassifier().fit(X, y, sample_weight=(np.arange(300) != 7).astype(float))
