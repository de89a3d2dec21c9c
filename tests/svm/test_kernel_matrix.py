"""The pieces of the kernel matrix: cached rows, products, values in threads, bounds of memory."""

from __future__ import annotations

import tracemalloc
from functools import partial
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics.pairwise import pairwise_kernels, rbf_kernel
from threadpoolctl import threadpool_info, threadpool_limits

from dsgd.svm import SVC
from dsgd.svm.kernels import cache as cache_module
from dsgd.svm.kernels import functions, products
from dsgd.svm.kernels.cache import RowCache, add_rows
from dsgd.svm.kernels.functions import Kernel, block_values, exponentials, prepare
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.rows import cast_rows, span, take_rows
from dsgd.svm.kernels.threads import Pool, open_pool

GAMMA = 0.3
POOL = Pool(1, None)


def _matrix(X, **options) -> KernelMatrix:
    options = {"samples": None, "dtype": np.float64, "cache_bytes": 10**7, "pool": POOL} | options
    return KernelMatrix(Kernel("rbf", GAMMA), X, **options)


class _Backwards(Pool):
    """Works on the last slab first, as threads may."""

    def slabs(self, work, n, size, longest=1):
        for start in reversed(range(0, n, size)):
            work(start, min(n, start + size))


def _sparse(n: int, d: int, seed: int) -> sp.csr_matrix:
    return sp.random(n, d, 0.02, format="csr", random_state=np.random.RandomState(seed))


@pytest.mark.parametrize("n_rows", [0, 1, 4, 7])
def test_sums_of_cached_rows_are_those_of_numpy(n_rows):
    """Rows are added up four at a time and the rest one by one, in float64, over the columns of the slab alone."""
    rng = np.random.default_rng(n_rows)
    flat, coefs = rng.standard_normal(9 * 13, dtype=np.float32), rng.standard_normal(n_rows)
    slots, u = rng.permutation(9)[:n_rows], rng.standard_normal(13)
    expected = u.copy()
    expected[3:11] += coefs @ flat.reshape(9, 13)[slots, 3:11].astype(np.float64)
    add_rows(u, flat, 13, slots, coefs, 3, 11)
    np.testing.assert_allclose(u, expected, rtol=0.0, atol=1e-13)


def test_pools_may_close_in_any_order():
    """BLAS has one thread until the last of the pools that are open at once is closed, and then what it had."""

    def blas():
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    with threadpool_limits(3, user_api="blas"):
        first, second = open_pool(1), open_pool(1)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert blas() == {1}
        second.__exit__(None, None, None)
        assert blas() == {3}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exponentials_are_right_to_the_last_place(dtype):
    """Exponentials are within a unit in the last place, down to the smallest normal number, and zero below."""
    least = np.log(np.finfo(dtype).tiny)
    x = np.concatenate([np.linspace(0.0, least + 1.0, 100_003), -np.logspace(-20, 0, 1000)]).astype(dtype)[None]
    values = x.copy()
    exponentials(values)
    exact = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(values, exact, rtol=float(np.finfo(dtype).eps), atol=0)
    edges = np.array([0.0, -0.0, 3.0, np.inf, np.nan, -np.inf, 2.0 * least], dtype=dtype)
    exponentials(edges)
    np.testing.assert_array_equal(edges, [1.0, 1.0, 1.0, 1.0, np.nan, 0.0, 0.0])
    with pytest.raises(ValueError, match="contiguous"):
        exponentials(x[:, ::2])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("n_sources", "n_targets"), [(0, 60), (1, 1), (37, 60), (60, 60), (60, 23)])
def test_values_of_a_product_that_serve_both_samples_are_computed_once(monkeypatch, n_sources, n_targets, sparse):
    """Products are K[targets, sources] coefs, the same with any threads, from few more values than are needed."""
    monkeypatch.setattr(products, "_STRIP", 16)
    monkeypatch.setattr(products, "_RIGHT_ROWS", 16)
    monkeypatch.setattr(products, "_CHUNK", 5)
    rng = np.random.default_rng(n_sources)
    X = _sparse(60, 500, 1) if sparse else rng.normal(size=(60, 3))
    sources, targets = np.sort(rng.permutation(60)[:n_sources]), rng.permutation(60)[:n_targets]
    coefs, found = rng.normal(size=n_sources), []
    with open_pool(3) as threads:
        for pool in (POOL, threads):
            matrix = _matrix(X, pool=pool)
            found.append(matrix.product(targets, sources, coefs, np.float64))
    np.testing.assert_allclose(found[0], rbf_kernel(X, gamma=GAMMA)[np.ix_(targets, sources)] @ coefs, atol=1e-10)
    np.testing.assert_array_equal(found[0], found[1])
    both = len(np.intersect1d(sources, targets))
    needed = n_sources * n_targets - both * (both - 1) // 2
    assert matrix.n_evaluations <= needed + 16 * both


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), cache_rows=st.integers(0, 40), sparse=st.booleans())
def test_rows_stay_right_through_shrinking_and_growing(seed, cache_rows, sparse):
    """Whatever was cached, left out and brought back, adding rows gives K[active, rows] coefs."""
    rng = np.random.default_rng(seed)
    n = 30
    X = _sparse(n, 500, seed) if sparse else rng.normal(size=(n, 3))
    K = rbf_kernel(X, gamma=GAMMA)
    matrix = _matrix(X, cache_bytes=8 * n * cache_rows)
    for _ in range(8):
        active = matrix.active
        positions = rng.permutation(len(active))[: rng.integers(1, len(active) + 1)]
        coefs = rng.normal(size=len(positions))
        u = np.zeros(len(active))
        matrix.add(u, matrix.pick(active[positions]), np.arange(len(positions)), coefs)
        np.testing.assert_allclose(u, K[np.ix_(active, active[positions])] @ coefs, atol=1e-10)
        outside = np.setdiff1d(np.arange(n), active)
        if rng.random() < 0.5 and len(active) > 3:
            matrix.shrink(np.flatnonzero(rng.random(len(active)) < 0.7))
            if not len(matrix.active):
                break
        elif len(outside):
            matrix.extend(rng.permutation(outside)[: rng.integers(1, len(outside) + 1)])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("wide", [np.int32, np.int64])
def test_csr_rows_are_taken_in_any_order(dtype, wide):
    """Rows of CSR made ready are those of the matrix, empty and repeated ones too, whatever type its indices have."""
    X = _sparse(60, 90, 1)
    X.data[X.indptr[7] : X.indptr[8]] = 0.0
    X.eliminate_zeros()
    X.indices, X.indptr = X.indices.astype(wide), X.indptr.astype(wide)
    kernel = Kernel("rbf", GAMMA)
    for index in (np.array([7, 3, 59, 3, 0]), np.empty(0, dtype=np.int64), np.arange(60)[::-1]):
        rows = prepare(kernel, X, dtype, sparse=True, index=index)
        again = take_rows(prepare(kernel, X, dtype, sparse=True), index)
        expected = rbf_kernel(X[index], X, gamma=GAMMA) if len(index) else np.empty((0, 60))
        every = prepare(kernel, X, dtype, sparse=True)
        for part in (rows, again):
            np.testing.assert_allclose(block_values(kernel, part, every, dtype), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["rbf", "linear"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sparse", [False, True])
def test_rows_are_cast_as_they_are_made_ready(name, dtype, sparse):
    """Rows made ready in float64, then cast, are those made ready in float32, bit by bit, from data of either type."""
    X = (_sparse(60, 90, 1) if sparse else np.random.default_rng(0).normal(size=(60, 7)) + 50).astype(dtype)
    kernel, shift = Kernel(name, GAMMA), None if sparse or name != "rbf" else X.mean(axis=0, dtype=np.float64)
    exact, single = (prepare(kernel, X, t, shift=shift, sparse=sparse) for t in (np.float64, np.float32))
    cast = cast_rows(exact, np.float32)
    for found, expected in zip(_arrays(cast), _arrays(single), strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
    assert cast_rows(exact, np.float64) == exact


def _arrays(rows):
    return [rows.dense] if rows.sparse is None else [rows.sparse[0], rows.sparse[1], rows.offsets]


def test_demoted_rows_leave_a_cache_before_older_ones():
    """A row of a variable at a bound makes room, though it was used last; asked for again it counts as any other."""
    cache = RowCache(8 * 4 * 2, 4, np.float64)
    for sample in (0, 1):
        cache.find(np.array([sample]))
        cache.reserve(np.array([sample]))
    cache.demote(np.array([1]))
    cache.find(np.array([2]))
    cache.reserve(np.array([2]))
    assert sorted(cache.held()) == [0, 2]
    cache.demote(np.array([0]))
    cache.find(np.array([0]))
    cache.find(np.array([3]))
    cache.reserve(np.array([3]))
    assert sorted(cache.held()) == [0, 3]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), kept=st.floats(0.0, 1.0), share=st.floats(0.02, 1.0))
def test_threads_may_move_rows_of_a_cache_in_any_order(seed, kept, share):
    """Rows that leave columns behind are the old ones without these columns, also where the last are moved first."""
    rng = np.random.default_rng(seed)
    n, capacity = int(rng.integers(1, 60)), int(rng.integers(1, 60))
    whole = rng.normal(size=(n, n))
    cache = RowCache(8 * n * capacity, n, np.float64, n)
    cache.find(np.arange(n))
    order = rng.permutation(n)
    for sample, slot in zip(order, cache.reserve(order), strict=False):
        cache.row(slot)[:] = whole[sample]
    keep = np.flatnonzero(rng.random(n) < kept)
    samples = np.flatnonzero(rng.random(n) < share)
    held = np.intersect1d(samples, cache.held())
    with mock.patch.object(cache_module, "_MOVED", len(keep)):  # one or two rows at a time
        cache.shrink(keep, samples, _Backwards(1, None))
    for sample, slot in zip(held, cache.find(held), strict=True):
        np.testing.assert_array_equal(cache.row(slot), whole[sample, keep])


@pytest.mark.parametrize("pool", [POOL, _Backwards(1, None)], ids=["first to last", "last to first"])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), n_more=st.integers(0, 80), demoted=st.floats(0.0, 0.9))
def test_threads_may_make_room_for_columns_in_any_order(pool, seed, n_more, demoted):
    """Rows that get more columns keep the old ones, whatever holes are among them and however far they move."""
    rng = np.random.default_rng(seed)
    n, capacity = int(rng.integers(1, 60)), int(rng.integers(1, 60))
    n_samples = n + n_more
    whole = rng.normal(size=(n_samples, n_samples))
    cache = RowCache(8 * n * capacity, n, np.float64, n_samples)
    cache.find(np.arange(n_samples))
    order = rng.permutation(n_samples)
    for sample, slot in zip(order, cache.reserve(order), strict=False):
        cache.row(slot)[:] = whole[sample, :n]
    cache.demote(np.flatnonzero(rng.random(n_samples) < demoted))
    lasting = cache.lasting()

    def fill(samples, out):
        out[:] = whole[samples, n:]

    with mock.patch.object(cache_module, "_MOVED", n):  # one or two rows at a time
        cache.extend(n_more, fill, pool)
    held = cache.held()
    assert np.isin(held, lasting).all()
    assert len(held) == min(len(lasting), len(cache.flat) // n_samples)
    for sample, slot in zip(held, cache.find(held), strict=True):
        np.testing.assert_array_equal(cache.row(slot), whole[sample])


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 500), size=st.integers(1, 40), longest=st.integers(1, 20), n_threads=st.integers(1, 5))
def test_stretches_of_slabs_are_the_range_and_end_with_single_ones(n, size, longest, n_threads):
    """Stretches cover the range once, begin where slabs do, become shorter, and none is longer than allowed."""
    with open_pool(n_threads) as pool:
        found: list[tuple[int, int]] = []
        pool.slabs(lambda start, stop: found.append((start, stop)), n, size, longest)
    found.sort()
    assert [start for start, _ in found] == [0, *(stop for _, stop in found)][: len(found)]
    assert (found[-1][1] if found else 0) == n
    counts = [-(-(stop - start) // size) for start, stop in found]
    assert all(start % size == 0 for start, _ in found)
    assert max(counts, default=0) <= longest
    assert counts == sorted(counts, reverse=True)
    if n_threads > 1 and found:
        assert counts[-1] == 1
        assert counts[0] <= max(1, -(-n // size) // n_threads)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [Kernel("rbf", GAMMA), Kernel("linear"), Kernel("poly", 1.0, 0.5, 3)])
def test_slabs_that_are_taken_together_have_the_same_bits(monkeypatch, kernel):
    """Values and sums of many slabs in one call are those of one slab a call, on any number of threads."""
    rng = np.random.default_rng(1)
    X, coefs = rng.normal(size=(2500, 6)), rng.normal(size=(2, 2200))
    pieces, samples = np.split(np.arange(2200), [3, 800, 800, 1900]), np.arange(2100, 2500)
    found = []
    for n_threads, longest in ((1, 1), (1, 16), (2, 16), (3, 2)):
        monkeypatch.setattr(products, "_LONGEST", longest)
        with open_pool(n_threads) as pool:
            matrix = KernelMatrix(kernel, X, samples=None, dtype=np.float64, cache_bytes=0, pool=pool)
            slabs, total = matrix.values(samples, [matrix.hold(piece, 2200) for piece in pieces], coefs)
            tiles = [slabs.flat[400 * a : 400 * b].reshape(400, -1) for a, b in pairwise(slabs.bounds)]
            found.append((np.hstack(tiles), total))
    for values, total in found[1:]:
        np.testing.assert_array_equal(values, found[0][0])
        np.testing.assert_array_equal(total, found[0][1])
    gamma = {} if kernel.name == "linear" else {"gamma": kernel.gamma}
    shape = {"degree": 3, "coef0": 0.5} if kernel.name == "poly" else {}
    K = pairwise_kernels(X[samples], X[:2200], metric=kernel.name, **gamma, **shape)
    np.testing.assert_allclose(found[0][0], K, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found[0][1], coefs @ K.T, rtol=1e-9, atol=1e-8)


def test_parts_that_are_added_together_have_the_same_bits(monkeypatch):
    """A product whose parts take one compiled call is that of a call each, whether threads share a slab or not."""
    rng = np.random.default_rng(2)
    X, Z, coefs = rng.normal(size=(1500, 5)), rng.normal(size=(3000, 5)), rng.normal(size=(3000, 1))
    kernel = Kernel("rbf", GAMMA)
    left, right = (prepare(kernel, rows, np.float64, shift=np.zeros(5), sparse=False) for rows in (Z, X))
    monkeypatch.setattr(products, "_HELD_BYTES", 8 * 7 * 2000)  # two batches of left rows
    found = []
    for n_bytes, n_threads, fewest in ((0, 1, 2**17), (2**23, 1, 2**17), (2**23, 3, 1000)):
        monkeypatch.setattr(products, "_JOINED_BYTES", n_bytes)
        monkeypatch.setattr(products, "_FEWEST_VALUES", fewest)
        with open_pool(n_threads) as pool:
            out = np.ones((1500, 1))
            products.Sums(kernel, np.float64, pool).add_weighted(partial(span, left), coefs, partial(span, right), out)
        found.append(out)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])
    np.testing.assert_allclose(found[0] - 1, rbf_kernel(X, Z, gamma=GAMMA) @ coefs, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("q", "n"), [(1, 9), (37, 64), (200, 256)])
def test_a_tile_in_one_call_is_that_of_numpy(dtype, q, n):
    """Products, exponentials, sums and stored rows of a compiled tile are numpy's of the same arrays."""
    rng = np.random.default_rng(q)
    left, right = rng.normal(size=(q, 7)).astype(dtype), rng.normal(size=(n, 7)).astype(dtype)
    left, right, coefs = -np.abs(left), np.abs(right), rng.normal(size=q).astype(dtype)
    expected, tile, single = left @ right.T, np.empty((q + 3, n), dtype), functions.is_single(dtype)
    eps = 200.0 * float(np.finfo(dtype).eps)
    close = partial(np.testing.assert_allclose, rtol=eps, atol=eps)
    functions.tile_values(left, right, tile[:q], False, single)
    close(tile[:q], expected)
    exponentials(expected)
    sums = np.empty(n, dtype)
    functions.tile_sums(left, right, coefs, tile, sums, True, single)
    close(tile[:q], expected)
    close(sums, np.dot(expected.T, coefs))
    u, flat, slots = np.ones(n), np.zeros(5 * (n + 2), dtype), np.array([4, 0])[:q]
    functions.add_tile(left, right, coefs, tile[:q], u, flat, n + 2, slots, 1, True, single)
    close(u, np.ones(n) + np.dot(coefs, expected))
    for slot, row in zip(slots, expected, strict=False):
        close(flat[slot * (n + 2) :][1 : n + 1], row)
    assert np.count_nonzero(flat) == n * len(slots)
    if single is None:
        two, out = rng.normal(size=(2, n)), np.empty((2, q))
        functions.sum_tile(left, right, two, tile[:q], out, True)
        close(out, np.matmul(two, expected.T))


def test_threads_that_share_few_rows_add_up_the_same_bits(monkeypatch):
    """Sums of a few rows over many others are those of one thread to the last bit, for each group of outputs."""
    rng = np.random.default_rng(0)
    X, Z, coefs = rng.normal(size=(600, 5)), rng.normal(size=(2000, 5)), rng.normal(size=(2000, 2))
    kernel, groups = Kernel("rbf", GAMMA), ([700, 2000], np.array([[0, 2], [1, 2]]))
    monkeypatch.setattr(products, "_FEWEST_VALUES", 1000)
    left, right = (prepare(kernel, rows, np.float64, shift=np.zeros(5), sparse=False) for rows in (Z, X))
    found = []
    for n_threads in (1, 2, 3):
        with open_pool(n_threads) as pool:
            one, out = products.Sums(kernel, np.float64, pool), np.ones((600, 3))
            assert (one._shares(2, 8, 10**6, 2) > 1) == (n_threads > 1)
            one.add_weighted(partial(span, left), coefs, partial(span, right), out, groups)
            found.append(out)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])
    K = rbf_kernel(X, Z, gamma=GAMMA)
    np.testing.assert_allclose(found[0][:, 0] - 1, K[:, :700] @ coefs[:700, 0], atol=1e-9)
    np.testing.assert_allclose(found[0][:, 2] - 1, K @ coefs[:, 1], atol=1e-9)


def test_cache_never_holds_more_than_it_may():
    """The buffer stays below its bound, least recently used rows leave first, and rows of this round stay."""
    cache = RowCache(10 * 4 * 100, 100, np.float32)
    assert cache.nbytes <= 4000
    assert cache.capacity == 10
    cache.find(np.arange(6))
    assert len(cache.reserve(np.arange(6))) == 6
    cache.find(np.array([0, 1]))
    slots = cache.reserve(np.arange(50, 90))
    assert len(slots) == 8
    assert (cache.find(np.array([0, 1, 50])) >= 0).all()
    assert (cache.find(np.array([2, 3, 4, 5])) < 0).all()
    assert RowCache(10**9, 100, np.float32).nbytes == 4 * 100 * 100


@pytest.mark.parametrize("form", ["dense", "csr", "precomputed"])
def test_prediction_never_holds_the_kernel_matrix(form):
    """The peak of a prediction is far below the matrix of its rows by the support vectors."""
    rng = np.random.default_rng(0)
    n = 300 if form == "precomputed" else 3000
    X, y = rng.normal(size=(n, 4)), rng.integers(0, 2, n)
    model = SVC(gamma=50.0, n_jobs=1).fit(X, y)
    assert len(model.support_) > 0.9 * n
    T = rng.normal(size=(8000, 4))
    if form == "precomputed":
        model = SVC(kernel="precomputed", n_jobs=1).fit(rbf_kernel(X, gamma=50.0), y)
        T = np.full((40_000, n), 0.5)
    elif form == "csr":
        model.fit(sp.csr_matrix(X), y)
        T = sp.csr_matrix(T)
    model.decision_function(T[:10])
    tracemalloc.start()
    model.decision_function(T)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * T.shape[0] * len(model.support_) / 8


@pytest.mark.parametrize("n_columns", [9_000, 300_000, 3_000_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_wide_sparse_rows_give_the_values_of_their_columns(n_columns, dtype):
    """Values and sums of rows with few of many columns are those of the same rows without the empty columns."""
    rng = np.random.default_rng(0)
    present = np.sort(rng.choice(n_columns, 700, replace=False))
    narrow = sp.random(240, 700, density=0.02, format="csr", random_state=0, dtype=np.float64)
    narrow.data[:] = rng.normal(size=narrow.nnz)
    narrow.data[narrow.indptr[5] : narrow.indptr[6]] = 0.0  # a row without entries
    narrow.eliminate_zeros()
    narrow = narrow.astype(dtype)
    wide = sp.csr_matrix((narrow.data, present[narrow.indices], narrow.indptr), shape=(240, n_columns))
    exact = rbf_kernel(narrow.toarray().astype(np.float64), gamma=GAMMA)
    matrix = KernelMatrix(Kernel("rbf", GAMMA), wide, samples=None, dtype=dtype, cache_bytes=10**6, pool=POOL)
    tolerance = 1e-12 if dtype == np.float64 else 1e-5
    picked = matrix.pick(np.arange(100))
    np.testing.assert_allclose(matrix.block(picked), exact[:100, :100], atol=tolerance)
    u, coefs = np.zeros(240), rng.normal(size=100)
    matrix.add(u, picked, np.arange(100), coefs)
    np.testing.assert_allclose(u, coefs @ exact[:100], atol=100 * tolerance)
    sums = matrix.product(np.arange(240), np.arange(50, 150), coefs, np.float64)
    np.testing.assert_allclose(sums, exact[:, 50:150] @ coefs, atol=1e-10)


@pytest.mark.parametrize("kernel", ["rbf", "linear", "poly"])
def test_memory_does_not_grow_with_empty_columns(kernel):
    """A fit and a prediction on half a megabyte of rows with 300,000 columns take 60 megabytes at most."""
    rng = np.random.default_rng(0)
    n, n_entries, n_columns = 600, 60, 300_000
    columns = np.sort((n_columns * rng.random((n, n_entries)) ** 3).astype(np.int64), axis=1)
    X = sp.csr_matrix((np.full(columns.size, 0.1), columns.ravel(), n_entries * np.arange(n + 1)), shape=(n, n_columns))
    X.sum_duplicates()
    score = np.asarray(X[:, :3000].sum(axis=1)).ravel()
    y = score > np.median(score)
    SVC(kernel=kernel, gamma=1.0, n_jobs=1).fit(X[:100], y[:100])
    tracemalloc.start()
    model = SVC(kernel=kernel, gamma=1.0, n_jobs=1).fit(X, y)
    model.decision_function(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert model.converged_
    assert peak < 60 * 2**20
