"""The outer step of SlowMo and DiLoCo: momentum on the change of a round of local steps.

Problem: with rare averages the change of the mean from one to the next is a good direction; plain averaging forgets it
each time.

Update, with x the model that all ranks had after the last exchange, v the shares of `dsgd.sync.weighing`, and ``delta =
x - sum_q v_q x_q``::

    u <- beta u + delta
    x <- x - rate u                    (heavy ball)
    x <- x - rate (delta + beta u)     (Nesterov)

All ranks continue from x. With rate 1 and beta 0 this is the mean: local SGD. With a compressor, delta is the sum of
the compressed ``v_q (x - x_q)``, and what is left out is sent later. With error feedback in place of momentum, this is
how only the largest entries are sent in rare exchanges.

Cost per round: one all-reduce of the model, `dsgd.collectives.allreduce_cost`, or `compressed_cost`. Two more vectors
per rank; with a compressor one more, and those of the compressor.

Source: Wang, Tantia, Ballas and Rabbat 2020; Douillard et al. 2023; compressed: Basu, Data, Karakus and Diggavi 2019,
Sarfi et al. 2025 (SparseLoCo).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import numpy as np

from dsgd.collectives.group import Group
from dsgd.handover import ALIKE
from dsgd.sync.base import AbstractStrategy, NoState
from dsgd.sync.compression import CompressionState, Compressor, delta_mean, start_compression
from dsgd.sync.taxonomy import Taxonomy
from dsgd.types import FloatVector

__all__ = ["AbstractOuter", "OuterState", "outer_step"]


@dataclass
class OuterState:
    """The state of outer momentum; anchor and velocity are equal on all ranks.

    Parameters
    ----------
    anchor : array, shape (n_params,)
        x, the model that all ranks had after the last exchange.
    velocity : array, shape (n_params,)
        u, in units of the model.
    compression : CompressionState or NoState
        What is remembered of what has been sent, where it is compressed.
    """

    anchor: FloatVector = field(metadata=ALIKE)
    velocity: FloatVector = field(metadata=ALIKE)
    compression: CompressionState | NoState


class AbstractOuter(AbstractStrategy[OuterState]):
    """Takes a step with momentum along what all ranks have changed on average."""

    weighs = "rates"
    taxonomy = Taxonomy("decentralised", "synchronous", "model", "all-reduce")

    @final
    def init(self, group: Group, params: FloatVector, weight: float) -> OuterState:
        """Return the model to start from, no momentum yet, and what the compressor remembers."""
        compression = start_compression(self, group, params, keeps_model=True)
        return OuterState(params.copy(), np.zeros_like(params), compression)


def outer_step(
    group: Group,
    vector: FloatVector,
    weight: float,
    state: OuterState,
    compressor: Compressor = None,
    *,
    rate: float,
    beta: float,
    nesterov: bool,
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
    compressor : Compressor, default None
        What makes the changes of ranks small.
    rate, beta : float
        Rate and momentum of the outer step.
    nesterov : bool
        Whether the step looks ahead.
    """
    delta_mean(group, vector, weight, compressor, state.compression)
    anchor, velocity, one = state.anchor, state.velocity, vector.dtype.type
    if group.size == 1 or (beta == 0.0 and rate == 1.0):
        # The mean to the bit, which x - (x - mean) would not be; and one rank takes its own steps alone.
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
    if isinstance(state.compression, CompressionState):
        # The next changes are from here, and not from the mean.
        state.compression.reference[:] = vector
