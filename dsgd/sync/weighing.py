"""The weights of ranks in a mean of models, such that unequal shards minimise the objective over all rows.

Problem: a round gives a rank with more rows more steps, so its model has moved further. A mean weighted by rows counts
them twice: with a constant rate it settles where ``sum_p n_p^2 f_p`` is least, f_p being the mean loss of the n_p rows
of rank p, and not where ``sum_p n_p f_p`` is.

Update: what rank p changes is, to first order in the rate, ``-S_p grad f_p`` with S_p the sum of the rates of its
steps. So ranks count by their rows over that sum::

    v_p = (n_p / S_p) / sum_q (n_q / S_q),      x <- sum_q v_q x_q

With a constant rate all ranks that have rows get equal weights. With rates that fall like 1 / t the sums of an epoch
become equal, and ranks are weighted by their rows. The v_p add up to one and none is negative, so that the mean is
between the models whatever the steps were. The sums are planned for a whole epoch and hold for all of its rounds,
because a rank with few rows has none in most rounds.

Where ranks have equal weights by design (neighbours in a graph, springs, a server that adds up), a rank multiplies the
change of its steps in a round by ``P v_p``, so that the mean over ranks moves as above.

Cost: none; which rank takes which steps is known to all.

Source: Wang, Liu, Liang, Joshi and Poor 2020 (FedNova, equation 5: changes over the sums of their rates). There the
mean of the normalised changes is stretched by a mean of the numbers of steps, so that weights add up to more than one;
here it is scaled such that they add up to one: a mean of models that have gone all the way to minima of their own is
then between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from dsgd.types import FloatVector, IntVector

#: What ranks count by in a mean of models: their rows; their rows over the sums of their rates; or all alike, with what
#: their steps have changed scaled instead.
Weighing: TypeAlias = Literal["rows", "rates", "alike"]


def mean_shares(rows: Sequence[int] | IntVector, rate_sums: FloatVector) -> FloatVector:
    """Return v, shape (size,), which adds up to one; shares of the rows where the sums of ranks with rows are equal.

    Parameters
    ----------
    rows : sequence of int, length size
        Rows of each rank.
    rate_sums : array of float64, shape (size,)
        Sum of the rates of the steps of each rank in an epoch, up to a factor that all have in common.
    """
    n = np.asarray(rows, dtype=np.float64)
    if not n.any():
        return np.full(len(n), 1.0 / len(n))
    has_rows = n > 0
    sums = rate_sums[has_rows]
    shares: FloatVector = n
    if not (sums == sums[0]).all() and np.isfinite(sums).all() and (sums > 0.0).all():
        shares = np.zeros_like(n)
        shares[has_rows] = n[has_rows] / sums
        shares /= shares.max()
    shares /= shares.sum()
    return shares
