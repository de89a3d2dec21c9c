"""Moving samples between ranks when active samples are unevenly distributed.

Elimination leaves some ranks with fewer active samples than others, which then wait in every round. When the largest
count exceeds the mean by half, ranks above the mean hand samples over to those below it: features, indicators, and
with them the columns of the kernel. All ranks compute the same plan from what they all know; each row moves once,
straight to its new holder. Source: the imbalance that Vishnu et al. (IEEE Cluster 2015) measure but do not act upon.
"""

from __future__ import annotations

import numpy as np

from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.types import FloatVector, IntVector

__all__ = ["plan_moves", "rebalance"]

_UNEVEN = 1.5


def plan_moves(loads: IntVector) -> list[tuple[int, int, int]]:
    """Return (from, to, how many) so that all ranks come to hold the mean; empty while that is not worth it.

    Parameters
    ----------
    loads : int64 array, shape (n_ranks,)
        Active samples of each rank.
    """
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


def rebalance(matrix: KernelMatrix, u: FloatVector, exact_u: FloatVector) -> bool:
    """Move active samples if they lie too unevenly; return whether any did.

    Parameters
    ----------
    matrix : KernelMatrix
        Its samples move.
    u, exact_u : array, shape (n,)
        Indicators of the samples, right where they lie; they move with them.
    """
    loads = matrix.peers.all_of(np.array([len(matrix.active)], dtype=np.int64)).ravel()
    moves = plan_moves(loads)
    if not moves:
        return False
    active = matrix.peers.join(matrix.active)
    starts = np.concatenate([[0], np.cumsum(loads)])
    ends = starts[1:].copy()
    plan = []
    for giver, taker, count in moves:
        plan.append((giver, taker, active[ends[giver] - count : ends[giver]]))
        ends[giver] -= count
    for giver, taker, ids in plan:
        indicators = np.stack([u[ids], exact_u[ids]])
        arrived = matrix.peers.hand_over(giver, taker, indicators, indicators.shape, np.float64)
        if arrived is not None:
            u[ids], exact_u[ids] = arrived
    matrix.move(plan)
    return True
