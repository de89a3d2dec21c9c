"""The kernel SVMs on real worker processes: every kind of input, and the optimum of one process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client
from sklearn.base import clone
from sklearn.datasets import dump_svmlight_file, make_classification, make_regression
from sklearn.exceptions import ConvergenceWarning

from dsgd import SGDClassifier
from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.linear_model import LogisticRegression
from dsgd.model_selection import SVMSearchCV
from dsgd.svm import SVC, SVR, LinearSVC, NuSVC, NuSVR, OneClassSVM, svm_path
from gang_cluster import assert_clean, start_cluster

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Two single-threaded worker processes."""
    with start_cluster(2) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    """Three classes with names, 240 rows."""
    X, y = make_classification(240, 6, n_informative=5, n_redundant=0, n_classes=3, random_state=0)
    return X, np.array(["ape", "bee", "cat"])[y]


def test_a_search_on_a_client_has_the_scores_of_one_process(client, data):
    """With a client each fold is one gang, and scores and the best are those of a search in this process."""
    cv = [(np.arange(0, 240, 2), np.arange(1, 240, 2))]
    found = [
        SVMSearchCV(SVC(tol=1e-6, client=each), {"C": [1.0, 100.0], "gamma": [0.1, "scale"]}, cv=cv).fit(*data)
        for each in (client, None)
    ]
    np.testing.assert_allclose(*(search.cv_results_["mean_test_score"] for search in found))
    assert found[0].best_params_ == found[1].best_params_
    np.testing.assert_allclose(*(search.decision_function(data[0]) for search in found), atol=1e-4)


@pytest.mark.smoke
@pytest.mark.parametrize("kind", ["arrays", "dask", "delayed", "files"])
def test_every_kind_of_input_ends_at_the_optimum_of_one_process(client, data, kind, tmp_path):
    """Arrays, dask arrays, delayed blocks and files give the objective, support and predictions of one process."""
    X, y = data
    codes = np.unique(y, return_inverse=True)[1]
    weights = np.random.default_rng(0).integers(1, 4, len(y)).astype(float)
    options = {"tol": 1e-5, "class_weight": "balanced"}
    inputs = {"arrays": (X, y, weights)}
    inputs["dask"] = tuple(da.from_array(part, chunks=(70, 6)[: part.ndim]) for part in (X, y, weights))
    starts = range(0, 240, 80)
    inputs["delayed"] = ([dask.delayed((X[k : k + 80], y[k : k + 80], weights[k : k + 80])) for k in starts],)
    if kind == "files":
        for k in starts:
            dump_svmlight_file(X[k : k + 80], codes[k : k + 80], str(tmp_path / f"{k:03}.svm"), zero_based=False)
        inputs["files"] = ([str(tmp_path / f"{k:03}.svm") for k in starts],)
        expected = SVC(**options).fit(sp.csr_matrix(X), codes)
        y = codes
    else:
        expected = SVC(**options).fit(X, y, weights)
    model = SVC(**options, client=client).fit(*inputs[kind])
    assert model.converged_
    assert model.dual_objective_ == pytest.approx(expected.dual_objective_, rel=1e-6)
    assert model.shape_fit_ == (240, 6)
    np.testing.assert_array_equal(model.classes_, expected.classes_)
    np.testing.assert_allclose(model.class_weight_, expected.class_weight_)
    np.testing.assert_array_equal(model.predict(X), expected.predict(X))
    np.testing.assert_allclose(model.decision_function(X), expected.decision_function(X), atol=1e-3)
    vectors = model.support_vectors_
    vectors = vectors.toarray() if sp.issparse(vectors) else vectors
    np.testing.assert_allclose(vectors, X[model.support_], atol=1e-12)
    assert model.fit_report_["ranks"] == 2
    assert model.ledger_.totals()["bytes_sent"] > 0
    assert_clean(client)


@pytest.mark.parametrize(
    "model",
    [SVR(C=5.0, tol=1e-4), NuSVR(C=5.0, tol=1e-4), OneClassSVM(nu=0.3, tol=1e-4)],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize("sparse", [False, True])
def test_regression_and_outliers(client, model, sparse):
    """The machines of one problem give the objective and the predictions of one process, dense and CSR."""
    X, y = make_regression(200, 5, noise=5.0, random_state=0)
    X = sp.csr_matrix(np.where(X > 0, X, 0.0)) if sparse else X
    expected = clone(model).fit(X, y / 50)
    ours = clone(model).set_params(client=client, elimination="aggressive").fit(X, y / 50)
    assert ours.dual_objective_ == pytest.approx(expected.dual_objective_, rel=1e-5)
    score = "decision_function" if hasattr(model, "decision_function") else "predict"
    np.testing.assert_allclose(getattr(ours, score)(X), getattr(expected, score)(X), atol=2e-3)


@pytest.mark.parametrize("make", [SVC, NuSVC, LinearSVC, LogisticRegression, SGDClassifier])
def test_targets_that_are_no_classes_are_refused_as_in_one_process(client, data, make):
    """Numbers between integers are those of a regression, wherever the rows are."""
    X, y = data[0], np.linspace(0.5, 2.0, len(data[0])).round(1)
    for each, rows, targets in ((None, X, y), (client, da.from_array(X), da.from_array(y))):
        with pytest.raises(ValueError, match="Unknown label type: continuous"):
            make(client=each).fit(rows, targets)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("form", "probability"), [(np.asarray, True), (sp.csr_matrix, True), (np.asarray, "isotonic")])
def test_probabilities_are_those_of_one_process(client, data, form, probability):
    """All ranks draw the folds of one process, and rows without weight are in none of them."""
    X, y = form(data[0]), data[1]
    weights = np.random.default_rng(0).choice([-1.0, 1.0, 2.0], size=len(y))
    model = SVC(gamma=0.2, tol=1e-5, probability=probability, random_state=np.random.RandomState(3))
    expected = clone(model).fit(X, y, weights)
    ours = clone(model).set_params(client=client).fit(X, y, weights)
    np.testing.assert_allclose(ours.probA_, expected.probA_, rtol=1e-4)
    np.testing.assert_allclose(ours.predict_proba(X), expected.predict_proba(X), atol=1e-4)
    if form is np.asarray:
        parts = [da.from_array(part, chunks=(70, 6)[: part.ndim]) for part in (X, y, weights)]
        again = clone(model).set_params(client=client).fit(*parts)
        np.testing.assert_allclose(again.predict_proba(X), expected.predict_proba(X), atol=1e-4)


@pytest.mark.parametrize("probability", [True, "isotonic"])
def test_a_grid_on_a_cluster_refuses_probabilities(client, data, probability):
    """Its points have no machines of parts of the rows, and the error says which parameter asks for them."""
    with pytest.raises(InvalidParameterError, match=rf"svm_path\(probability={probability!r}\)"):
        svm_path(*data, Cs=[1.0], probability=probability, client=client)


def test_prediction_on_dask_input_is_lazy_and_blocked(client, data):
    """Predictions keep the chunks of their rows, and scores are those of arrays."""
    X, y = data
    model = SVC(client=client, verbose=True).fit(X, y)
    rows, labels = da.from_array(X, chunks=(100, 6)), da.from_array(y, chunks=100)
    lazy = model.predict(rows)
    assert lazy.chunks == ((100, 100, 40),)
    np.testing.assert_array_equal(lazy.compute(), model.predict(X))
    np.testing.assert_allclose(model.decision_function(rows).compute(), model.decision_function(X))
    assert model.score(rows, labels) == model.score(X, y)
    regression = SVR().fit(X, X[:, 0])
    assert regression.score(rows, da.from_array(X[:, 0], chunks=100)) == pytest.approx(regression.score(X, X[:, 0]))
    outliers = OneClassSVM().fit(X)
    np.testing.assert_array_equal(outliers.predict(rows).compute(), outliers.predict(X))


def test_errors_come_home(client, data):
    """What cannot be trained on a cluster is refused with a reason, and a cap on steps warns here."""
    X, y = data
    with pytest.raises(InvalidParameterError, match="precomputed"):
        SVC(kernel="precomputed", client=client).fit(X @ X.T, y)
    with pytest.raises(InvalidDataError, match="greater than one"):
        SVC(client=client).fit(da.from_array(X, chunks=(80, 6)), da.from_array(np.zeros(240), chunks=80))
    with pytest.raises(InvalidDataError, match="infeasible"):
        NuSVC(nu=1.0, client=client).fit(X[:200], y[:200])
    with pytest.warns(ConvergenceWarning, match="gap"):
        SVC(max_iter=3, client=client).fit(X, y)
    assert_clean(client)


@pytest.mark.parametrize("form", ["arrays", "csr", "dask"])
def test_a_grid_is_solved_once_by_one_gang(client, data, form, monkeypatch):
    """svm_path on a client links its points, finds those of one process, and makes estimators without another gang."""
    X, y = data
    twice = np.sort(np.concatenate([np.arange(240), np.arange(20)]))  # equal rows of a rank share a coefficient
    X, y = X[twice], y[twice]
    options = {"Cs": [0.1, 1.0, 10.0], "gammas": ["scale", 0.05], "tol": 1e-5, "class_weight": "balanced"}
    expected = svm_path(X, y, **options)
    rows = {"arrays": X, "csr": sp.csr_matrix(X), "dask": da.from_array(X, chunks=(65, 6))}[form]
    labels = da.from_array(y, chunks=65) if form == "dask" else y
    path = svm_path(rows, labels, client=client, **options)
    monkeypatch.setattr(SVC, "_open_blocks", None)  # a second request to the cluster fails
    monkeypatch.setattr(SVC, "_make_matrix", None)
    path = pickle.loads(pickle.dumps(path))
    for k, (point, other) in enumerate(zip(path.points, expected.points, strict=True)):
        assert (point.C, point.gamma) == (other.C, pytest.approx(other.gamma, rel=1e-9))
        assert point.converged
        assert other.n_samples <= point.n_samples < 520
        assert len(path.links[k]) == 3
        assert point.dual_objective == pytest.approx(other.dual_objective, rel=1e-6)
        ours, theirs = path.estimator(k), expected.estimator(k)
        np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-3)
        np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
        vectors = ours.support_vectors_
        np.testing.assert_array_equal(vectors.toarray() if form == "csr" else vectors, X[ours.support_])
        assert ours.shape_fit_ == (260, 6)
    assert sum(point.n_kernel_evaluations for point in path.points[1:3]) < 2 * path.points[0].n_kernel_evaluations
    assert path.scores(X, y).max() > 0.9
    assert_clean(client)
