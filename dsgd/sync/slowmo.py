"""SlowMo: local SGD with slow momentum on the averages.

Problem: rare averages save bytes and lose accuracy; momentum over the averages wins some of it back for free.

Update: the heavy-ball outer step of `dsgd.sync.outer`, after every `every` rows::

    u <- beta u + (x - mean of models);  x <- x - rate u

Cost per round: one all-reduce of the model. Two more vectors per rank.

Source: Wang, Tantia, Ballas and Rabbat 2020, algorithm 1. There u is divided by the rate of the local steps, which is
the same where that is constant; ours is in units of the model, so that ranks with different step counters agree. Where
rates fall, as they do by default, it therefore repeats the longer steps of earlier rounds: beta is 0.2 from four ranks
on. The released code (fairscale), for networks, raises it to 0.5 for 8 ranks and 0.6 for 16; it also has the rate of 1.
BMUF (Chen and Huo 2016) is a special case.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsgd.collectives.group import Group
from dsgd.sync.compression import Compressor, check_compressor
from dsgd.sync.momentum import MomentumPolicy, check_momentum
from dsgd.sync.outer import AbstractOuter, OuterState, outer_step
from dsgd.types import FloatVector
from dsgd.validation import check_numbers

__all__ = ["SlowMo", "slow_momentum_for"]


def slow_momentum_for(size: int) -> float:
    """Return the slow momentum for so many ranks: 0 below 4, else 0.2."""
    return 0.0 if size < 4 else 0.2


@dataclass(frozen=True)
class SlowMo(AbstractOuter):
    """Average the models every `every` rows, with momentum on the averages.

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

    every: int | None = None
    slow_momentum: float | None = None
    slow_rate: float = 1.0
    momentum: MomentumPolicy = "keep"
    compressor: Compressor = None

    def __post_init__(self) -> None:
        check_numbers(self, "every", low=1, integer=True, optional=True)
        check_numbers(self, "slow_momentum", low=0, high=1, open_high=True, optional=True)
        check_numbers(self, "slow_rate", low=0, open_low=True)
        check_momentum(self)
        check_compressor(self)

    def sync(self, group: Group, vector: FloatVector, weight: float, state: OuterState) -> None:
        """Take a heavy-ball outer step; see `AbstractStrategy.sync`."""
        beta = slow_momentum_for(group.size) if self.slow_momentum is None else self.slow_momentum
        rate, compressor = self.slow_rate, self.compressor
        outer_step(group, vector, weight, state, compressor, rate=rate, beta=beta, nesterov=False)
