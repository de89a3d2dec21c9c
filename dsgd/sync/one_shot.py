"""One-shot averaging: ranks train independently and average once, at the end.

Problem: ranks cannot communicate during training, or one message costs as much as a training run.

Update: every rank runs SGD on its rows to the end; then, once, ``x_p <- sum_q (n_q / n) x_q``. Until then the models
of the ranks differ. Early stopping looks at the mean that training would return, one more all-reduce per epoch.

What it returns: the mean of the ranks' own minima, weighted by their rows. With unlike rows that is not the minimum of
the whole, however small the rate: for ``f_p(x) = a_p (x - m_p)^2 / 2`` it is ``sum_p (n_p / n) m_p``, and not ``sum_p
n_p a_p m_p / sum_p n_p a_p``. With trainings too short to get there, over many calls of ``partial_fit``, the model
settles where ``sum_p n_p^2 f_p`` is least.

With an L1 penalty of strength a the threshold comes after the mean (`dsgd.local.dual`). With m_p the minimum of rank p,
g_p the gradient there of all but that penalty, so that ``|g_p| <= a`` and ``g_p = -a sign(m_p)`` where m_p is not zero,
and U the sum of the rates of a training, a weight is the soft threshold of ``mean(m_p) - U mean(g_p)`` by ``a U``. So
where all ranks agree on its sign it is the mean of their minima, to the digit; any other is zero, but where
``|mean(m_p) - U mean(g_p)| > a U``, which a longer training makes rarer: the non-zeros are those that all ranks have in
common, not those that any has. Of 16 ranks with 100 rows each of 64 features that is 10 non-zeros, as on one rank, and
an objective 0.5 % above its; where half of the features are on a quarter of the ranks, 4 for 10, and 2.9 times as much.

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
