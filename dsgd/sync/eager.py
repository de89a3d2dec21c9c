"""Eager DiLoCo: the outer step of `DiLoCo` with the own change of this round and that of the others from the last one.

Problem: to hide an exchange behind the local steps of a whole round, a rank must take the outer step before the sum is
there. With the sum of the round before alone, each step is one round old, and training loses by it.

Update, with y_p the model that rank p begins a round with, v the shares of `dsgd.sync.weighing`, and ``d_p = v_p (y_p -
x_p)`` what p adds to the mean change of a round; what is marked ' is from the round before::

    g_p = d_p + sum_{q != p} d'_q
    u_p <- beta u_p + g_p;  y_p <- y_p - rate (g_p + beta u_p)

Every change of every rank comes into all models once, the own one at once and those of others a round later: so models
of ranks differ by no more than their last changes. With rate 1 and beta 0, ``y_p = x_0 - (sum of all changes but those
of the last round) - d_p``. The sum is taken in a thread of its own beside the steps of the next round. Training returns
the mean of the models, as it is once the last changes of others have come too.

Cost per round: one all-reduce of the model, `dsgd.collectives.allreduce_cost`, beside the steps of the next round. In
the end there is one more, in place of the last. Four more vectors per rank.

Source: Kale, Douillard and Donchev 2025 (eager updates), with equal shares.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dsgd.collectives.group import Group
from dsgd.handover import SUMMED
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractRejoining, AbstractStrategy
from dsgd.sync.delayed import AbstractBeside
from dsgd.sync.taxonomy import Taxonomy
from dsgd.types import FloatVector, IntVector
from dsgd.validation import check_numbers

__all__ = ["EagerDiLoCo", "EagerState"]


@dataclass
class EagerState(AbstractRejoining):
    """The state of eager DiLoCo.

    Parameters
    ----------
    anchor : array, shape (n_params,)
        y of this rank.
    velocity : array, shape (n_params,)
        u of this rank.
    own : array, shape (n_params,)
        d of this rank, of the last round. Ranks that take over have its mean in their models.
    others : array, shape (n_params,)
        The same until it has been summed, then what the others add.
    unsent : array of int64, shape (1,)
        Whether it has not been summed.
    """

    anchor: FloatVector
    velocity: FloatVector
    own: FloatVector
    others: FloatVector = field(metadata=SUMMED)
    unsent: IntVector

    def rejoin(self, params: FloatVector) -> None:
        """Start again from the model that all ranks have now; what others add to it is still to come."""
        self.anchor[:] = params


@dataclass(frozen=True)
class EagerDiLoCo(AbstractStrategy[EagerState], AbstractBeside[EagerState]):
    """Take a Nesterov step along the own change of a round and those of the others from the one before.

    Parameters
    ----------
    every : int, default 2048
        Rows of the rank with the most rows between two outer steps.
    outer_rate : float, default 0.7
        Rate of the outer step.
    outer_momentum : float, default 0.0
        beta, in [0, 1). Changes that come a round late act as momentum already: with the 0.3 of `DiLoCo`, eight ranks
        that exchange once an epoch lose five points.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    every: int = 2048
    outer_rate: float = 0.7
    outer_momentum: float = 0.0
    taxonomy = Taxonomy("decentralised", "bounded", "change", "all-reduce")
    weighs = "rates"
    ends_equal = False

    def __post_init__(self) -> None:
        check_numbers(self, "every", low=1, integer=True)
        check_numbers(self, "outer_rate", low=0, open_low=True)
        check_numbers(self, "outer_momentum", low=0, high=1, open_high=True)

    @property
    def hides_exchange(self) -> bool:
        """Always."""
        return True

    def init(self, group: Group, params: FloatVector, weight: float) -> EagerState:
        """Return the model to start from, no momentum yet, and nothing of others."""
        velocity, own, others = (np.zeros_like(params) for _ in range(3))
        return EagerState(params.copy(), velocity, own, others, np.zeros(1, np.int64))

    def sync(self, group: Group, vector: FloatVector, weight: float, state: EagerState) -> None:
        """Take the outer step, and leave this rank's change to be summed; see `AbstractStrategy.sync`."""
        if group.size == 1:
            return
        self.beside(group, weight, state)
        own, others, velocity, kind = state.own, state.others, state.velocity, vector.dtype.type
        if weight == 0.0:
            own.fill(0.0)
        else:
            np.subtract(state.anchor, vector, out=own)
            own *= kind(weight)
        others += own
        velocity *= kind(self.outer_momentum)
        velocity += others
        np.multiply(velocity, kind(self.outer_momentum), out=vector)
        vector += others
        vector *= kind(self.outer_rate)
        np.subtract(state.anchor, vector, out=vector)
        state.anchor[:] = vector
        others[:] = own
        state.unsent[0] = 1

    def beside(self, group: Group, weight: float, state: EagerState) -> None:
        """Sum the changes of the last round, and take the own one out; see `AbstractBeside.beside`."""
        if state.unsent[0]:
            state.unsent[0] = 0
            weighted_mean(group, state.others, 1.0)
            state.others -= state.own

    def collect(self, group: Group, params: FloatVector, weight: float, state: EagerState) -> None:
        """Return the mean of all models after the changes that have not been summed; see `AbstractStrategy.collect`."""
        if group.size == 1:
            return
        kind = params.dtype.type
        # What an outer step would make of them now. Of the others, that is all but the rank's own share.
        missing = state.own * kind(self.outer_rate * (1.0 + self.outer_momentum))
        if weight == 0.0:
            params.fill(0.0)
        else:
            params += missing
            params *= kind(weight)
        params -= missing
        weighted_mean(group, params, 1.0)
