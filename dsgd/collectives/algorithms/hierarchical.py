"""Collectives in levels: within each process or host first, then among one rank of each.

Problem: inside a process a vector moves at the price of a copy, inside a host ten times faster than between hosts, and
all ranks of a host share one network card. What a flat algorithm sends across grows with the ranks, not with the
processes or hosts; and ranks that are threads of different processes have no connection of their own
(`dsgd.comm.wires.inproc`).

Update: the ranks are cut into units, processes or hosts. In each, vectors are summed up a binomial tree to its first
rank, the leader; the leaders all-reduce among themselves; each leader broadcasts the result in its unit. The leaders
are a `Group` like any other, so levels nest: threads of a process, processes of a host, hosts. Broadcast, gather,
all-gather and barrier go the same way.

Cost: across, what the leaders' collective costs; inside, one message up for everyone but the leader, and the
broadcast's messages down. See `cost.allreduce_cost`.

The sum of a unit is added in the order of its ranks' numbers in the tree and the leaders hold equal bits, so every bit
agrees on all ranks. Where all units have the same number of ranks, a power of two, and the ranks of a unit are
consecutive, it is bitwise the sum of recursive doubling of all ranks (`doubling_plan`); otherwise, and where the
leaders add round a ring, the order of additions is another one and the last bits may differ.

Source: Karonis et al. 2000 (MPICH-G2, trees by levels of the network); Thakur, Rabenseifner and Gropp 2005 (inside).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, final

import numpy as np

from dsgd.collectives.algorithms import trees
from dsgd.collectives.algorithms.plan import Combine, Operation
from dsgd.collectives.cost import groups_of
from dsgd.comm.base import AbstractTransport
from dsgd.types import AnyArray


class Above(Protocol):
    """What the leaders of units do together: the collectives of a `dsgd.collectives.Group`."""

    @property
    def transport(self) -> AbstractTransport:
        """Connects the leaders."""

    def allreduce(self, vector: AnyArray, op: Operation = "sum") -> None:
        """Replace `vector` by its sum or extremes over leaders."""

    def broadcast(self, vector: AnyArray, root: int = 0) -> None:
        """Replace `vector` by that of leader `root`."""

    def fill(self, whole: AnyArray, ends: Sequence[int]) -> None:
        """Fill `whole` with the vectors of all leaders."""

    def gather(self, vector: AnyArray, root: int = 0) -> list[AnyArray] | None:
        """Return the vectors of all leaders on leader `root`."""

    def barrier(self) -> None:
        """Return once every leader has called it."""


class Hierarchy:
    """The place of one rank in a level and in those above."""

    def __init__(
        self,
        transport: AbstractTransport,
        units: Sequence[int],
        lead: Callable[[AbstractTransport, Sequence[int]], Above],
    ) -> None:
        self._groups = groups_of(units)
        self._unit = next(k for k, group in enumerate(self._groups) if transport.rank in group)
        self._inside = Subset(transport, self._groups[self._unit])
        leaders = [group[0] for group in self._groups]
        self._above = lead(Subset(transport, leaders), leaders) if transport.rank in leaders else None
        self._nothing = np.empty(0, dtype=np.uint8)

    def allreduce(self, vector: AnyArray, scratch: AnyArray, combine: Combine, op: Operation = "sum") -> None:
        """Replace `vector`, shape (n,), by its sum or extremes over ranks; `scratch` is as long and is overwritten."""
        trees.binomial_reduce(self._inside, vector, scratch, combine)
        if self._above is not None:
            self._above.allreduce(vector, op)
        trees.binomial_broadcast(self._inside, vector, 0)

    def broadcast(self, vector: AnyArray, root: int) -> None:
        """Replace `vector`, shape (n,), by that of rank `root`."""
        home, seat = self._place(root)
        if self._unit == home:
            trees.binomial_broadcast(self._inside, vector, seat)
        if self._above is not None:
            self._above.broadcast(vector, home)
        if self._unit != home:
            trees.binomial_broadcast(self._inside, vector, 0)

    def fill(self, whole: AnyArray, ends: Sequence[int]) -> None:
        """Fill `whole` with the vectors of all ranks, one after another; those of a unit are consecutive."""
        group = self._groups[self._unit]
        parts = [whole[ends[r] : ends[r + 1]] for r in group]
        trees.direct_gather(self._inside, parts[self._inside.rank], parts, 0)
        if self._above is not None:
            self._above.fill(whole, [*(ends[group[0]] for group in self._groups), ends[-1]])
        trees.binomial_broadcast(self._inside, whole, 0)

    def gather(self, vector: AnyArray, root: int) -> list[AnyArray] | None:
        """Return the vectors of all ranks, of any lengths, on rank `root`; None on the others."""
        home, seat = self._place(root)
        inside, above = self._inside, self._above
        lengths = np.empty(sum(map(len, self._groups)), dtype=np.int64)
        whole = vector[:0]
        found = trees.gather_any(inside, vector, 0)
        if found is not None and above is not None:
            counts = above.gather(np.array([part.shape[0] for part in found], dtype=np.int64), home)
            pieces = above.gather(np.concatenate(found), home)
            if counts is not None and pieces is not None:
                lengths, whole = np.concatenate(counts), np.concatenate(pieces)
        if self._unit == home and seat:
            # The root does not lead its unit: the leader hands everything on.
            if inside.rank == 0:
                inside.send(seat, lengths)
                inside.send(seat, whole)
            elif inside.rank == seat:
                inside.recv(0, lengths)
                whole = np.empty(int(lengths.sum()), dtype=vector.dtype)
                inside.recv(0, whole)
        if self._unit != home or inside.rank != seat:
            return None
        return np.split(whole, np.cumsum(lengths)[:-1])

    def scatter(self, rows: AnyArray | None, out: AnyArray, root: int) -> None:
        """Fill `out`, shape (n,), with this rank's row of `rows`, shape (size, n), which rank `root` has."""
        home, seat = self._place(root)
        inside, group = self._inside, self._groups[self._unit]
        if self._unit == home and seat:
            # The root does not lead its unit: its leader sends out the rows.
            if inside.rank == seat and rows is not None:
                inside.send(0, rows)
            elif inside.rank == 0:
                rows = np.empty((sum(map(len, self._groups)), out.shape[0]), dtype=out.dtype)
                inside.recv(seat, rows)
        part = None
        if self._above is not None:
            part = np.empty((len(group), out.shape[0]), dtype=out.dtype)
            parts = None if rows is None else [rows[ranks[0] : ranks[-1] + 1] for ranks in self._groups]
            trees.direct_scatter(self._above.transport, parts, part, home)
        trees.direct_scatter(inside, part, out, 0)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        trees.binomial_reduce(self._inside, self._nothing, self._nothing, np.add)
        if self._above is not None:
            self._above.barrier()
        trees.binomial_broadcast(self._inside, self._nothing, 0)

    def _place(self, rank: int) -> tuple[int, int]:
        """Return the unit of a rank and its number in it."""
        return next((k, group.index(rank)) for k, group in enumerate(self._groups) if rank in group)


@final
class Subset(AbstractTransport):
    """Some of the ranks, renumbered from 0."""

    def __init__(self, whole: AbstractTransport, members: Sequence[int]) -> None:
        self.rank = members.index(whole.rank)
        self.size = len(members)
        self.ledger = whole.ledger
        self.hosts = tuple(whole.hosts[member] for member in members)
        self.wire = whole.wire
        self.is_virtual = whole.is_virtual
        self.deadline_s = whole.deadline_s
        self._whole = whole
        self._members = members
        self.adder = None if whole.adder is None else self._add

    def exchange(
        self, to: int | None, outgoing: AnyArray | None, source: int | None, incoming: AnyArray | None, op: int = 0
    ) -> None:
        """See `AbstractTransport.exchange`."""
        members = self._members
        self._whole.exchange(
            None if to is None else members[to],
            outgoing,
            None if source is None else members[source],
            incoming,
            op,
        )

    def worked(self, *, rows: int = 0, entries: int = 0, params: int = 0, n_bytes: int = 0, epochs: int = 0) -> None:
        """See `AbstractTransport.worked`."""
        self._whole.worked(rows=rows, entries=entries, params=params, n_bytes=n_bytes, epochs=epochs)

    def _add(self, to: int, outgoing: AnyArray, source: int, total: AnyArray, op: int) -> bool:
        members, adder = self._members, self._whole.adder
        return adder is not None and adder(members[to], outgoing, members[source], total, op)

    def set_deadline(self, deadline_s: float) -> None:
        """Change it for the whole; see `AbstractTransport.set_deadline`."""
        self._whole.set_deadline(deadline_s)
        self.deadline_s = deadline_s

    def close(self) -> None:
        """Do nothing: the whole belongs to somebody else."""
