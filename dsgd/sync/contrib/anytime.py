"""Anytime SGD: ranks take steps for a fixed time instead of a fixed number of rows, then average their models.

Problem: with a fixed number of rows per round everybody waits for the slowest rank: an older machine, a core that
somebody else uses too, a rank with denser rows.

Update: every rank takes sequential SGD steps on its rows, going round them, until `seconds` have passed or it has
visited all of them; then ``x_p <- sum_q (d_q / d) x_q`` with d_q the rows that rank q has visited in this round and d
their sum. An epoch ends with the round in which the ranks together have visited as many rows as they have.

What it minimises: with constant rates and shards of unlike rows, ``sum_p d_p^2 f_p``, f_p being the mean loss of rank p
and d_p the rows that it visits in a round. Weights that made this ``sum_p n_p f_p`` would be largest for the slowest
ranks, for which all others would wait again. So rows should be assigned to ranks at random, as the source assumes.

Cost per round: one all-reduce of the model and one of a single number, `dsgd.collectives.allreduce_cost`; the number
of rounds follows from the speed of the ranks.

What it gives up: the same seed no longer gives the same model, since the clock decides; and the rows of slow ranks
count for less, since they are visited less often. With ``seconds=math.inf`` it is averaging per epoch weighted by rows;
where shards are equal that is `EpochAveraging`, bit for bit.

Source: Ferdinand and Draper 2018 (Anytime SGD; weights by work done, their equation for lambda); Ferdinand, Al-Lawati,
Draper and Nokleby 2019 (Anytime Minibatch). Theirs averages at a master; ours is an all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsgd.sync.compression import AbstractAveraging
from dsgd.sync.period import EveryEpoch
from dsgd.validation import number


@dataclass(frozen=True)
class AnytimeSGD(AbstractAveraging):
    """Let ranks take steps for some seconds, then average their models, weighted by the rows visited.

    Parameters
    ----------
    seconds : float, default 0.05
        How long a rank takes steps between two averages. Long beside a message, short beside an epoch.

    Raises
    ------
    InvalidParameterError
        `seconds` is not a positive number.
    """

    seconds: float = number(0.05, low=0.0, open_low=True)

    @property
    def period(self) -> EveryEpoch:
        """All that can be planned: how many rounds there are is known when an epoch is over."""
        return EveryEpoch()
