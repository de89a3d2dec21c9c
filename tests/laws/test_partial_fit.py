"""`partial_fit` continues from the last call: calls of one epoch each are one fit of as many epochs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from compressors import COMPRESSORS
from dsgd import Gang, SGDClassifier
from dsgd.compress import ErrorFeedback, Layerwise, PowerSGD, RandomK, Sign, TopK
from dsgd.kernel_approximation import RandomFeatures
from dsgd.local import SAGA, SVRG, Adam, Momentum
from dsgd.sim import SimulatedCluster
from dsgd.sync import EASGD, SCAFFOLD, ChocoSGD, EpochAveraging, LocalSGD, MinibatchSGD, OneShotAveraging, SlowMo
from dsgd.sync import STRATEGIES as STRATEGIES_BY_NAME
from laws.test_training import problem
from members import FAMILY, Strategy

EPOCHS = 4
#: Of compressors, those that go with each of what is exchanged.
GRADIENTS = [c for c in COMPRESSORS if not c.needs_feedback]
MODELS = [c for c in GRADIENTS if not any(name in repr(c) for name in ("DGC", "DeMo", "MajorityVote"))]
STRATEGIES = [
    *(member.strategy for member in FAMILY),
    LocalSGD(8, overlap=True),
    ChocoSGD(8, RandomK(0.5)),
    *(MinibatchSGD(16, compressor=c) for c in GRADIENTS),
    *(
        LocalSGD(8, compressor=c)
        for c in [*MODELS, ErrorFeedback(PowerSGD(1)), Layerwise({"*": ErrorFeedback(Sign())})]
    ),
    SlowMo(8, 0.4, compressor=ErrorFeedback(RandomK(0.5))),
]
SETTINGS: dict[str, Any] = {"learning_rate": "constant", "eta0": 0.05, "loss": "log_loss", "tol": None}


def model_of(fitted: Any) -> bytes:
    """Return the bits of a model."""
    return bytes(fitted.coef_.tobytes() + fitted.intercept_.tobytes())


def called(model: Any, X: Any, y: Any, times: int = 1, **options: Any) -> Any:
    """Call `partial_fit` so many times."""
    if isinstance(model, SGDClassifier):
        options["classes"] = [False, True]
    for _ in range(times):
        model.partial_fit(X, y, **options)
    return model


def settings_of(strategy: Strategy, **more: Any) -> dict[str, Any]:
    """Return the parameters of an estimator for a strategy."""
    rule = Momentum(0.9, batch=4) if strategy.momentum != "keep" else None
    return {**SETTINGS, "sync": strategy, "optimizer": rule, "shuffle": False, "random_state": 3, "n_jobs": 3, **more}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_calls_of_partial_fit_are_one_fit(strategy: Strategy) -> None:
    """Calls of one epoch each end in the model of one fit of as many epochs, bit for bit, by way of a pickle too."""
    X, y = problem(100)
    settings = settings_of(strategy)
    whole = SGDClassifier(**settings, max_iter=EPOCHS).fit(X, y)
    parts = called(SGDClassifier(**settings), X, y, 2)
    parts = called(pickle.loads(pickle.dumps(parts)), X, y, EPOCHS - 2)
    if isinstance(strategy, OneShotAveraging):
        # Each call is a training, which ends in the one average.
        assert parts.score(X, y) > 0.85
        return
    assert model_of(parts) == model_of(whole)
    assert parts.t_ == whole.t_


#: Rates, penalties still due, local rules, and what is remembered of rows, drawn of them or made of them.
CHOICES: list[dict[str, Any]] = [
    *({"learning_rate": rate} for rate in ("optimal", "invscaling", "pegasos", "per_epoch")),
    {"penalty": "l1", "alpha": 0.01},
    *(
        {"penalty": "elasticnet", "sync": sync}
        for sync in (EASGD(8), SCAFFOLD(8), ChocoSGD(8), LocalSGD(8, overlap=True))
    ),
    {"optimizer": Momentum(0.9, batch=4)},
    {"optimizer": Adam(batch=8)},
    *(
        {**chosen, "sync": sync}
        for chosen in ({"optimizer": SAGA()}, {"optimizer": SVRG()}, {"sampling": "importance"})
        for sync in (LocalSGD(8), MinibatchSGD(12))
    ),
    {"features": RandomFeatures(30, gamma=0.1)},
    {"loss": "softmax"},
]


@pytest.mark.filterwarnings("ignore::dsgd.errors.DivergenceWarning")
@pytest.mark.parametrize("options", CHOICES, ids=str)
@pytest.mark.parametrize("rows", ["dense", "csr"])
def test_every_way_ends_in_the_bits_of_one_fit(options: dict[str, Any], rows: str, tmp_path: Path) -> None:
    """Simulated ranks, a checkpoint and calls by way of pickles, of three classes; others can go on from either."""
    X, _ = problem(101)
    y = np.argmax(X[:, :3], axis=1)
    X = sparse.csr_array(np.where(X > 0.5, X, 0.0)) if rows == "csr" else X.astype(np.float32)
    settings = settings_of(LocalSGD(8), **{"alpha": 1e-3, **options})
    whole = SGDClassifier(**settings, max_iter=EPOCHS).fit(X, y)
    cluster = SimulatedCluster(3, "10GbE")
    simulated = SGDClassifier(**{**settings, "n_jobs": None, "client": cluster}, max_iter=EPOCHS).fit(X, y)
    SGDClassifier(**settings, max_iter=2, client=Gang(checkpoint=tmp_path)).fit(X, y)
    resumed = SGDClassifier(**settings, max_iter=EPOCHS, client=Gang(resume_from=tmp_path)).fit(X, y)
    parts = SGDClassifier(**settings)
    for _ in range(EPOCHS):
        parts = pickle.loads(pickle.dumps(parts)).partial_fit(X, y, classes=[0, 1, 2])
    assert {model_of(model) for model in (simulated, resumed, parts)} == {model_of(whole)}
    assert parts.t_ == whole.t_
    fewer = SGDClassifier(**{**settings, "n_jobs": 2}, max_iter=2 * EPOCHS, client=Gang(resume_from=tmp_path)).fit(X, y)
    for model in (fewer, parts.partial_fit(X[:50], y[:50])):
        assert model.score(X, y) > 0.4


def pushed(model: Any, X: Any, y: Any, **changed: Any) -> np.ndarray:
    """Return what a call changes whose steps are too short to change anything."""
    before = model.coef_.copy()
    moved = called(pickle.loads(pickle.dumps(model)).set_params(eta0=1e-300, **changed), X, y).coef_ - before
    return np.asarray(moved)


def test_what_ranks_have_in_common_goes_on_with_others() -> None:
    """Outer momentum carries the model as far with two or four ranks as with the three that it comes from."""
    X, y = problem(96)
    model = called(SGDClassifier(**settings_of(SlowMo(10**6, 0.5), alpha=0.0)), X, y, 3)
    expected = pushed(model, X, y)
    assert np.linalg.norm(expected) > 1e-2
    for n in (2, 4):
        np.testing.assert_allclose(pushed(model, X, y, n_jobs=n), expected, rtol=1e-12)


def test_another_strategy_begins_anew() -> None:
    """What is late by error feedback comes in the next call, and no more with another strategy or after `clone`."""
    X, y = problem(96)
    sync = LocalSGD(10**6, compressor=ErrorFeedback(TopK(0.2)))
    model = called(SGDClassifier(**settings_of(sync, alpha=0.0)), X, y, 3)
    assert np.abs(pushed(model, X, y)).max() > 1e-3
    other = LocalSGD(10**6, compressor=ErrorFeedback(TopK(0.4)))
    for changed in ({"sync": other}, {"sync": LocalSGD(8)}, {"optimizer": Momentum(0.9)}):
        assert np.abs(pushed(model, X, y, **changed)).max() < 1e-12
    assert model_of(called(clone(model), X, y)) == model_of(called(SGDClassifier(**model.get_params()), X, y))
    fitted = pickle.loads(pickle.dumps(model)).fit(X, y)
    assert np.abs(pushed(fitted, X, y)).max() < 1e-12


def test_rows_may_be_others_in_every_call() -> None:
    """What is late comes all the same after a call in which a rank had no rows, and with other numbers of ranks."""
    X, y = problem(96)
    sync = LocalSGD(10**6, compressor=ErrorFeedback(TopK(0.2)))
    model = called(SGDClassifier(**settings_of(sync, alpha=0.0)), X, y, 3).set_params(eta0=1e-300)
    before = model.coef_.copy()
    others = [pickle.loads(pickle.dumps(model)).set_params(n_jobs=n) for n in (3, 2, 5)]
    called(others[0], X[:2], y[:2])
    for fitted in (model, *others):
        called(fitted, X, y, EPOCHS)
    assert np.abs(model.coef_ - before).max() > 1e-3
    for fitted in others:
        np.testing.assert_allclose(fitted.coef_, model.coef_, rtol=1e-12)


@pytest.mark.parametrize(
    "strategy", [LocalSGD(8), EpochAveraging(), MinibatchSGD(16), LocalSGD(8, overlap=True)], ids=repr
)
def test_nothing_is_kept_where_nothing_is_remembered(strategy: Strategy) -> None:
    """A pickle is as long as the coefficients, twice, and a little; what is remembered is kept once if all have it."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((12, 5000)), rng.random(12) > 0.5
    n_bytes = X[0].nbytes
    model = called(SGDClassifier(**settings_of(strategy)), X, y, 2)
    assert len(pickle.dumps(model)) < 2 * n_bytes + 8000
    slow = called(SGDClassifier(**settings_of(SlowMo(8))), X, y, 2)
    assert len(pickle.dumps(slow)) < 4 * n_bytes + 8000


@pytest.mark.parametrize("name", [n for n, s in STRATEGIES_BY_NAME.items() if s.talks == "by mailbox"])
def test_what_goes_by_post_goes_on(name: str) -> None:
    """Calls with servers, and with models averaged in pairs, end as good a model as one fit, with as many steps."""
    X, y = problem(300)
    settings = {**settings_of(STRATEGIES_BY_NAME[name]()), "n_jobs": None, "client": SimulatedCluster(3, "10GbE")}
    whole = SGDClassifier(**settings, max_iter=EPOCHS).fit(X, y)
    parts = called(SGDClassifier(**settings), X, y, EPOCHS)
    assert parts.t_ == pytest.approx(whole.t_, rel=0.05)
    assert parts.score(X, y) > whole.score(X, y) - 0.02
