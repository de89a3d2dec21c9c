"""Gangs that are not all connected from the start: which connections there are, and when others are made."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from dsgd.collectives import Group
from dsgd.collectives.algorithms.recursive_doubling import doubling_plan
from dsgd.comm.sockets.mesh import FULL_MESH, first_peers
from gangs import gang, raise_first, run_ranks

SIZES = (1, 2, 3, 5, 8, 9, 12, 16, 33, 64, 100, 1024)


@pytest.mark.parametrize("size", SIZES)
def test_first_peers_are_those_of_the_sum_of_short_vectors(size: int) -> None:
    """A rank of a large gang begins with the peers of recursive doubling, log2 P + 1 at most, and they with it."""
    for rank in range(size):
        peers = first_peers(rank, size)
        assert all(rank in first_peers(peer, size) for peer in peers)
        if size > FULL_MESH:
            moves = doubling_plan(rank, size, 4).moves
            assert set(peers) == {peer for move in moves for peer in (move.to, move.source)} - {None}
            assert len(peers) <= size.bit_length()
        else:
            assert set(peers) == set(range(size)) - {rank}


@pytest.mark.parametrize("kind", ["tcp", "shm", "wrapped", "rpc", "spin"])
def test_a_sum_opens_no_further_connection(kind: str) -> None:
    """Twelve ranks that sum short vectors stay connected with their first peers."""
    with gang(kind, 12) as transports:
        vectors = [np.full(3, float(rank)) for rank in range(12)]
        calls = [lambda r=r: Group(transports[r], "recursive_doubling").allreduce(vectors[r]) for r in range(12)]
        raise_first(run_ranks(calls))
        assert all(vector.tolist() == [66.0] * 3 for vector in vectors)
        assert [set(peers_of(t)) for t in transports] == [set(first_peers(rank, 12)) for rank in range(12)]


@pytest.mark.parametrize("kind", ["tcp", "shm", "wrapped", "rpc", "spin", "mixed"])
@pytest.mark.parametrize("n", [3, 40_000])
def test_any_two_ranks_can_exchange(kind: str, n: int) -> None:
    """Twelve ranks that all exchange with each other, round by round, end up connected; no two have two connections."""
    size = 12

    def program(rank: int) -> None:
        incoming = np.empty(n)
        for step in range(1, size):
            to, source = (rank + step) % size, (rank - step) % size
            transports[rank].exchange(to, np.full(n, float(rank)), source, incoming)
            assert (incoming == source).all()

    with gang(kind, size) as transports:
        raise_first(run_ranks([lambda r=r: program(r) for r in range(size)]))
        assert all(sorted(peers_of(t)) == [r for r in range(size) if r != t.rank] for t in transports)


@pytest.mark.parametrize("hosts", [1, 2, 5])
@pytest.mark.parametrize("size", [9, 12, 16])
def test_all_ranks_know_the_hosts_of_all(size: int, hosts: int) -> None:
    """Hosts are numbered as they first occur, the same on all ranks, whomever a rank has asked."""
    from dsgd.comm.wires import shm
    from gangs import connect_with

    names = [bytes([rank * 7 % hosts]) * 32 for rank in range(size)]
    order = list(dict.fromkeys(names))
    transports = raise_first(connect_with(shm.connect, size, 20.0, None, identity=names))
    with contextlib.ExitStack() as cleanup:
        for transport in transports:
            cleanup.callback(transport.close)
        assert {t.hosts for t in transports} == {tuple(order.index(name) for name in names)}


def peers_of(transport: Any) -> list[int]:
    """Return the ranks that one is connected with."""
    return list((transport if hasattr(transport, "_links") else transport._mesh)._links)
