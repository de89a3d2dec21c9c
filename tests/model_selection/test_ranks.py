"""Searches on the ranks of a cluster: every column is a fit of as many ranks, and scores are sums over them."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from dsgd import Rows, SGDClassifier, SGDRegressor
from dsgd.errors import IncompatiblePartsError, InvalidDataError
from dsgd.model_selection import SGDSearchCV, ranks
from dsgd.sim import SimulatedCluster
from dsgd.sync import DPSGD, EpochAveraging, LocalSGD

RNG = np.random.default_rng(0)
N, D = 300, 6
X = RNG.standard_normal((N, D))
SIGNAL = X @ RNG.standard_normal(D)
Y = np.where(SIGNAL + 0.5 * RNG.standard_normal(N) > 0, "yes", "no")
Y3 = np.digitize(SIGNAL, [-1, 1])
S = sp.random(N, 30, 0.2, format="csr", random_state=0)
WEIGHTS = RNG.integers(0, 4, N) / 2.0
# Parts of different sizes, and folds that take all rows of the last one, or rows of all.
ENDS = [0, 130, 250, N]
FOLDS = [np.arange(0, 60), np.arange(60, 280, 2), np.arange(250, N)]
SPLITS = [(np.setdiff1d(np.arange(N), fold), fold) for fold in FOLDS]
CLASSIFIER = SGDClassifier(random_state=0, shuffle=False, max_iter=8, tol=1e-2)
REGRESSOR = SGDRegressor(random_state=0, shuffle=False, max_iter=8, tol=1e-2)
GRID = {"alpha": [1e-2, 0.3], "loss": ["hinge", "log_loss"]}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Few epochs are enough here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def models(monkeypatch):
    """Models of the search of a test, with the weights that a rank other than the first keeps."""
    found = []

    class Recorded(ranks.SharedTraining):
        def __init__(self, rank, *args):
            super().__init__(rank, *args)
            if rank.number == 1:
                found.extend(self.models)

    monkeypatch.setattr(ranks, "SharedTraining", Recorded)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "grid", "data"),
    [
        (CLASSIFIER, GRID, (X, Y, None)),
        (clone(CLASSIFIER).set_params(sync=LocalSGD(20)), {"class_weight": ["balanced", None]}, (X, Y3, WEIGHTS)),
        (
            clone(CLASSIFIER).set_params(sync=LocalSGD(16)),
            {"penalty": ["l1", "elasticnet", "l2"], "alpha": [1e-3, 1e-2]},
            (S, Y3, None),
        ),
        (
            clone(REGRESSOR).set_params(sync=EpochAveraging(), alpha=0.5),
            {"learning_rate": ["constant", "adaptive", "invscaling", "pegasos"], "eta0": [1e-3, 1e-2]},
            (X, SIGNAL, None),
        ),
        (
            # So high that the lengths of the rows limit what pooled rates gain.
            clone(REGRESSOR).set_params(sync=LocalSGD(7, rates="pooled"), eta0=0.05),
            {"learning_rate": ["constant", "invscaling", "triangular"], "loss": ["squared_error", "huber"]},
            (X.astype(np.float32), SIGNAL, None),
        ),
        (
            clone(CLASSIFIER).set_params(learning_rate="constant"),
            {"sync": [7, LocalSGD(40, rates="pooled"), EpochAveraging(), None, 10_000, "local:every=9"]},
            (X, Y3, None),
        ),
        (clone(CLASSIFIER).set_params(alpha=1e-2), {"sync": [12, None, 64], "penalty": ["l1", "l2"]}, (S, Y, WEIGHTS)),
    ],
    ids=["default", "classes-weights", "l1-sparse", "schedules", "pooled", "periods", "periods-sparse"],
)
def test_every_column_is_a_fit_of_as_many_ranks(models, estimator, grid, data):
    """Weights, epochs and averages are those of `fit` on the training rows of each split, on as many ranks."""
    parts = [tuple(each if each is None else each[low:high] for each in data) for low, high in pairwise(ENDS)]
    model = clone(estimator).set_params(client=SimulatedCluster(3))
    search = SGDSearchCV(model, grid, cv=SPLITS, refit=False).fit(parts)
    exact = 1e-9 if data[0].dtype == np.float64 else 1e-4
    spent = []
    for number, found in enumerate(models):
        params, (train, test) = search.cv_results_["params"][number // len(SPLITS)], SPLITS[number % len(SPLITS)]
        kept = [train[(train >= low) & (train < high)] for low, high in pairwise(ENDS)]
        fitted = clone(estimator).set_params(**params)
        fitted.fit([tuple(each if each is None else each[rows] for each in data) for rows in kept])
        np.testing.assert_allclose(found.coef, np.atleast_2d(fitted.coef_), rtol=exact, atol=exact)
        np.testing.assert_allclose(found.intercept, fitted.intercept_, rtol=exact, atol=exact)
        assert found.n_iter == fitted.n_iter_
        weights = None if data[2] is None else data[2][test]
        score = fitted.score(data[0][test], data[1][test], weights)
        name = f"split{number % len(SPLITS)}_test_score"
        assert search.cv_results_[name][number // len(SPLITS)] == pytest.approx(score, abs=1e-6)
        totals = fitted.ledger_.totals()
        spent.append((totals["rounds"], totals["bytes_sent"]))
    rounds, sent = np.array(spent).reshape(-1, len(SPLITS), 2).mean(axis=1).T
    np.testing.assert_allclose(search.cv_results_["mean_rounds"], rounds, rtol=1e-12)
    # Every message has a header: a fit has one for itself, a search one for all columns.
    assert (search.cv_results_["mean_bytes_sent"] <= sent).all()


def test_periods_by_default_are_those_of_a_fit_on_as_sparse_rows():
    """Of rows with few entries for each weight a round has more: the training rows of all ranks say how many."""
    rows, y = sp.random(6000, 2000, 1e-3, format="csr", random_state=0), np.arange(6000) % 2
    model = clone(CLASSIFIER).set_params(client=SimulatedCluster(2), max_iter=1, tol=None)
    search = SGDSearchCV(model, {"alpha": [1e-2]}, cv=[(np.arange(4800), np.arange(4800, 6000))], refit=False)
    search.fit([(rows[:3000], y[:3000]), (rows[3000:], y[3000:])])
    fitted = clone(model).fit([(rows[:3000], y[:3000]), (rows[3000:4800], y[3000:4800])])
    assert search.cv_results_["mean_rounds"].tolist() == [fitted.ledger_.totals()["rounds"]] == [1]


def test_halving_and_the_last_fit():
    """Candidates drop out as in a search here, and the best one is fitted on the same ranks."""
    model = clone(CLASSIFIER).set_params(client=SimulatedCluster(2), tol=None)
    search = SGDSearchCV(model, {"alpha": [1e-2, 100.0], "sync": [16, 64]}, cv=3, factor=2, min_epochs=2).fit(X, Y)
    results = search.cv_results_
    assert sorted(results["rung"]) == [0, 0, 1, 2]
    assert sorted(results["mean_n_iter"]) == [2, 2, 4, 8]
    # Folds leave one of the two ranks all of its 150 rows, or both about 100.
    per_epoch = np.where(results["param_sync"] == 16, (10 + 7 + 10) / 3, (3 + 2 + 3) / 3)
    np.testing.assert_allclose(results["mean_rounds"], per_epoch * results["mean_n_iter"])
    assert search.best_estimator_.fit_report_["ranks"] == 2
    again = clone(model).set_params(**search.best_params_).fit(X, Y)
    np.testing.assert_array_equal(search.best_estimator_.coef_, again.coef_)


@pytest.mark.parametrize(
    ("changed", "grid", "options", "named"),
    [
        ({"sync": DPSGD()}, GRID, {}, "LocalSGD"),
        ({"sync": LocalSGD(overlap=True)}, GRID, {}, "overlap"),
        ({"client__elastic": True}, GRID, {}, "elastic"),
        ({"client__out_of_core": True}, GRID, {}, "out_of_core"),
        ({}, GRID, {"scoring": "f1_macro"}, "accuracy"),
        ({}, {"sync": [8, "minibatch"]}, {}, r"Got MinibatchSGD.*GridSearchCV"),
        ({"client": None}, {"sync": [8, 64]}, {}, "SimulatedCluster"),
    ],
)
def test_what_ranks_cannot_do_is_refused(changed, grid, options, named):
    """With the names of what they can."""
    model = clone(CLASSIFIER).set_params(**{"client": SimulatedCluster(2), **changed})
    with pytest.raises(IncompatiblePartsError, match=named):
        SGDSearchCV(model, grid, cv=3, **options).fit(X, Y)


def test_rows_and_splits_that_cannot_be_are_refused():
    """`Rows`, a split that trains on nothing, a row twice, and a model that overflows."""
    model = clone(CLASSIFIER).set_params(client=SimulatedCluster(2))
    with pytest.raises(IncompatiblePartsError, match="Rows"):
        SGDSearchCV(model, GRID, cv=3).fit(Rows(X, Y))
    with pytest.raises(InvalidDataError, match="more than once"):
        SGDSearchCV(model, GRID, cv=[(np.r_[SPLITS[0][0], 70], FOLDS[0])]).fit(X, Y)
    regressor = clone(REGRESSOR).set_params(client=SimulatedCluster(2), learning_rate="constant")
    with pytest.raises(InvalidDataError, match="overflow"):
        SGDSearchCV(regressor, {"eta0": [1e-3, 1e30]}, cv=3, error_score="raise").fit(X.astype(np.float32), SIGNAL)
    search = SGDSearchCV(regressor, {"eta0": [1e-3, 1e30]}, cv=3, error_score=-7.0).fit(X.astype(np.float32), SIGNAL)
    assert search.cv_results_["mean_test_score"][1] == -7.0
    with pytest.raises(InvalidDataError, match="no rows to train on"):
        SGDSearchCV(regressor, {"eta0": [1e-3]}, cv=SPLITS).fit(X, SIGNAL, sample_weight=np.arange(N) < 60)


def test_the_ledger_of_a_search_has_work_and_few_messages():
    """Seconds of steps are compute, one message has all columns whose rounds end, and no pickle has the ledger."""
    model = clone(CLASSIFIER).set_params(client=SimulatedCluster(2), tol=None, max_iter=2)
    search = SGDSearchCV(model, {"sync": [16, 30, 64], "alpha": [1e-2, 1.0]}, cv=3).fit(X, Y)
    totals = search.ledger_.totals()
    assert totals["compute_s"] > 0.0
    # Those of the shortest period on 150 rows: the columns of all other folds and periods go with them.
    assert totals["rounds"] == 2 * 10
    # Either of two ranks sends each number once in a round; the rest are the headers of those few messages.
    sent = 2 * (D + 1) * 8 * search.cv_results_["mean_rounds"]
    assert 0 < totals["bytes_sent"] - 3 * sent.sum() < 100 * totals["messages"]
    np.testing.assert_allclose(search.cv_results_["mean_bytes_sent"], sent * totals["bytes_sent"] / (3 * sent.sum()))
    assert "ledger_" not in vars(pickle.loads(pickle.dumps(search)))
    search.set_params(estimator=CLASSIFIER, param_grid={"alpha": [1e-2]}).fit(X, Y)
    assert not hasattr(search, "ledger_")
