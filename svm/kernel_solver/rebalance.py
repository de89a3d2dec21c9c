"""Moving samples between ranks when active samples are unevenly distributed.

Elimination leaves some ranks with fewer active samples than others, which then wait in every round. When the largest
count exceeds the mean by half, ranks above the mean hand samples over to those below it: features, indicators, and
with them the columns of the kernel. All ranks compute the same plan from what they all know; each row moves once,
straight to its new holder. Source: the imbalance that Vishnu et al. (IEEE Cluster 2015) measure but do not act upon.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.numbering import find
from dsgd.types import AnyArray, IntVector

_UNEVEN = 1.5


def plan_moves(loads: IntVector) -> list[tuple[int, int, int]]:
    """Return (from, to, how many) so that all ranks come to hold the mean; empty while that is not worth it."""
    total, size = int(loads.sum()), len(loads)
    if total < 2 * size or loads.max() * size <= _UNEVEN * total:
        return []
    targets = np.array([total * (r + 1) // size - total * r // size for r in range(size)])
    surplus = loads - targets
    moves = []
    takers = [r for r in range(size) if surplus[r] < 0]
    for giver in np.flatnonzero(surplus > 0):
        while surplus[giver] > 0:
            taker = takers[0]
            count = int(min(surplus[giver], -surplus[taker]))
            moves.append((int(giver), taker, count))
            surplus[giver] -= count
            surplus[taker] += count
            if surplus[taker] == 0:
                takers.pop(0)
    return moves


def rebalance(matrix: KernelMatrix, columns: Callable[[], list[AnyArray]]) -> list[AnyArray] | None:
    """Move active samples if they lie too unevenly; all ranks call this together."""
    loads = matrix.peers.all_of(np.array([len(matrix.active)], dtype=np.int64)).ravel()
    moves = plan_moves(loads)
    if not moves:
        return None
    active = matrix.peers.join(matrix.active)
    starts = np.concatenate([[0], np.cumsum(loads)])
    ends = starts[1:].copy()
    plan = []
    for giver, taker, count in moves:
        plan.append((giver, taker, active[ends[giver] - count : ends[giver]]))
        ends[giver] -= count
    moved = _hand_over(matrix, plan, columns())
    matrix.move(plan)
    return moved


def _hand_over(matrix: KernelMatrix, plan: list[tuple[int, int, IntVector]], columns: list[AnyArray]) -> list[AnyArray]:
    """Send what belongs to samples that move, and return what belongs to those that a rank has after it."""
    peers, before = matrix.peers, matrix.mine
    lines = [np.atleast_2d(column) for column in columns]
    height = sum(map(len, lines))
    given, taken, arrived = [before[:0]], [before[:0]], [np.empty((height, 0))]
    for giver, taker, ids in plan:
        sent = None
        if peers.rank == giver:
            places = peers.place(ids)
            sent = np.concatenate([line[:, places] for line in lines]).astype(np.float64)
            given.append(ids)
        part = peers.hand_over(giver, taker, sent, (height, len(ids)), np.float64)
        if part is not None:
            taken.append(ids)
            arrived.append(part)
    stays = find(before, np.concatenate(given)) < 0
    order, new = np.argsort(np.concatenate([before[stays], *taken])), np.concatenate(arrived, axis=1)
    found, first = [], 0
    for column, line in zip(columns, lines, strict=True):
        more = new[first : first + len(line)].astype(column.dtype)
        found.append(np.concatenate([line[:, stays], more], axis=1)[:, order].reshape(*column.shape[:-1], -1))
        first += len(line)
    return found
