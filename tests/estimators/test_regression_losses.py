"""Regression of means with a log link and of quantiles, against scikit-learn's solvers of the same objectives."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import GammaRegressor, PoissonRegressor, QuantileRegressor, TweedieRegressor
from sklearn.metrics import d2_tweedie_score
from sklearn.model_selection import ShuffleSplit

from dsgd import Gang, SGDClassifier, SGDRegressor, load
from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError
from dsgd.local import SVRG, Objective, make_shard
from dsgd.local.base import Evaluation
from dsgd.local.objective import Deviance, evaluate
from dsgd.sim import SimulatedCluster

RNG = np.random.default_rng(0)
X = 0.5 * RNG.standard_normal((600, 4))
SIGNAL = X @ [0.5, -0.4, 0.3, 0.0] + 0.2
MEANS = np.exp(SIGNAL)
WEIGHTS = RNG.integers(1, 3, 600).astype(float)
PENALTY = 1e-2
TARGETS = {
    "poisson": RNG.poisson(MEANS).astype(float),
    "gamma": RNG.gamma(2.0, MEANS / 2.0),
    "tweedie": RNG.poisson(MEANS) * RNG.gamma(2.0, 1.0, 600),
}
PEERS = {
    "poisson": PoissonRegressor(alpha=PENALTY, tol=1e-9),
    "gamma": GammaRegressor(alpha=PENALTY, tol=1e-9),
    "tweedie": TweedieRegressor(power=1.5, alpha=PENALTY, tol=1e-9),
}


def model_of(loss: str, **changes: Any) -> SGDRegressor:
    """Return a model whose averaged steps come near the minimum."""
    options = {"alpha": PENALTY, "max_iter": 60, "tol": None, "eta0": 0.05, "power_t": 0.4, "average": 3000}
    return SGDRegressor(loss=loss, random_state=0, **options | changes)


@pytest.mark.parametrize("loss", TARGETS)
def test_means_are_those_of_scikit_learns_solver(loss: str) -> None:
    """Coefficients, means and D2 are near those of the exact minimum; D2 is scikit-learn's metric to rounding."""
    y = TARGETS[loss]
    model, peer = model_of(loss).fit(X, y, sample_weight=WEIGHTS), PEERS[loss].fit(X, y, sample_weight=WEIGHTS)
    np.testing.assert_allclose(model.coef_, peer.coef_, atol=0.01)
    np.testing.assert_allclose(model.intercept_, peer.intercept_, atol=0.01)
    np.testing.assert_allclose(model.predict(X), np.exp(X @ model.coef_ + model.intercept_), rtol=1e-12)
    assert model.score(X, y, WEIGHTS) == pytest.approx(peer.score(X, y, WEIGHTS), abs=1e-3)
    power = {"poisson": 1, "gamma": 2, "tweedie": 1.5}[loss]
    for weights in (None, WEIGHTS):
        expected = d2_tweedie_score(y, model.predict(X), sample_weight=weights, power=power)
        assert model.score(X, y, weights) == pytest.approx(expected, rel=1e-10)


def test_a_quantile_is_that_of_scikit_learns_solver() -> None:
    """Coefficients are near the exact minimum, and that share of the targets lies below the predictions."""
    y = SIGNAL + RNG.exponential(size=600)
    model = model_of("quantile", quantile=0.8, penalty=None, max_iter=300, average=20_000).fit(X, y)
    peer = QuantileRegressor(quantile=0.8, alpha=0.0).fit(X, y)
    loss = [np.mean(np.maximum(0.8 * (y - p), -0.2 * (y - p))) for p in (model.predict(X), peer.predict(X))]
    assert loss[0] < 1.005 * loss[1]
    assert np.mean(y < model.predict(X)) == pytest.approx(0.8, abs=0.02)


def test_means_of_dask_sparse_and_saved_models_are_the_same(tmp_path: Any) -> None:
    """Whatever form the rows have, and after a file, means and D2 are those of the array."""
    y = TARGETS["poisson"]
    model = model_of("poisson", max_iter=5).fit(X, y)
    means, score = model.predict(X), model.score(X, y)
    lazy_X, lazy_y = da.from_array(X, chunks=(250, 4)), da.from_array(y, chunks=250)
    np.testing.assert_array_equal(model.predict(lazy_X).compute(), means)
    assert model.score(lazy_X, lazy_y) == pytest.approx(score, rel=1e-12)
    np.testing.assert_allclose(model.predict(sp.csr_array(X)), means)
    model.save(tmp_path / "model.dsgd")
    np.testing.assert_array_equal(load(tmp_path / "model.dsgd").predict(X), means)


@pytest.mark.parametrize("loss", [*TARGETS, "quantile"])
def test_plain_models_predict_the_same(loss: str) -> None:
    """`to_sklearn` gives the estimator of scikit-learn that has the loss, sparse coefficients too."""
    model = model_of(loss, max_iter=3, learning_rate="triangular", eta0=0.005).fit(X, TARGETS.get(loss, SIGNAL))
    plain = model.to_sklearn()
    assert type(plain).__name__.lower() == f"{loss}regressor"
    np.testing.assert_allclose(plain.predict(X), model.predict(X), rtol=1e-12)
    free = model_of(loss, max_iter=1, penalty=None).fit(X, TARGETS.get(loss, SIGNAL)).to_sklearn()
    assert (plain.alpha, free.alpha) == (PENALTY, 0.0)
    np.testing.assert_allclose(model.sparsify().to_sklearn().predict(X), plain.predict(X), rtol=1e-12)


def test_rows_held_out_are_scored_by_d2() -> None:
    """The score in the history is ``score`` of the rows held out, and sums of ranks add up to that of all rows."""
    y = TARGETS["gamma"]
    model = model_of("gamma", early_stopping=True, average=False, max_iter=4).fit(X, y)
    held = next(ShuffleSplit(test_size=0.1, random_state=0).split(X))[1]
    assert model.history_[-1]["valid_score"] == pytest.approx(model.score(X[held], y[held]), rel=1e-10)
    given = model_of("gamma", average=False, max_iter=4).fit(X[:450], y[:450], X_val=X[450:], y_val=y[450:])
    assert given.history_[-1]["valid_score"] == pytest.approx(given.score(X[450:], y[450:]), rel=1e-12)
    params = np.r_[model.coef_, model.intercept_]
    parts = [evaluate(params, make_shard(X[rows], y[rows]), Objective("gamma")) for rows in (held, slice(0, 77))]
    both = np.r_[held, np.arange(77)]
    found = Deviance("gamma", 0.1).explained(Evaluation.from_vector(sum(part.as_vector() for part in parts)))
    assert found == pytest.approx(model.score(X[both], y[both]), rel=1e-10)
    two = model_of("gamma", early_stopping=True, average=False, max_iter=4, n_jobs=2, sync=50).fit(X, y)
    assert 0.0 < two.best_score_ < 0.5


@pytest.mark.parametrize(("loss", "bad"), [("poisson", -1.0), ("gamma", 0.0), ("tweedie", -0.5)])
def test_targets_without_a_meaning_are_refused(loss: str, bad: float) -> None:
    """On arrays, files, blocks, a cluster, validation rows and in scores, with the least value."""
    good = TARGETS[loss]
    y = np.where(np.arange(600) == 599, bad, good)
    fitted = model_of(loss, max_iter=1).fit(X, good)
    halves = [(X[:300], y[:300]), (X[300:], y[300:])]
    calls = [
        lambda: model_of(loss).fit(X, y),
        lambda: model_of(loss, n_jobs=2, sync=50).fit(X, y),
        lambda: model_of(loss).fit(halves),
        lambda: model_of(loss, client=Gang(out_of_core=True)).fit(X, y),
        lambda: model_of(loss, client=SimulatedCluster(2)).fit(halves),
        lambda: model_of(loss).partial_fit(X, y),
        lambda: model_of(loss).fit(X, good, X_val=X, y_val=y),
        lambda: fitted.score(X, y),
        lambda: fitted.score(da.from_array(X, chunks=(300, 4)), da.from_array(y, chunks=300)),
    ]
    for call in calls:
        with pytest.raises(InvalidDataError, match=rf"y must be .*zero.*loss='{loss}'.*{bad}"):
            call()


def test_parameters_out_of_range_are_refused() -> None:
    """Quantiles, powers and methods that need a bound of the curvature are named; classifiers have none of these."""
    for options, named in [
        ({"loss": "quantile", "quantile": 0.0}, r"SGDRegressor\(quantile=...\)"),
        ({"loss": "quantile", "quantile": 1.0}, r"SGDRegressor\(quantile=...\)"),
        ({"loss": "tweedie", "tweedie_power": 0.5}, r"SGDRegressor\(tweedie_power=...\)"),
        ({"loss": "tweedie", "tweedie_power": 3.0}, r"SGDRegressor\(tweedie_power=...\)"),
    ]:
        with pytest.raises(InvalidParameterError, match=named):
            SGDRegressor(**options).fit(X, MEANS)
    for loss in ("poisson", "quantile"):
        with pytest.raises(InvalidParameterError, match=r"SGDClassifier\(loss=...\)"):
            SGDClassifier(loss=loss).fit(X, X[:, 0] > 0)
    with pytest.raises(IncompatiblePartsError, match="loss='poisson'"):
        SGDRegressor(loss="poisson", optimizer=SVRG()).fit(X, MEANS)
