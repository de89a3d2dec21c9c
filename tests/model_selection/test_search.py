"""Searches in one pass: columns are fits, masks are folds, and results are scikit-learn's."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import SGDClassifier as PlainSGDClassifier
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV, GroupKFold, ParameterSampler, ShuffleSplit

from dsgd import SGDClassifier, SGDRegressor
from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError
from dsgd.kernels.columns import _log_loss
from dsgd.kernels.losses import LOSSES, loss_and_slope
from dsgd.local import SGD, Objective, make_shard
from dsgd.local.columns import Column, make_panels, regroup
from dsgd.local.shard import epoch_order
from dsgd.model_selection import SGDSearchCV
from reference.sgd import parameter_of, sequential, targets_of

N, D = 400, 7
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, D))
SIGNAL = X @ RNG.standard_normal(D)
Y = np.where(SIGNAL + 0.5 * RNG.standard_normal(N) > 0, "yes", "no")
Y3 = np.digitize(SIGNAL, [-1, 1])
S = sp.random(N, 30, 0.2, format="csr", random_state=0)
WEIGHTS = RNG.integers(0, 3, N).astype(float)
CLASSIFIER = SGDClassifier(random_state=0, shuffle=False, max_iter=40, tol=1e-2)
REGRESSOR = SGDRegressor(random_state=0, shuffle=False, max_iter=40, tol=1e-2)
LOSSES_AND_ALPHAS = {"alpha": [1e-2, 0.3], "loss": ["hinge", "log_loss", "modified_huber"]}


def searches(estimator, grid, *data, fit=None, **options):
    """Return our search and scikit-learn's, both fitted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs = SGDSearchCV(estimator, grid, cv=3, n_jobs=2), GridSearchCV(estimator, grid, cv=3)
        return [search.set_params(**options).fit(*data, **(fit or {})) for search in (ours, theirs)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "grid", "data", "options"),
    [
        (CLASSIFIER, LOSSES_AND_ALPHAS, (X, Y), {"scoring": "roc_auc", "return_train_score": True}),
        (CLASSIFIER, LOSSES_AND_ALPHAS, (X, Y), {"fit": {"sample_weight": WEIGHTS}}),
        (CLASSIFIER, LOSSES_AND_ALPHAS, (X.astype(np.float32), Y3), {}),
        (CLASSIFIER, {"penalty": ["l1", "l2", "elasticnet", None], "l1_ratio": [0.2, 0.7]}, (S, Y3), {}),
        (CLASSIFIER, {"class_weight": ["balanced", None, {0: 2.0}], "fit_intercept": [True, False]}, (X, Y3), {}),
        (
            CLASSIFIER,
            [
                {"learning_rate": ["constant", "adaptive", "triangular"], "eta0": [1e-3, 1e-1]},
                {"learning_rate": ["pegasos", "per_epoch"]},
            ],
            (X, Y),
            {"scoring": ["accuracy", "f1_macro"], "refit": "f1_macro"},
        ),
        (
            REGRESSOR,
            {"loss": ["squared_error", "huber", "epsilon_insensitive"], "epsilon": [0.1, 1], "power_t": [0.25, 0.5]},
            (X, SIGNAL),
            {"scoring": ("r2", "neg_mean_absolute_error"), "refit": "r2"},
        ),
        (REGRESSOR, {"loss": ["poisson", "gamma", "huber"], "alpha": [1e-3, 0.1]}, (X, np.exp(SIGNAL / 4)), {}),
        (
            REGRESSOR,
            {"loss": ["tweedie"], "tweedie_power": [1.2, 1.8]},
            (X, np.exp(SIGNAL / 4)),
            {"scoring": ["r2", "neg_mean_poisson_deviance"], "refit": "r2"},
        ),
    ],
)
def test_results_are_those_of_a_grid_search_of_the_same_estimator(estimator, grid, data, options):
    """In the given order every score, rank and parameter is that of one fit for each candidate and fold."""
    ours, theirs = searches(estimator, grid, *data, **options)
    for name, expected in theirs.cv_results_.items():
        if name == "params":
            assert ours.cv_results_[name] == expected
        elif "time" in name:
            assert np.all(ours.cv_results_[name] >= 0)
        elif name.startswith("param_"):
            assert ours.cv_results_[name].dtype == expected.dtype
            assert list(ours.cv_results_[name]) == list(expected)
        else:
            np.testing.assert_allclose(ours.cv_results_[name], expected, rtol=1e-6, atol=1e-6, err_msg=name)
    assert ours.best_index_ == theirs.best_index_
    np.testing.assert_array_equal(ours.best_estimator_.coef_, theirs.best_estimator_.coef_)
    assert ours.score(*data) == pytest.approx(theirs.score(*data))


@settings(max_examples=25)
@given(
    loss=st.sampled_from(sorted(LOSSES)),
    penalty=st.sampled_from(["l2", "l1", "elasticnet", None]),
    schedule=st.sampled_from(["optimal", "constant", "invscaling", "pegasos", "per_epoch"]),
    seed=st.integers(0, 100),
)
def test_a_column_is_the_sequence_of_its_steps(loss, penalty, schedule, seed):
    """Whatever stands beside it, a column is what plain steps on its kept rows make, in numpy, one by one."""
    rng = np.random.default_rng(seed)
    rows, y, kept = rng.standard_normal((60, 5)), rng.choice([-1.0, 1.0], 60), rng.random(60) < 0.8
    rows[rng.random(rows.shape) < 0.3] = 0.0
    # Steps that overshoot would make rounding grow, and so would predictions that lie on a corner of the loss.
    y = y if LOSSES[loss].task == "classification" else y + 0.1 * rng.standard_normal(60)
    y, parameter = targets_of(loss, y), parameter_of(loss, 0.2)
    weights, alphas = rng.random(60) + 0.5, [0.2, 0.5, 1.0]
    for given_rows, decay in ((rows, 1.0), (sp.csr_array(rows), 0.01)):
        if decay < 1.0 and schedule == "per_epoch":
            continue
        shard = make_shard(given_rows, y, weights, shuffle=False)
        source = np.repeat(np.arange(60), np.rint(weights).astype(int))
        columns = [
            Column(k, 0, 0, SGD(Objective(loss, penalty, alpha, 0.3, parameter), schedule, eta0=0.02, power_t=0.4))
            for k, alpha in enumerate(alphas)
        ]
        (panel,) = make_panels(columns, shard)
        # One block: of few rows `epoch_order` makes blocks of one row, which then are steps by themselves.
        order = np.array([[0, shard.n_rows], [0, 0]])
        mask = kept[source].astype(np.uint8)
        for _ in range(2):
            panel.start_epoch([1.0] * 3)
            panel.run(shard, mask, order, 0, 23)
            panel.run(shard, mask, order, 23, shard.n_rows)
        dense = rows[source][mask > 0]
        own = make_shard(given_rows[kept], y[kept], weights[kept], shuffle=False)
        for k, alpha in enumerate(alphas):
            w, b, *_ = sequential(
                dense,
                y[source][mask > 0],
                shard.weights[mask > 0],
                n_epochs=2,
                loss_name=loss,
                penalty=penalty,
                alpha=alpha,
                l1_ratio=0.3,
                epsilon=parameter,
                schedule=schedule,
                eta0=0.02,
                power_t=0.4,
                intercept_decay=decay,
            )
            sgd = columns[k].optimizer
            state, params = sgd.init(own), np.zeros(6)
            for _ in range(2):
                state.start_epoch()
                sgd.arrange(own, state)
                sgd.run(params, own, 0, own.n_rows, state)
            found = np.append(*panel.model(k))
            if np.abs(params).max() > 1e3:  # each step overshoots further, and rounding with it
                continue
            np.testing.assert_allclose(found, params, rtol=1e-9, atol=1e-9)
            if penalty in ("l2", None):  # an L1 penalty has corners where rounding decides
                np.testing.assert_allclose(found, np.append(w, b), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_column_has_the_same_bits_in_any_panel(n_threads):
    """Neither its neighbours, nor its place, nor that others leave changes a bit of a column."""
    shard = make_shard(X, np.where(Y == "yes", 1.0, -1.0), seed=1)
    kept, order = (np.arange(N) % 4 > 0).astype(np.uint8), epoch_order(N, 3, 1)
    # Of one thread a panel has one loss, and others have losses that begin at any vector.
    losses = ["hinge"] * 40 + ["log_loss"] * 33 + ["modified_huber"] * 23
    columns = [Column(k, 0, 0, SGD(Objective(loss, alpha=10.0 ** -(k % 7)))) for k, loss in enumerate(losses)]
    alone = [make_panels([column], shard)[0] for column in columns]
    panels = make_panels(columns, shard, n_threads)
    for epoch in range(2):
        for panel in panels + alone:
            panel.start_epoch([1.0] * len(panel.columns))
            panel.run(shard, kept, order, 0, N)
        for panel in panels:
            for c, column in enumerate(panel.columns):
                coef, intercept = alone[column.model].model(0)
                np.testing.assert_array_equal(panel.model(c)[0], coef)
                assert panel.model(c)[1] == intercept
                assert panel.objectives()[c] == alone[column.model].objectives()[0]
        if epoch == 0:
            assert sorted(column.model for panel in panels for column in panel.columns) == list(range(96))
            panels = regroup(panels, range(1, 96, 2), shard)
    assert sorted(column.model for panel in panels for column in panel.columns) == list(range(1, 96, 2))


def test_threads_and_files_change_no_bit():
    """Any number of threads, and rows in a file, give the same results."""
    model, grid = SGDClassifier(random_state=0, max_iter=5, tol=None, loss="log_loss"), {"alpha": np.logspace(-5, 1, 9)}
    options = {"scoring": "neg_log_loss", "cv": 3}
    scores = [
        SGDSearchCV(each, grid, n_jobs=n_jobs, **options).fit(X, Y).cv_results_["mean_test_score"]
        for each, n_jobs in ((model, None), (model, 3), (clone(model).set_params(client__out_of_core=True), 2))
    ]
    np.testing.assert_array_equal(scores[0], scores[1])
    np.testing.assert_array_equal(scores[0], scores[2])


def test_halving_drops_candidates_that_are_behind():
    """Of 27 candidates nine go on after the first epoch and three after the third; one of the last is the best."""
    grid = {"alpha": np.logspace(-5, 2, 27)}
    search = SGDSearchCV(SGDClassifier(random_state=0), grid, factor=3, cv=3).fit(X, Y)
    results = search.cv_results_
    assert [int((results["rung"] >= rung).sum()) for rung in range(4)] == [27, 9, 3, 1]
    np.testing.assert_array_equal(results["mean_n_iter"][results["rung"] == 0], 1)
    np.testing.assert_array_equal(results["mean_n_iter"][results["rung"] == 1], 3)
    assert results["rung"][search.best_index_] == 3
    assert results["rank_test_score"][search.best_index_] == 1
    full = SGDSearchCV(SGDClassifier(random_state=0), grid, cv=3).fit(X, Y)
    assert search.best_score_ > full.cv_results_["mean_test_score"].max() - 0.03
    assert search.cv_results_["mean_n_iter"].sum() < full.cv_results_["mean_n_iter"].sum() / 2


def test_weights_count_in_scores_of_any_scorer():
    """A score is that of the scorer with the weights of the rows held out, where it takes weights."""
    train, test = np.arange(0, N, 2), np.arange(1, N, 2)
    search = SGDSearchCV(CLASSIFIER, {"alpha": [1e-2]}, scoring="balanced_accuracy", cv=[(train, test)])
    search.set_params(estimator__loss="log_loss").fit(X, Y, sample_weight=WEIGHTS)
    model = (
        clone(CLASSIFIER).set_params(loss="log_loss", alpha=1e-2).fit(X[train], Y[train], sample_weight=WEIGHTS[train])
    )
    expected, plain = (
        get_scorer("balanced_accuracy")(model, X[test], Y[test], **each)
        for each in ({"sample_weight": WEIGHTS[test]}, {})
    )
    assert search.cv_results_["split0_test_score"][0] == pytest.approx(expected, abs=1e-6)
    assert expected != pytest.approx(plain, abs=1e-6)


@pytest.mark.slow
def test_a_model_that_leaves_the_range_has_the_error_score():
    """Its neighbours go on, a warning says how many failed, and "raise" raises."""
    grid = {"eta0": [1e-3, 1e30]}
    model = SGDRegressor(random_state=0, learning_rate="constant")
    single = X.astype(np.float32)
    with pytest.warns(FitFailedWarning, match="5 of 10 models failed"):
        search = SGDSearchCV(model, grid).fit(single, SIGNAL)
    assert np.isnan(search.cv_results_["mean_test_score"][1])
    assert list(search.cv_results_["rank_test_score"]) == [1, 2]
    with pytest.raises(InvalidDataError, match="under-/overflow"):
        SGDSearchCV(model, grid, error_score="raise").fit(single, SIGNAL)


@pytest.mark.parametrize(
    ("estimator", "grid", "error", "said"),
    [
        (PlainSGDClassifier(), {"alpha": [1]}, InvalidParameterError, "of dsgd"),
        (SGDClassifier(average=True), {"alpha": [1]}, IncompatiblePartsError, "average=True"),
        (SGDClassifier(), {"random_state": [1, 2]}, IncompatiblePartsError, "random_state: candidates may differ"),
        (SGDClassifier(), {"alpha": [-1.0]}, InvalidParameterError, "alpha"),
        (SGDClassifier(), [], InvalidParameterError, "no candidate"),
    ],
)
def test_what_columns_cannot_be_is_refused(estimator, grid, error, said):
    """An error names the parameter, and what to do instead."""
    with pytest.raises(error, match=said):
        SGDSearchCV(estimator, grid).fit(X, Y)


def test_a_fold_without_a_class_is_refused():
    """An error names the split and the class."""
    with pytest.raises(InvalidDataError, match="split 0 of cv trains on no row of"):
        SGDSearchCV(SGDClassifier(), {"alpha": [1]}, cv=[(np.flatnonzero(Y == "no"), np.arange(N))]).fit(X, Y)


def test_the_log_loss_of_columns_is_the_log_loss():
    """Without calls of exp and log1p, loss and slope are theirs, and beyond any margin they are finite."""
    margins = np.r_[np.linspace(-70, 70, 4001), -1e6, 1e6]
    found = np.array([_log_loss(1.0, margin) for margin in margins])
    expected = np.array([loss_and_slope(LOSSES["log_loss"].code, 1.0, margin, 0.0) for margin in margins])
    np.testing.assert_allclose(found[:, 0] + np.log(found[:, 1]), expected[:, 0], rtol=1e-15, atol=3e-16)
    np.testing.assert_allclose(found[:, 2], expected[:, 1], rtol=1e-15, atol=1e-27)


def test_the_shuffled_order_is_that_of_a_fit_on_all_rows():
    """A fold that holds out rows of weight zero, which a fit never visits, has the model of that fit."""
    model = SGDClassifier(random_state=3, max_iter=5, tol=None)
    weights = np.ones(N)
    weights[300:] = 0.0
    cv = [(np.arange(N), np.arange(N))]
    search = SGDSearchCV(model, {"alpha": [1e-3]}, cv=cv).fit(X, Y, sample_weight=weights)
    assert search.cv_results_["split0_test_score"][0] == pytest.approx(search.best_estimator_.score(X[:300], Y[:300]))


def test_any_splitter_and_any_candidates():
    """Groups, splits that overlap and sampled candidates are those of scikit-learn."""
    groups = np.arange(N) // 20
    sampler = ParameterSampler({"alpha": np.logspace(-4, 0, 50), "loss": ["hinge", "log_loss"]}, 4, random_state=1)
    listed = [{name: [value] for name, value in each.items()} for each in sampler]
    overlapping = ShuffleSplit(3, test_size=0.3, train_size=0.4, random_state=0).split(X)
    splitters = ((GroupKFold(4), groups), ([(np.sort(train), test) for train, test in overlapping], None))
    for cv, kinds in splitters:
        ours = SGDSearchCV(CLASSIFIER, sampler, cv=cv).fit(X, Y, groups=kinds)
        theirs = GridSearchCV(CLASSIFIER, listed, cv=cv).fit(X, Y, groups=kinds)
        np.testing.assert_allclose(
            ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"], rtol=1e-12
        )
