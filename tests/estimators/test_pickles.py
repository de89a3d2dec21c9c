"""What a pickle of a model holds: its coefficients and little else."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.base import clone

from dsgd import Ledger, SGDClassifier
from dsgd.sim import SimulatedCluster
from dsgd.svm import SVC, LinearSVC
from dsgd.sync import STRATEGIES

# Parameters, classes, what the report says of three ranks and five epochs.
A_LITTLE = 8_000


def rows(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and three classes."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, d))
    return X, np.argmax(X[:, :3], axis=1)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_pickle_is_as_long_as_the_model(name: str) -> None:
    """After `fit` a pickle takes little beside the coefficients, whatever the strategy remembered while it ran."""
    X, y = rows(200)
    options: dict[str, Any] = {
        "client": SimulatedCluster(3),
        "sync": STRATEGIES[name](),
        "random_state": 0,
        "tol": None,
    }
    if name == "hogwild":
        options["client"], options["n_jobs"] = None, 3
    model = SGDClassifier(**options, max_iter=5, eta0=1e-3, learning_rate="constant").fit(X, y)
    assert len(pickle.dumps(model)) < model.coef_.nbytes + A_LITTLE


@pytest.mark.parametrize("estimator", [SGDClassifier(n_jobs=2), LinearSVC(), SVC()], ids=lambda e: type(e).__name__)
def test_a_ledger_is_saved_beside_the_model(estimator: Any) -> None:
    """What a pickle or a copy leaves out it asks for by name, and the ledger on its own comes back whole."""
    with pytest.raises(AttributeError, match="no ranks have trained it"):
        _ = estimator.ledger_
    assert not hasattr(estimator, "ledger_")
    X, y = rows(5)
    if estimator.n_jobs != 2:
        with pytest.raises(AttributeError, match=r"only models trained on a cluster \(client=\) have one"):
            _ = clone(estimator).fit(X, y).ledger_
    fitted = estimator.set_params(client=None if estimator.n_jobs == 2 else SimulatedCluster(2)).fit(X, y)
    file = io.BytesIO()
    joblib.dump((fitted, fitted.ledger_), file)
    file.seek(0)
    model, ledger = joblib.load(file)
    assert isinstance(ledger, Ledger)
    assert ledger.totals() == fitted.ledger_.totals()
    for other in (model, copy.deepcopy(fitted), pickle.loads(pickle.dumps(model))):
        with pytest.raises(AttributeError, match=r"joblib\.dump\(\(model, model\.ledger_\)"):
            _ = other.ledger_
        np.testing.assert_array_equal(other.predict(X), fitted.predict(X))
    assert model.set_params(client=estimator.client).fit(X, y).ledger_.totals()["messages"] >= 0
