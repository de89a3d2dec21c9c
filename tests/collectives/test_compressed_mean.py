"""Means of compressed vectors: the same bits on all ranks, nothing lost between them, the bytes that are promised."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compressors import COMPRESSORS, vector_of
from dsgd.collectives import Group, compressed_cost, compressed_mean
from dsgd.collectives.cost import allgather_cost, allreduce_cost
from dsgd.collectives.payloads import Entries, merge_all
from dsgd.compress import (
    DGC,
    QSGD,
    AbstractCompressor,
    AdaComp,
    ErrorFeedback,
    GTopK,
    Half,
    Identity,
    MajorityVote,
    NonZero,
    OneBit,
    PowerSGD,
    RandomK,
    Sign,
    TernGrad,
    TopK,
)
from dsgd.compress.sparse import sparse_bytes
from gangs import run_gang
from nested_gangs import run_nested
from reference import compression as reference

Compressor = AbstractCompressor[Any]

#: Equal to the dense mean, up to rounding.
EXACT: list[Compressor] = [
    Identity(),
    NonZero(),
    GTopK(1.0),
    GTopK(1.0, "put-back", "tree"),
    DGC(1.0),
    *map(ErrorFeedback, (TopK(1.0), RandomK(1.0), PowerSGD(8, n_rows=8))),
]
#: Lose nothing between the ranks: what comes out and what they keep is what came in.
CONSERVING: list[Compressor] = [
    AdaComp(7),
    GTopK(0.1),
    GTopK(0.1, route="tree"),
    DGC(0.1, momentum=0.0),
    *map(ErrorFeedback, (TopK(0.1), RandomK(0.2), Sign(), OneBit(16), PowerSGD(1), Half(), Half("bfloat16"))),
]
sizes = st.integers(1, 9)


def weights_of(size: int, seed: int) -> np.ndarray:
    """Return shares of ranks, some of them without rows."""
    rng = np.random.default_rng((seed, size))
    weights = rng.integers(0, 4, size).astype(float)
    weights[rng.integers(size)] += 1
    return weights / weights.sum()


def means(
    group: Group, compressor: Compressor, n: int, seed: int, n_rounds: int = 2, dtype: Any = np.float64
) -> tuple[np.ndarray, Any, list[int]]:
    """Return what a rank holds after each round, its memory, and the bytes that each round took."""
    memory = compressor.init(n, dtype, 3, group.rank, group.size)
    weight = float(weights_of(group.size, seed)[group.rank])
    rounds, sent = np.empty((n_rounds, n), dtype), []
    for number in range(n_rounds):
        vector = vector_of(n, 1000 * seed + 10 * group.rank + number, dtype)
        group.ledger.begin_round("sync")
        before = group.ledger.records().totals["bytes_sent"]
        compressed_mean(group, vector, weight, compressor, memory)
        group.ledger.end_round()
        sent.append(int(group.ledger.records().totals["bytes_sent"] - before))
        rounds[number] = vector
    return rounds, memory, sent


def weighted(size: int, n: int, seed: int, number: int) -> list[np.ndarray]:
    """Return what each rank adds to the mean of a round."""
    weights = weights_of(size, seed)
    return [weights[rank] * vector_of(n, 1000 * seed + 10 * rank + number) for rank in range(size)]


@pytest.mark.parametrize("compressor", [*COMPRESSORS, GTopK(0.1, route="tree"), ErrorFeedback(PowerSGD())], ids=repr)
def test_all_ranks_hold_the_same_bits(compressor: Compressor) -> None:
    """For 1 to 9 ranks, some without rows, and vectors from nothing to many parts, and the bytes are the formula's."""
    for size in (1, 2, 5, 9):
        for n, dtype in ((0, np.float32), (5, np.float64), (1500, np.float32)):
            found = run_gang("inproc", size, partial(means, compressor=compressor, n=n, seed=size, dtype=dtype))
            for rank, (rounds, _, sent) in enumerate(found):
                assert rounds.tobytes() == found[0][0].tobytes()
                cost = compressed_cost(rank, size, n, rounds.itemsize, compressor)
                assert cost is None or sent == [cost.n_bytes] * 2


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
def test_a_compressor_never_sends_more_than_the_vector(compressor: Compressor) -> None:
    """Payloads of short vectors of many ranks are no longer than these, but where a sum of payloads is the point."""
    if isinstance(compressor, (MajorityVote, PowerSGD, GTopK, Half)):
        small = 1000  # from where on these pay
        cost = compressed_cost(0, 8, small, 8, compressor)
        # Bytes that change during a warm-up are not known before.
        assert cost is None or cost.n_bytes < allreduce_cost(0, 8, small, 8).n_bytes
        return
    for size in (2, 3, 8, 64):
        for n in (1, 23, 300, 5000):
            costs = [compressed_cost(rank, size, n, 8, compressor) for rank in range(size)]
            whole = sum(allreduce_cost(rank, size, n, 8).n_bytes for rank in range(size))
            assert None in costs or sum(cost.n_bytes for cost in costs if cost) <= whole
    # If payloads differ in length, the lengths are gathered first.
    found = run_gang("inproc", 9, partial(means, compressor=compressor, n=23, seed=1, n_rounds=1))
    whole = sum(allreduce_cost(rank, 9, 23, 8).n_bytes + allgather_cost(9, 1, 8).n_bytes for rank in range(9))
    assert sum(sent[0] for _, _, sent in found) <= whole


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
def test_threads_of_several_processes_hold_the_same_bits(compressor: Compressor) -> None:
    """Where ranks cannot all reach each other the mean is that of ranks that can, except where it goes by a sum."""
    program = partial(means, compressor=compressor, n=1300, seed=4)
    flat, nested = run_gang("inproc", 5, program), run_nested([2, 1, 2], program)
    by_sum = isinstance(compressor, (Identity, RandomK, PowerSGD, NonZero))
    for (rounds, _, _), (others, _, _) in zip(flat, nested, strict=True):
        assert others.tobytes() == nested[0][0].tobytes()
        if by_sum:
            np.testing.assert_allclose(others, rounds, rtol=1e-9, atol=1e-9)
        else:
            assert others.tobytes() == rounds.tobytes()


def test_sockets_and_shared_memory_give_the_bits_of_threads() -> None:
    """One compressor of each way of summing, over every kind of wire."""
    every_way = [ErrorFeedback(TopK(0.1)), RandomK(0.1), PowerSGD(), Half(), TernGrad(), MajorityVote(), GTopK()]

    def program(group: Group) -> bytes:
        return b"".join(means(group, compressor, 700, 2)[0].tobytes() for compressor in every_way)

    assert len({bits for kind in ("inproc", "tcp", "shm") for bits in run_gang(kind, 3, program)}) == 1


@settings(max_examples=20)
@given(size=sizes, seed=st.integers(0, 100), compressor=st.sampled_from(EXACT))
def test_limits_are_the_dense_mean(size: int, seed: int, compressor: Compressor) -> None:
    """At density one, at full rank, or without loss, the mean is that of whole vectors."""
    rounds, _, _ = run_gang("inproc", size, partial(means, compressor=compressor, n=64, seed=seed))[0]
    for number in range(2):
        expected = np.sum(weighted(size, 64, seed, number), axis=0)
        np.testing.assert_allclose(rounds[number], expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=40)
@given(
    size=sizes,
    seed=st.integers(0, 100),
    n=st.sampled_from([0, 1, 40, 200, 900]),
    compressor=st.sampled_from(CONSERVING),
)
def test_nothing_is_lost_between_ranks(size: int, seed: int, n: int, compressor: Compressor) -> None:
    """Over two rounds, the sums and the memory of the ranks add up to their vectors, with any weights."""
    found = run_gang("inproc", size, partial(means, compressor=compressor, n=n, seed=seed))
    kept = np.sum([memory.residual for _, memory, _ in found], axis=0)
    came_in = np.sum([weighted(size, n, seed, number) for number in range(2)], axis=(0, 1))
    np.testing.assert_allclose(found[0][0].sum(axis=0) + kept, came_in, rtol=0, atol=1e-9)


@settings(max_examples=25)
@given(
    size=sizes,
    n=st.integers(1, 200),
    density=st.sampled_from([0.01, 0.1, 0.5]),
    dropped=st.sampled_from(["conserving", "put-back"]),
    route=st.sampled_from(["butterfly", "tree"]),
    first=st.sampled_from([None, 0.25, 1.0]),
)
def test_gtopk_equals_its_twin(
    size: int, n: int, density: float, dropped: Any, route: Any, first: float | None
) -> None:
    """Two rounds, the first of which may warm up, give what dense merges of the same pairs give, on all ranks."""
    warm_up = () if first is None else (first,)
    compressor = GTopK(density, dropped, route, warm_up, warm_up_rounds=1)
    found = run_gang("inproc", size, partial(means, compressor=compressor, n=n, seed=1))
    kept = [np.zeros(n) for _ in range(size)]
    for number in range(2):
        k = int(np.ceil((*warm_up, density, density)[number] * n))
        came_in = [old + new for old, new in zip(kept, weighted(size, n, 1, number), strict=True)]
        total, kept = reference.gtopk(came_in, k, dropped, route)
        np.testing.assert_allclose(found[0][0][number], total, rtol=1e-12, atol=1e-12)
        assert np.count_nonzero(total) <= k
    for (_, memory, _), expected in zip(found, kept, strict=True):
        np.testing.assert_allclose(memory.residual, expected, rtol=1e-12, atol=1e-12)


def test_gtopk_sends_what_its_formula_says() -> None:
    """At density 0.001 of 25 million a frame has 12 bits for a place, and log2 P frames leave a rank."""
    n, k = 25_000_000, 25_000
    assert sparse_bytes(k, n, 4) == 8 + 4 * k + 8 * -(-k * 9 // 64) + 8 * -(-(k + ((n - 1) >> 9) + 1) // 64)
    assert sparse_bytes(k, n, 4) < 0.69 * 8 * k
    for size in (2, 4, 8, 16, 32):
        cost = compressed_cost(0, size, n, 4, GTopK(0.001))
        assert cost is not None
        assert (cost.n_bytes, cost.messages) == (
            (size.bit_length() - 1) * (sparse_bytes(k, n, 4) + 40),
            size.bit_length() - 1,
        )
    found = run_gang("inproc", 4, partial(means, compressor=GTopK(0.001), n=200_000, seed=0, dtype=np.float32))
    for _, _, sent in found:
        assert sent == [2 * (sparse_bytes(200, 200_000, 4) + 40)] * 2


def test_put_back_loses_what_conserving_keeps() -> None:
    """With two ranks the published put-back loses nothing, with eight it does; the conserving form never."""

    def lost(size: int) -> float:
        own = []
        for rank in range(size):
            vector = np.random.default_rng(rank).standard_normal(2000)
            places = np.sort(np.argsort(-np.abs(vector))[:20]).astype(np.uint32)
            own.append(Entries(places, vector[places]))
        total, dropped = merge_all(own, 20, "tree")
        came_in = sum(float(entries.values.sum()) for entries in own)
        conserved = float(total.values.sum()) + sum(float(rest.values.sum()) for _, rest in dropped)
        assert conserved == pytest.approx(came_in)
        applied = np.zeros(2000)
        applied[total.places] = total.values
        for entries in own:
            back = ~np.isin(entries.places, total.places)
            applied[entries.places[back]] += entries.values[back]
            applied[entries.places] -= entries.values
        return float(np.abs(applied).sum())

    assert lost(2) == pytest.approx(0.0, abs=1e-12)
    assert max(lost(size) for size in (8, 16, 32)) > 0.1


def test_sparse_sums_are_sparse_only_where_that_is_less() -> None:
    """A few entries cost a few bytes; full vectors cost what an all-reduce does and a word for their lengths."""

    def program(group: Group, n_filled: int) -> tuple[np.ndarray, float]:
        vector = np.zeros(10_000)
        vector[np.random.default_rng(group.rank).choice(10_000, n_filled, replace=False)] = 1.0
        compressed_mean(group, vector, 0.25, NonZero(), NonZero().init(10_000, np.float64, 0))
        group.ledger.end_round()
        return vector, group.ledger.records().totals["bytes_sent"]

    for n_filled in (0, 10, 9000):
        filled = [np.random.default_rng(rank).choice(10_000, n_filled, replace=False) for rank in range(4)]
        expected = np.bincount(np.concatenate(filled).astype(np.int64), minlength=10_000) / 4
        vector, sent = run_gang("inproc", 4, partial(program, n_filled=n_filled))[0]
        np.testing.assert_allclose(vector, expected)
        whole = compressed_cost(0, 4, 10_000, 8, Identity())
        assert whole is not None
        assert sent < 1000 if n_filled < 100 else sent == whole.n_bytes + allgather_cost(4, 1, 8).n_bytes


def test_powersgd_of_a_gang_is_that_of_the_mean() -> None:
    """The mean over ranks is what one rank makes of the mean of their matrices."""
    found = run_gang("inproc", 3, partial(means, compressor=PowerSGD(2, n_rows=8), n=64, seed=6, n_rounds=2))
    right = PowerSGD(2, n_rows=8).init(64, np.float64, 3).right.reshape(2, 8)
    for number in range(2):
        matrices = [3 * part.reshape(8, 8) for part in weighted(3, 64, 6, number)]
        expected, right = reference.power_mean(matrices, right)
        np.testing.assert_allclose(found[0][0][number], expected.reshape(-1), rtol=1e-8, atol=1e-9)


def test_a_rank_without_rows_cannot_spoil_the_mean() -> None:
    """Infinities of a rank of weight zero go nowhere."""

    def program(group: Group, compressor: Compressor) -> np.ndarray:
        vector = np.full(50, np.inf if group.rank else 2.0)
        compressed_mean(group, vector, 0.0 if group.rank else 1.0, compressor, compressor.init(50, np.float64, 0))
        return vector

    for compressor in (TopK(1.0), QSGD(), Half(), TernGrad(), Identity(), PowerSGD()):
        assert np.isfinite(run_gang("inproc", 2, partial(program, compressor=compressor))[0]).all()
