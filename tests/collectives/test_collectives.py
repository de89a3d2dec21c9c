"""Collectives: the same sums as numpy, the same bits on every rank and every transport, the bytes they promise."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.collectives import Cost, Group, allreduce_cost, broadcast_cost
from dsgd.collectives.cost import ALGORITHMS as FLAT
from dsgd.collectives.cost import allgather_cost, allgatherv_cost
from dsgd.errors import InvalidParameterError
from gangs import SHARED, TRANSPORTS, run_gang, spent
from operations import check_operations, operations
from reference import collectives as reference
from reference.collectives import barrier_cost, gather_cost

SIZES = (1, 2, 3, 4, 5, 7, 8)
ALGORITHMS = ("auto", *FLAT)


def random_vectors(size: int, n: int, dtype: Any = np.float64, seed: int = 0) -> list[np.ndarray]:
    """Return numbers whose sum depends on the order."""
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal(n) * 10.0 ** rng.integers(-6, 6, n)).astype(dtype) for _ in range(size)]


@pytest.mark.parametrize("kind", ["inproc", "tcp", "wrapped", *sorted(SHARED)])
@settings(max_examples=15)
@given(size=st.integers(1, 9), algorithm=st.sampled_from(ALGORITHMS), ops=operations)
def test_any_list_of_operations_equals_numpy(kind: str, size: int, algorithm: str, ops: list[Any]) -> None:
    """Whatever collectives follow each other, with whatever sizes and types, the results are numpy's, on every wire."""
    check_operations(lambda program: run_gang(kind, size, program, algorithm), size, ops)


def hierarchical_gang(hosts: list[int], program: Any, algorithm: Any = "hierarchical") -> list[Any]:
    """Run a program on threads that pretend to be on these hosts."""

    def as_if(group: Group) -> Any:
        return program(Group(group.transport, algorithm, hosts=hosts))

    return run_gang("inproc", len(hosts), as_if)


@settings(max_examples=40)
@given(hosts=st.lists(st.integers(0, 3), min_size=1, max_size=9), n=st.sampled_from([0, 1, 3, 100, 9_000]))
def test_a_sum_in_two_levels_is_bitwise_that_of_its_twin(hosts: list[int], n: int) -> None:
    """However ranks lie on hosts, all hold the bits that the stated order of sums gives, which are numpy's sum."""
    vectors = random_vectors(len(hosts), n)

    def program(group: Group) -> np.ndarray:
        mine = vectors[group.rank].copy()
        group.allreduce(mine)
        return mine

    expected = reference.hierarchical(vectors, hosts) if len(hosts) > 1 else vectors
    for result in hierarchical_gang(hosts, program):
        assert result.tobytes() == expected[0].tobytes()
        np.testing.assert_allclose(result, np.sum(vectors, axis=0), rtol=1e-9, atol=1e-6)


@settings(max_examples=20)
@given(hosts=st.lists(st.integers(0, 2), min_size=2, max_size=7), algorithm=st.sampled_from(ALGORITHMS))
def test_sums_in_two_levels_cost_what_the_closed_form_says(hosts: list[int], algorithm: Any) -> None:
    """Bytes and messages equal their formula, and auto takes two levels where hosts and ranks are several."""

    def program(group: Group) -> Cost:
        for n in (3, 20_001):
            group.allreduce(np.ones(n, dtype=np.float32))
        return spent(group)

    for rank, cost in enumerate(hierarchical_gang(hosts, program, algorithm)):
        parts = [allreduce_cost(rank, len(hosts), n, 4, algorithm, hosts) for n in (3, 20_001)]
        assert cost == Cost(sum(p.n_bytes for p in parts), sum(p.messages for p in parts))
    if algorithm == "auto" and 1 < len(set(hosts)) < len(hosts):
        whole = [allreduce_cost(rank, len(hosts), 3, 4, "hierarchical", hosts) for rank in range(len(hosts))]
        assert whole == [allreduce_cost(rank, len(hosts), 3, 4, "auto", hosts) for rank in range(len(hosts))]


def test_a_mixed_gang_sums_in_two_levels() -> None:
    """Pairs that share memory and use TCP with the others all hold the bits of the plain twin."""
    hosts = [0, 0, 1, 0, 0, 2]
    vectors = random_vectors(6, 30_000)

    def program(group: Group) -> tuple[np.ndarray, tuple[int, ...]]:
        mine = vectors[group.rank].copy()
        group.allreduce(mine)
        return mine, group.transport.hosts

    expected = reference.hierarchical(vectors, hosts)[0].tobytes()
    for result, found in run_gang("mixed", 6, program):
        assert list(found) == hosts
        assert result.tobytes() == expected


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_every_rank_and_every_transport_gets_the_same_bits(size: int, dtype: Any) -> None:
    """An all-reduce is bitwise equal on all ranks, over every kind of connection, short and long."""
    for n in (5, 30_000):
        vectors = random_vectors(size, n, dtype)

        def program(group: Group, vectors: list[np.ndarray] = vectors) -> bytes:
            mine = vectors[group.rank].copy()
            group.allreduce(mine)
            return mine.tobytes()

        results = {bits for kind in (*TRANSPORTS, "wrapped", "tls", "spin") for bits in run_gang(kind, size, program)}
        assert len(results) == 1


def test_what_cannot_be_sent_is_refused_before_anything_is() -> None:
    """A strided vector, an unknown type, an unknown root and an unknown algorithm are errors that say so."""

    def program(group: Group) -> None:
        with pytest.raises(InvalidParameterError, match="C-contiguous"):
            group.allreduce(np.zeros((4, 4))[:, 0])
        with pytest.raises(InvalidParameterError, match="dtype"):
            group.allreduce(np.zeros(3, dtype=np.complex64))
        with pytest.raises(InvalidParameterError, match="root"):
            group.broadcast(np.zeros(3), root=2)
        with pytest.raises(InvalidParameterError, match="root"):
            group.gather(np.zeros(3), root=-1)
        with pytest.raises(InvalidParameterError, match="op"):
            group.allreduce(np.zeros(3), "mean")  # type: ignore[arg-type]
        with pytest.raises(InvalidParameterError, match="lengths"):
            group.allgatherv(np.zeros(3), [3])
        with pytest.raises(InvalidParameterError, match="algorithm"):
            Group(group.transport, "tree")  # type: ignore[arg-type]
        with pytest.raises(InvalidParameterError, match="hosts"):
            Group(group.transport, hosts=[0, 1, 2])
        group.barrier()

    run_gang("inproc", 2, program)


@pytest.mark.parametrize(
    ("kind", "size"),
    [("inproc", size) for size in SIZES] + [(kind, size) for kind in ("tcp", "shm") for size in (3, 8)],
)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_ledger_counts_what_the_closed_form_says(kind: str, size: int, algorithm: str) -> None:
    """Bytes and messages of every collective equal their formulas, on every rank."""
    cases = [("allreduce", n) for n in (0, 1, 5, 100, 20_001)]
    cases += [
        ("broadcast", 7),
        ("allgather", 11),
        ("allgather", 100_001),
        ("allgatherv", 9),
        ("gather", 9),
        ("min", 9),
        ("barrier", 0),
    ]

    def program(group: Group) -> list[Cost]:
        costs, before = [], Cost(0, 0)
        for name, n in cases:
            group.ledger.begin_round("sync")
            vector = np.ones(n, dtype=np.float32)
            if name == "allreduce":
                group.allreduce(vector)
            elif name == "broadcast":
                group.broadcast(vector, root=size - 1)
            elif name == "allgather":
                group.allgather(vector)
            elif name == "allgatherv":
                group.allgatherv(vector[group.rank :])
            elif name == "gather":
                group.gather(vector[group.rank :], root=size - 1)
            elif name == "min":
                group.allreduce(vector, "min")
            else:
                group.barrier()
            after = spent(group)
            costs.append(Cost(after.n_bytes - before.n_bytes, after.messages - before.messages))
            before = after
        return costs

    def expected(rank: int, name: str, n: int) -> Cost:
        if name == "allreduce":
            return allreduce_cost(rank, size, n, 4, algorithm)
        if name == "broadcast":
            return broadcast_cost(rank, size, n, 4, root=size - 1)
        if name == "allgatherv":
            return allgatherv_cost(rank, [n - r for r in range(size)], 4)
        if name == "gather":
            return gather_cost(rank, [n - r for r in range(size)], 4, root=size - 1)
        if name == "min":
            return allreduce_cost(rank, size, n, 4, "recursive_doubling")
        return allgather_cost(size, n, 4) if name == "allgather" else barrier_cost(size)

    for rank, costs in enumerate(run_gang(kind, size, program, algorithm)):
        assert costs == [expected(rank, name, n) for name, n in cases]


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("algorithm", FLAT)
def test_rounds_of_equal_size_allocate_no_vector(kind: str, algorithm: str) -> None:
    """After the first round, no round allocates anything near the size of the vector."""
    n = 1_000_000
    vectors = [np.ones(n), np.ones(n)]

    def work(group: Group) -> None:
        for _ in range(3):
            group.allreduce(vectors[group.rank])
            vectors[group.rank][:] = 1.0

    def program(group: Group) -> int:
        work(group)
        group.barrier()
        if group.rank == 0:
            tracemalloc.start()
        group.barrier()
        work(group)
        group.barrier()
        if group.rank:
            return 0
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    peak = run_gang(kind, 2, program, algorithm)[0]
    assert peak < n * 8 / 50
