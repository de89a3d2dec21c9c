"""Gossip: one round is one multiplication with the mixing matrix, and mass is neither made nor lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.collectives import Cost, Group, gossip_cost, neighbour_mean, push_sum
from dsgd.comm.topology import Complete, Ring
from dsgd.comm.topology.mixing import mixing_matrix
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from gangs import run_gang
from topologies import TOPOLOGIES


def scatter_of(size: int, n: int, dtype: Any = np.float64) -> np.ndarray:
    """Return a vector per rank."""
    return np.random.default_rng((size, n)).standard_normal((size, n)).astype(dtype)


def mixed(kind: str, topology: Any, start: np.ndarray, rounds: int, *, push: bool = False) -> np.ndarray:
    """Return what every rank has after some rounds."""

    def program(group: Group) -> np.ndarray:
        mine = start[group.rank].copy()
        scratch = np.empty((2, *mine.shape), dtype=mine.dtype)
        for number in range(rounds):
            (push_sum if push else neighbour_mean)(group, mine, topology, number, scratch)
        return mine

    return np.stack(run_gang(kind, len(start), program))


@settings(max_examples=40)
@given(name=st.sampled_from(sorted(TOPOLOGIES)), size=st.integers(1, 16), n=st.sampled_from([0, 1, 7, 300]))
def test_a_round_multiplies_with_the_mixing_matrix(name: str, size: int, n: int) -> None:
    """Rounds of neighbour means are products of mixing matrices, and the sum over ranks stays."""
    topology, start = TOPOLOGIES[name], scatter_of(size, n)
    expected = start
    for number in range(3):
        expected = mixing_matrix(topology, size, number) @ expected
    result = mixed("inproc", topology, start, 3)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(result.sum(axis=0), start.sum(axis=0), rtol=0, atol=1e-13)


@settings(max_examples=40)
@given(name=st.sampled_from(sorted(TOPOLOGIES)), size=st.integers(1, 16), n=st.sampled_from([1, 2, 300]))
def test_push_sum_conserves_mass(name: str, size: int, n: int) -> None:
    """The sums over ranks of vectors and of weights stay, round by round, whatever the degrees are."""
    topology, start = TOPOLOGIES[name], scatter_of(size, n)
    start[:, -1] = 1.0
    for rounds in (1, 2):
        result = mixed("inproc", topology, start, rounds, push=True)
        np.testing.assert_allclose(result.sum(axis=0), start.sum(axis=0), rtol=0, atol=1e-13)
        expected = start
        for number in range(rounds):
            expected = mixing_matrix(topology, size, number, "uniform") @ expected
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["ring", "star", "exponential of 2", "complete", "random regular"])
def test_every_wire_gives_the_same_bits(name: str) -> None:
    """What comes in is added in an order that the graph alone decides."""
    start = scatter_of(5, 3_000, np.float32)
    results = {mixed(kind, TOPOLOGIES[name], start, 2).tobytes() for kind in ("inproc", "tcp", "shm")}
    assert len(results) == 1


@settings(max_examples=25)
@given(name=st.sampled_from(sorted(TOPOLOGIES)), size=st.integers(1, 9), number=st.integers(0, 5))
def test_gossip_costs_what_the_closed_form_says(name: str, size: int, number: int) -> None:
    """Bytes and messages of a round are those of the peers alone."""
    topology = TOPOLOGIES[name]

    def program(group: Group) -> Cost:
        group.ledger.begin_round("sync")
        neighbour_mean(group, np.ones(11), topology, number, np.empty((2, 11)))
        group.ledger.end_round()
        totals = group.ledger.records().totals
        return Cost(int(totals["bytes_sent"]), int(totals["messages"]))

    for rank, cost in enumerate(run_gang("inproc", size, program)):
        assert cost == gossip_cost(topology, rank, size, 11, 8, number)


def test_what_is_not_finite_spreads_without_a_warning() -> None:
    """Opposite infinities of two neighbours become NaN, which is for the caller to notice."""
    start = np.array([[np.inf, 1.0], [-np.inf, 1.0]])
    result = mixed("inproc", Complete(), start, 1)
    assert np.isnan(result[:, 0]).all()
    np.testing.assert_array_equal(result[:, 1], 1.0)


def test_gossip_is_refused_where_ranks_cannot_reach_each_other() -> None:
    """Threads of several processes exchange through the first of each; the error names the graph and what to do."""

    def program(group: Group) -> None:
        with pytest.raises(InvalidParameterError, match="scratch"):
            neighbour_mean(group, np.ones(3), Ring(), 0, np.empty((2, 4)))
        group.transport.processes = (0, 0, 1, 1)
        with pytest.raises(IncompatiblePartsError, match=r"Ring\(\).*one thread each"):
            neighbour_mean(group, np.ones(3), Ring(), 0, np.empty((2, 3)))

    run_gang("inproc", 4, program)
