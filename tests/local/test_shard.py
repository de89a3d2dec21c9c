"""Shards: the laws of the walking order, of sample weights, and of what is copied."""

import re
import tempfile
import weakref
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.errors import DiskSpaceError, InvalidDataError, PartitionMismatchError
from dsgd.kernels.rows import place_wide
from dsgd.local import Residency, blocks, make_shard
from dsgd.local.ingest import concat_blocks
from dsgd.local.shard import MAX_COPIES, STRIDE_BYTES, MappedFile, split

SEEDS = st.integers(0, 2**32 - 1)
LAWS = settings(max_examples=40, deadline=None)


def rows(seed, n=None, d=None):
    """Return small random rows with many zeros, signed zeros, and repeated rows, and their targets."""
    rng = np.random.default_rng(seed)
    n, d = n or int(rng.integers(1, 30)), d or int(rng.integers(1, 6))
    X = rng.integers(-2, 3, (n, d)).astype(rng.choice([np.float32, np.float64])) * X_SCALE
    X[rng.random(X.shape) < 0.2] = -0.0
    return X, rng.choice([-1.0, 1.0], n)


X_SCALE = 0.25


def dense(shard):
    """Return the rows of a shard as a dense array."""
    shard = shard.packed(0, shard.n_rows)
    if not shard.is_sparse:
        return shard.values
    parts = (shard.values, shard.indices.astype(np.int64), shard.indptr.astype(np.int64))
    return sp.csr_array(parts, shape=(shard.n_rows, shard.n_features)).toarray()


def assert_same(one, other):
    """Assert that two shards hold the same visits in the same order, bit for bit but for the sign of zero."""
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(dense(one), dense(other))
    np.testing.assert_array_equal(one.targets, other.targets)
    np.testing.assert_array_equal(one.weights, other.weights)


@LAWS
@given(SEEDS)
def test_order_does_not_depend_on_blocks(seed):
    """However rows are cut into blocks, and copied or read where they are, they are walked in the same order."""
    X, y = rows(seed)
    rng = np.random.default_rng(seed + 1)
    weights = rng.choice([0.0, 1.0, 3.5], len(y))
    cuts = np.sort(rng.integers(0, len(y) + 1, 3))
    pieces = list(zip(np.split(X, cuts), np.split(y, cuts), np.split(weights, cuts), strict=True))
    whole = make_shard(X, y, weights)
    assert_same(concat_blocks(pieces), whole)
    assert_same(concat_blocks([(sp.csr_array(a), b, c) for a, b, c in pieces]), whole)


@LAWS
@given(SEEDS)
def test_dense_and_sparse_rows_have_one_order(seed):
    """Dense and sparse rows, in every format and with every kind of index, are walked in the same order."""
    X, y = rows(seed)
    expected = make_shard(X, y, seed=seed)
    for build in (sp.csr_array, sp.csr_matrix, sp.csc_array, sp.coo_array, sp.lil_array):
        assert_same(make_shard(build(X), y, seed=seed), expected)
    wide = sp.csr_array(X)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    assert_same(make_shard(wide, y, seed=seed), expected)


@LAWS
@given(SEEDS, st.booleans(), st.booleans())
def test_integer_weights_are_repeated_rows(seed, shuffle, sparse):
    """Weights 0, 1, 2, 3 make bitwise the shard of rows left out, once, and with their copies behind all others."""
    X, y = rows(seed)
    weights = np.random.default_rng(seed + 1).integers(0, 4, len(y))
    data = sp.csr_array(X) if sparse else X
    repeated = np.concatenate([np.flatnonzero(weights > copy) for copy in range(3)])
    weighted = make_shard(data, y, weights, shuffle=shuffle)
    assert_same(weighted, make_shard(data[repeated], y[repeated], shuffle=shuffle))
    assert (weighted.weights == 1.0).all()


@LAWS
@given(SEEDS)
def test_weights_that_rounding_has_moved_make_the_same_visits(seed):
    """A weight is that of the nearest whole number of visits, of which each brings a step on the penalty."""
    X, y = rows(seed)
    rng = np.random.default_rng(seed + 1)
    whole = rng.integers(1, 18, len(y)).astype(float)
    moved = make_shard(X, y, whole * (1 + rng.choice([-1e-9, 1e-9], len(y))), shuffle=False)
    expected = make_shard(X, y, whole, shuffle=False)
    np.testing.assert_array_equal(dense(moved), dense(expected))
    np.testing.assert_allclose(moved.weights, expected.weights, rtol=1e-8)


@LAWS
@given(SEEDS, st.booleans())
def test_content_and_weight_are_preserved(seed, shuffle):
    """Every row keeps its target, and its visits add up to its weight."""
    X, y = rows(seed)
    weights = np.random.default_rng(seed + 1).choice([0.0, 0.25, 1.0, 2.5, 16.0, 80.0], len(y))
    shard = make_shard(X, y, weights, shuffle=shuffle)

    def tally(X, y, w):
        sums = {}
        for row, target, weight in zip(np.abs(X) + X, y, w, strict=True):
            key = (tuple(row), target)
            sums[key] = sums.get(key, 0.0) + weight
        return {key: value for key, value in sums.items() if value}

    assert tally(dense(shard), shard.targets, shard.weights.astype(float)) == tally(X, y, weights)
    assert shard.n_rows <= MAX_COPIES * len(y)


def test_seeds_give_orders_and_no_shuffle_gives_none():
    """Another seed walks another way; without shuffling rows stay where they were, zero weights left out."""
    X, y = np.arange(40.0).reshape(20, 2), np.ones(20)
    orders = {tuple(dense(make_shard(X, y, seed=seed))[:, 0]) for seed in range(10)}
    assert len(orders) == 10
    weights = np.r_[0.0, 2.5, np.ones(18)]
    shard = make_shard(X, y, weights, shuffle=False)
    np.testing.assert_array_equal(dense(shard)[:, 0], np.r_[np.arange(2.0, 40.0, 2.0), 2.0])
    np.testing.assert_array_equal(shard.weights, np.r_[1.25, np.ones(18), 1.25])


@LAWS
@given(SEEDS, st.sampled_from([2, 3, 26]), st.booleans())
def test_classes_are_spread_evenly_over_an_epoch(seed, n_classes, weighs):
    """Of any first rows a class has its share, to a row and what others are off; in a class the order is drawn."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, 300) ** 2 // n_classes - 1.0
    weights = rng.integers(0, 3, 300).astype(float) if weighs else np.ones(300)
    X = np.arange(300.0)[:, None]
    found, other = (make_shard(X, y, weights, seed=number) for number in (seed, seed + 1))
    names, counts = np.unique(found.targets, return_counts=True)
    so_far = np.cumsum(found.targets[:, None] == names, axis=0)
    shares = counts / found.n_rows
    expected = np.arange(1, found.n_rows + 1)[:, None] * shares
    assert np.all(np.abs(so_far - expected) < 1.0 + len(names) * shares)
    commonest = names[counts.argmax()]
    drawn = [dense(shard)[shard.targets == commonest, 0] for shard in (found, other)]
    assert not np.array_equal(*drawn)
    np.testing.assert_array_equal(*map(np.sort, drawn))


def test_values_are_no_classes():
    """Targets that are not whole numbers, or far apart, are not spread."""
    X = np.arange(300.0)[:, None]
    whole = np.arange(300) % 2
    runs = []
    for y in (whole, whole + 0.5, whole * 1e6):
        targets = make_shard(X, y).targets
        runs.append(np.diff(np.flatnonzero(np.diff(targets))).max(initial=1))
    assert runs[0] == 1
    assert min(runs[1:]) > 3


def test_copies_are_spread_over_the_epoch():
    """The visits of a heavy row do not follow each other."""
    X = np.arange(200.0)[:, None]
    places = np.flatnonzero(dense(make_shard(X, np.ones(200), np.r_[16.0, np.ones(199)]))[:, 0] == 0.0)
    assert len(places) == 16
    assert np.ptp(places) > 100


@pytest.mark.parametrize("shuffle", [False, True])
def test_input_is_never_changed(shuffle):
    """Unsorted and duplicate columns, integers, foreign layouts and read-only arrays are handled and left alone."""
    y = np.array([1.0, -1.0, 1.0])
    parts = (np.array([1.0, 2.0, 4.0, 8.0]), np.array([3, 0, 0, 1]), np.array([0, 3, 3, 4]))
    X = sp.csr_array(parts, shape=(3, 4))
    before = [part.copy() for part in (X.data, X.indices, X.indptr)]
    flags = dict(vars(X))
    shard = make_shard(X, y, shuffle=shuffle)
    for part, copy in zip((X.data, X.indices, X.indptr), before, strict=True):
        np.testing.assert_array_equal(part, copy)
    assert vars(X).keys() == flags.keys()
    expected = make_shard(np.array([[6.0, 0, 0, 1], [0, 0, 0, 0], [0, 8, 0, 0]]), y, shuffle=shuffle)
    assert_same(shard, expected)
    frozen = dense(expected)[np.argsort(expected.targets, kind="stable")]
    z = np.sort(expected.targets)
    frozen.flags.writeable = False
    reference = make_shard(frozen.copy(), z, shuffle=shuffle)
    for other in (frozen, np.asfortranarray(frozen), frozen.astype(np.int64), np.repeat(frozen, 2, axis=1)[:, ::2],
                  frozen.tolist()):  # fmt: skip
        assert_same(make_shard(other, z, shuffle=shuffle), reference)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("is_frozen", [False, True])
def test_data_that_need_no_conversion_are_not_copied(shuffle, is_frozen):
    """Rows are walked where they lie, read-only ones too; those of threads are views."""
    X = np.arange(18, dtype=np.float32).reshape(6, 3) + 1.0
    sparse = sp.csr_array(X)
    for array in (X, sparse.data, sparse.indices):
        array.flags.writeable = not is_frozen
    for data, memory in ((X, X), (sparse, sparse.data)):
        shard = make_shard(data, np.arange(6.0), shuffle=shuffle)
        assert np.shares_memory(shard.values, memory)
        part = shard.rows(2, 5)
        assert part.n_rows == 3
        assert np.shares_memory(part.values, memory)
        assert part.nnz == 9
        assert 0 < part.nbytes < shard.nbytes
        np.testing.assert_array_equal(part.targets, shard.targets[2:5])
        np.testing.assert_array_equal(dense(part), X[part.targets.astype(int)])
    assert np.shares_memory(make_shard(sparse, np.ones(6)).indices, sparse.indices)


@LAWS
@given(SEEDS, st.booleans(), st.booleans(), st.sampled_from([1, 60, 500, 10**9]))
def test_a_shard_in_a_file_is_the_shard_in_memory(tmp_path_factory, seed, sparse, shuffle, window_bytes):
    """Every array of a mapped shard has the bits of that in memory, whatever the window, and after it was released."""
    X, y = rows(seed)
    weights = np.random.default_rng(seed + 1).choice([0.0, 0.5, 1.0, 3.0], len(y))
    cuts = np.sort(np.random.default_rng(seed).integers(0, len(y) + 1, 3))
    split_up = zip(np.split(X, cuts), np.split(y, cuts), np.split(weights, cuts), strict=True)
    pieces = [(sp.csr_array(a) if sparse else a, b, c) for a, b, c in split_up]
    folder = tmp_path_factory.getbasetemp()
    expected = concat_blocks(pieces, sparse=sparse, shuffle=shuffle, seed=seed)
    mapped = concat_blocks(
        pieces, sparse=sparse, shuffle=shuffle, seed=seed, folder=str(folder), window_bytes=window_bytes
    )
    assert mapped.mapping is not None
    mapped.release(0, mapped.n_rows)
    whole = expected.packed(0, expected.n_rows)
    for name in ("values", "indices", "indptr", "targets", "weights"):
        one, other = getattr(mapped, name), getattr(whole, name)
        assert (one is None) == (other is None)
        assert one is None or (one.dtype == other.dtype and one.tobytes() == other.tobytes())
    assert not list(folder.glob("dsgd-*"))


def test_blocks_are_held_one_at_a_time():
    """Packing asks for each block twice and lets go of it before it asks for the next."""
    seen, most = [], 0

    def alive():
        return sum(array() is not None for array in seen)

    class Rows(np.ndarray):
        """An array that can be counted."""

    class Fetched:
        """Ten blocks, each made when needed."""

        asked = 0

        def __iter__(self):
            nonlocal most
            for k in range(10):
                X = np.full((50, 3), float(k)).view(Rows)
                seen.append(weakref.ref(X))
                most = max(most, alive())
                self.asked += 1
                yield X, np.full(50, k % 2 * 2.0 - 1.0), None
                del X

    for folder in (None, tempfile.gettempdir()):
        blocks = Fetched()
        shard = concat_blocks(blocks, n_features=3, dtype=float, sparse=False, folder=folder)
        assert (shard.n_rows, blocks.asked, alive()) == (500, 20, 0)
    assert most == 2  # that of the loop in hand, and the next


def test_a_walk_over_a_mapped_shard_stays_small(tmp_path):
    """What a walk has behind it is no longer in memory: the resident share of the file is bounded by the stride."""
    X = np.ones((8192, 1024))
    shard = concat_blocks([(X, X[:, 0], None)], shuffle=False, folder=str(tmp_path))
    before, most, walk = mapped_now(), 0, Residency(shard)
    for _ in range(2):
        for start in range(0, shard.n_rows, 64):
            shard.values[start : start + 64].sum()
            most = max(most, mapped_now() - before)
            walk.at(start + 64)
        assert mapped_now() - before < 2**20
    assert STRIDE_BYTES <= most < STRIDE_BYTES + 2**23  # the system maps pages in groups


def mapped_now():
    """Return the bytes of files that are mapped and resident."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssFile:"))


def test_a_full_disk_is_an_error_before_anything_is_written(tmp_path, monkeypatch):
    """The error names the folder, the bytes needed and the bytes free."""
    with pytest.raises(DiskSpaceError, match=r"need 1,152,921,504,606,846,976 bytes .* has [\d,]+ bytes free"):
        MappedFile(str(tmp_path), 2**60)

    def refuse(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", refuse)
    with pytest.raises(DiskSpaceError, match=re.escape(str(tmp_path))):
        MappedFile(str(tmp_path), 100)
    assert not list(tmp_path.iterdir())


def test_many_columns_keep_their_numbers():
    """Columns beyond 65,536 and beyond 2^31 keep their numbers, with indices of 32 and of 64 bits."""
    for n_features, columns in ((70_000, [65_535, 65_536, 69_999]), (2**32 - 2, [2**31 - 1, 2**31, 2**32 - 3])):
        X = sp.csr_array((np.ones(3), np.array(columns, np.int64), np.array([0, 2, 3])), shape=(2, n_features))
        shard = make_shard(X, np.ones(2), shuffle=False)
        np.testing.assert_array_equal(shard.indices, columns)
        assert sorted(make_shard(X, np.ones(2)).indices.tolist()) == columns


def test_a_rank_without_rows_has_an_empty_shard():
    """No blocks give an empty shard of the given form; no blocks and no width is an error."""
    for sparse in (False, True):
        shard = concat_blocks([], n_features=7, dtype=np.float32, sparse=sparse)
        assert (shard.n_rows, shard.n_features, shard.is_sparse, shard.dtype) == (0, 7, sparse, np.float32)
        assert_same(shard, make_shard(np.empty((3, 7), np.float32), np.ones(3), np.zeros(3)))
    with pytest.raises(InvalidDataError, match="n_features"):
        concat_blocks([])


def test_bad_input_is_refused():
    """Lengths, widths, shapes, weights and types that cannot be get an error that says so."""
    X, y = np.ones((3, 2)), np.ones(3)
    with pytest.raises(PartitionMismatchError, match="targets"):
        make_shard(X, y[:2])
    with pytest.raises(PartitionMismatchError, match="sample_weight"):
        make_shard(X, y, np.ones(4))
    for weight in (-1.0, np.nan, np.inf):
        with pytest.raises(InvalidDataError, match="sample_weight"):
            make_shard(X, y, np.array([1.0, weight, 1.0]))
    with pytest.raises(InvalidDataError, match="2 and 3 columns"):
        concat_blocks([(X, y, None), (np.ones((1, 3)), y[:1], None)])
    with pytest.raises(InvalidDataError, match="two-dimensional"):
        make_shard(y, y)
    with pytest.raises(InvalidDataError, match="float32 or float64"):
        make_shard(X, y, dtype=np.int32)
    with pytest.raises(InvalidDataError, match="rows"):
        make_shard(X, y).rows(2, 4)


@given(st.integers(0, 1000), st.integers(1, 50))
def test_split_covers_every_row_once(n_rows, parts):
    """The parts of a split join without gap or overlap and differ by one row at most."""
    edges = [split(n_rows, parts, k) for k in range(parts)]
    assert edges[0][0] == 0
    assert edges[-1][1] == n_rows
    assert all(a[1] == b[0] for a, b in pairwise(edges))
    sizes = [stop - start for start, stop in edges]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("dtype", "width", "is_past"), [("f4", 128, True), ("f4", 129, False), ("f8", 65, True)])
def test_wide_rows_are_written_past_the_caches_with_the_same_bits(dtype, width, is_past, monkeypatch):
    """Rows of whole words that are wide and many take the way past the caches, and lie where they would else."""
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((50, width)).astype(dtype), rng.choice([-1.0, 1.0], 50)
    weights = rng.integers(0, 3, 50)
    halves = [(X[:20], y[:20], weights[:20]), (X[20:], y[20:], weights[20:])]
    plain = concat_blocks(halves, seed=4)
    taken = []
    monkeypatch.setattr(blocks, "_MANY_BYTES", 0)
    monkeypatch.setattr(blocks, "place_wide", lambda *arrays: (taken.append(len(arrays)), place_wide(*arrays)))
    past = concat_blocks(halves, seed=4)
    assert bool(taken) == is_past
    assert np.array_equal(past.values.view(np.uint8), plain.values.view(np.uint8))


@pytest.mark.parametrize("columns", [[0, -1, 2, 3], [-1, 0, 2, 3], [0, 1, 2, 5], [5, 1, 2, 3]])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_columns_that_are_not_there_are_refused(columns, dtype):
    """Sparse rows with entries in columns below 0 or beyond the last, which scipy accepts, end in an error."""
    X = sp.csr_array((3, 5))
    X.data, X.indices, X.indptr = np.ones(4), np.array(columns, dtype), np.array([0, 2, 3, 4], dtype)
    with pytest.raises(InvalidDataError, match="no valid sparse matrix: it has 5 columns"):
        make_shard(X, np.ones(3))
