"""The mean of the last models of an epoch, from which the next epoch starts and which training returns.

Problem: with rates 1 / (alpha t), the noise of the last model is proportional to the length of its last steps. One rank
takes a step per row, so they are short after some epochs. A server takes one per batch, along stale gradients: after as
many rows its steps are several times as long. Threads on one model overwrite each other's steps. Shortening steps by a
factor does not help if rows are long: with steps far beyond the margin the hinge is a perceptron, whose decisions do
not depend on the rate at all.

Update: the models after the last share of the steps of an epoch are added up, and at its end their mean takes the place
of the model. Whatever the scale of the rows, that takes the noise away.

With an L1 penalty a mean of models has hardly a zero. There it is of their duals, and the model is made again from it
(`dsgd.local.dual`).

Cost: one more pass over the model for each that is added, and one more vector.

Source: Rakhlin, Shamir and Sridharan 2012 (alpha-suffix averaging: on losses with corners the mean of the last half of
T steps at these rates is within 1 / T of the minimum, that of all only within log(T) / T); Hazan and Kale 2014
(Epoch-GD: every epoch begins with the mean of the one before).
"""

from __future__ import annotations

import math

import numpy as np

from dsgd.kernels.dual import to_primal
from dsgd.kernels.state import L1_TOTAL
from dsgd.local.sgd_state import SGDState
from dsgd.types import FloatVector


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
