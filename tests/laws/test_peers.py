"""With whom ranks exchange: the peers that a plan names, which are few, since each is a connection."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
import pytest

from dsgd.collectives import Group, Link
from dsgd.collectives.algorithms.whole import PLANS
from dsgd.comm.sockets.mesh import hypercube
from dsgd.comm.wires import inproc
from dsgd.comm.wires.inproc import InprocTransport
from gangs import raise_first, run_ranks
from laws.gang import exchange
from members import FAMILY, Member

SIZES = (2, 5, 16, 64)
COPIES_ARE_DEAR = Link(byte_s=0.0, added_byte_s=1.0)
#: The most peers that a rank has in a sum, of L = ceil(log2 P).
MOST = {
    "recursive_doubling": lambda levels: levels + 1,
    "rabenseifner": lambda levels: levels + 1,
    "binomial": lambda levels: levels,
    "ring": lambda levels: 2,
    "torus": lambda levels: 4,
    # A parent and two children in either tree.
    "double_tree": lambda levels: 6,
}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> dict[int, set[int]]:
    """With whom each rank has exchanged something so far."""
    found: dict[int, set[int]] = defaultdict(set)
    run = InprocTransport.exchange

    def noting(self: Any, to: Any, outgoing: Any, source: Any, incoming: Any, op: int = 0) -> None:
        found[self.rank] |= {peer for peer, array in ((to, outgoing), (source, incoming)) if array is not None} - {None}
        run(self, to, outgoing, source, incoming, op)

    monkeypatch.setattr(InprocTransport, "exchange", noting)
    return found


def named(algorithm: str, rank: int, size: int, n: int) -> set[int]:
    """Return the peers in the plan of a sum."""
    moves = PLANS[algorithm](rank, size, n, 8).moves
    return {peer for move in moves for peer in (move.to, move.source)} - {None}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", PLANS)
def test_a_sum_needs_the_peers_of_its_plan_and_they_are_few(algorithm: str, size: int) -> None:
    """Of two ranks each is a peer of the other, and no rank has more than the algorithm is known for."""
    peers = [named(algorithm, rank, size, 1000) for rank in range(size)]
    assert all(rank in peers[peer] for rank in range(size) for peer in peers[rank])
    assert max(map(len, peers)) <= MOST[algorithm]((size - 1).bit_length())


@pytest.mark.parametrize("size", SIZES)
def test_collectives_open_what_they_name(size: int, opened: dict[int, set[int]]) -> None:
    """A sum exchanges with the peers of its plan and no others, and every other collective with those listed here."""
    transports = inproc.connect(size)
    powers = [1 << k for k in range((size - 1).bit_length())]
    neighbours = [{(rank + 1) % size, (rank - 1) % size} for rank in range(size)]
    around = [{(rank + d) % size for p in powers for d in (p, -p)} for rank in range(size)]
    calls: dict[str, tuple[Any, list[set[int]]]] = {
        **{
            name: (
                lambda g, name=name: Group(g.transport, name).allreduce(np.ones(64)),
                [named(name, r, size, 64) for r in range(size)],
            )
            for name in PLANS
        },
        "broadcast": (lambda g: g.broadcast(np.ones(3), size // 2), around),
        "barrier": (lambda g: g.barrier(), around),
        "short allgather": (lambda g: g.allgather(np.ones(3)), around),
        "long allgather": (lambda g: Group(g.transport, link=COPIES_ARE_DEAR).allgather(np.ones(3)), neighbours),
    }
    for name, (call, peers) in calls.items():
        opened.clear()
        raise_first(run_ranks([partial(call, Group(transport)) for transport in transports]))
        for rank in range(size):
            assert opened[rank] <= peers[rank] if name == "broadcast" else opened[rank] == peers[rank], name


@pytest.mark.parametrize("member", FAMILY, ids=repr)
def test_a_strategy_needs_the_connections_of_its_graph_and_of_sums(member: Member, opened: dict[int, set[int]]) -> None:
    """On 16 ranks exchanges go along a hypercube, a ring, steps of powers of two and the graph of a strategy."""
    size = 16
    losses = np.random.default_rng(0).random(size)
    walk = lambda k, rank, model: model + rank  # noqa: E731
    exchange(member.strategy, np.zeros(9), np.ones(size) / size, 2, walk, lambda k, rank: float(losses[rank]))
    topology = getattr(member.strategy, "topology", None)
    hubs = {topology.hub} if hasattr(topology, "hub") else set()
    for rank in range(size):
        steps = {(rank + d) % size for k in range(4) for d in (1 << k, -(1 << k))}
        assert opened[rank] <= set(hypercube(rank, size)[1]) | steps | hubs or rank in hubs or _leads(member)
        assert len(opened[rank]) <= 8 or rank in hubs


def _leads(member: Member) -> bool:
    """Return whether ranks exchange with the leader of their group, who is any of them."""
    return hasattr(member.strategy, "n_groups")
