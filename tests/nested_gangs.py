"""Gangs whose ranks are threads of several processes, joined by one rank of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from dsgd.collectives import Group
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import AbortFlag
from dsgd.comm.wires.inproc import connect_nested
from dsgd.ledger import RankLedger
from gangs import gang, raise_first, run_ranks


@contextmanager
def nested_gang(
    ranks_of: Sequence[int], kind: str = "inproc", timeout_s: float = 20.0
) -> Iterator[list[AbstractTransport]]:
    """Give the transports of all ranks of all processes, in rank order; processes are joined by `kind`."""
    with gang(kind, len(ranks_of), timeout_s) as leaders:
        first = list(accumulate(ranks_of, initial=0))
        transports: list[AbstractTransport] = []
        for process, between in enumerate(leaders):
            ranks = range(first[process], first[process + 1])
            ledgers = [between.ledger, *(RankLedger(rank) for rank in ranks[1:])]
            transports += connect_nested(between, ranks_of, ledgers=ledgers, abort=AbortFlag(), timeout_s=timeout_s)
        try:
            yield transports
        finally:
            for transport in transports:
                transport.close()


def run_nested(ranks_of: Sequence[int], program: Callable[[Group], Any], kind: str = "inproc", **options: Any) -> Any:
    with nested_gang(ranks_of, kind) as transports:
        groups = [Group(transport, **options) for transport in transports]
        return raise_first(run_ranks([lambda group=group: program(group) for group in groups]))
