"""Snapshots: the last state that all ranks had in common, in the memory of their workers.

Problem: when a worker dies, everything that the others have computed since the start is still in their memory.

Method: after a synchronisation all ranks hold the same model, so every survivor is a checkpoint. Each rank leaves a
copy of its state in a keeper that outlives its program. When the gang forms anew, its ranks tell each other how far
their copies are; the newest one is taken, of the lowest rank that holds it, and handed round over the gang's own wires.
It passes neither through the scheduler nor through the client.

Cost: one copy of the model and a few dozen bytes per rank each time; nothing where no keeper was given.

Source: Horovod's elastic mode (commit, and broadcast from the lowest surviving rank).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsgd.types import AnyArray

if TYPE_CHECKING:
    from dsgd.collectives.group import Group


@dataclass(frozen=True)
class Snapshot:
    """A state and how far it is."""

    position: tuple[int, int]
    arrays: Mapping[str, AnyArray]
    n_rows: int = 1

    @property
    def preferred(self) -> bool:
        """Whether it is to be taken before others of the same position."""
        return self.n_rows > 0


class SnapshotKeeper:
    """Keeps the last snapshot of a rank, and carries the request to stop at the end of an epoch.

    Used by the thread of the rank and by that of the worker's event loop: both attributes are replaced, never changed.
    """

    def __init__(self, latest: Snapshot | None = None) -> None:
        self.latest = latest
        self.pause_requested = False

    def next(self) -> SnapshotKeeper:
        """Return a keeper for the next gang, with the same snapshot."""
        return SnapshotKeeper(self.latest)


def find_newest(group: Group, mine: Snapshot | None) -> int | None:
    """Return the rank that holds the newest snapshot, the lowest of several; None if nobody has one.

    Called by all ranks, and the same answer for all.
    """
    none = (-1, -1, 0, 0)
    offers = group.roll_call(np.array(none if mine is None else (*mine.position, mine.preferred, 1), dtype=np.int64))
    best = max(range(group.size), key=lambda rank: (*offers[rank], -rank))
    return best if offers[best, 3] else None


def share(
    group: Group, arrays: Mapping[str, AnyArray] | None, root: int, per_rank: Collection[str] = ()
) -> dict[str, AnyArray]:
    """Give all ranks the arrays of rank `root`; called by all ranks."""
    header = np.empty(0, dtype=np.uint8)
    if arrays is not None:
        described = [[name, a.dtype.str, list(a.shape), name in per_rank] for name, a in arrays.items()]
        header = np.frombuffer(json.dumps(described).encode(), dtype=np.uint8).copy()
    length = np.array([header.size], dtype=np.int64)
    group.broadcast(length, root)
    if group.rank != root:
        header = np.empty(int(length[0]), dtype=np.uint8)
    group.broadcast(header, root)
    received: dict[str, AnyArray] = {}
    for name, dtype, shape, dealt in json.loads(header.tobytes()):
        given = None if arrays is None else np.ascontiguousarray(arrays[name])
        if not dealt:
            array = np.empty(shape, dtype=dtype) if given is None else given
            group.broadcast(array.reshape(-1), root)
        else:
            array = np.empty((1, *shape[1:]), dtype=dtype)
            group.scatter(None if given is None else given.reshape(group.size, -1), array, root)
        received[name] = array
    return received
