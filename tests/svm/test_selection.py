"""The best candidates of all ranks by a tree: those that sorting all offers gives, for the bytes of the closed form."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgd.collectives.cost import allreduce_cost
from dsgd.runtime import run_on_threads
from dsgd.svm.kernel_solver.state import BestLists, best

ROOMS = (3, 6)


def offers_of(keys, ranks, n_ranks):
    """Return what each rank offers of some keys that lie on ranks, in a list for every room."""
    numbers = np.arange(len(keys))
    return [
        [best(np.array(keys)[ranks == rank], numbers[ranks == rank], room) for room in ROOMS] for rank in range(n_ranks)
    ]


def gathered(offers):
    """Return the best of all offers, as a rank finds them that has them all, by sorting."""
    found = []
    for t, room in enumerate(ROOMS):
        pairs = sorted((key, number) for lists in offers for key, number in zip(*lists[t], strict=True))[:room]
        found.append(pairs)
    return found


@given(
    st.lists(st.tuples(st.sampled_from([-2.0, -0.0, 0.0, 1.0, 1.5]) | st.floats(-9, 9), st.integers(0, 8)), max_size=40)
)
def test_best_of_merged_lists_are_those_of_all_offers(placed):
    """Merged in any order, lists of nine ranks hold the candidates that sorting all of them gives, ties by number."""
    keys, ranks = [key for key, _ in placed], np.array([rank for _, rank in placed], dtype=int)
    offers, lists = offers_of(keys, ranks, 9), BestLists(ROOMS)
    words = [lists.pack(own, np.array([float(rank), 1.0])) for rank, own in enumerate(offers)]
    expected = gathered(offers)
    assert expected == [sorted(zip(keys, range(len(keys)), strict=True))[:room] for room in ROOMS]
    for order in (words, words[::-1], words[4:] + words[:4]):
        found, added = lists.unpack(reduce(lists, order))
        assert [list(zip(*pair, strict=True)) for pair in found] == expected
        assert added.tolist() == [36.0, 9.0]
    folded = reduce(lambda a, b: lists(a, b, out=a), [words[0].copy(), *words[1:]])
    assert np.array_equal(folded, reduce(lists, words))


def select(rank, data, keys, n_ranks):
    """Return what a rank finds, and the bytes and messages that it sends for that; a rank program."""
    lists, ledger = BestLists(ROOMS), rank.ledger
    numbers = np.flatnonzero(np.arange(len(keys)) * 7 % n_ranks == rank.number)
    words = lists.pack([best(keys[numbers], numbers, room) for room in ROOMS], np.ones(1))
    ledger.begin_round("sync")
    rank.group.allreduce(words, lists)
    ledger.end_round()
    totals = ledger.records().totals
    own = np.array([totals["bytes_sent"], totals["messages"]])
    return lists.unpack(words), rank.group.roll_call(own)


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 5, 8])
def test_ranks_find_the_best_for_the_bytes_of_the_closed_form(n_ranks):
    """On threads every rank ends with the gathered selection, and sends what recursive doubling sends."""
    keys = np.round(np.random.default_rng(0).normal(size=200), 1)
    (found, added), sent = run_on_threads(select, [None] * n_ranks, (keys, n_ranks), timeout_s=20.0).value
    expected = gathered(offers_of(keys, np.arange(200) * 7 % n_ranks, n_ranks))
    assert [list(zip(*pair, strict=True)) for pair in found] == expected
    assert added.tolist() == [n_ranks]
    costs = [allreduce_cost(rank, n_ranks, 2 * sum(ROOMS) + 1, 8, "recursive_doubling") for rank in range(n_ranks)]
    assert sent.tolist() == [[cost.n_bytes, cost.messages] for cost in costs]


def test_what_is_told_of_a_candidate_travels_with_it():
    """Whichever rank has a candidate, all get the numbers that are told of it beside its key."""
    keys = np.round(np.random.default_rng(0).normal(size=200), 1)

    def told(rank, data):
        lists, own = BestLists(ROOMS, n_told=2), np.flatnonzero(np.arange(200) % 3 == rank.number)
        offers = [
            (*best(keys[own], own, room), *(k + best(keys[own], own, room)[1] for k in (0.5, 7.0))) for room in ROOMS
        ]
        words = lists.pack(offers, np.ones(1))
        rank.group.allreduce(words, lists)
        return lists.unpack(words)

    found, added = run_on_threads(told, [None] * 3, (), timeout_s=20.0).value
    assert added.tolist() == [3.0]
    for (_, numbers, half, seven), room in zip(found, ROOMS, strict=True):
        assert len(numbers) == room
        assert (half == numbers + 0.5).all()
        assert (seven == numbers + 7.0).all()
