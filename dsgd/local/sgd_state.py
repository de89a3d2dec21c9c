"""The state of SGD, its dual with an L1 penalty, and the mean of its last models.

**The mean of the last models of an epoch**, from which the next one starts and which training returns. With rates 1 /
(alpha t), the noise of the last model is proportional to the length of its last steps. One rank takes a step per row,
so they are short after some epochs. A server takes one per batch, along stale gradients: after as many rows its steps
are several times as long. Threads on one model overwrite each other's steps. Shortening steps by a factor does not help
if rows are long: with steps far beyond the margin the hinge is a perceptron, whose decisions do not depend on the rate
at all.

Update: the models after the last share of the steps of an epoch are added up, and at its end their mean takes the place
of the model. Whatever the scale of the rows, that takes the noise away. With an L1 penalty the mean is of duals, and
the model is made again from it (`Dual`).

Cost: one more pass over the model for each that is added, and one more vector. Source: Rakhlin, Shamir and Sridharan
2012 (alpha-suffix averaging: on losses with corners the mean of the last half of T steps at these rates is within 1 / T
of the minimum, that of all only within log(T) / T); Hazan and Kale 2014 (Epoch-GD: every epoch begins with the mean of
the one before).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dsgd.kernels import state as places
from dsgd.kernels.scaled import to_dual, to_primal
from dsgd.kernels.state import L1_TOTAL
from dsgd.local.base import AbstractState
from dsgd.local.features import FeatureBlocks
from dsgd.local.rules import RuleState
from dsgd.local.variance import ReductionState, SamplingState
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntMatrix, IntVector


@dataclass
class SGDState(AbstractState):
    """The state of SGD, and its scratch memory.

    - `counters`, shape (COUNTERS + n_losses,): what the attributes t, eta_scale, loss_sum, n_averaged and
      output_losses read and write.
    - `received`, shape (n_weights,) or (0,): L1 penalty each weight has received, if there is one. It is this
      rank's own: averaging models leaves it alone.
    - `order`, shape (2, n_blocks + 1): the order in which the present epoch walks the rows, see `dsgd.local.shard`.
    - `suffix`, shape (n_params + 2,) or (0,): sums over the last models of the present epoch, where their mean is
      made.
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


class Dual:
    """A model of one rank that turns into its dual and back, in the same memory.

    Problem: a mean of models has hardly a zero, since a weight is zero on some ranks and not on others. And a weight
    pays its penalty when its feature is seen: a rank that has not seen it brings it unpaid into the mean, so that a
    feature which few ranks see pays a share of its penalty.

    Method: with the cumulative penalty, a weight w is z, the sum of its steps without penalty, moved towards zero by u,
    the penalty due so far (`dsgd.kernels.scaled`). Ranks mix z and u as the strategy says, and compute the model from
    the results. With means of both, that is one soft threshold after the mean, by the mean of the sums of their rates.
    The state of a strategy (an anchor, a centre, a velocity, a residual) is then in terms of z and u, too. All
    operations of strategies are linear, so a model that the steps of one rank leave unchanged stays unchanged.

    Cost: two passes over the weights per exchange, one number more on the wire; nothing without an L1 penalty.

    Source: Yuan, Zaheer and Reddi 2021 (federated dual averaging, algorithm 2: primal averages lose the zeros); theirs
    is for local SGD with rates of rounds; here the mean of the ranks' sums of rates takes their place.
    """

    n_whole: ClassVar[int] = 1

    def __init__(self, initial: FloatVector, received: FloatVector, counters: FloatVector) -> None:
        self.vector: FloatVector = np.append(initial, initial.dtype.type(0))
        self.params: FloatVector = self.vector[:-1]
        self._account = received, counters

    def of(self, params: FloatVector) -> Dual:
        """Return the same for a copy of a model, with a copy of the account."""
        received, counters = self._account
        return Dual(params, received.copy(), counters.copy())

    def enter(self) -> None:
        """Make `vector` the dual, to be mixed."""
        to_dual(self.vector, *self._account)

    def leave(self) -> None:
        """Make the model again from the dual, and its account."""
        to_primal(self.vector, *self._account)


def is_in_suffix(number: int, n: int, share: float) -> bool:
    """Return whether a step, from 0, is among the last of n, so large a share of them; the very last one always is."""
    return number >= n - math.ceil(share * n)


def begin_suffix(params: FloatVector, state: SGDState) -> None:
    """Make room for the sums, before the first step, and load what makes a model of them."""
    state.suffix = np.zeros(params.shape[0] + 2)
    if state.received.size:
        to_primal(np.append(params, params.dtype.type(0)), state.received.copy(), state.counters.copy())


def add_to_suffix(params: FloatVector, state: SGDState) -> None:
    """Add the model, or with an L1 penalty its dual, to the sums."""
    sums, received = state.suffix, state.received
    sums[:-2] += params
    sums[-1] += 1.0
    if received.size:
        sums[: received.shape[0]] -= received
        sums[-2] += state.counters[L1_TOTAL]


def end_suffix(params: FloatVector, state: SGDState) -> None:
    """Replace the model by the mean and start a new one; do nothing if there are no models to average."""
    sums = state.suffix
    if not sums.size or not sums[-1]:
        return
    # In place: of a model of many weights no other is made.
    sums[:-1] /= sums[-1]
    if state.received.size:
        mean = sums[:-1].astype(params.dtype)
        to_primal(mean, state.received, state.counters)
        params[:] = mean[:-1]
    else:
        params[:] = sums[:-2]
    sums.fill(0.0)
