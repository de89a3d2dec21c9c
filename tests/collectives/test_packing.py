"""Packing spanning trees: no link is overloaded, the least cut is nearly reached, and the sums are right."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.collectives.algorithms.packing import (
    DGX_1V,
    best_rate,
    candidate_trees,
    pack_trees,
    ring_rate,
    shortest_arborescence,
    subgraph,
)
from dsgd.errors import InvalidParameterError


def linked(size: int, seed: int) -> np.ndarray:
    """Return random link counts, other ones each way, in which everybody can be reached from rank 0 and back."""
    rng = np.random.default_rng(seed)
    capacities = rng.integers(0, 4, (size, size)).astype(float)
    for rank in range(1, size):
        other = rng.integers(0, rank)
        capacities[other, rank] += 1.0
        capacities[rank, other] += 1.0
    np.fill_diagonal(capacities, 0.0)
    return capacities


def length_of(parents: tuple[int, ...], lengths: dict[tuple[int, int], float]) -> float:
    return sum(lengths[parent, rank] for rank, parent in enumerate(parents) if parent >= 0)


def is_tree(parents: tuple[int, ...], root: int) -> bool:
    """Return whether every rank comes to the root."""
    if any((parent < 0) != (rank == root) for rank, parent in enumerate(parents)):
        return False
    for start in range(len(parents)):
        rank = start
        for _ in parents:
            rank = rank if rank == root else parents[rank]
        if rank != root:
            return False
    return True


@settings(max_examples=60)
@given(size=st.integers(1, 5), seed=st.integers(0, 2**31), whole=st.booleans())
def test_no_tree_is_shorter(size: int, seed: int, whole: bool) -> None:
    """The tree found is one, and as short as the shortest of all, also where lengths are equal or negative."""
    rng = np.random.default_rng(seed)
    links = np.argwhere(linked(size, seed) > 0)
    values = rng.integers(-2, 3, len(links)) if whole else rng.standard_normal(len(links))
    lengths = {(int(u), int(v)): float(x) for (u, v), x in zip(links, values, strict=True)}
    found = shortest_arborescence(size, 0, lengths)
    assert is_tree(found, 0)
    every = (tree for tree in product(range(-1, size), repeat=size) if is_tree(tree, 0))
    possible = [tree for tree in every if all((p, r) in lengths for r, p in enumerate(tree) if p >= 0)]
    assert length_of(found, lengths) == pytest.approx(min(length_of(tree, lengths) for tree in possible))


def test_who_cannot_be_reached_is_named() -> None:
    """Without a way from the root there is no tree; capacities that cannot be are refused."""
    capacities = np.zeros((4, 4))
    capacities[0, 1] = capacities[2, 3] = capacities[3, 2] = 1.0
    with pytest.raises(InvalidParameterError, match="nothing leads from rank 0 to rank 1"):
        pack_trees(capacities)
    for wrong in (np.zeros((2, 3)), np.array([[0.0, -1.0], [1.0, 0.0]]), np.full((2, 2), np.inf)):
        with pytest.raises(InvalidParameterError, match="capacities"):
            pack_trees(wrong)
    with pytest.raises(InvalidParameterError, match="eps"):
        candidate_trees(DGX_1V, eps=0.7)
    with pytest.raises(InvalidParameterError, match="too small"):
        candidate_trees(DGX_1V, eps=0.001)


@settings(max_examples=15)
@given(size=st.integers(2, 6), seed=st.integers(0, 2**31))
def test_packings_fill_links_and_overload_none(size: int, seed: int) -> None:
    """On any links few trees carry up and down what the least cut allows, nearly; many, by weights alone, 1 - 2 eps."""
    capacities = linked(size, seed)
    best = best_rate(capacities)
    many, few = candidate_trees(capacities), pack_trees(capacities)
    for packing in (many, few):
        assert (packing.loads() <= capacities * (1 + 1e-9)).all()
        assert (capacities * (1 + 1e-9) >= packing.loads().T).all()
        assert all(is_tree(tree, 0) for tree in packing.trees)
        assert packing.rate <= best * (1 + 1e-9)
    assert many.rate >= 0.8 * best
    assert few.rate >= 0.95 * best


def test_eight_accelerators_take_six_units() -> None:
    """Of a DGX-1V's eight, whose least cut is six, trees fill all six where rings laid one by one get four."""
    assert best_rate(DGX_1V) == 6.0
    np.testing.assert_array_equal(DGX_1V, DGX_1V.T)
    assert set(DGX_1V.sum(axis=0)) == {6.0}
    assert candidate_trees(DGX_1V).rate > 5.9
    packing = pack_trees(DGX_1V)
    assert packing.rate == 6.0
    assert len(packing.trees) <= 6
    assert set(packing.weights) <= {1.0, 2.0}
    assert (packing.loads() <= DGX_1V).all()
    assert ring_rate(DGX_1V) == 4.0


@pytest.mark.parametrize(
    ("members", "trees", "rings"),
    [((1, 4, 5, 6), 2, 0), ((0, 1, 4), 1, 0), ((2, 3, 6, 7), 2, 2), ((0, 1, 2, 4, 5), 3, 2)],
)
def test_parts_of_the_box_keep_what_their_links_carry(members: tuple[int, ...], trees: int, rings: int) -> None:
    """Where the accelerators that a job was given have no ring, or only slow ones, trees still use their links."""
    part = subgraph(DGX_1V, members)
    for root in range(len(members)):
        assert pack_trees(part, root).rate == best_rate(part, root) == trees
    assert ring_rate(part) == rings


def test_capacities_in_bytes_per_second_have_a_rate() -> None:
    """Whole numbers beyond 32 bits are no smaller for it; a rank alone has a tree without edges."""
    assert best_rate(DGX_1V * 25e9) == pytest.approx(150e9, rel=1e-5)
    assert candidate_trees(np.zeros((1, 1))).trees == pack_trees(np.zeros((1, 1))).trees == ((-1,),)
