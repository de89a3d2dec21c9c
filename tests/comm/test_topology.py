"""Topologies: every send has a receiver, mixing preserves the mean, and ranks agree at the stated speed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.comm import topology as graphs
from topologies import TOPOLOGIES

SIZES = range(1, 34)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_mean_survives_mixing(name: str) -> None:
    """Of 1 to 33 ranks in any round, mixing matrices are doubly stochastic, and symmetric where graphs are."""
    topology = TOPOLOGIES[name]
    for size in SIZES:
        for number in range(min(topology.period(size), 6)):
            matrix = graphs.mixing_matrix(topology, size, number)
            assert (matrix >= 0).all()
            np.testing.assert_allclose(matrix.sum(axis=0), 1.0, rtol=1e-14)
            np.testing.assert_allclose(matrix.sum(axis=1), 1.0, rtol=1e-14)
            if topology.symmetric:
                np.testing.assert_array_equal(matrix, matrix.T)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_what_is_sent_is_received(name: str) -> None:
    """In- and out-peers are the two ends of the same edges, in every round of a period and the one after it."""
    topology = TOPOLOGIES[name]
    for size in SIZES:
        for number in range(topology.period(size) + 1):
            sent = {(r, to) for r in range(size) for to in topology.out_peers(r, size, number)}
            received = {(source, r) for r in range(size) for source in topology.in_peers(r, size, number)}
            assert sent == received
            assert all(r != to for r, to in sent)
            assert not topology.symmetric or sent == {(to, r) for r, to in sent}
            assert topology.out_peers(0, size, number) == topology.out_peers(0, size, number + topology.period(size))


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_exchanges_are_matchings_as_few_as_the_largest_degree(name: str) -> None:
    """Every edge is used once, no rank has two partners at a time, and all ranks agree who comes next."""
    topology = TOPOLOGIES[name]
    for size in SIZES:
        plans = [list(graphs.exchange_steps(topology, rank, size)) for rank in range(size)]
        edges = [(r, to) for r in range(size) for to in topology.out_peers(r, size)]
        degree = max((len(topology.out_peers(r, size)) for r in range(size)), default=0)
        assert max(len(plan) for plan in plans) <= max(degree, 0)
        done = []
        # Replayed as the wires do it: a step ends once both of its partners are at it. All plans come to their end.
        while any(plans):
            heads = [plan[0] if plan else None for plan in plans]
            ready = {
                rank
                for rank, step in enumerate(heads)
                if step is not None
                and (step.to is None or (heads[step.to] is not None and heads[step.to].source == rank))
                and (step.source is None or (heads[step.source] is not None and heads[step.source].to == rank))
            }
            for rank in ready:
                step = plans[rank].pop(0)
                if step.to is not None:
                    done.append((rank, step.to))
            assert ready, "ranks wait for each other"
        assert sorted(done) == sorted(edges)


@settings(max_examples=60)
@given(size=st.integers(2, 12), data=st.data())
def test_any_graph_is_cut_into_matchings(size: int, data: Any) -> None:
    """Edges of an arbitrary directed graph take as many steps as its largest degree, in or out."""
    pairs = [(a, b) for a in range(size) for b in range(size) if a != b]
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True))
    to_of, source_of = graphs.matchings(edges, size)
    degree = max((max(sum(e[k] == r for e in edges) for r in range(size)) for k in (0, 1)), default=0)
    assert sorted((r, to) for r in range(size) for to in to_of[r].values()) == sorted(edges)
    for rank in range(size):
        assert all(colour < degree for colour in (*to_of[rank], *source_of[rank]))
        assert all(source_of[to][colour] == rank for colour, to in to_of[rank].items())


@pytest.mark.parametrize(("peers", "size"), [(1, 2), (1, 8), (1, 16), (1, 32), (2, 3), (2, 9), (2, 27), (4, 25)])
def test_the_exponential_graph_averages_exactly(peers: int, size: int) -> None:
    """On P ranks, a power of q + 1, log_{q+1}(P) rounds leave the mean everywhere; one round fewer does not."""
    topology = graphs.Exponential(peers)
    product = np.eye(size)
    for number in range(topology.period(size)):
        assert number == 0 or graphs.spectral_gap(product) < 1.0 - 1e-3 or number == topology.period(size) - 1
        product = graphs.mixing_matrix(topology, size, number) @ product
    np.testing.assert_allclose(product, 1.0 / size, rtol=1e-13)
    short = np.eye(size)
    for number in range(topology.period(size) - 1):
        short = graphs.mixing_matrix(topology, size, number) @ short
    assert np.abs(short - 1.0 / size).max() > 0.5 / size


def test_the_exponential_graph_never_averages_exactly_otherwise() -> None:
    """On 12 ranks a period of single peers leaves weights between 1/16 and 1/8."""
    product = np.eye(12)
    for number in range(4):
        product = graphs.mixing_matrix(graphs.Exponential(), 12, number) @ product
    assert np.abs(product - 1.0 / 12).max() == pytest.approx(1 / 8 - 1 / 12)


def test_gaps_follow_their_laws() -> None:
    """The gap of a ring falls as P^-2 with a known constant, that of a complete graph is one, random graphs keep it."""
    for size in (4, 8, 16, 33):
        closed = (1.0 - np.cos(2.0 * np.pi / size)) * 2.0 / 3.0
        assert graphs.spectral_gap(graphs.mixing_matrix(graphs.Ring(), size)) == pytest.approx(min(closed, 1.0))
        assert graphs.spectral_gap(graphs.mixing_matrix(graphs.Complete(), size)) == pytest.approx(1.0)
    rings, grids, drawn = (
        [graphs.spectral_gap(graphs.mixing_matrix(topology, size)) for size in (16, 64, 256)]
        for topology in (graphs.Ring(), graphs.Grid(wraps=True), graphs.RandomRegular(4))
    )
    assert rings[1] / rings[0] == pytest.approx(1 / 16, rel=0.1)
    assert grids[1] / grids[0] == pytest.approx(1 / 4, rel=0.2)
    # Of a random graph of degree d the second eigenvalue tends to 2 sqrt(d - 1) / d (Friedman 2008).
    assert drawn[2] == pytest.approx(0.8 * (1.0 - np.sqrt(3.0) / 2.0), rel=0.1)
    assert graphs.spectral_gap(graphs.mixing_matrix(graphs.Groups(2), 8)) == pytest.approx(0.0, abs=1e-12)
    assert graphs.spectral_gap(graphs.mixing_matrix(graphs.Ring(), 1)) == 1.0


def test_what_a_graph_looks_like() -> None:
    """Grids are as square as can be, groups are even, pairs go round, random graphs are regular and connected."""
    assert sorted(graphs.Grid().out_peers(5, 12)) == [1, 4, 6, 9]
    assert sorted(graphs.Grid().out_peers(0, 12)) == [1, 4]
    assert sorted(graphs.Grid(wraps=True).out_peers(0, 12)) == [1, 3, 4, 8]
    assert sorted(graphs.Grid().out_peers(3, 7)) == [2, 4]
    assert [list(graphs.Groups(3).members(r, 8)) for r in (0, 3, 7)] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    met = {(r, graphs.Bipartite().out_peers(r, 6, k)[0]) for r in (0, 2, 4) for k in range(3)}
    assert met == {(even, odd) for even in (0, 2, 4) for odd in (1, 3, 5)}
    assert [len(graphs.Bipartite().out_peers(4, 5, k)) for k in range(3)] == [0, 1, 1]
    for size in (6, 9, 20):
        degrees = [len(graphs.RandomRegular(3, seed=2).out_peers(r, size)) for r in range(size)]
        assert sorted(degrees) == [2] * (size % 2) + [3] * (size - size % 2)
    assert graphs.RandomRegular(3, seed=0).out_peers(0, 30) != graphs.RandomRegular(3, seed=3).out_peers(0, 30)
    assert graphs.shares(graphs.Star(), 0, 5) == pytest.approx(1 / 5)
