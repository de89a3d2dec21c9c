"""Ports that carry at the same time: a rank goes on at once, each link serves its messages one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dsgd.runtime.rank import Rank
from dsgd.sim import Link, Network, SimulatedCluster

ONE = Network(
    "box",
    between=Link(byte_s=1e-9),
    inside=Link(byte_s=4e-9),
    ranks_per_host=3,
    lanes=((0, 1, 2), (1, 0, 1), (2, 1, 0)),
    lane=Link(byte_s=1e-9, overhead_s=1e-6, latency_s=5e-6),
)
ALL = replace(ONE, concurrent=True)
N_BYTES = 1_000_000


def clocks(network: Network, numbers: int = 1) -> list[float]:
    """Return when each rank has ended if rank 0 sends so many vectors each to ranks 1 and 2."""

    def program(rank: Rank, data: None) -> None:
        exchange, vector = rank.group.transport.exchange, np.zeros(N_BYTES // 8)
        for _ in range(numbers):
            if rank.group.rank:
                exchange(None, None, 0, vector)
                continue
            exchange(1, vector, None, None)
            exchange(2, vector, None, None)

    return [stat["virtual_s"] for stat in SimulatedCluster(3, network).run(program, [None] * 3).stats]


def test_all_links_of_a_rank_carry_at_once() -> None:
    """One after the other the second link begins when the first is done; at once each message takes alpha + n beta."""
    header = 32
    single, double = (1e-6 + 1e-9 * (N_BYTES + header) / n_lanes for n_lanes in (1, 2))
    assert clocks(ONE) == pytest.approx([single + double, 5e-6 + single, 5e-6 + single + double], rel=1e-5)
    assert clocks(ALL) == pytest.approx([0.0, 5e-6 + single, 5e-6 + double], rel=1e-5)


def test_a_link_serves_its_messages_one_by_one() -> None:
    """What a rank hands to a busy port waits for it: three messages take three times as long on their link."""
    first, third = clocks(ALL), clocks(ALL, 3)
    assert [late - 5e-6 for late in third[1:]] == pytest.approx([3 * (early - 5e-6) for early in first[1:]])
    assert third[0] == 0.0


def test_played_collectives_meet_the_same_ports() -> None:
    """A ring that is played as a table ends when one does that is sent message by message, to the bit."""

    def program(rank: Rank, data: None) -> float:
        transport = rank.group.transport
        if data is None:
            transport.offload = None
        for n in (10, 1_000, 50_000):
            rank.group.allreduce(np.ones(n))
        return rank.ledger.clock()

    found = [SimulatedCluster(3, ALL).run(program, [given] * 3).stats for given in (None, 1)]
    assert [stat["virtual_s"] for stat in found[0]] == [stat["virtual_s"] for stat in found[1]]
