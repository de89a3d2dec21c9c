"""The state of SGD on linear models: what changes from step to step, beside the model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dsgd.kernels import state as places
from dsgd.local.base import AbstractState
from dsgd.local.features import FeatureBlocks
from dsgd.local.rules import RuleState
from dsgd.local.sampling import SamplingState
from dsgd.local.variance import ReductionState
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntMatrix, IntVector


@dataclass
class SGDState(AbstractState):
    """The state of SGD, and its scratch memory.

    - `counters`, shape (COUNTERS + n_losses,): what the attributes t, eta_scale, loss_sum, n_averaged and
      output_losses read and write.
    - `received`, shape (n_weights,) or (0,): L1 penalty each weight has received, if there is one. It is this
      rank's own: averaging models leaves it alone.
    - `order`, shape (2, n_blocks + 1): the order in which the present epoch walks the rows, see `dsgd.local.order`.
    - `suffix`, shape (n_params + 2,) or (0,): sums over the last models of the present epoch, where their mean is
      made; see `dsgd.local.suffix`.
    """

    counters: FloatVector
    constants: FloatVector
    codes: IntVector
    class_weights: FloatMatrix
    auxiliary: FloatVector
    received: FloatVector
    order: IntMatrix = field(repr=False)
    factors: FloatVector = field(repr=False)
    rule: RuleState | None = None
    suffix: FloatVector = field(default_factory=lambda: np.zeros(0), repr=False)
    sampling: SamplingState | None = None
    reduction: ReductionState | None = None
    features: FeatureBlocks | None = field(default=None, repr=False)

    @property
    def averaged(self) -> FloatVector | None:
        """The averaged model, shape (n_params,), to read or write in place; None if averaging is off."""
        return self.auxiliary if self.auxiliary.size else None

    @property
    def is_finite(self) -> bool:
        """Whether every prediction so far was finite; see `is_finite` for the model itself."""
        return bool(self.counters[places.GUARD] == 0.0)

    def memory(self) -> dict[str, FloatVector]:
        """Return what the rule remembers; see `AbstractState.memory`."""
        return {} if self.rule is None else self.rule.memory()

    def vectors(self) -> dict[str, AnyArray]:
        """Return the average of the iterates, the L1 penalty that weights have received, the sums of last models.

        And what belongs to the rows, where something is remembered of each.
        """
        kept = self.sampling or self.reduction
        of_rows = {} if kept is None else kept.vectors()
        return {"averaged": self.auxiliary, "received": self.received, "suffix": self.suffix, **of_rows}

    def statistics(self) -> dict[str, AnyArray]:
        """Return nothing: a linear model is its parameters."""
        return {}
