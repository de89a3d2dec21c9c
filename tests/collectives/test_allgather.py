"""All-gathers: numpy's result either way, Bruck's messages, and the seconds and the choice that the model says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.collectives import Cost, Group, Link
from dsgd.collectives.cost import DEFAULT_LINK, allgather_seconds, allgathered_bytes, allgatherv_cost, choose_gather
from dsgd.comm.frames import HEADER_BYTES
from gangs import run_gang, spent
from sim_links import ALPHA, BETA, GAMMA, seconds

#: A copy of a byte costs nothing, or more than any number of messages.
COPIES = {"bruck": Link(latency_s=1.0, byte_s=0.0), "ring": Link(latency_s=1.0, byte_s=0.0, added_byte_s=1e9)}


def gather(way: str, lengths: list[int], dtype: str) -> list[tuple[np.ndarray, Cost]]:
    """Return what each rank has in the end, and what it has sent."""

    def program(group: Group) -> tuple[np.ndarray, Cost]:
        group = Group(group.transport, link=COPIES[way])
        mine = (1000 * group.rank + np.arange(lengths[group.rank])).astype(dtype)
        whole = np.concatenate(group.allgatherv(mine, lengths))
        return whole, spent(group)

    return run_gang("inproc", len(lengths), program)


def lists_of_bruck(lengths: list[int]) -> list[list[list[int]]]:
    """Return the vectors that each rank sends in each step, from lists that double, as the paper draws them."""
    size = len(lengths)
    lists, sent = [[rank] for rank in range(size)], [[] for _ in range(size)]  # type: ignore[var-annotated]
    while len(lists[0]) < size:
        distance = len(lists[0])
        old = [list(numbers) for numbers in lists]
        for rank in range(size):
            arriving = old[(rank + distance) % size][: size - distance]
            lists[rank] += arriving
            sent[(rank + distance) % size].append(arriving)
    assert all(sorted(numbers) == list(range(size)) for numbers in lists)
    return sent


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=17),
    way=st.sampled_from(["bruck", "ring"]),
    dtype=st.sampled_from(["float64", "float32", "uint8"]),
)
def test_both_ways_bring_the_vectors_of_all_and_cost_what_is_said(lengths: list[int], way: str, dtype: str) -> None:
    """Vectors of any lengths, none too, arrive on all ranks; messages and bytes are those of the paper's lists."""
    size, itemsize = len(lengths), np.dtype(dtype).itemsize
    expected = np.concatenate([(1000 * rank + np.arange(n)).astype(dtype) for rank, n in enumerate(lengths)])
    by_lists = lists_of_bruck(lengths)
    everything = sum(allgatherv_cost(rank, lengths, itemsize, known=True).n_bytes for rank in range(size))
    assert allgathered_bytes(lengths, itemsize) == everything
    # Where nothing is to be copied, or there is no message to be saved, both are the ring.
    is_bruck = choose_gather(sum(lengths) * itemsize, size, COPIES[way]) == "bruck"
    assert is_bruck == (size > 3 and (way == "bruck" or not sum(lengths)))
    for rank, (whole, cost) in enumerate(gather(way, lengths, dtype)):
        np.testing.assert_array_equal(whole, expected)
        assert cost == allgatherv_cost(rank, lengths, itemsize, known=True, link=COPIES[way])
        if is_bruck:
            assert cost.messages == len(by_lists[rank]) == (size - 1).bit_length()
            numbers = [number for step in by_lists[rank] for number in step]
            assert cost.n_bytes == sum(lengths[k] for k in numbers) * itemsize + cost.messages * HEADER_BYTES


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 13, 16, 33])
@pytest.mark.parametrize("way", ["bruck", "ring"])
def test_an_all_gather_takes_the_seconds_of_the_model(size: int, way: Any) -> None:
    """On links that are all alike the simulator's clock says what the formula does, whole or message by message."""
    n = 1000
    link = Link(latency_s=ALPHA + BETA * HEADER_BYTES, byte_s=BETA, added_byte_s=GAMMA)
    chosen = choose_gather(8 * n * size, size, COPIES[way])
    predicted = allgather_seconds(8 * n, size, link, chosen)
    for whole in (True, False):

        def program(rank: Any, number: int, whole: bool = whole) -> None:
            if not whole:
                rank.group.transport.offload = None
            Group(rank.group.transport, link=COPIES[way]).allgather(np.full(n, float(number)))

        np.testing.assert_allclose(seconds(program, size), predicted, rtol=1e-9)


@given(size=st.integers(2, 4096), n_bytes=st.integers(0, 10**7))
def test_the_faster_way_is_chosen(size: int, n_bytes: int) -> None:
    """The choice takes no more seconds than the other way, and is the ring where they are equal."""
    takes = {way: allgather_seconds(n_bytes / size, size, DEFAULT_LINK, way) for way in ("ring", "bruck")}  # type: ignore[arg-type]
    chosen = choose_gather(n_bytes, size)
    assert takes[chosen] <= min(takes.values()) * (1 + 1e-9)
    assert allgather_seconds(n_bytes / size, size, DEFAULT_LINK) == takes[chosen]


def test_hosts_of_several_ranks_pass_vectors_round_a_ring() -> None:
    """Between hosts every vector crosses once: each rank sends to the next one and to nobody else."""

    def program(group: Group) -> int:
        group.transport.hosts = (0, 0, 0, 1, 1, 1)
        group = Group(group.transport)
        group.allgather(np.ones(3))
        group.ledger.end_round()
        return int(group.ledger.records().totals["messages"])

    assert run_gang("inproc", 6, program) == [5] * 6


def test_lengths_are_gathered_by_the_same_ways() -> None:
    """Where lengths are not known, a word from each rank goes round before, in as few messages."""
    lengths = [3, 1, 4, 1, 5, 9, 2, 6]

    def program(group: Group) -> tuple[list[int], Cost]:
        parts = group.allgatherv(np.zeros(lengths[group.rank]))
        return [len(part) for part in parts], spent(group)

    for rank, (found, cost) in enumerate(run_gang("inproc", 8, program)):
        assert found == lengths
        assert cost == allgatherv_cost(rank, lengths, 8)
        assert cost.messages == 2 * 3
