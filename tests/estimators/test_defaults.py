"""What the defaults rest on: an order of rows for each epoch, and a stop that waits for every class."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import linear_model
from sklearn.datasets import load_digits, load_wine, make_classification
from sklearn.model_selection import train_test_split

from dsgd import SGDClassifier, SGDRegressor
from dsgd.local import SGD, Objective, Shard, make_shard
from dsgd.local.objective import n_params
from dsgd.local.shard import EPOCH_BLOCKS, epoch_order, spans
from dsgd.runtime import run_on_threads
from dsgd.runtime.train import TrainData, TrainJob, TrainResult, train
from dsgd.sim import SimulatedCluster
from dsgd.sync import STRATEGIES, LocalSGD

LAWS = settings(max_examples=60, deadline=None)


def walk_of(n_rows: int, seed: int | None, epoch: int) -> list[int]:
    """Return the rows of an epoch one after the other."""
    return [row for first, last in spans(epoch_order(n_rows, seed, epoch), 0, n_rows) for row in range(first, last)]


@LAWS
@given(n_rows=st.integers(0, 3 * EPOCH_BLOCKS), seed=st.integers(0, 2**32), epoch=st.integers(0, 100), data=st.data())
def test_an_epoch_visits_every_row_once_however_it_is_cut(n_rows: int, seed: int, epoch: int, data: Any) -> None:
    """The order of an epoch has every row once, and parts of the walk one after the other are the walk."""
    walk = walk_of(n_rows, seed, epoch)
    assert sorted(walk) == list(range(n_rows))
    edges = [0, *sorted(data.draw(st.lists(st.integers(0, n_rows), max_size=5))), n_rows]
    order = epoch_order(n_rows, seed, epoch)
    parts = [span for start, stop in pairwise(edges) for span in spans(order, start, stop)]
    assert [row for first, last in parts for row in range(first, last)] == walk


def test_no_epoch_is_walked_like_another() -> None:
    """Epochs have orders of their own, which depend on the seed and the epoch alone; without a seed rows stay."""
    walks = [tuple(walk_of(1000, seed, epoch)) for seed in (0, 1) for epoch in range(1, 6)]
    assert len(set(walks)) == len(walks)
    assert tuple(walk_of(1000, 0, 3)) == walks[2]
    assert walk_of(1000, None, 3) == list(range(1000))


def rows_of(n_outputs: int, *, sparse: bool, n_rows: int = 600) -> Shard:
    rng = np.random.default_rng(n_outputs)
    X = rng.standard_normal((n_rows, 12)) * (rng.random((n_rows, 12)) < 0.4)
    codes = (X @ rng.standard_normal((12, n_outputs)) + 0.5 * rng.standard_normal((n_rows, n_outputs))).argmax(axis=1)
    y = np.where(X[:, 0] > 0, 1.0, -1.0) if n_outputs == 1 else codes
    return make_shard(sp.csr_array(X) if sparse else X, y, shuffle=False)


@pytest.mark.parametrize(("n_outputs", "sparse"), [(1, False), (1, True), (4, True)])
@pytest.mark.parametrize("schedule", ["optimal", "per_epoch"])
def test_a_walk_in_blocks_is_a_walk_over_rows_that_lie_in_that_order(
    schedule: str, n_outputs: int, *, sparse: bool
) -> None:
    """Steps and gradients over places of an order are, bit for bit, those over rows that were put into that order."""
    # With the second schedule every step of the first epoch forgets the weights, which sparse rows do by columns.
    shard = replace(rows_of(n_outputs, sparse=sparse), seed=5)
    optimizer = SGD(Objective("hinge", "l2", 0.5, n_outputs=n_outputs), schedule=schedule)
    walk = walk_of(shard.n_rows, 5, 1)
    if shard.indptr is None:
        X = shard.values[walk]
    else:
        X = sp.csr_array((shard.values, shard.indices.astype(np.int32), shard.indptr.astype(np.int32)))[walk]
    moved = make_shard(X, shard.targets[walk], shuffle=False)
    found = []
    for rows in (shard, moved):
        params, state = np.zeros(n_params(12, n_outputs)), optimizer.init(rows)
        state.start_epoch()
        optimizer.arrange(rows, state)
        optimizer.run(params, rows, 0, 250, state)
        optimizer.run(params, rows, 250, rows.n_rows, state)
        gradient = np.zeros_like(params)
        optimizer.gradient(params, rows, 100, 500, gradient, state)
        found.append((params, gradient, state.counters))
    for ours, expected in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("penalty", ["l2", "elasticnet"])
@pytest.mark.parametrize(("n_rows", "tail"), [(600, 69), (60, 6), (1600, 185)])
def test_each_class_ends_an_epoch_in_an_order_of_its_own(n_rows: int, tail: int, penalty: str) -> None:
    """Of dense rows a class walks the last ones of an epoch from another one on, and does what it would do alone."""
    shard = replace(rows_of(4, sparse=False, n_rows=n_rows), seed=5)
    optimizer = SGD(Objective("hinge", penalty, 0.01, n_outputs=4), average=20)
    params, state = np.zeros(n_params(12, 4)), optimizer.init(shard)
    state.start_epoch()
    optimizer.arrange(shard, state)
    for start, stop in pairwise([0, n_rows // 3, n_rows - tail + 2, n_rows]):
        optimizer.run(params, shard, start, stop, state)
    single, ends = SGD(Objective("hinge", penalty, 0.01), average=20), set()
    for code in range(4):
        walk = walk_of(n_rows, 5, 1)
        first = tail // 4 * code
        walk = [*walk[:-tail], *walk[-tail:][first:], *walk[-tail:][:first]]
        ends.add(walk[-1])
        targets = np.where(shard.targets[walk] == code, 1.0, -1.0)
        alone = make_shard(shard.values[walk], targets, shuffle=False)
        expected, its_state = np.zeros(13), single.init(alone)
        its_state.start_epoch()
        single.run(expected, alone, 0, n_rows, its_state)
        places = [*range(12 * code, 12 * code + 12), 48 + code]
        np.testing.assert_allclose(params[places], expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state.auxiliary[places], its_state.auxiliary, rtol=1e-9, atol=1e-12)
        assert state.output_losses[code] == pytest.approx(its_state.loss_sum)
    assert len(ends) == 4


def fit(shard: Shard, n_outputs: int, max_iter: int = 200, tol: float | None = 1e-3, **options: Any) -> TrainResult:
    objective = Objective(options.pop("loss", "hinge"), alpha=1e-3, n_outputs=n_outputs)
    job = TrainJob(
        SGD(objective, **options), LocalSGD(), np.zeros(n_params(shard.n_features, n_outputs)), max_iter, tol, 5
    )
    return run_on_threads(train, [TrainData(shard)], (job,)).value


@pytest.mark.parametrize("sparse", [False, True])
def test_several_classes_train_until_the_last_of_them_has_stopped(*, sparse: bool) -> None:
    """One fit is those of each class against the rest, over as many epochs as the slowest of them needs by itself."""
    # Where the order of dense rows is drawn, classes end epochs in orders of their own.
    shard = replace(rows_of(4, sparse=sparse), seed=3 if sparse else None)
    together = fit(shard, 4)
    targets = [np.where(shard.targets == code, 1.0, -1.0) for code in range(4)]
    alone = [fit(replace(shard, targets=own), 1) for own in targets]
    assert len({result.n_iter for result in alone}) > 1
    assert together.n_iter == max(result.n_iter for result in alone)
    weights = together.params[:48].reshape(12, 4).T if sparse else together.params[:48].reshape(4, 12)
    for code, own in enumerate(targets):
        expected = fit(replace(shard, targets=own), 1, max_iter=together.n_iter, tol=None).params
        np.testing.assert_allclose(np.r_[weights[code], together.params[48 + code]], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("penalty", "share"), [(None, 0.0), ("l2", 0.0), ("l1", 1.0), ("elasticnet", 0.15)])
def test_what_is_to_become_smaller_is_loss_and_penalty(penalty: str | None, share: float, *, sparse: bool) -> None:
    """The objective of each output is the mean of its losses before each step, and the penalty of its weights."""
    shard, alpha = rows_of(4, sparse=sparse, n_rows=40), 0.1
    optimizer = SGD(Objective("log_loss", penalty, alpha, n_outputs=4), schedule="constant", eta0=0.1)
    params, state = np.zeros(n_params(12, 4)), optimizer.init(shard)
    dense = sp.csr_array((shard.values, shard.indices, shard.indptr)).toarray() if sparse else shard.values
    losses = np.zeros(4)
    state.start_epoch()
    for row in range(shard.n_rows):
        weights = params[:48].reshape(12, 4).T if sparse else params[:48].reshape(4, 12)
        scores = weights @ dense[row] + params[48:]
        losses += np.log1p(np.exp(-np.where(np.arange(4) == shard.targets[row], 1.0, -1.0) * scores))
        optimizer.run(params, shard, row, row + 1, state)
    weights = params[:48].reshape(12, 4).T if sparse else params[:48].reshape(4, 12)
    penalties = (1 - share) / 2 * (weights**2).sum(axis=1) + share * np.abs(weights).sum(axis=1)
    expected = losses / shard.n_rows + (alpha * penalties if penalty else 0.0)
    np.testing.assert_allclose(optimizer.objective_sums(params, shard, state) / shard.n_rows, expected, rtol=1e-9)


@pytest.mark.parametrize("penalty", [None, "l2"])
def test_training_stops_when_scikit_learns_does(penalty: str | None) -> None:
    """On the same rows in the same order, epochs end with scikit-learn's: the penalty is part of what must fall."""
    X, y = load_digits(return_X_y=True)
    X, y = X / 16, y % 2
    # Without a penalty there is no optimal schedule; with one, losses stop falling long before the weights do.
    options = {"penalty": penalty, "alpha": 0.01, "learning_rate": "constant" if penalty is None else "optimal"}
    options |= {"shuffle": False, "eta0": 0.001, "loss": "log_loss"}
    ours, theirs = (make(**options).fit(X, y) for make in (SGDClassifier, linear_model.SGDClassifier))
    assert abs(ours.n_iter_ - theirs.n_iter_) <= (0 if penalty is None else 2)


@pytest.mark.parametrize(("load", "n_seeds", "margin"), [(load_digits, 15, 0.004), (load_wine, 150, 0.008)])
@pytest.mark.slow
def test_defaults_are_as_good_as_scikit_learns(load: Any, n_seeds: int, margin: float) -> None:
    """The mean test accuracy over seeds with all defaults is scikit-learn's or better, up to the noise of means."""
    X, y = load(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X / X.max(axis=0).clip(1e-12), y, test_size=0.4, random_state=0, stratify=y)
    ours, theirs = (
        np.mean([make(random_state=seed).fit(X, y).score(X_test, y_test) for seed in range(n_seeds)])
        for make in (SGDClassifier, linear_model.SGDClassifier)
    )
    assert ours > theirs - margin


def slow_rows(length: float = 1.0) -> Shard:
    """Return rows of 12 features whose mean length is `length`, and values to be regressed on them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4000, 12)) * length / 12**0.5
    return make_shard(X, X @ rng.standard_normal(12) / length + 0.1 * rng.standard_normal(4000), shuffle=False)


@pytest.mark.parametrize("sizes", [[2000, 2000], [1000] * 4, [3000, 1000], [4000, 0]])
@pytest.mark.parametrize(("schedule", "power"), [("constant", 0.0), ("invscaling", 0.25), ("adaptive", 0.0)])
def test_ranks_get_as_far_as_one_with_pooled_rates(schedule: str, power: float, sizes: list[int]) -> None:
    """Where a step hardly changes the next one, pooled ranks get as far as one; at their own rates, a part of it."""
    shard, n_ranks = slow_rows(), np.count_nonzero(sizes)
    optimizer = SGD(Objective("squared_error", None, fit_intercept=False), schedule, eta0=1e-6, power_t=power)
    edges = np.cumsum([0, *sizes])

    def moved(*strategy: Any, edges: Any = edges) -> np.ndarray:
        job = TrainJob(optimizer, LocalSGD(100, *strategy), np.zeros(13), 2, None, 5)
        return run_on_threads(train, [TrainData(shard.rows(*edge)) for edge in pairwise(edges)], (job,)).value.params

    alone = moved(edges=[0, 4000])
    pooled, own = moved(False, "keep", None, "pooled"), moved()
    # Rows of the ranks differ, and the rates of short and of long shards do not fall alike.
    np.testing.assert_allclose(pooled, alone, atol=0.15 * np.abs(alone).max())
    assert np.linalg.norm(own) / np.linalg.norm(alone) == pytest.approx(n_ranks ** (power - 1.0), rel=0.15)


@pytest.mark.parametrize(("loss", "curvature"), [("squared_error", 1.0), ("squared_epsilon_insensitive", 2.0)])
def test_pooled_rates_end_where_steps_would_diverge(loss: str, curvature: float) -> None:
    """The factor of rates leaves the first step on a row of mean length half of the way to its target, never less."""
    for eta0, length in ((0.01, 1.0), (0.01, 5.0), (0.01, 20.0), (1.0, 3.0)):
        square = slow_rows(length).mean_square()
        assert square == pytest.approx(length**2, rel=0.1)
        optimizer = SGD(Objective(loss), "constant", eta0=eta0)
        factor = optimizer.pooled_factor(8, square)
        assert 1.0 <= factor <= 8.0
        assert factor in (1.0, 8.0) or factor * eta0 * curvature * (square + 1.0) == pytest.approx(0.5)
        # Rates that have fallen to a 10th bear a factor 10 times as high, where nothing else bounds it.
        falls = replace(optimizer, schedule="invscaling", power_t=0.5)
        late = 10.0 * 0.5 / (eta0 * curvature * (square + 1.0))
        assert falls.pooled_factor(1e9, square, 100.0) == pytest.approx(max(1.0, late))


@cache
def rows_for(task: str) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of eight classes, or values, on which few or noisy steps end far from the best."""
    if task == "classes":
        shape = {"n_features": 16, "n_informative": 10, "n_classes": 8, "n_clusters_per_class": 1}
        return make_classification(5600, **shape, flip_y=0.05, class_sep=2.0, random_state=0)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5600, 16))
    return X * float(task), X @ rng.standard_normal(16) / 4 + 0.1 * rng.standard_normal(5600)


@cache
def score_after_8_epochs(task: str, sync: str | None) -> float:
    """Return the median score on other rows, on eight ranks or on one; only threads that share a model differ."""
    (X, y), make = rows_for(task), SGDClassifier if task == "classes" else SGDRegressor
    where: dict[str, Any] = {"n_jobs": 8} if sync == "hogwild" else {"client": SimulatedCluster(8)}
    options = {} if sync is None else {"sync": sync, **where}
    n_seeds = 3 if sync == "hogwild" or (sync is None and task == "classes") else 1
    models = [
        make(max_iter=8, tol=None, random_state=seed, **options).fit(X[:1600], y[:1600]) for seed in range(n_seeds)
    ]
    return float(np.median([model.score(X[1600:], y[1600:]) for model in models]))


# What "auto" does depends on the clock.
@pytest.mark.parametrize(
    ("task", "below"),
    [
        ("classes", 0.015),  # points of accuracy
        *(pytest.param(length, 0.03, marks=pytest.mark.slow) for length in ("1.0", "1.6")),  # R2, by the length of rows
    ],
)
@pytest.mark.parametrize("sync", [name for name in STRATEGIES if name != "auto"])
def test_no_strategy_ends_far_below_one_rank_by_default(sync: str, task: str, below: float) -> None:
    """With its defaults and as many epochs no strategy on eight ranks ends far below one rank."""
    assert score_after_8_epochs(task, sync) > score_after_8_epochs(task, None) - below
