"""Where users rely on what scikit-learn's SGD does, ours does it too: held-out rows, averages, messages."""

from __future__ import annotations

import functools
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import make_blobs
from sklearn.linear_model import SGDClassifier as PlainClassifier
from sklearn.linear_model import SGDRegressor as PlainRegressor
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit

from dsgd import SGDClassifier, SGDRegressor
from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.local import Momentum

BOTH = [SGDClassifier, SGDRegressor]


def rows(n: int = 90) -> tuple[np.ndarray, np.ndarray]:
    """Return three classes of codes 0, 1, 2, which serve as values as well."""
    return make_blobs(n, centers=3, n_features=4, random_state=0)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("state", [7, "RandomState"])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_one_rank_holds_out_the_rows_of_scikit_learn(kind, state, form):
    """With early stopping one rank trains on the rows that scikit-learn's class does, for the same random_state."""
    X, y = rows()
    random_state = np.random.RandomState(7) if state == "RandomState" else state
    options = {"learning_rate": "constant", "eta0": 0.01, "tol": None, "max_iter": 4, "shuffle": False}
    model = kind(early_stopping=True, validation_fraction=0.3, random_state=random_state, **options).fit(form(X), y)
    splitter = StratifiedShuffleSplit if kind is SGDClassifier else ShuffleSplit
    kept, _ = next(splitter(test_size=0.3, random_state=7).split(X, y))
    kept.sort()
    np.testing.assert_array_equal(model.coef_, kind(**options).fit(form(X[kept]), y[kept]).coef_)


@pytest.mark.parametrize("kind", BOTH)
def test_nothing_to_train_on_or_to_validate_with_is_refused(kind):
    """A share that leaves no row to train on, and held-out rows without weight, are errors that say what to change."""
    X, y = rows(12)
    with pytest.raises(InvalidDataError, match=r"validation_fraction=0.99 leaves 0 of them to train on"):
        kind(early_stopping=True, validation_fraction=0.99).fit(X, y)
    with pytest.raises(InvalidDataError, match="weights for validation set are all zero"):
        kind(early_stopping=True, validation_fraction=0.3, random_state=0).fit(X, y, sample_weight=np.zeros(12))
    with pytest.raises(InvalidDataError, match="at least one non-zero number"):
        kind().fit(X, y, sample_weight=np.zeros(12))


def test_classes_too_small_for_a_stratified_split_still_stop_early():
    """A class of one row, which scikit-learn refuses to split, stays in training."""
    X, y = rows()
    y = np.where(np.arange(len(y)) == 3, 9, y)
    assert SGDClassifier(early_stopping=True, random_state=0).fit(X, y).classes_.tolist() == [0, 1, 2, 9]


STEPS = {"shuffle": False, "learning_rate": "constant", "eta0": 0.01, "tol": None}


def labels_of(kind) -> dict[str, list[float]]:
    """Return what partial_fit is told of the classes."""
    return {"classes": [0.0, 1.0]} if kind is SGDClassifier else {}


@functools.cache
def model_after_each_step(kind) -> list[np.ndarray]:
    """Return the weights after each of 20 steps: two passes over ten rows."""
    X, y = rows(10)
    plain, models = kind(**STEPS), []
    for row in [*range(10), *range(10)]:
        plain.partial_fit(X[row : row + 1], y[row : row + 1] == 1.0, **labels_of(kind))
        models.append(plain.coef_.copy())
    return models


@pytest.mark.parametrize("kind", BOTH)
@settings(max_examples=15)
@given(begins=st.integers(1, 20), cuts=st.lists(st.integers(1, 9), max_size=3))
def test_an_average_is_the_mean_of_the_models_from_its_step_on(kind, begins, cuts):
    """However calls of partial_fit are cut, the average is the mean of the models from step `average` on."""
    X, y = rows(10)
    model, models = kind(average=begins, **STEPS), model_after_each_step(kind)
    for start, stop in [*pairwise(sorted({0, *cuts, 10}))] * 2:
        model.partial_fit(X[start:stop], y[start:stop] == 1.0, **labels_of(kind))
    expected = np.mean(models[begins - 1 :], axis=0)
    np.testing.assert_allclose(model.coef_, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model._standard_coef.ravel(), models[-1].ravel(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shares", [[0.9, 0.1], [0.4, 0.25, 0.15, 0.08, 0.06, 0.04, 0.02]], ids=len)
def test_the_average_of_constant_steps_is_the_solution_of_least_squares(shares):
    """The average comes as near to it as steps on independent rows would (Bach and Moulines 2013).

    Finds rows of each class at equal distances, with which the average was 11 and 9 times as far above the least loss.
    """
    rng = np.random.default_rng(0)
    codes = rng.choice(len(shares), 4000, p=shares)
    X = rng.standard_normal((len(shares), 3))[codes] + 0.5 * rng.standard_normal((4000, 3))
    signs = np.where(codes[:, None] == np.arange(len(shares)), 1.0, -1.0)[:, 1 if len(shares) == 2 else 0 :]
    columns = np.c_[X, np.ones(4000)]
    least = 0.5 * np.linalg.lstsq(columns, signs)[1].sum() / 4000
    excess = np.zeros((2, 4))
    for average in (0, 1):
        steps = {"loss": "squared_error", "learning_rate": "constant", "eta0": 0.03, "max_iter": 30, "tol": None}
        for seed in range(4):
            model = SGDClassifier(**steps, alpha=1e-12, average=bool(average), random_state=seed).fit(X, codes)
            errors = columns @ np.c_[model.coef_, model.intercept_].T - signs
            excess[average, seed] = 0.5 * (errors**2).sum(axis=1).mean() - least
    last, averaged = excess.mean(axis=1)
    assert averaged < last / 200


@pytest.mark.parametrize("options", [{}, {"optimizer": Momentum(0.5, batch=1)}], ids=["rows", "batches"])
def test_an_average_of_ten_million_steps_is_the_same_in_float32(options):
    """Finds averages that are kept in float32, to which late models add nothing: the intercept was off by a tenth."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200_000, 3))
    y = X[:, 0] + rng.standard_normal(200_000) > 1
    steps = {"loss": "log_loss", "alpha": 1e-9, "learning_rate": "constant", "eta0": 1e-4, "tol": None, "max_iter": 50}
    single, double = (
        SGDClassifier(**steps, **options, average=True, random_state=0).fit((X + 3).astype(kind), y)
        for kind in (np.float32, np.float64)
    )
    assert single.coef_.dtype == np.float32
    np.testing.assert_allclose(single.coef_[0, 0], double.coef_[0, 0], rtol=1e-3)
    np.testing.assert_allclose(single.intercept_, double.intercept_, rtol=1e-3)


@pytest.mark.parametrize(("kind", "theirs"), [(SGDClassifier, PlainClassifier), (SGDRegressor, PlainRegressor)])
def test_only_averages_keep_two_models(kind, theirs):
    """The last model and the average lie beside coef_ under scikit-learn's names, only where there is an average."""
    X, y = rows()
    names = ("_standard_coef", "_standard_intercept", "_average_coef", "_average_intercept")
    ours, plain = kind(average=True).fit(X, y), theirs(average=True).fit(X, y)
    for name in names:
        assert np.size(getattr(ours, name)) == np.size(getattr(plain, name))
    np.testing.assert_array_equal(np.ravel(ours.coef_), np.ravel(ours._average_coef))
    ours.set_params(average=False).fit(X, y)
    assert not any(hasattr(ours, name) for name in names)


@pytest.mark.parametrize("kind", BOTH)
def test_partial_fit_goes_on_from_coef(kind):
    """The next partial_fit continues from a coef_ that was written by hand, or made sparse."""
    X, y = rows()
    label = {"classes": [0, 1, 2]} if kind is SGDClassifier else {}
    one, other = (kind(shuffle=False).partial_fit(X, y, **label) for _ in range(2))
    other.sparsify()
    np.testing.assert_array_equal(other.partial_fit(X, y).coef_, one.partial_fit(X, y).coef_)
    one.coef_ = np.zeros_like(one.coef_)
    assert np.abs(one.partial_fit(X, y).coef_ - other.partial_fit(X, y).coef_).max() > 0


@pytest.mark.parametrize(("kind", "theirs"), [(SGDClassifier, PlainClassifier), (SGDRegressor, PlainRegressor)])
def test_losses_are_listed_as_by_scikit_learn(kind, theirs):
    """`loss_functions` names the losses of scikit-learn's class, with the default of a threshold, and a few more."""
    others = {"quantile", "poisson", "gamma", "tweedie"} if kind is SGDRegressor else {"softmax"}
    assert set(kind.loss_functions) == set(theirs.loss_functions) | others
    for name, (row, *threshold) in kind.loss_functions.items():
        assert row.name == name
        known = theirs.loss_functions[name][1:] if "epsilon" in name or name == "huber" else ()
        assert tuple(threshold) == tuple(known)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", BOTH)
def test_what_goes_or_does_not_go_together_is_said_as_by_scikit_learn(kind):
    """Refusals and deprecations of parameters begin with scikit-learn's sentences."""
    X, y = rows()
    with pytest.raises(InvalidParameterError, match="l1_ratio must be set when penalty is 'elasticnet'"):
        kind(penalty="elasticnet", l1_ratio=None).fit(X, y)
    with pytest.raises(InvalidParameterError, match="early_stopping should be False with partial_fit"):
        kind(early_stopping=True).partial_fit(X, y)
    with pytest.warns(FutureWarning, match="Negative values for `power_t` are deprecated"):
        kind(power_t=-0.5, max_iter=2, tol=None).fit(X, y)
