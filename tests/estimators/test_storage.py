"""``storage=``: rows in 16 bits train the model of rows that were rounded before, to the bit, wherever they are."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from dsgd import Rows, SGDClassifier, SGDRegressor
from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError
from dsgd.kernel_approximation import RandomFeatures
from dsgd.local import SAGA, Momentum
from dsgd.sim import SimulatedCluster
from dsgd.sync import Hogwild, MinibatchSGD

PARAMETERS: dict[str, Any] = {"max_iter": 2, "tol": None, "random_state": 0}


def make(storage: str, n: int = 2400, n_classes: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, the same rounded, and labels."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((n, 9)).astype(np.float32)
    if storage == "float16":
        R = X.astype(np.float16).astype(np.float32)
    else:
        bits = X.view(np.uint32)
        R = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return X, R, np.argmax(X[:, :n_classes] + rng.normal(0, 0.3, (n, n_classes)), axis=1)


def fitted(model: Any) -> tuple[Any, ...]:
    """Return what a fit has found, to the bit."""
    return model.coef_.tobytes(), model.intercept_.tobytes(), model.loss_curve_, model.t_


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_jobs": 2},
        {"n_jobs": 2, "out_of_core": True},
        {"shuffle": False},
        {"early_stopping": True, "average": True},
        {"client": SimulatedCluster(3)},
        {"n_jobs": 2, "sync": 7},
    ],
    ids=str,
)
def test_the_model_is_that_of_rounded_rows(storage: str, options: dict[str, Any]) -> None:
    X, R, y = make(storage)
    given = (R, None), (X, storage), (X, None)
    plain, kept, exact = (SGDClassifier(**PARAMETERS, **options, storage=s).fit(rows, y) for rows, s in given)
    assert fitted(kept) == fitted(plain) != fitted(exact)
    # It is tested on the rows as they are given.
    assert kept.score(X, y) == plain.score(X, y)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"sync": Hogwild()},
        {"sync": MinibatchSGD(batch=64), "n_jobs": 2},
        {"optimizer": Momentum(0.5, batch=8), "learning_rate": "constant"},
        {"optimizer": SAGA(), "loss": "log_loss"},
        {"sampling": "importance"},
        {"features": RandomFeatures(n_components=20)},
    ],
    ids=str,
)
def test_every_kernel_reads_rounded_rows(options: dict[str, Any]) -> None:
    X, R, y = make("float16", n=600)
    plain, kept = (
        SGDClassifier(**PARAMETERS, **options, storage=s).fit(rows, y) for rows, s in ((R, None), (X, "float16"))
    )
    assert fitted(kept) == fitted(plain)


@pytest.mark.slow
def test_classes_and_weights_and_parts_are_as_ever() -> None:
    X, R, y = make("float16", n=1200, n_classes=3)
    weights = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    models = []
    for rows, storage in ((R, None), (X, "float16")):
        model = SGDClassifier(**PARAMETERS, storage=storage).fit(rows, y, sample_weight=weights)
        for part in (slice(0, 500), slice(500, None)):
            model.partial_fit(rows[part], y[part])
        regressor = SGDRegressor(**PARAMETERS, storage=storage).fit(rows, X[:, 0])
        models.append((fitted(model), fitted(regressor)))
    assert models[0] == models[1]


def test_arithmetic_is_in_float32_whatever_rows_are() -> None:
    X, R, y = make("float16", n=600)
    model = SGDClassifier(**PARAMETERS, storage="float16").fit(X.astype(np.float64), y)
    assert model.coef_.dtype == np.float32
    assert fitted(model) == fitted(SGDClassifier(**PARAMETERS).fit(R, y))


def test_rows_are_kept_as_they_say() -> None:
    """The format is that of `Rows` or of the estimator; packed rows of one do not serve for the other."""
    X, R, y = make("bfloat16")
    expected, exact = (fitted(SGDClassifier(**PARAMETERS).fit(rows, y)) for rows in (R, X))
    rows, plain = Rows(X, y, storage="bfloat16", keep=2), Rows(X, y, keep=2)
    for _ in range(2):
        assert fitted(SGDClassifier(**PARAMETERS).fit(rows)) == expected
        assert fitted(SGDClassifier(**PARAMETERS, storage="bfloat16").fit(rows)) == expected
        assert fitted(SGDClassifier(**PARAMETERS, storage="bfloat16").fit(plain)) == expected
        assert fitted(SGDClassifier(**PARAMETERS).fit(plain)) == exact
    with pytest.raises(IncompatiblePartsError, match=r"storage='float16'.*Rows\(storage='bfloat16'\)"):
        SGDClassifier(**PARAMETERS, storage="float16").fit(rows)
    with pytest.raises(InvalidParameterError, match=r"Rows\(storage=...\) must be one of 'float16', 'bfloat16', None"):
        Rows(X, y, storage="float8")


def test_what_cannot_be_kept_is_refused() -> None:
    X, _, y = make("float16", n=600)
    model = SGDClassifier(**PARAMETERS, storage="float16")
    assert clone(model).storage == pickle.loads(pickle.dumps(model)).storage == "float16"
    with pytest.raises(
        InvalidParameterError, match=r"SGDClassifier\(storage=...\) must be one of 'float16', 'bfloat16'"
    ):
        SGDClassifier(storage="half").fit(X, y)
    for options in ({}, {"shuffle": False}, {"out_of_core": True}, {"client": SimulatedCluster(2)}):
        with pytest.raises(InvalidDataError, match="storage='float16' keeps dense rows"):
            model.set_params(**options).fit(sp.csr_array(X), y)
        X[9, 4] = 1e6
        with pytest.raises(InvalidDataError, match="column 4 of X has 1e\\+06"):
            model.fit(X, y)
        X[9, 4] = np.nan
        with pytest.raises(ValueError, match="contains NaN"):
            model.fit(X, y)
        X[9, 4] = 0.0
        model = clone(SGDClassifier(**PARAMETERS, storage="float16"))
