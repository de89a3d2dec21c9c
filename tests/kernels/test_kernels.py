"""Scalar kernels against calculus and scikit-learn, vector kernels against float64 numpy, and the cache on disk."""

import importlib
import json
import os
import subprocess
import sys

import numba
import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn._loss import HalfGammaLoss, HalfPoissonLoss, HalfTweedieLoss, PinballLoss

from dsgd.kernels import rows
from dsgd.kernels.jit import SAID
from dsgd.kernels.losses import LOSSES, loss_and_slope
from dsgd.kernels.order import draw_one, mix64_each
from dsgd.kernels.rows import add_row, row_dot
from dsgd.kernels.scaled import soft_threshold, violation
from dsgd.kernels.state import SCHEDULES, learning_rate, optimal_t0
from dsgd.kernels.tiles import GRAM, STEPS, WIDTH, add_dense, multiply_rows, predict_dense
from reference import sgd as twin

POINTS = np.r_[np.linspace(-3.03, 3.03, 41), -50.0, 50.0, -800.0, 800.0]


@pytest.mark.parametrize("name", LOSSES)
def test_losses_equal_their_definition(name):
    """Loss and derivative are those of the table, far out too, where exp overflows."""
    parameter = twin.parameter_of(name, 0.3)
    for y in twin.targets_of(name, (-1.0, 1.0) if LOSSES[name].task == "classification" else (-1.3, 0.0, 2.0)):
        for p in POINTS:
            loss, slope = loss_and_slope(LOSSES[name].code, y, p, parameter)
            np.testing.assert_allclose(loss, twin.loss(name, y, p, parameter), rtol=1e-12, atol=1e-15)
            np.testing.assert_allclose(slope, twin.slope(name, y, p, parameter), rtol=1e-12, atol=1e-15)


def test_slopes_are_clipped_and_nan_passes():
    """An absurd prediction gets the largest slope scikit-learn allows; NaN and infinity are not hidden."""
    assert loss_and_slope(LOSSES["squared_error"].code, 0.0, 1e200, 0.1)[1] == 1e12
    assert loss_and_slope(LOSSES["squared_hinge"].code, 1.0, -1e200, 0.1)[1] == -1e12
    assert loss_and_slope(LOSSES["poisson"].code, 1.0, 1e200, 0.1)[1] == 1e12
    assert loss_and_slope(LOSSES["gamma"].code, 1.0, -1e200, 0.1)[1] == -1e12
    for name, row in LOSSES.items():
        if row.task == "regression":
            assert np.isnan(loss_and_slope(row.code, 1.0, np.nan, twin.parameter_of(name, 0.3))[0]), name


@pytest.mark.parametrize(
    ("name", "parameter", "peer"),
    [
        ("quantile", 0.8, PinballLoss(quantile=0.8)),
        ("poisson", 0.1, HalfPoissonLoss()),
        ("gamma", 0.1, HalfGammaLoss()),
        ("tweedie", 1.0, HalfTweedieLoss(power=1.0)),
        ("tweedie", 1.7, HalfTweedieLoss(power=1.7)),
        ("tweedie", 2.0, HalfTweedieLoss(power=2.0)),
    ],
)
def test_losses_of_means_and_quantiles_equal_scikit_learns(name, parameter, peer):
    """Loss and derivative are those of scikit-learn's losses, zero targets and large predictions included."""
    ys, ps = np.meshgrid([0.0, 1e-8, 0.7, 3.0, 1e6], np.r_[np.linspace(-4.0, 4.0, 17), -20.0, 20.0])
    ys, ps = ys.ravel() + (0.0 if peer.in_y_true_range(np.zeros(1)) else 0.1), ps.ravel()
    found = np.array([loss_and_slope(LOSSES[name].code, y, p, parameter) for y, p in zip(ys, ps, strict=True)])
    expected = np.transpose(peer.loss_gradient(ys, ps))
    expected[:, 1] = np.clip(expected[:, 1], -1e12, 1e12)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_equal_their_definition(name):
    """Every schedule gives the rate of its formula, from the first step of the first epoch on."""
    for t, epoch in ((1.0, 1.0), (17.0, 2.0), (1e6, 9.0)):
        rate = learning_rate(SCHEDULES[name].code, t, epoch, 0.01, 0.5, 0.25, optimal_t0(0.01))
        assert rate == pytest.approx(twin.rate(name, t, epoch, 0.01, 0.5, 0.25), rel=1e-12)


def test_the_soft_threshold_is_the_minimum_and_has_no_violation():
    """It is where the penalised parabola is least on a grid, and the weight that optimality holds for."""
    grid = np.linspace(-3.0, 3.0, 6001)
    for aim, width in ((2.0, 0.5), (-2.0, 0.5), (0.3, 0.5), (-0.3, 0.5), (0.0, 0.5), (1.5, 0.0)):
        weight = soft_threshold(aim, width)
        assert weight == pytest.approx(grid[np.argmin((grid - aim) ** 2 / 2 + width * np.abs(grid))], abs=1e-3)
        assert violation(weight - aim, weight, width) <= 1e-15
        assert violation(weight + 0.1 - aim, weight + 0.1, width) == pytest.approx(
            0.1 + (abs(aim) < width) * (width - aim)
        )


def test_random_words_are_splitmix64():
    """The stream of key 1234567 begins as the published splitmix64 does."""
    words = [int(draw_one(np.uint64(1234567), np.uint64(i))) for i in range(3)]
    assert words == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert len(np.unique(mix64_each(np.arange(1000, dtype=np.uint64)))) == 1000


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 15, 16, 17, 22, 31, 33, 64, 100, 257, 2000])
def test_sums_in_any_order_stay_within_rounding(n, dtype):
    """Dense and sparse inner products and updates differ from float64 numpy by rounding of the type only."""
    rng = np.random.default_rng(n)
    values, weights = rng.standard_normal(n + 3).astype(dtype), rng.standard_normal(3 * n + 9).astype(dtype)
    indices = np.sort(rng.choice(2 * n + 2, n + 3, replace=n == 0)).astype(np.uint32)
    first, last, base = np.uint64(2), np.uint64(n + 2), np.uint64(3)
    eps = float(np.finfo(dtype).eps)
    for columns, index in ((None, np.arange(n) + 3), (indices, indices[2:-1].astype(int) + 3)):
        x, w = values[2:-1].astype(float), weights[index].astype(float)
        found = dot_of_row(values, columns, first, last, weights, base)
        assert abs(found - x @ w) <= (n + 1) * eps * (np.abs(x) @ np.abs(w))
        updated = weights.copy()
        add_to_row(values, columns, first, last, updated, base, 0.37)
        expected = weights.astype(float)
        expected[index] += 0.37 * x
        np.testing.assert_allclose(updated, expected, rtol=4 * eps, atol=4 * eps)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n", [5, 22, 100])
def test_what_is_not_finite_is_not_lost(n, bad):
    """One entry that is not finite, at any place of a row, makes the inner product not finite."""
    for place in range(n):
        values = np.ones(n, np.float32)
        values[place] = bad
        columns = np.arange(n, dtype=np.uint32)
        for indices in (None, columns):
            assert not np.isfinite(dot_of_row(values, indices, np.uint64(0), np.uint64(n), np.ones(n, np.float32),
                                              np.uint64(0)))  # fmt: skip


_dot, _add = numba.njit(lambda *given: row_dot(*given)), numba.njit(lambda *given: add_row(*given))


def dot_of_row(values, indices, first, last, *more):
    """Call the row kernel as other kernels do."""
    return _dot(values, None if indices is None else (indices, np.zeros(1, np.uint64)), (first, last), *more)


def add_to_row(values, indices, first, last, *more):
    """Call the row kernel as other kernels do."""
    _add(values, None if indices is None else (indices, np.zeros(1, np.uint64)), (first, last), *more)


FRESH = """
import importlib
import json
import os
import numpy as np, scipy.sparse as sp
from dsgd.kernels import order, rows, rules, sgd
from dsgd.kernels.losses import LOSSES
from dsgd.kernels.state import SCHEDULES
from dsgd.local import SGD, Objective
from dsgd.local.ingest import concat_blocks
from dsgd.local.objective import n_params
from dsgd.local.sgd import is_finite
from dsgd.local.objective import evaluate as evaluate_model
X, y = np.ones((4, 3), np.float32), np.array([1.0, 0.0, 1.0, 0.0])
y.flags.writeable = False
for data in (X, sp.csr_array(X)):
    for loss in list(LOSSES) if {every} else ["hinge"]:
        for penalty in ("l2", "l1", "elasticnet", None) if {every} else ["l2"]:
            for schedule in list(SCHEDULES) if {every} else ["optimal"]:
                for n_outputs, average in ((1, 0), (2, 3)):
                    objective = Objective(loss, penalty, epsilon=1.0, n_outputs=n_outputs)
                    optimizer = SGD(objective, schedule, average=average)
                    shard = concat_blocks([(data, y, np.ones(4)), (data, y, None)])
                    params = np.zeros(n_params(3, n_outputs), np.float32)
                    out = params.copy()
                    state = optimizer.init(shard)
                    state.start_epoch()
                    optimizer.run(params, shard.rows(0, 3), 0, 3, state)
                    optimizer.gradient(params, shard, 0, 3, out, state)
                    optimizer.step(params, out, 3, state)
                    evaluate_model(params, shard, optimizer.objective)
                    is_finite(params)
kernels = [sgd.run_rows, rules.gradient_rows, rules.step_all, rows.all_finite, sgd.evaluate_rows,
           order.draw_order, rows.place_dense, rows.place_sparse]
found = {{k.__name__: [sum(k.stats.cache_misses.values()), sorted(map(str, k.signatures))] for k in kernels}}
print(json.dumps(found))
"""


LEAF = """
import numpy as np
from dsgd.kernels.jit import SAID, leaf_kernel

@leaf_kernel
def total(vector):
    return vector.sum()

@leaf_kernel
def doubled(vector):
    return (vector + vector).sum()
"""


def test_a_leaf_kernel_cannot_allocate(tmp_path, monkeypatch):
    """A kernel without reference counts reads arrays; one that would make an array, and lose it, is not compiled."""
    (tmp_path / "leaves.py").write_text(LEAF)
    monkeypatch.syspath_prepend(tmp_path)
    leaves = importlib.import_module("leaves")
    assert leaves.total(np.ones(3)) == 3.0
    # Which of its errors depends on what has been compiled before.
    with pytest.raises(numba.core.errors.NumbaError):
        leaves.doubled(np.ones(3))


@numba.njit
def _visit(values, rows, n_features, weights, scratch, width):
    block, panel, n = (values, rows, np.uint64(n_features)), (weights, scratch, np.uint64(width)), np.uint64(len(rows))
    predict_dense(block, n, panel)
    multiply_rows(block, n, scratch)
    add_dense(block, n, panel)


# One vector and pairs of them, and rows that end within one.
@pytest.mark.parametrize(
    ("dtype", "wide"), [(np.float32, 16), (np.float32, 32), (np.float64, 8), (np.float64, 16), (np.float64, 24)]
)
@pytest.mark.slow
def test_tiles_are_products_and_columns_of_four_rows_those_of_eight(dtype, wide):
    """Any number of rows has numpy's products, and where registers are few columns have the same bits."""
    rng = np.random.default_rng(0)
    X, start = rng.standard_normal((20, 21)).astype(dtype), rng.standard_normal((21, WIDTH)).astype(dtype)
    steps = rng.standard_normal((8, WIDTH)).astype(dtype)
    eps = np.finfo(dtype).eps
    found = {}
    for n in range(1, 9):
        rows = rng.permutation(20)[:n].astype(np.uint64) if n < 8 else np.arange(8, dtype=np.uint64)
        weights, scratch = start.copy(), np.zeros(int(GRAM) + 64, dtype)
        scratch[int(STEPS) : int(GRAM)] = steps.ravel()
        _visit(X.ravel(), rows, 21, weights.reshape(-1), scratch, wide)
        used, predictions = X[rows.astype(int)], scratch[: int(STEPS)].reshape(8, WIDTH)
        np.testing.assert_allclose(predictions[:n, :wide], used @ start[:, :wide], atol=60 * eps)
        np.testing.assert_allclose(weights[:, :wide], start[:, :wide] + used.T @ steps[:n, :wide], atol=60 * eps)
        np.testing.assert_array_equal(weights[:, wide:], start[:, wide:])
        gram = np.tril(scratch[int(GRAM) :].reshape(8, 8)[:n, :n], -1)
        np.testing.assert_allclose(gram, np.tril(used @ used.T, -1), atol=60 * eps)
        found[n] = predictions.copy()
    scratch = np.zeros(int(GRAM) + 64, dtype)
    for first in (0, 4):
        rows = np.arange(first, first + 4, dtype=np.uint64)
        _visit(X.ravel(), rows, 21, start.copy().reshape(-1), scratch, wide)
        np.testing.assert_array_equal(scratch.reshape(-1)[: 4 * WIDTH], found[8][first : first + 4].ravel())


FIRST_USE = """
import numpy as np
import numba

numba.njit(lambda x: x + 1)(1)  # another library's function is none of ours
from dsgd.kernels.scaled import to_dual
from dsgd.kernels.state import COUNTERS

for dtype in (np.float64, np.float32):
    to_dual(np.ones(3, dtype), np.zeros(2, dtype), np.zeros(COUNTERS))
"""


def test_compiling_is_said_once_and_only_where_it_happens(tmp_path):
    """Compiling is announced once, unless whoever starts the process does it, and never with machine code on disk."""
    said = []
    for more in ({}, {}, {SAID: "1", "NUMBA_CACHE_DIR": str(tmp_path / "of_workers")}):
        done = subprocess.run(
            [sys.executable, "-c", FIRST_USE],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), **more},
        )
        said.append(done.stderr.count("compiling kernels of dsgd for this machine"))
    assert said == [1, 0, 0]


@pytest.mark.slow
def test_a_fresh_process_compiles_nothing():
    """After one fit a fresh process loads every kernel from disk, whatever loss, penalty and schedule it is given."""

    def fresh(every):
        program = FRESH.format(every=every)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    first, second = fresh(False), fresh(True)
    # Files on the disk may be of other tests; but no other signature may be needed than those of the one fit.
    assert all(signatures for _, signatures in first.values())
    assert second == {name: [0, signatures] for name, (_, signatures) in first.items()}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_features", [0, 1, 3, 22, 64, 65, 300])
def test_fingerprints_are_sums_over_entries_whatever_the_width(n_features, dtype):
    """Rows that are hashed together have the fingerprints of rows alone, dense or sparse."""
    rng = np.random.default_rng(n_features)
    n_rows = 2 * 4096 // max(1, n_features) + 7
    X = rng.standard_normal((n_rows, n_features)).astype(dtype)
    X[rng.random(X.shape) < 0.3] = 0.0
    X[rng.random(X.shape) < 0.1] = -0.0
    words = np.uint32 if dtype == np.float32 else np.uint64
    whole, alone, sparse = (np.full(n_rows, 5, np.uint64) for _ in range(3))
    rows.fingerprint_dense(X.view(words), whole)
    for i in range(n_rows):
        rows.fingerprint_dense(X[i : i + 1].view(words), alone[i : i + 1])
    form = csr_array(X)
    bits, indices, indptr = form.data.view(words), form.indices.astype(np.uint32), form.indptr.astype(np.uint64)
    rows.fingerprint_sparse(bits, indices, indptr, sparse)
    with np.errstate(over="ignore"):
        j, value = np.arange(1, n_features + 1, dtype=np.uint64), X.view(words).astype(np.uint64)
        z = j * np.uint64(0x9E3779B97F4A7C15) + value * np.uint64(0xD6E8FEB86659FD93)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64, Steele et al. 2014
            z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
        expected = np.where(X != 0.0, z ^ (z >> np.uint64(31)), np.uint64(0)).sum(axis=1, dtype=np.uint64) + np.uint64(
            5
        )
    for found in (whole, alone, sparse):
        assert np.array_equal(found, expected)


def test_canonical_rows_are_those_of_scipy():
    """Rows count as canonical where scipy says so: with empty rows, single entries, descents and repeats anywhere."""
    rng = np.random.default_rng(0)
    outcomes = set()
    for _ in range(400):
        lengths = rng.integers(0, 4, rng.integers(1, 6))
        indices = np.concatenate([np.sort(rng.choice(9, n, replace=rng.random() < 0.2)) for n in lengths])
        if len(indices) and rng.random() < 0.2:
            rng.shuffle(indices)
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        matrix = csr_array((np.ones(len(indices)), indices.astype(np.int32), indptr), shape=(len(lengths), 9))
        found = rows.has_canonical_rows(matrix.indices.view(np.uint32), matrix.indptr.astype(np.uint64), 9)
        assert found == matrix.has_canonical_format
        outcomes.add(found)
    assert outcomes == {True, False}
    columns = np.arange(4, dtype=np.uint32)
    for starts in ([0, 3, 1, 4], [0, 2**40, 4], [0, 2, 5], [0, 2, 2**64 - 1]):  # no kernel may follow such rows
        assert not rows.has_canonical_rows(columns, np.array(starts, np.uint64), 9)
    for row in range(2):
        beyond = np.array([0, 8, 1, 2], np.uint32)
        beyond[2 * row + 1] = 9
        assert not rows.has_canonical_rows(beyond, np.array([0, 2, 4], np.uint64), 9)
