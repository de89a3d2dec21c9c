"""Elastic averaging SGD: an elastic force between every rank and a common centre.

Problem: an average throws away where each rank has got to. Springs let ranks explore around a centre that only moves
slowly, and rare exchanges then cost less accuracy.

Update, in Jacobi form, both from old values, with a = beta / P::

    x_p    <- x_p - a (x_p - centre)
    centre <- (1 - beta) centre + beta (1 / P) sum_q x_q

The sum of all models and the centre stays: the centre gains what the models lose. The centre is returned.
With momentum in the local steps (`dsgd.local.Momentum` with ``nesterov=True``) it is EAMSGD.

Cost per round: one all-reduce of the model, `dsgd.collectives.allreduce_cost`: every rank holds the centre, so there is
no server. One more vector per rank.

Source: Zhang, Choromanska and LeCun 2015, equations 2 and 3 (synchronous), beta = 0.9 as recommended there.
Springs are alike; of ranks with unequal shards the steps are scaled (`dsgd.sync.weighing`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dsgd.collectives.group import Group
from dsgd.handover import ALIKE
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractStrategy
from dsgd.sync.taxonomy import Taxonomy
from dsgd.types import FloatVector
from dsgd.validation import check_numbers

__all__ = ["EASGD", "CentreState"]


@dataclass
class CentreState:
    """The state of elastic averaging.

    Parameters
    ----------
    centre : array, shape (n_params,)
        The centre, equal on all ranks.
    """

    centre: FloatVector = field(metadata=ALIKE)

    def __post_init__(self) -> None:
        self.scratch = np.empty_like(self.centre)


@dataclass(frozen=True)
class EASGD(AbstractStrategy[CentreState]):
    """Pull models and a centre towards each other every `every` rows.

    Parameters
    ----------
    every : int, default 256
        Rows of the rank with the most rows between two exchanges.
    beta : float, default 0.9
        How far the centre moves to the mean of the models, in [0, 1]; each rank moves ``beta / P`` of its distance to
        the centre. 0 leaves all ranks alone.

    Raises
    ------
    InvalidParameterError
        A value is out of range; above 1 the centre would swing.
    """

    every: int = 256
    beta: float = 0.9
    weighs = "alike"
    ends_equal = False
    collects = False
    taxonomy = Taxonomy("decentralised", "synchronous", "change", "all-reduce")

    def __post_init__(self) -> None:
        check_numbers(self, "every", low=1, integer=True)
        check_numbers(self, "beta", low=0, high=1)

    def init(self, group: Group, params: FloatVector, weight: float) -> CentreState:
        """Return the model to start from as the centre."""
        return CentreState(params.copy())

    def sync(self, group: Group, vector: FloatVector, weight: float, state: CentreState) -> None:
        """Exchange by springs; see `AbstractStrategy.sync`."""
        if group.size == 1:
            return
        centre, pull = state.centre, state.scratch
        np.subtract(vector, centre, out=pull)
        # The mean distance is all that the centre needs; to sum distances keeps digits that models would lose.
        vector -= vector.dtype.type(self.beta / group.size) * pull
        weighted_mean(group, pull, 1.0 / group.size)
        pull *= vector.dtype.type(self.beta)
        centre += pull

    def collect(self, group: Group, params: FloatVector, weight: float, state: CentreState) -> None:
        """Return the centre."""
        if group.size > 1:
            params[:] = state.centre
