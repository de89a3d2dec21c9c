"""From a user's data to row blocks: what one look at a block tells, without a cluster."""

from __future__ import annotations

from itertools import combinations

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp

from dsgd import SGDClassifier
from dsgd.errors import InvalidDataError
from dsgd.estimators.packing import Packer
from dsgd.inputs.blocks import make_block, pack_for_threads, partition_rows, summarise
from dsgd.inputs.rows import LocalRows
from dsgd.inputs.sources import to_delayed_blocks
from dsgd.local.blocks import Selection, readable
from dsgd.local.ingest import concat_blocks
from dsgd.sim import SimulatedCluster


def test_targets_are_asked_for_only_where_they_are_needed():
    """Without supervision a block needs no targets, and a collection none either; with it both say so."""
    X = np.ones((4, 2))
    assert not summarise(make_block(X), classification=False, supervised=False).problem
    assert "y is missing" in summarise(make_block(X), classification=False).problem
    rows = da.from_array(X, chunks=(2, 2))
    assert len(to_delayed_blocks(rows, None, None, supervised=False)) == 2
    with pytest.raises(InvalidDataError, match="requires y"):
        to_delayed_blocks(rows, None, None)


@pytest.mark.parametrize(
    ("block", "match"),
    [
        ((np.array([[np.nan]]), None, None), "NaN"),
        ((np.array([[np.inf, -np.inf]]), None, None), "infinity"),
        ((np.array([["a"]]), None, None), "expected numbers"),
        ((np.ones((2, 1)), None, np.array([1.0, -1.0])), "not negative"),
        ((np.ones((2, 1)), None, np.ones(3)), "sample_weight has 3"),
    ],
)
def test_rows_and_weights_are_checked_without_targets(block, match):
    """What is wrong with rows and weights is found whether or not there are targets."""
    assert match in summarise(block, classification=False, supervised=False).problem


@pytest.mark.parametrize(("n_rows", "n_ranks"), [(0, 3), (2, 5), (64, 4), (103, 7), (5, 1)])
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("seed", [None, 3])
def test_dealt_rows_are_all_rows_once(n_rows, n_ranks, pieces, seed):
    """Ranks get every row once, as many as one another but for one, and the same ones in any number of blocks."""
    rows = np.arange(n_rows)
    dealt, whole = (partition_rows(n_rows, None, n_ranks, pieces=n, seed=seed) for n in (pieces, 1))
    blocks = [rows[dealt.rows(k)] for k in range(dealt.n_blocks)]
    assert np.array_equal(np.sort(np.concatenate(blocks)), rows)
    assert sorted(dealt.reading_order()) == list(range(dealt.n_blocks))
    for rank in range(n_ranks):
        mine = np.concatenate(blocks[rank * pieces : (rank + 1) * pieces])
        assert len(mine) in (n_rows // n_ranks, n_rows // n_ranks + 1)
        assert np.all(np.diff(mine) > 0)
        assert np.array_equal(mine, rows[whole.rows(rank)])
    if seed is None:
        assert np.array_equal(np.concatenate(blocks), rows)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("form", ["dense", "sparse", "weighted"])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_threads_and_simulated_ranks_get_the_same_rows(shuffle, form, early_stopping):
    """As many ranks and the same seed give the same model to the bit, copies, weights and held-out rows included."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((403, 5)) * (rng.random((403, 5)) < 0.6)
    X[::7] = X[3]
    y = rng.integers(0, 3, 403)
    weights = rng.integers(0, 3, 403) * 0.75 if form == "weighted" else None
    X = sp.csr_array(X) if form == "sparse" else X
    options = {"max_iter": 3, "tol": None, "random_state": 4, "sync": 8, "shuffle": shuffle}
    options["early_stopping"] = early_stopping
    threads = SGDClassifier(**options, n_jobs=3).fit(X, y, sample_weight=weights)
    simulated = SGDClassifier(**options, client=SimulatedCluster(3)).fit(X, y, sample_weight=weights)
    assert np.array_equal(threads.coef_, simulated.coef_)
    assert np.array_equal(threads.intercept_, simulated.intercept_)


def test_ranks_do_not_visit_neighbours_at_the_same_time():
    """Neighbours are dealt to different ranks: in one order of places all would have the same part of a series."""
    X, y = np.random.default_rng(0).standard_normal((400, 2)), np.arange(400) % 2
    pack = Packer(np.unique(y), 2, "float64", sparse=False, shuffle=True, seed=5, validation_fraction=0.0)
    orders = [pack([(X, y, None)], rank).shard.index for rank in range(3)]
    for one, other in combinations(orders, 2):
        assert np.mean(one == other) < 0.05


@pytest.mark.parametrize("form", ["dense", "sparse", "of another type", "read-only", "every other column"])
def test_threads_that_read_rows_by_their_numbers_read_what_they_are_given(form):
    """The shards of threads are those of blocks that were cut out before, of arrays that kernels can read or cannot."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((203, 6)) * (rng.random((203, 6)) < 0.7)
    y, weights = rng.choice([-1.0, 1.0], 203), rng.integers(0, 3, 203) * 0.75
    X = sp.csr_array(X) if form == "sparse" else X.astype(np.int64) if form == "of another type" else X
    X = X[:, ::2] if form == "every other column" else X
    if form == "read-only":
        X.flags.writeable = False

    def pack(blocks, rank):
        (rows, *columns) = blocks[0]
        if isinstance(rows, Selection):
            columns = map(rows.of, columns)
        return concat_blocks(
            [(rows, *columns)], n_features=X.shape[1], dtype=np.float64, sparse=form == "sparse", seed=rank
        )

    piece = readable(X)
    assert (piece is None) == (form in ("of another type", "every other column"))
    for n_ranks in (1, 3):
        by_index, cut = (pack_for_threads((X, y, weights), n_ranks, pack, seed=9, readable=k) for k in (piece, None))
        assert piece is None or all(
            np.shares_memory(shard.values, X if form != "sparse" else X.data) for shard in by_index
        )
        for shard, other in zip(by_index, cut, strict=True):
            ours, theirs = (each.packed(0, each.n_rows) for each in (shard, other))
            for name in ("values", "indices", "indptr", "targets", "weights"):
                assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_threads_see_what_is_not_finite(form, dtype):
    """One value that is no finite number is found wherever it is; the largest, smallest and zero are finite."""
    limits = np.finfo(dtype)
    X = np.random.default_rng(0).standard_normal((37, 19)).astype(dtype)
    X[3, :5] = limits.max, limits.min, limits.tiny, limits.smallest_subnormal, -0.0
    X[30, :5] = limits.max  # the sum of which overflows
    LocalRows((form(X), None, None)).check(3, "It")
    assert not summarise((form(X), None, None), classification=False, supervised=False).problem
    for value in (np.nan, np.inf, -np.inf):
        for place in ((0, 0), (36, 18), (20, 7)):
            broken = X.copy()
            broken[place] = value
            with pytest.raises(ValueError, match=r"Input X contains|infinity"):
                LocalRows((form(broken), None, None)).check(3, "It")
            assert "X contains" in summarise((form(broken), None, None), classification=False, supervised=False).problem


@pytest.mark.parametrize("kind", [float, np.int64, bool, str, object])
@pytest.mark.parametrize("last", [(), (7,)])
def test_labels_are_found_wherever_they_stand(kind, last):
    """Labels of a long column are counted one by one: one that only its last row has was not among the first."""
    y = np.concatenate([np.arange(20_000) % 3, last]).astype(int).astype(kind)
    found = summarise((np.zeros((len(y), 1)), y, None), classification=True)
    labels, counts = np.unique(y, return_counts=True)
    assert found.classes.dtype == labels.dtype
    np.testing.assert_array_equal(found.classes, labels)
    np.testing.assert_array_equal(found.counts, counts)
