"""Consensus ADMM: ranks minimise their own objectives, and prices bring their models to agree.

Problem: averages of many local steps have a bias where ranks have rows of different kinds. A spring to the last average
makes it smaller, and training slower (`FedProx`); ADMM makes it vanish, by a price for disagreeing.

Update: minimise ``sum_p w_p f_p(x_p)`` such that all ``x_p = z``, w_p the share of the rows. With the dual vector u_p
of each rank, in units of the model ("scaled form")::

    x_p <- about the minimum of f_p(x) + (rho / 2) ||x - z + u_p||^2
    z   <- sum_p w_p (x_p + u_p)
    u_p <- u_p + x_p - z

The minimum is looked for by the steps of a round, from where x_p is. The spring is applied every `stretch` rows (with a
local rule, after every minibatch) as an implicit step, stable at any rate: with s the sum of the rates since the last
time, ``x <- (x + s rho (z - u_p)) / (1 + s rho)``. Where nothing moves any more the models are equal, and ``grad f_p =
-rho u_p``, of which the weighted sum is zero: z is the minimum of the whole, however few steps a round has. What is
left is the drift of ranks within a stretch. Training returns z.

In the first exchange, when all u_p are zero, z is the mean of the models; and as the weighted sum of all u_p stays
zero, so it is after: ADMM averages as `LocalSGD` does, but does not throw away where each rank has got to.

Cost per round: one all-reduce of the model, `dsgd.collectives.allreduce_cost`, and a pass over the model per stretch.
Two more vectors per rank.

Source: Boyd, Parikh, Chu, Peleato and Eckstein 2011 (consensus, in scaled form), with weights; a few gradient steps in
the place of a minimum: Ouyang, He, Tran and Gray 2013 (stochastic ADMM).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dsgd.collectives.group import Group
from dsgd.handover import ALIKE
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractLocalTerm, AbstractRejoining, AbstractStrategy, LocalSteps
from dsgd.sync.taxonomy import Taxonomy
from dsgd.types import FloatVector
from dsgd.validation import check_numbers

__all__ = ["ADMM", "ConsensusState", "pull_to_consensus"]


@dataclass
class ConsensusState(AbstractRejoining):
    """The state of consensus ADMM.

    Parameters
    ----------
    consensus : array, shape (n_params,)
        z, equal on all ranks.
    dual : array, shape (n_params,)
        u_p of this rank.
    """

    consensus: FloatVector = field(metadata=ALIKE)
    dual: FloatVector

    def rejoin(self, params: FloatVector) -> None:
        """Begin with no prices: those of other ranks, with other rows, need not cancel."""
        self.dual.fill(0.0)


def pull_to_consensus(
    params: FloatVector, steps: LocalSteps, rho: float, consensus: FloatVector, dual: FloatVector
) -> None:
    """Take an implicit step along the spring to ``consensus - dual``, in place.

    Parameters
    ----------
    params : array, shape (n_params,)
        The model of a rank.
    steps : LocalSteps
        What has been done since the last time.
    rho : float
        Strength of the spring.
    consensus, dual : array, shape (n_params,)
        z and u_p.
    """
    strength = steps.rate_sum * rho
    if strength > 0.0:
        params -= params.dtype.type(strength / (1.0 + strength)) * (params - consensus + dual)


@dataclass(frozen=True)
class ADMM(AbstractStrategy[ConsensusState], AbstractLocalTerm[ConsensusState]):
    """Let ranks minimise their own objectives, and make them agree by prices, every `every` rows.

    Parameters
    ----------
    every : int, default 64
        Rows of the rank with the most rows between two exchanges.
    rho : float, default 0.001
        Strength of the spring, in the unit of the curvature of the loss, above zero. Models agree the sooner the
        larger it is; beyond one over the rates of a round it makes training slower.
    stretch : int, default 64
        Rows between two pulls.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    every: int = 64
    rho: float = 0.001
    stretch: int = 64
    weighs = "rows"
    ends_equal = False
    taxonomy = Taxonomy("decentralised", "synchronous", "model", "all-reduce")

    def __post_init__(self) -> None:
        check_numbers(self, "every", low=1, integer=True)
        check_numbers(self, "stretch", low=1, integer=True)
        check_numbers(self, "rho", low=0, open_low=True)

    def init(self, group: Group, params: FloatVector, weight: float) -> ConsensusState:
        """Return the model to start from as the one all agree on, and no prices."""
        return ConsensusState(params.copy(), np.zeros_like(params))

    def correct(self, params: FloatVector, steps: LocalSteps, state: ConsensusState) -> None:
        """Pull the model to where it would agree; see `AbstractLocalTerm.correct`."""
        pull_to_consensus(params, steps, self.rho, state.consensus, state.dual)

    def sync(self, group: Group, vector: FloatVector, weight: float, state: ConsensusState) -> None:
        """Find the consensus and raise prices; see `AbstractStrategy.sync`."""
        if group.size == 1:
            return
        state.dual += vector
        state.consensus[:] = state.dual
        weighted_mean(group, state.consensus, weight)
        state.dual -= state.consensus

    def collect(self, group: Group, params: FloatVector, weight: float, state: ConsensusState) -> None:
        """Return the consensus."""
        if group.size > 1:
            params[:] = state.consensus
