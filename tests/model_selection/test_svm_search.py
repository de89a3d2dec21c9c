"""Searches along C: models are those of cold fits, whichever route leads to them, and results are scikit-learn's."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import svm
from sklearn.exceptions import FitFailedWarning
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dsgd.model_selection.svm_search as chains
from dsgd import Gang
from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError
from dsgd.model_selection import SVMSearchCV
from dsgd.svm import SVC, SVR, NuSVC

N = 180
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, 5))
WIDE = np.hstack([X, 0.1 * RNG.standard_normal((N, 70))])
SIGNAL = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
Y = np.where(SIGNAL + 0.5 * RNG.standard_normal(N) > 0, "yes", "no")
Y3 = np.digitize(SIGNAL, [-0.5, 0.5])
WEIGHTS = RNG.integers(1, 3, N).astype(float)
GRID = {"C": [30.0, 0.3, 3.0, 3000.0], "gamma": [0.1, "scale", 2.0]}


@pytest.fixture(params=["path", "fits"])
def route(request, monkeypatch):
    """Take all chains along one route."""
    monkeypatch.setattr(chains, "LEAST_ON_PATH", 1 if request.param == "path" else N**2)
    return request.param


def fitted(search, data, options):
    """Return a search that was fitted in silence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return search.set_params(**options).fit(*data)


CASES = {
    "two-classes": (SVC(), GRID, (X, Y), {"return_train_score": True}),
    "scorer": (SVC(), GRID, (X, Y), {"scoring": "roc_auc"}),
    "wide": (SVC(), GRID, (WIDE.astype(np.float32), Y3), {"scoring": ["accuracy", "f1_macro"], "refit": "f1_macro"}),
    "sparse": (SVC(), {**GRID, "class_weight": ["balanced", None]}, (sp.csr_matrix(X), Y3), {}),
    "precomputed": (SVC(kernel="precomputed"), {"C": [1.0, 10.0, 1e4]}, (rbf_kernel(X, gamma=0.3), Y3), {}),
    "kernels": (SVC(), [{"kernel": ["linear", "poly"], "C": [0.1, 1.0]}, {"gamma": [0.1, 1.0]}], (X, Y), {}),
    "regressor": (SVR(), {**GRID, "epsilon": [0.05, 0.3]}, (X, SIGNAL), {"scoring": "neg_mean_absolute_error"}),
}


@cache
def grid_search_of(name):
    """Return scikit-learn's search, which knows of no route."""
    estimator, grid, data, options = CASES[name]
    return fitted(GridSearchCV(estimator.set_params(tol=1e-7), grid, cv=3), data, options)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_a_grid_search_of_the_same_estimator(route, case):
    """On either route every score is that of one cold fit for each candidate and fold."""
    estimator, grid, data, options = CASES[case]
    ours = fitted(SVMSearchCV(estimator.set_params(tol=1e-7), grid, cv=3), data, options)
    theirs = grid_search_of(case)
    assert set(theirs.cv_results_) == set(ours.cv_results_)
    for name, expected in theirs.cv_results_.items():
        if name == "params":
            assert ours.cv_results_[name] == expected
        elif "score" in name and "time" not in name and "rank" not in name:
            np.testing.assert_allclose(ours.cv_results_[name], expected, rtol=1e-4, atol=1e-5, err_msg=name)
    assert ours.best_score_ == pytest.approx(theirs.best_score_, abs=1e-5)
    metric = options.get("refit", "score")
    # Of candidates that tie, rounding of the solver may choose another.
    assert theirs.cv_results_[f"mean_test_{metric}"][ours.best_index_] == pytest.approx(theirs.best_score_, abs=1e-5)


def test_weights_count_in_training_and_in_scores(route):
    """A score is that of a weighted fit on the rows of the fold, with the weights of the rows held out."""
    split = [(np.arange(0, N, 2), np.arange(1, N, 2)), (np.arange(1, N, 2), np.arange(0, N, 2))]
    grid = {"C": [0.3, 3.0, 30.0], "gamma": [0.1, "scale"], "class_weight": ["balanced"]}
    ours = SVMSearchCV(SVC(tol=1e-7), grid, cv=split).fit(X, Y, sample_weight=WEIGHTS)
    for number, (train, test) in enumerate(split):
        for setting, found in zip(
            ours.cv_results_["params"], ours.cv_results_[f"split{number}_test_score"], strict=True
        ):
            model = SVC(tol=1e-7, **setting).fit(X[train], Y[train], WEIGHTS[train])
            assert found == pytest.approx(model.score(X[test], Y[test], WEIGHTS[test]))


def test_a_model_that_cannot_be_trained_has_the_error_score(route):
    """Other folds go on, a warning says how many failed; "raise" raises, and so does a search that has no model."""
    one_class, all_rows = np.flatnonzero(Y == "no"), np.arange(N)
    cv = [(one_class, all_rows), (all_rows, all_rows)]
    grid = {"C": [1.0, 10.0], "gamma": [0.1, 1.0]}
    with pytest.warns(FitFailedWarning, match="4 of 8 models failed"):
        search = SVMSearchCV(SVC(), grid, cv=cv, error_score=-1.0, refit=False).fit(X, Y)
    assert (search.cv_results_["split0_test_score"] == -1.0).all()
    assert (search.cv_results_["split1_test_score"] > 0.5).all()
    for given, options in ((cv, {"error_score": "raise"}), (cv[:1], {})):
        with pytest.raises(InvalidDataError, match="number of classes"):
            SVMSearchCV(SVC(), grid, cv=given, **options).fit(X, Y)


@pytest.mark.parametrize(
    ("estimator", "grid", "error", "said"),
    [
        (make_pipeline(StandardScaler(), SVC()), {"svc__C": [1.0]}, InvalidParameterError, "pipelines"),
        (svm.SVC(), {"C": [1.0]}, InvalidParameterError, "of dsgd.svm"),
        (NuSVC(), {"nu": [0.1]}, InvalidParameterError, "of dsgd.svm"),
        (SVC(client=Gang(checkpoint="there")), {"C": [1.0]}, IncompatiblePartsError, "checkpoints"),
        (SVC(), {"C": [1.0, -1.0]}, InvalidParameterError, "C="),
        (SVC(), [], InvalidParameterError, "no candidate"),
    ],
)
def test_what_cannot_be_searched_is_refused(estimator, grid, error, said):
    """An error names the parameter, and what to do instead."""
    with pytest.raises(error, match=said):
        SVMSearchCV(estimator, grid).fit(X, Y)


def test_problems_take_the_route_that_suits_their_rows():
    """The largest pair of classes decides, and what a path does not have is fitted."""
    many = np.repeat(np.arange(10), 200)
    assert not chains.follows_path(SVC(), many, 8)
    assert chains.follows_path(SVC(), many // 5, 8)
    assert not chains.follows_path(SVC(), many // 5, 1)
    assert not chains.follows_path(SVC(kernel="linear"), many // 5, 8)
    assert not chains.follows_path(SVC(probability="sigmoid"), many // 5, 8)
    assert not chains.follows_path(SVC(solver="pairwise"), many // 5, 8)
    assert chains.follows_path(SVR(), many, 8)


def test_threads_change_no_score():
    """Chains side by side have the scores of chains one after another."""
    results = [
        SVMSearchCV(SVC(), GRID, cv=4, n_jobs=n_jobs).fit(X, Y3).cv_results_["mean_test_score"] for n_jobs in (1, 3)
    ]
    np.testing.assert_array_equal(*results)
