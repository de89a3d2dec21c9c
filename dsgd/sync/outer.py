"""Strategies that average models and take a step with momentum along their change: SlowMo and DiLoCo.

Problem: with rare averages the change of the mean from one to the next is a good direction; plain averaging forgets it
each time.

Update, with x the model that all ranks had after the last exchange, v the shares of `dsgd.sync.period`, and ``delta = x
- sum_q v_q x_q``: ``u <- beta u + delta``, and then a step along u (heavy ball: SlowMo) or along ``delta + beta u``
(Nesterov: DiLoCo).

All ranks continue from x. With rate 1 and beta 0 this is the mean: local SGD. With a compressor, delta is the sum of
the compressed ``v_q (x - x_q)``, and what is left out is sent later. With error feedback in place of momentum, this is
how only the largest entries are sent in rare exchanges.

Cost per round: one all-reduce of the model, `dsgd.collectives.allreduce_cost`, or `compressed_cost`. Two more vectors
per rank; with a compressor one more, and those of the compressor.

Source: those of the classes; compressed: Basu, Data, Karakus and Diggavi 2019, Sarfi et al. 2025 (SparseLoCo).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import numpy as np

from dsgd.collectives.group import Group
from dsgd.handover import ALIKE
from dsgd.sync.averaging import MomentumPolicy
from dsgd.sync.base import AbstractStrategy, NoState
from dsgd.sync.compression import CompressionState, Compressor, delta_mean, start_compression
from dsgd.sync.period import Taxonomy
from dsgd.types import FloatVector
from dsgd.validation import number


@dataclass
class OuterState:
    """The state of outer momentum; anchor and velocity are equal on all ranks."""

    # x, the model that all ranks had after the last exchange.
    anchor: FloatVector = field(metadata=ALIKE)
    # u, in units of the model.
    velocity: FloatVector = field(metadata=ALIKE)
    # What is remembered of what has been sent, where it is compressed.
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
    """Replace the models of all ranks by the model after an outer step, in place."""
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


def slow_momentum_for(size: int) -> float:
    """Return the slow momentum for so many ranks: 0 below 4, else 0.2."""
    return 0.0 if size < 4 else 0.2


@dataclass(frozen=True)
class SlowMo(AbstractOuter):
    """Average the models every `every` rows, with momentum on the averages.

    Problem: rare averages save bytes and lose accuracy; momentum over the averages wins some of it back for free.

    Update: after every `every` rows, with x the model that all ranks had after the last exchange::

        u <- beta u + (x - mean of models);  x <- x - rate u

    Source: Wang, Tantia, Ballas and Rabbat 2020, algorithm 1. There u is divided by the rate of the local steps, which
    is the same where that is constant; ours is in units of the model, so that ranks with different step counters agree.
    Where rates fall, as they do by default, it therefore repeats the longer steps of earlier rounds: beta is 0.2 from
    four ranks on. The released code (fairscale), for networks, raises it to 0.5 for 8 ranks and 0.6 for 16; it also has
    the rate of 1. BMUF (Chen and Huo 2016) is a special case.

    Parameters
    ----------
    every : int or None, default None
        Rows of the rank with the most rows between two averages; None as for `LocalSGD`.
    slow_momentum : float or None, default None
        beta, in [0, 1); None is `slow_momentum_for` the number of ranks.
    slow_rate : float, default 1
        Rate of the outer step.
    momentum : {"keep", "zero", "average"}, default "keep"
        What happens to the momentum of a local rule at an average.
    compressor : AbstractCompressor, "auto" or None, default None
        How the changes of the models are encoded; see `dsgd.sync.compression`.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    IncompatiblePartsError
        The compressor is made for gradients.
    """

    every: int | None = number(None, low=1)
    slow_momentum: float | None = number(None, low=0, high=1, open_high=True)
    slow_rate: float = number(1.0, low=0, open_low=True)
    momentum: MomentumPolicy = "keep"
    compressor: Compressor = None

    def sync(self, group: Group, vector: FloatVector, weight: float, state: OuterState) -> None:
        """Take a heavy-ball outer step; see `AbstractStrategy.sync`."""
        beta = slow_momentum_for(group.size) if self.slow_momentum is None else self.slow_momentum
        rate, compressor = self.slow_rate, self.compressor
        outer_step(group, vector, weight, state, compressor, rate=rate, beta=beta, nesterov=False)


@dataclass(frozen=True)
class DiLoCo(AbstractOuter):
    """Take a Nesterov step along the mean change of the models every `every` rows.

    Problem: ranks far apart, between which a vector can be sent only once in hundreds of steps.

    Update: after every `every` rows, with x the model that all ranks had after the last exchange::

        u <- beta u + (x - mean of models);  x <- x - rate ((x - mean of models) + beta u)

    What local rules remember (AdamW there) is neither sent nor reset. Source: Douillard et al. 2023, algorithm 1; rate
    and momentum as in OpenDiLoCo (0.7 and 0.9), where a model takes tens of thousands of steps. What the momentum adds
    up to is an effective outer rate of rate / (1 - beta): 7 there, and 1 is local SGD. Our defaults, 0.7 and 0.7, have
    2.3: the local rates of ``learning_rate="optimal"`` are large and rounds are few, so that 7 overshoots. Beside local
    SGD, five epochs of four generated sets, one seed each, end up to 5 % higher with 7, and 0.4 % with 2.3. At constant
    rates 2.3 ends up to 37 % lower where these are too small, and up to 4 % higher where they are too large.

    Parameters
    ----------
    every : int, default 2048
        Rows of the rank with the most rows between two exchanges.
    outer_rate : float, default 0.7
        Rate of the outer step.
    outer_momentum : float, default 0.7
        beta, in [0, 1).
    compressor : AbstractCompressor, "auto" or None, default None
        How the changes of the models are encoded; see `dsgd.sync.compression`.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    IncompatiblePartsError
        The compressor is made for gradients.
    """

    every: int = number(2048, low=1)
    outer_rate: float = number(0.7, low=0, open_low=True)
    outer_momentum: float = number(0.7, low=0, high=1, open_high=True)
    compressor: Compressor = None

    def sync(self, group: Group, vector: FloatVector, weight: float, state: OuterState) -> None:
        """Take a Nesterov outer step; see `AbstractStrategy.sync`."""
        rate, beta = self.outer_rate, self.outer_momentum
        outer_step(group, vector, weight, state, self.compressor, rate=rate, beta=beta, nesterov=True)
