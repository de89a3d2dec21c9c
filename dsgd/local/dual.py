"""Averaging with an L1 penalty: ranks average their models before the penalty.

Problem: a mean of models has hardly a zero, since a weight is zero on some ranks and not on others. And a weight pays
its penalty when its feature is seen: a rank that has not seen it brings it unpaid into the mean, so that a feature
which few ranks see pays a share of its penalty.

Method: with the cumulative penalty, a weight w is z, the sum of its steps without penalty, moved towards zero by u, the
penalty due so far (`dsgd.kernels.dual`). Ranks mix z and u as the strategy says, and compute the model from the
results. With means of both, that is one soft threshold after the mean, by the mean of the sums of their rates. The
state of a strategy (an anchor, a centre, a velocity, a residual) is then in terms of z and u, too. All operations of
strategies are linear, so a model that the steps of one rank leave unchanged stays unchanged.

Cost: two passes over the weights per exchange, one number more on the wire; nothing without an L1 penalty.

Source: Yuan, Zaheer and Reddi 2021 (federated dual averaging, algorithm 2: primal averages lose the zeros); theirs is
for local SGD with rates of rounds; here the mean of the ranks' sums of rates takes their place.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from dsgd.kernels.dual import to_dual, to_primal
from dsgd.types import FloatVector


class Dual:
    """A model of one rank that turns into its dual and back, in the same memory."""

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
