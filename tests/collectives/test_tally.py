"""A word about the run: sums that all know, numbers that rank 0 or all have, and as few messages as can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from dsgd.collectives import Group
from dsgd.collectives.algorithms.trees import blocks_of, tally_cost
from dsgd.collectives.cost import tally_seconds
from dsgd.sim import Compute, Link, Network, SimulatedCluster
from gangs import TRANSPORTS, run_gang
from nested_gangs import run_nested

SIZES = [1, 2, 3, 4, 5, 8, 9, 11]


def numbers(size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(size)
    return rng.standard_normal((size, 7)), rng.standard_normal((size, 3))


def talk(size: int) -> Callable[[Group], Any]:
    """Return a program in which ranks sum seven numbers, tell rank 0 three, and tell all of them three more."""
    given, own = numbers(size)

    def program(group: Group) -> Any:
        ledger = group.ledger
        ledger.begin_round("sync")
        sums = given[group.rank].copy()
        told = group.tally(sums, own[group.rank])
        ledger.end_round()
        between = ledger.records().totals
        ledger.begin_round("sync")
        table = group.roll_call(own[group.rank])
        ledger.end_round()
        return sums, told, table, between, ledger.records().totals

    return program


def check(results: Sequence[Any], processes: Sequence[int] = ()) -> None:
    """Assert that all know the sums, rank 0 alone is told, and what was sent is what is allowed."""
    size = len(results)
    blocks = blocks_of(size, processes)
    given, own = numbers(size)
    # Written down once more: each block in the order of its ranks, then blocks in theirs.
    expected = None
    for block in blocks:
        part = given[block[0]].copy()
        for rank in block[1:]:
            part = part + given[rank]
        expected = part if expected is None else expected + part
    assert expected is not None
    messages = [0, 0]
    for rank, (sums, told, table, first, both) in enumerate(results):
        assert sums.tobytes() == expected.tobytes()
        assert table.tobytes() == own.tobytes()
        assert (told is None) == (rank > 0)
        assert told is None or told.tobytes() == own.tobytes()
        cost = tally_cost(rank, size, 7, 3, 8, processes)
        assert (first["bytes_sent"], first["messages"]) == (cost.n_bytes, cost.messages)
        messages[0] += first["messages"]
        messages[1] += both["messages"] - first["messages"]
    assert messages == [2 * (size - 1)] * 2


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("size", SIZES)
def test_on_every_wire_ranks_say_the_same(kind: str, size: int) -> None:
    """Sums have the same bits on every wire and rank, and all together send two messages for each rank but one."""
    check(run_gang(kind, size, talk(size)))


@pytest.mark.parametrize("size", SIZES)
def test_simulated_ranks_say_the_same(size: int) -> None:
    """On the virtual clock sums have the bits, and messages the number, that they have on real wires."""
    program, found = talk(size), {}

    def note(rank: Any, data: None) -> None:
        found[rank.number] = program(rank.group)

    SimulatedCluster(size).run(note, [None] * size)
    check([found[rank] for rank in range(size)])


@pytest.mark.parametrize("ranks_of", [[1, 3], [2, 2], [3, 1, 2], [1, 1, 4]])
def test_threads_of_processes_speak_through_the_first(ranks_of: list[int]) -> None:
    """Where ranks are threads of several processes the first of each speaks for the others."""
    processes = [k for k, count in enumerate(ranks_of) for _ in range(count)]
    check(run_nested(ranks_of, talk(len(processes))), processes)


@pytest.mark.parametrize("size", [2, 5, 16, 64, 100, 1000, 4096])
def test_what_is_sent_grows_with_the_ranks(size: int) -> None:
    """No number travels more than two steps up, and no rank hears from more than about twice the root of all."""
    blocks = blocks_of(size)
    assert [rank for block in blocks for rank in block] == list(range(size))
    costs = [tally_cost(rank, size, 9, 7, 8) for rank in range(size)]
    assert sum(cost.messages for cost in costs) == 2 * (size - 1)
    least = (size - 1) * (2 * 40 + 8 * (2 * 9 + 7))
    assert least <= sum(cost.n_bytes for cost in costs) <= least + 8 * 7 * size
    assert max(len(blocks), *map(len, blocks)) <= size**0.5 + 1


@pytest.mark.parametrize("size", [2, 3, 5, 16, 64])
def test_seconds_are_those_of_the_virtual_clock(size: int) -> None:
    """Where a message holds both ports for all that it takes, the formula is what the virtual clock shows."""
    network = Network("slow", between=Link(byte_s=1e-8, overhead_s=1e-3), inside=Link(byte_s=0.0))
    cluster = SimulatedCluster(size, network, compute=Compute(added_byte_s=0.0))

    def speak(rank: Any, data: None) -> None:
        rank.group.tally(np.zeros(12), np.zeros(0))

    found = cluster.run(speak, [None] * size).ledger.elapsed_s
    assert found == pytest.approx(tally_seconds(12 * 8 + 40, size, Link(latency_s=1e-3, byte_s=1e-8)), rel=0.15)
