"""DiLoCo: many local steps, then a step with Nesterov momentum along their average change.

Problem: ranks far apart, between which a vector can be sent only once in hundreds of steps.

Update: the Nesterov step of `dsgd.sync.outer.outer_step`, after every `every` rows::

    u <- beta u + (x - mean of models);  x <- x - rate ((x - mean of models) + beta u)

What local rules remember (AdamW there) is neither sent nor reset.

Cost per round: one all-reduce of the model. Two more vectors per rank.

Source: Douillard et al. 2023, algorithm 1; rate and momentum as in OpenDiLoCo (0.7 and 0.9), where a model takes tens
of thousands of steps. The effective outer rate is rate / (1 - beta), which is 7 there: right for many short rounds of
small local rates. Our defaults, 0.7 and 0.3, have 1: on linear models the local rates of ``learning_rate="optimal"``
are large, rounds are few, and 7 overshoots.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsgd.collectives.group import Group
from dsgd.sync.compression import Compressor, check_compressor
from dsgd.sync.outer import AbstractOuter, OuterState, outer_step
from dsgd.types import FloatVector
from dsgd.validation import check_numbers

__all__ = ["DiLoCo"]


@dataclass(frozen=True)
class DiLoCo(AbstractOuter):
    """Take a Nesterov step along the mean change of the models every `every` rows.

    Parameters
    ----------
    every : int, default 2048
        Rows of the rank with the most rows between two exchanges.
    outer_rate : float, default 0.7
        Rate of the outer step.
    outer_momentum : float, default 0.3
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

    every: int = 2048
    outer_rate: float = 0.7
    outer_momentum: float = 0.3
    compressor: Compressor = None

    def __post_init__(self) -> None:
        check_numbers(self, "every", low=1, integer=True)
        check_numbers(self, "outer_rate", low=0, open_low=True)
        check_numbers(self, "outer_momentum", low=0, high=1, open_high=True)
        check_compressor(self)

    def sync(self, group: Group, vector: FloatVector, weight: float, state: OuterState) -> None:
        """Take a Nesterov outer step; see `AbstractStrategy.sync`."""
        rate, beta = self.outer_rate, self.outer_momentum
        outer_step(group, vector, weight, state, self.compressor, rate=rate, beta=beta, nesterov=True)
