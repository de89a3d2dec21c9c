"""The weighted mean over ranks, used by all synchronous strategies.

Problem: ranks own different numbers of rows, some none, so a plain mean of their vectors is biased.

Update: ``v <- sum_r w_r v_r`` with ``w_r`` the share of rank r, by one all-reduce.

Cost per round: that of `dsgd.collectives.allreduce_cost` for the length of the vector.
"""

from __future__ import annotations

from dsgd.collectives.group import Group
from dsgd.ledger import ENCODE
from dsgd.types import FloatVector


def weighted_mean(group: Group, vector: FloatVector, weight: float) -> None:
    """Replace `vector` by its weighted mean over ranks, in place; bitwise equal on all of them.

    A rank with weight zero adds exact zeros, whatever its vector holds. A single rank with weight one keeps its vector
    bit for bit, so that training on one rank is plain SGD.

    Parameters
    ----------
    group : Group
        The ranks of the gang.
    vector : array, shape (n,)
        This rank's vector.
    weight : float
        Its share; the shares of a gang add up to one.
    """
    ledger = group.ledger
    timing = ledger.timing
    start = ledger.clock() if timing else 0.0
    if weight == 0.0:
        # 0 * inf is not 0: an empty rank must not be able to spoil the mean.
        vector.fill(0.0)
    elif weight != 1.0:
        # As a plain float, so that a float32 vector is multiplied in float32 whatever type the weight came in.
        vector *= float(weight)
    if group.size == 1:
        return
    if timing:
        ledger.charge(ENCODE, ledger.clock() - start)
    group.allreduce(vector)
