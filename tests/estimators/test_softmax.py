"""Multinomial logistic regression: against scikit-learn's, with two classes, and wherever rows and ranks are."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import log_softmax
from sklearn.datasets import make_blobs
from sklearn.linear_model import LogisticRegression

import dsgd
from dsgd import SGDClassifier
from dsgd.errors import IncompatiblePartsError
from dsgd.local import SAGA
from dsgd.model_selection import SGDSearchCV
from dsgd.sync import Hogwild, LocalSGD, MinibatchSGD

X, Y = make_blobs(300, centers=4, n_features=3, cluster_std=3.0, random_state=2)
X = X / 5
# Above one a row is visited several times, each with the penalty.
WEIGHTS = np.random.default_rng(0).uniform(0.2, 1.0, len(X))
ALPHA = 1e-2
SOFTMAX = SGDClassifier(loss="softmax", alpha=ALPHA, max_iter=60, tol=None, average=True, random_state=0)


def fitted(rows=X, y=Y, **parameters):
    """Return the model of some rows."""
    return dsgd.SGDClassifier(**SOFTMAX.get_params() | parameters).fit(rows, y)


def objective(model, weights=None):
    """Return the objective of a model over the rows."""
    losses = -log_softmax(X @ model.coef_.T + model.intercept_, axis=1)[np.arange(len(Y)), Y]
    loss = np.mean(losses) if weights is None else np.sum(weights * losses) / WEIGHTS.sum()
    return loss + ALPHA / 2 * (model.coef_**2).sum()


@pytest.mark.parametrize("balance", [None, {0: 3.0, 2: 0.5}])
def test_it_minimises_what_logistic_regression_does(balance):
    """The objective is within a thousandth of that of scikit-learn's solver, and so are probabilities, nearly."""
    costs = WEIGHTS * np.array([(balance or {}).get(c, 1.0) for c in Y])
    peer = LogisticRegression(C=1 / (ALPHA * WEIGHTS.sum()), tol=1e-9, max_iter=1000, class_weight=balance)
    peer.fit(X, Y, sample_weight=WEIGHTS)
    model = SGDClassifier(**SOFTMAX.get_params() | {"class_weight": balance, "max_iter": 200})
    model.fit(X, Y, sample_weight=WEIGHTS)
    assert objective(peer, costs) <= objective(model, costs) < objective(peer, costs) * 1.001
    np.testing.assert_allclose(model.predict_proba(X), peer.predict_proba(X), atol=0.02)
    assert not np.allclose(model.predict_proba(X), fitted(loss="log_loss").predict_proba(X), atol=0.02)


@pytest.mark.parametrize("more", [{}, {"n_jobs": 2}, {"optimizer": SAGA(), "average": False}])
def test_two_classes_are_log_loss(more):
    """With two classes there is one output, and it has the bits of log_loss, on any path."""
    y = Y % 2
    ours, theirs = (fitted(y=y, loss=loss, max_iter=5, **more) for loss in ("softmax", "log_loss"))
    np.testing.assert_array_equal(ours.coef_, theirs.coef_)
    np.testing.assert_array_equal(ours.predict_log_proba(X), theirs.predict_log_proba(X))
    assert ours.coef_.shape == (1, 3)
    np.testing.assert_allclose(ours.to_sklearn().predict_proba(X), ours.predict_proba(X), atol=1e-12)


def test_probabilities_leave_with_the_model(tmp_path):
    """Probabilities are the softmax of the decisions, here, in scikit-learn's class and after loading."""
    model = fitted(max_iter=5)
    expected = log_softmax(model.decision_function(X), axis=1)
    np.testing.assert_array_equal(model.predict_log_proba(X), expected)
    np.testing.assert_allclose(model.predict_proba(X), np.exp(expected), rtol=1e-12)
    plain = model.to_sklearn()
    assert type(plain) is LogisticRegression
    np.testing.assert_allclose(plain.predict_proba(X), model.predict_proba(X), atol=1e-12)
    np.testing.assert_array_equal(plain.predict(X), model.predict(X))
    model.save(tmp_path / "model.dsgd")
    np.testing.assert_array_equal(dsgd.load(tmp_path / "model.dsgd").predict_proba(X), model.predict_proba(X))
    da = pytest.importorskip("dask.array")
    lazy = model.predict_log_proba(da.from_array(X, chunks=(100, 3)))
    np.testing.assert_array_equal(lazy.compute(), expected)


@pytest.mark.slow
@pytest.mark.parametrize("sync", [LocalSGD(every=5), MinibatchSGD(batch=4), Hogwild()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_ranks_together_come_near(sync, form):
    """Two threads come near the minimum by models, by gradients and on one model, on rows of either form."""
    average = not isinstance(sync, Hogwild)
    # The intercept of sparse rows would take long.
    rates = {"learning_rate": "invscaling", "eta0": 0.5, "max_iter": 40, "fit_intercept": False}
    model = fitted(form(X), n_jobs=2, sync=sync, average=average, **rates)
    assert objective(model) < 1.02 * objective(fitted(max_iter=200, fit_intercept=False))


def test_one_number_decides_when_to_stop():
    """Training ends by the mean loss of a row and the penalty, which is also what the curve is."""
    model = fitted(tol=1e-3, average=False)
    assert model.n_iter_ < 60
    assert model.loss_curve_[-1] == pytest.approx(objective(model) - ALPHA / 2 * (model.coef_**2).sum(), rel=0.05)
    early = fitted(tol=1e-3, early_stopping=True)
    assert early.score(X, Y) > 0.6


def test_what_does_without_it_says_so():
    """Methods that take one class at a time refuse, naming the parameter, before they train."""
    with pytest.raises(IncompatiblePartsError, match=r"SAGA.*softmax"):
        fitted(optimizer=SAGA(), average=False)
    with pytest.raises(IncompatiblePartsError, match=r"sampling=.*softmax"):
        fitted(sampling="importance", average=False)
    with pytest.raises(IncompatiblePartsError, match=r"SGDSearchCV.*softmax"):
        SGDSearchCV(SGDClassifier(loss="softmax"), {"alpha": [1e-3, 1e-2]}, cv=2).fit(X, Y)
