"""Random features inside the estimators: the model of a pipeline, on any ranks, block by block, and what is refused."""

from __future__ import annotations

import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import make_circles

from dsgd import SGDClassifier, SGDRegressor
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.kernel_approximation import Nystroem, RandomFeatures
from dsgd.local import SAGA, Momentum
from dsgd.sim import SimulatedCluster
from dsgd.sync import ASGD, DPSGD, Hogwild, LocalSGD, MinibatchSGD

FEATURES = RandomFeatures(300, gamma=2.0, random_state=7)
FIT: dict[str, Any] = {"alpha": 1e-4, "max_iter": 4, "tol": None, "random_state": 0}


def circles(n: int = 700) -> tuple[np.ndarray, np.ndarray]:
    """Return rows that no line separates."""
    X, y = make_circles(n, noise=0.1, factor=0.4, random_state=0)
    return X, y


@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize(
    "options",
    [
        {}, {"loss": "log_loss", "average": 50}, {"penalty": "l1", "alpha": 1e-3}, {"sync": LocalSGD(20), "n_jobs": 2},
        {"sync": MinibatchSGD(32), "learning_rate": "constant", "eta0": 0.1, "n_jobs": 2},
        {"optimizer": Momentum(0.5, batch=16), "learning_rate": "constant", "eta0": 0.05},
    ],
    ids=str,
)  # fmt: skip
def test_the_model_is_that_of_a_pipeline(options: dict[str, Any], kind: str) -> None:
    """With rows in one order, training on features as they are made gives the model of features made before."""
    X, y = circles()
    rows = X if kind == "dense" else sp.csr_array(X)
    fit = {**FIT, **options, "shuffle": False}
    ours = SGDClassifier(**fit, features=FEATURES).fit(rows, y)
    made = clone(FEATURES).fit(X)
    expected = SGDClassifier(**fit).fit(made.transform(X), y)
    np.testing.assert_allclose(ours.coef_, expected.coef_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(ours.intercept_, expected.intercept_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(ours.loss_curve_, expected.loss_curve_, rtol=1e-7)
    np.testing.assert_allclose(
        ours.decision_function(rows), expected.decision_function(made.transform(X)), rtol=1e-7, atol=1e-8
    )


def test_every_output_has_the_model_of_a_pipeline() -> None:
    """Three classes, and values, are learnt in features as well as two classes are."""
    X, _ = circles()
    radius = np.linalg.norm(X, axis=1)
    classes = np.digitize(radius, [0.5, 0.9])
    made = clone(FEATURES).fit_transform(X)
    fit = {**FIT, "shuffle": False, "max_iter": 10}
    ours, expected = SGDClassifier(**fit, features=FEATURES).fit(X, classes), SGDClassifier(**fit).fit(made, classes)
    assert ours.coef_.shape == (3, 300)
    np.testing.assert_allclose(ours.coef_, expected.coef_, rtol=1e-7, atol=1e-9)
    values = SGDRegressor(**FIT, features=FEATURES).set_params(max_iter=60, eta0=0.1)
    assert values.fit(X, radius).score(X, radius) > 0.8


@pytest.mark.parametrize("sync", [LocalSGD(16), MinibatchSGD(16), DPSGD(16)], ids=repr)
def test_ranks_have_the_same_features_without_a_byte(sync: Any) -> None:
    """Threads and simulated ranks end in the same bits, and send what a model of as many weights sends and no more."""
    X, y = circles()
    fit = {**FIT, "sync": sync}
    threads = SGDClassifier(**fit, features=FEATURES, n_jobs=3).fit(X, y)
    simulated = SGDClassifier(**fit, features=FEATURES, client=SimulatedCluster(3, "10GbE")).fit(X, y)
    made = SGDClassifier(**fit, n_jobs=3).fit(clone(FEATURES).fit_transform(X), y)
    assert threads.score(X, y) > 0.95
    assert simulated.coef_.tobytes() == threads.coef_.tobytes()
    sent = [model.ledger_.totals() for model in (threads, simulated, made)]
    assert len({(one["bytes_sent"], one["messages"]) for one in sent}) == 1
    assert sent[0]["bytes_sent"] > 0


def test_other_features_do_not_continue_a_model() -> None:
    """Where features were changed, neither partial_fit nor a warm start goes on; a new fit begins with them."""
    X, y = circles(200)
    model = SGDClassifier(**FIT, features=RandomFeatures(30, gamma=2.0), warm_start=True).fit(X, y)
    for change in ({"features__gamma": 1.0}, {"features__n_components": 20}, {"features__random_state": 5}):
        changed = pickle.loads(pickle.dumps(model)).set_params(**change)
        for train in (changed.fit, changed.partial_fit):
            with pytest.raises(InvalidParameterError, match=r"features.*coefficients"):
                train(X, y)
        assert changed.set_params(warm_start=False).fit(X, y).coef_.shape[1] in (20, 30)


def test_scikit_learn_predicts_with_a_pipeline() -> None:
    """`to_sklearn` gives a pipeline with the same decisions, for every kernel, in the precision of the rows."""
    X, y = circles()
    for features in (FEATURES, RandomFeatures(300, kernel="laplacian", random_state=0)):
        for rows in (X, X.astype(np.float32)):
            model = SGDClassifier(**FIT, features=features).fit(rows, y)
            assert model.coef_.dtype == rows.dtype
            plain = model.to_sklearn()
            np.testing.assert_allclose(
                plain.decision_function(rows), model.decision_function(rows), rtol=2e-3, atol=2e-3
            )
            assert plain[-1].n_features_in_ == 300


@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_the_matrix_of_features_never_exists(kind: str) -> None:
    """A fit, its predictions and its score take the memory that they take without features, and some blocks."""
    X = np.random.default_rng(0).normal(size=(20_000, 10))
    rows, y = X if kind == "dense" else sp.csr_array(X), X[:, 0] > 0
    fit = {**FIT, "max_iter": 1, "n_jobs": 1, "early_stopping": True}

    def peak(features: RandomFeatures | None) -> int:
        model = SGDClassifier(**fit, features=features).fit(rows[:300], y[:300])
        tracemalloc.start()
        model.fit(rows, y).score(rows, y)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    plain, featured = peak(None), peak(RandomFeatures(400, gamma=0.1))
    # The matrix would take 64 MB.
    assert featured - plain < 0.05 * X.nbytes + 6 * (1 << 20)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"features": Nystroem()}, InvalidParameterError, "RandomFeatures of dsgd.kernel_approximation.*Nystroem"),
        ({"features": RandomFeatures(gamma=-1.0)}, InvalidParameterError, "gamma"),
        ({"features": RandomFeatures(random_state=np.random.RandomState(0))}, InvalidParameterError, "random_state"),
        ({"sampling": "importance"}, IncompatiblePartsError, "features.*sampling=Importance"),
        ({"optimizer": SAGA(), "loss": "log_loss"}, IncompatiblePartsError, "features.*optimizer=SAGA"),
        ({"sync": Hogwild()}, IncompatiblePartsError, "features.*sync=Hogwild"),
        ({"sync": ASGD()}, IncompatiblePartsError, "features.*sync=ASGD"),
    ],
)
def test_what_does_without_features_is_refused(options: dict[str, Any], error: type, named: str) -> None:
    """Parameters out of their domain, and parts that read rows in their own way, are named before training."""
    with pytest.raises(error, match=named):
        SGDClassifier(**{"features": FEATURES, **options}).fit(*circles(40))
