"""One-shot averaging: ranks train independently and average once, at the end.

Problem: ranks cannot communicate during training, or one message costs as much as a training run.

Update: every rank runs SGD on its rows to the end; then, once, ``x_p <- sum_q (n_q / n) x_q``. Until then the models
of the ranks differ. Early stopping looks at the mean that training would return, one more all-reduce per epoch.

What it returns: the mean of the ranks' own minima, weighted by their rows. With unlike rows that is not the minimum of
the whole, however small the rate: for ``f_p(x) = a_p (x - m_p)^2 / 2`` it is ``sum_p (n_p / n) m_p``, and not ``sum_p
n_p a_p m_p / sum_p n_p a_p``. With trainings too short to get there, over many calls of ``partial_fit``, the model
settles where ``sum_p n_p^2 f_p`` is least.

Cost: one all-reduce of the model per training, `dsgd.collectives.allreduce_cost`.

Source: Zinkevich, Weimer, Smola and Li 2010, algorithm 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsgd.sync.compression import AbstractAveraging
from dsgd.sync.period import Once

__all__ = ["OneShotAveraging"]


@dataclass(frozen=True)
class OneShotAveraging(AbstractAveraging):
    """Average the models once, after the last epoch."""

    @property
    def period(self) -> Once:
        """At the end of training."""
        return Once()
