"""Hogwild: threads take steps on one shared model, without locks and without messages.

Problem: where rows are sparse, two threads seldom want the same weight at the same time; to lock, or to keep copies and
to average them, costs more than the few steps that are lost.

Update: every thread takes SGD steps on its rows, in memory that all threads share, and changes only the weights of each
row's columns. The penalty of a step applies to these columns too, divided by the share of rows that have them. Each row
advances the step counter by the number of threads, so that rates fall like those of one thread that takes all steps.

Cost per round: none. At the end of an epoch threads wait for each other, and send the control message and the sum of
what they saw of the model. Threads whose rows share no column end with the model of one thread that takes the same
steps, bit for bit, except for the intercept, which all rows have.

On dense rows threads are in each other's way all the time. So where rates fall like 1 / t every thread looks at the
model in the last half of an epoch, up to 64 times, and the mean of what all saw is the model at the end
(`dsgd.local.sgd`). A look costs as much as the model is long: where rows have so few entries that it would be
felt beside the steps, threads look less often, or never, and are seldom in each other's way. With an L1 penalty they
never look.

What it gives up: with more than one thread the same seed does not give the same model.

Source: Recht, Re, Wright and Niu 2011 (algorithm 1, with replacement by shuffled order).
"""

from __future__ import annotations

from dataclasses import dataclass

from dsgd.collectives.group import Group
from dsgd.sync.base import AbstractStrategy, NoState
from dsgd.sync.period import EveryEpoch, Taxonomy
from dsgd.types import FloatVector
from dsgd.validation import number


@dataclass(frozen=True)
class Hogwild(AbstractStrategy[NoState]):
    """Let the threads of one process take steps on one shared model, without locks.

    Parameters
    ----------
    suffix : float, default 0.5
        Share of an epoch, its end, over which the model is averaged where rates fall like 1 / t; 0 leaves the last one,
        as in the source.

    Raises
    ------
    InvalidParameterError
        `suffix` is not in [0, 1].
    """

    suffix: float = number(0.5, low=0.0, high=1.0)
    ends_equal = False
    shares_memory = True
    taxonomy = Taxonomy("centralised", "asynchronous", "nothing", "shared memory")

    @property
    def period(self) -> EveryEpoch:
        """At the end of every epoch, where there is nothing left to do."""
        return EveryEpoch()

    def init(self, group: Group, params: FloatVector, weight: float) -> NoState:
        """Return an empty record."""
        return NoState()

    def sync(self, group: Group, vector: FloatVector, weight: float, state: NoState) -> None:
        """Do nothing: there is one model."""
