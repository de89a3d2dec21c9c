"""The family of all-reduce algorithms: their sums, their costs and their choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgd.collectives import Cost, Group, allreduce_cost, allreduce_seconds, calibrate, choose_algorithm
from dsgd.collectives.algorithms.plan import Plan, n_steps
from dsgd.collectives.algorithms.rings import rabenseifner_plan, torus_plan
from dsgd.collectives.algorithms.trees import binomial_plan, double_tree, double_tree_plan
from dsgd.collectives.cost import ALGORITHMS, hierarchical_seconds, tree_pieces, tree_steps
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.runtime.rank import Rank
from dsgd.sim import Compute, Link, Network, SimulatedCluster
from gangs import TRANSPORTS, run_gang, spent
from reference import collectives as reference
from reference.collectives import plan_cost

#: The algorithms that are lists of messages.
PLANS: dict[str, Callable[[int, int, int], Plan]] = {
    "rabenseifner": rabenseifner_plan,
    "binomial": binomial_plan,
    "double_tree": lambda rank, size, n: double_tree_plan(rank, size, n, 4),
    "torus": torus_plan,
}


def random_vectors(size: int, n: int, dtype: Any = np.float64) -> list[np.ndarray]:
    """Return numbers whose sum depends on the order."""
    rng = np.random.default_rng(n)
    return [(rng.standard_normal(n) * 10.0 ** rng.integers(-6, 6, n)).astype(dtype) for _ in range(size)]


def summed(kind: str, vectors: list[np.ndarray], algorithm: str) -> list[tuple[np.ndarray, Cost]]:
    """Return what each rank holds after an all-reduce, and what it sent."""
    return [found for (found,) in all_summed(kind, [vectors], algorithm)]


def all_summed(kind: str, rounds: list[list[np.ndarray]], algorithm: str) -> list[list[tuple[np.ndarray, Cost]]]:
    """Return what each rank holds after one all-reduce after the other, and what it sent for each."""

    def program(group: Group) -> list[tuple[np.ndarray, Cost]]:
        found, before = [], Cost(0, 0)
        for vectors in rounds:
            mine = vectors[group.rank].copy()
            group.ledger.begin_round("sync")
            group.allreduce(mine)
            after = spent(group)
            found.append((mine, Cost(after.n_bytes - before.n_bytes, after.messages - before.messages)))
            before = after
        return found

    return run_gang(kind, len(rounds[0]), program, algorithm)


@pytest.mark.parametrize("size", [*range(2, 18), 33])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_sums_are_bitwise_those_of_the_plain_twin(size: int, algorithm: str) -> None:
    """Each algorithm adds in its stated order for any world size, also with fewer elements than ranks."""
    rounds = [random_vectors(size, n) for n in (0, 1, size - 1, 101)]
    found = all_summed("inproc", rounds, algorithm)
    for k, vectors in enumerate(rounds):
        expected = getattr(reference, algorithm)(vectors)
        for rank, (result, cost) in enumerate(of_rank[k] for of_rank in found):
            assert result.tobytes() == expected[rank].tobytes()
            assert result.tobytes() == expected[0].tobytes()
            assert cost == allreduce_cost(rank, size, vectors[0].size, 8, algorithm)
        np.testing.assert_allclose(expected[0], np.sum(vectors, axis=0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_wire_adds_in_the_same_order(algorithm: str) -> None:
    """Long vectors, which double trees cut into pieces, have the same bits over threads, TCP and shared memory."""
    n = 300_001
    assert tree_pieces(4 * n, 6) > 2
    vectors = random_vectors(6, n, np.float32)
    results = {result.tobytes() for kind in TRANSPORTS for result, _ in summed(kind, vectors, algorithm)}
    assert results == {getattr(reference, algorithm)(vectors)[0].tobytes()}


@pytest.mark.parametrize("size", [24, 64])
def test_large_gangs_send_what_the_closed_form_says(size: int) -> None:
    """Threads count the bytes and messages of their formulas on up to 64 ranks, with chunks of different lengths."""
    for algorithm in ALGORITHMS:
        for rank, (_, cost) in enumerate(summed("inproc", [np.ones(77, np.float32)] * size, algorithm)):
            assert cost == allreduce_cost(rank, size, 77, 4, algorithm)


@pytest.mark.parametrize("algorithm", PLANS)
def test_plans_send_what_the_closed_form_says(algorithm: Any) -> None:
    """Counted message by message, plans for 2 to 64 ranks cost what their formulas say, from no element to many."""
    for size in range(2, 65):
        for n in (0, 1, 1_000, 600_001) if size in (2, 3, 6, 17, 24) else (1_000,):
            for rank in range(size):
                assert plan_cost(PLANS[algorithm](rank, size, n), 4) == allreduce_cost(rank, size, n, 4, algorithm)


@pytest.mark.parametrize("algorithm", ["rabenseifner", "torus", "ring"])
def test_no_byte_is_sent_too_often(algorithm: Any) -> None:
    """Over all ranks, algorithms for long vectors move 2 (P - 1) vectors, the least possible, on 2**q ranks or any."""
    for size in (2, 4, 8, 16, 32, 64) if algorithm == "rabenseifner" else range(2, 33):
        costs = [allreduce_cost(rank, size, 1_001, 4, algorithm) for rank in range(size)]
        assert sum(c.n_bytes - 40 * c.messages for c in costs) == 2 * (size - 1) * 4_004


def _depth(tree: tuple[int, ...], rank: int) -> int:
    return 0 if tree[rank] < 0 else 1 + _depth(tree, tree[rank])


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8, 16, 33, 64])
def test_the_model_knows_the_steps_of_a_double_tree(size: int) -> None:
    """Schedules take a few per cent more steps than the model says at most, and not a third fewer."""
    for pieces in (1, 4, 16):
        ratio = n_steps(double_tree(size), pieces) / tree_steps(pieces, size)
        assert 2 / 3 <= ratio <= 1.06


@given(
    size=st.integers(2, 300),
    n_bytes=st.integers(0, 2**28),
    link=st.builds(
        Link,
        overhead_s=st.floats(0.0, 1e-3),
        latency_s=st.floats(1e-7, 1e-2),
        byte_s=st.floats(1e-12, 1e-7),
        added_byte_s=st.floats(0.0, 1e-8),
    ),
)
def test_auto_is_the_fastest_and_no_algorithm_beats_the_bounds(size: int, n_bytes: int, link: Link) -> None:
    """The choice has the least predicted time, and no prediction is below the bounds of latency and bandwidth."""
    times = {algorithm: allreduce_seconds(algorithm, n_bytes, size, link) for algorithm in ALGORITHMS}
    assert times[choose_algorithm(n_bytes, size, link)] <= min(times.values()) * (1 + 1e-9)
    latency = (size - 1).bit_length() * link.alpha_s
    bandwidth = 2 * (size - 1) / size * n_bytes * link.byte_s
    for seconds in times.values():
        assert seconds >= latency * (1 - 1e-9)
    for algorithm in set(ALGORITHMS) - {"recursive_doubling", "double_tree"}:
        assert times[algorithm] >= bandwidth * (1 - 1e-9)


def test_a_group_chooses_by_the_link_it_is_told() -> None:
    """On a link where messages cost nothing the ring is taken for what a slow one sends by doubling."""

    def program(group: Group) -> tuple[str, str]:
        free = Group(group.transport, link=Link(byte_s=1e-9, added_byte_s=1e-9))
        slow = Group(group.transport, link=Link(latency_s=1.0, byte_s=1e-9, added_byte_s=1e-9))
        return free.algorithm_for(1_000, 8), slow.algorithm_for(10**6, 8)

    assert run_gang("inproc", 3, program) == [("ring", "recursive_doubling")] * 3
    with pytest.raises(InvalidParameterError, match="byte_s"):
        Link(latency_s=1e-6, byte_s=float("nan"))


def test_two_levels_take_two_levels_of_time() -> None:
    """Inside hosts a tree up and one down, between them what the leaders take."""
    fast, slow = Link(latency_s=1e-6, byte_s=1e-10), Link(latency_s=1e-4, byte_s=1e-9)
    inside = 2 * 2 * (1e-6 + 1e5 * 1e-10)
    expected = inside + allreduce_seconds(choose_algorithm(10**5, 2), 10**5, 2, slow)
    assert hierarchical_seconds(10**5, [0, 0, 0, 1, 1, 1], fast, slow) == pytest.approx(expected)


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_calibrated_costs_are_the_same_on_all_ranks(kind: str) -> None:
    """Every rank gets the slowest rank's numbers, above zero, and the rounds of the gang are not counted up."""

    def program(group: Group) -> tuple[Link, int]:
        return calibrate(group), group.ledger.rounds

    results = run_gang(kind, 3, program)
    assert len(set(results)) == 1
    link, rounds = results[0]
    assert min(link.latency_s, link.added_byte_s) > 0.0
    assert rounds == 0


def test_calibration_is_refused_where_links_differ() -> None:
    """Between threads of several processes there is no one link to measure; one rank alone has none at all."""

    def program(group: Group) -> None:
        group.transport.processes = (0, 0, 1, 1)
        with pytest.raises(IncompatiblePartsError, match="one rank per process"):
            calibrate(group)

    run_gang("inproc", 4, program)
    (alone,) = run_gang("inproc", 1, calibrate)
    assert alone.latency_s == alone.byte_s == 0.0


@pytest.mark.parametrize("size", [2, 3, 6, 8, 13])
def test_the_model_is_what_a_virtual_clock_shows(size: int) -> None:
    """On a network of equal links every algorithm takes the seconds of its formula, short and long."""
    link = Link(latency_s=1e-4, byte_s=1e-9, added_byte_s=2e-10)
    wire = Link(byte_s=link.byte_s, overhead_s=link.alpha_s)
    cluster = SimulatedCluster(size, Network("flat", between=wire, inside=wire), Compute(added_byte_s=2e-10))

    def program(rank: Rank, data: None, algorithm: Any, n: int) -> float:
        group = Group(rank.group.transport, algorithm, hosts=[0] * rank.size)
        rank.group.barrier()
        begin = rank.ledger.clock()
        group.allreduce(np.ones(n, dtype=np.float32))
        taken = np.array([rank.ledger.clock() - begin])
        rank.group.allreduce(taken, "max")
        return float(taken[0])

    for n in (10, 250_000):
        for algorithm in ALGORITHMS:
            seconds = cluster.run(program, [None] * size, (algorithm, n)).value
            predicted = allreduce_seconds(algorithm, 4 * n, size, link)
            # What some ranks do beside the steps of others, in a fold or in trees, their formulas do not say.
            within = {"rabenseifner": 0.15, "binomial": 0.05, "double_tree": 0.35}.get(algorithm, 0.01)
            assert seconds == pytest.approx(predicted, rel=within)
