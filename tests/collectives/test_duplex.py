"""Trees for both ways of a sum at once: twins in plain numpy, closed forms on both DGX boxes, sums that are right."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from dsgd.collectives import Cost, Group
from dsgd.collectives.algorithms.packing import (
    DGX_1P,
    DGX_1V,
    Packing,
    best_rate,
    pack_duplex,
    pack_rings,
    packed_cost,
    packed_plan,
    ring_rate,
    ring_trees,
    subgraph,
    tree_allreduce,
)
from dsgd.errors import InvalidParameterError
from dsgd.runtime.rank import Rank
from dsgd.sim import Link, Network, SimulatedCluster
from gangs import run_gang, spent
from reference.collectives import plan_cost


def linked(size: int, seed: int, same: bool) -> np.ndarray:
    """Return random capacities in which everybody reaches everybody; equal both ways, or not."""
    rng = np.random.default_rng(seed)
    capacities = rng.integers(0, 3, (size, size)).astype(float)
    for rank in range(1, size):
        other = rng.integers(0, rank)
        capacities[other, rank] += rng.integers(1, 4)
        capacities[rank, other] += rng.integers(1, 4)
    np.fill_diagonal(capacities, 0.0)
    return capacities + capacities.T if same else capacities


def least_cut(capacities: np.ndarray) -> float:
    """Return the least capacity between the parts of the ranks over the number of parts less one, over all parts."""
    size, least = len(capacities), np.inf
    for parts in product(range(size), repeat=size):
        number = len(set(parts))
        # Each way to cut the ranks once: the first rank of every part has its lowest number.
        if number > 1 and all(part <= max(parts[:k], default=-1) + 1 for k, part in enumerate(parts)):
            between = np.not_equal.outer(parts, parts)
            least = min(least, capacities[between].sum() / 2 / (number - 1))
    return float(least)


def best_of_all_pairs(capacities: np.ndarray, root: int) -> float:
    """Return the most that all pairs of a tree up and one down carry, by a linear programme over every pair."""
    size = len(capacities)
    out, into = [], []
    for parents in product(range(size), repeat=size):
        load = np.zeros((size, size))
        for rank, parent in enumerate(parents):
            if rank != root:
                load[parent, rank] = 1.0
        reach = np.linalg.matrix_power(np.eye(size) + load, size)[root]
        if parents[root] == root and (reach > 0).all() and np.trace(load) == 0:
            if (load <= capacities).all():
                out.append(load)
            if (capacities >= load.T).all():
                into.append(load.T)
    columns = np.array([(up + down).ravel() for up in into for down in out]).T
    return float(-linprog(-np.ones(columns.shape[1]), A_ub=columns, b_ub=capacities.ravel()).fun)


@settings(max_examples=12)
@given(size=st.integers(2, 5), seed=st.integers(0, 2**31))
def test_equal_links_carry_what_the_least_cut_into_parts_allows(size: int, seed: int) -> None:
    """On links that are equal both ways the rate is Tutte's and Nash-Williams' bound, and few trees come near it."""
    capacities = linked(size, seed, same=True)
    bound = least_cut(capacities)
    packing = pack_duplex(capacities)
    assert 0.95 * bound * (1 - 1e-6) <= packing.rate <= bound * (1 + 1e-9)
    assert (packing.traffic() <= capacities * (1 + 1e-9)).all()
    assert packing.down == ()
    # Both ways one after the other are never faster.
    assert bound >= best_rate(capacities) / 2 * (1 - 1e-9)


@settings(max_examples=12)
@given(size=st.integers(2, 4), seed=st.integers(0, 2**31), data=st.data())
def test_unequal_links_carry_what_all_pairs_of_trees_could(size: int, seed: int, data: Any) -> None:
    """Where the two ways of a link differ, sums go up other trees than they come down, as many as ever could."""
    capacities, root = linked(size, seed, same=False), data.draw(st.integers(0, size - 1))
    best = best_of_all_pairs(capacities, root)
    packing = pack_duplex(capacities, root)
    assert 0.95 * best * (1 - 1e-6) <= packing.rate <= best * (1 + 1e-9)
    assert (packing.traffic() <= capacities * (1 + 1e-9)).all()
    # Where both ways happen to be equal, any root does.
    assert all(tree.index(-1) == root for tree in (*packing.trees, *packing.down) if packing.down)


def test_the_links_of_both_boxes() -> None:
    """A whole box carries its 16 or 24 links over the seven edges of a tree; rings laid as well as can be do, too."""
    for links, degree, n_rings, greedy in ((DGX_1P, 4, 4, 3), (DGX_1V, 6, 6, 4)):
        np.testing.assert_array_equal(links, links.T)
        assert set(links.sum(axis=0)) == {degree}
        assert 0.95 * 4 * degree / 7 <= pack_duplex(links).rate <= 4 * degree / 7 * (1 + 1e-9)
        rings = pack_rings(links)
        assert len(rings) == n_rings > greedy - 1
        assert ring_rate(links) == greedy
        packing = ring_trees(rings)
        assert packing.rate == pytest.approx(n_rings * 8 / 14)
        assert (packing.traffic() <= links * (1 + 1e-9)).all()
    assert len(pack_duplex(DGX_1V).trees) <= 8
    assert pack_rings(subgraph(DGX_1V, (0, 1, 4))) == []


@settings(max_examples=25)
@given(size=st.integers(1, 7), seed=st.integers(0, 2**31), n=st.sampled_from([0, 1, 5, 1_000]), data=st.data())
def test_sums_up_some_trees_and_down_others_are_numpy_s(size: int, seed: int, n: int, data: Any) -> None:
    """Any trees with any roots, other ones down or not, one message at a time or all links at once: as costed."""
    rng = np.random.default_rng(seed)
    ways: list[list[tuple[int, ...]]] = [[], []]
    for _ in range(data.draw(st.integers(1, 4))):
        root = int(rng.integers(size))
        for way in ways:
            order = [root, *(int(rank) for rank in rng.permutation(size) if rank != root)]
            parents = [-1] * size
            for k in range(1, size):
                parents[order[k]] = order[rng.integers(0, k)]
            way.append(tuple(parents))
    packing = Packing(tuple(ways[0]), tuple(rng.uniform(0.1, 3.0, len(ways[0]))), tuple(ways[1]) if seed % 2 else ())
    pieces = data.draw(st.integers(1, 5))
    vectors = rng.integers(-100, 100, (size, n)).astype(np.float32)

    def summed(group: Group) -> tuple[np.ndarray, Cost, bool]:
        mine = vectors[group.rank].copy()
        group.ledger.begin_round("sync")
        tree_allreduce(group.transport, mine, packing, pieces)
        return mine, spent(group), group.transport.concurrent

    found: list[Any] = [None] * size

    def program(rank: Rank, data: None) -> None:
        found[rank.group.rank] = summed(rank.group)

    network = Network(
        "n", Link(byte_s=1e-9, overhead_s=1e-6, latency_s=1e-6), Link(byte_s=1e-9, overhead_s=1e-6), concurrent=True
    )
    SimulatedCluster(size, network).run(program, [None] * size)
    for results in (found, run_gang("inproc", size, summed)):
        for rank, (result, cost, concurrent) in enumerate(results):
            np.testing.assert_array_equal(result, vectors.sum(axis=0))
            assert cost == packed_cost(rank, n, 4, packing, pieces, concurrent)
            assert cost == plan_cost(packed_plan(rank, size, n, packing, pieces, concurrent), 4)


def test_the_bits_do_not_depend_on_pieces_or_on_what_carries_at_once() -> None:
    """What is added first is settled by the trees alone."""
    packing, vectors = pack_duplex(DGX_1V), np.random.default_rng(0).standard_normal((8, 1_000))
    network = Network("n", Link(byte_s=1e-9, overhead_s=1e-6), Link(byte_s=1e-9, overhead_s=1e-6))
    found = set()
    for concurrent, pieces in ((False, 3), (True, 1), (True, 7)):

        def program(rank: Rank, data: None, pieces: int = pieces) -> None:
            mine = vectors[rank.group.rank].copy()
            tree_allreduce(rank.group.transport, mine, packing, pieces)
            found.add(mine.tobytes())

        SimulatedCluster(8, replace(network, concurrent=concurrent)).run(program, [None] * 8)

    def summed(group: Group) -> bytes:
        mine = vectors[group.rank].copy()
        tree_allreduce(group.transport, mine, packing, 4)
        return mine.tobytes()

    assert found | {*run_gang("inproc", 8, summed), *run_gang("shm", 8, summed)} == found
    assert len(found) == 1


def test_what_cannot_be_packed_is_refused() -> None:
    """Ranks without a way back, and too many rings to choose from."""
    one_way = np.array([[0.0, 1.0], [0.0, 0.0]])
    for root in (0, 1):
        with pytest.raises(InvalidParameterError, match="nothing leads"):
            pack_duplex(one_way, root)
    with pytest.raises(InvalidParameterError, match="square"):
        pack_duplex(np.zeros((2, 3)))
    with pytest.raises(InvalidParameterError, match="rings to choose from"):
        pack_rings(np.ones((9, 9)))
    assert pack_duplex(np.zeros((1, 1))) == Packing(((-1,),), (1.0,))
    with pytest.raises(InvalidParameterError, match="over 8 ranks"):
        packed_plan(0, 8, 10, Packing(((-1, 0),), (1.0,)))
