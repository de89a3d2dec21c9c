"""The outer step: treat what a round of local steps has changed as a gradient, and take a step with momentum along it.

Problem: with rare averages the change of the mean from one to the next is a good direction; plain averaging forgets it
each time.

Update, with x the model that all ranks had after the last exchange and ``delta = x - sum_q (n_q / n) x_q``::

    u <- beta u + delta
    x <- x - rate u                    (heavy ball)
    x <- x - rate (delta + beta u)     (Nesterov)

All ranks go on from x. With rate 1 and beta 0 this is the mean: local SGD.

Cost per round: one all-reduce of the model, `dsgd.collectives.allreduce_cost`. Two more vectors per rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsgd.collectives.group import Group
from dsgd.sync.averaging import weighted_mean
from dsgd.types import FloatVector

__all__ = ["OuterState", "outer_step"]


@dataclass
class OuterState:
    """What outer momentum remembers; equal on all ranks.

    Parameters
    ----------
    anchor : array, shape (n_params,)
        x, the model that all ranks had after the last exchange.
    velocity : array, shape (n_params,)
        u, in units of the model.
    """

    anchor: FloatVector
    velocity: FloatVector

    @classmethod
    def at(cls, params: FloatVector) -> OuterState:
        """Return the state of ranks that start from a model."""
        return cls(params.copy(), np.zeros_like(params))


def outer_step(
    group: Group, vector: FloatVector, weight: float, state: OuterState, *, rate: float, beta: float, nesterov: bool
) -> None:
    """Replace the models of all ranks by the model after an outer step, in place.

    Parameters
    ----------
    group : Group
        The ranks of the gang.
    vector : array, shape (n_params,)
        The model of this rank.
    weight : float
        Its share in the mean.
    state : OuterState
        Updated in place.
    rate, beta : float
        Rate and momentum of the outer step.
    nesterov : bool
        Whether the step looks ahead.
    """
    weighted_mean(group, vector, weight)
    anchor, velocity, one = state.anchor, state.velocity, vector.dtype.type
    if beta == 0.0 and rate == 1.0:
        # The mean to the bit, which x - (x - mean) would not be.
        anchor[:] = vector
        return
    np.subtract(anchor, vector, out=vector)
    velocity *= one(beta)
    velocity += vector
    if nesterov:
        vector += one(beta) * velocity
    else:
        vector[:] = velocity
    vector *= one(rate)
    np.subtract(anchor, vector, out=vector)
    anchor[:] = vector
