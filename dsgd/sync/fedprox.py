"""FedProx: local SGD with a penalty on the distance from the last average.

Problem: where ranks have rows of different kinds, many local steps lead each of them to a place of its own, and the
mean of those is no good.

Update: rank p minimises ``f_p(x) + (mu / 2) ||x - anchor||^2``, the anchor being the last average; then ``x_p <- sum_q
v_q x_q`` with v of `dsgd.sync.weighing`. The spring is applied every `stretch` rows (with a local rule, after every
minibatch) as an implicit step, which is stable at any rate: with s the sum of the rates since the last time,
``x <- (x + s mu anchor) / (1 + s mu)``.

Cost per round: one all-reduce of the model, `dsgd.collectives.allreduce_cost`, and a pass over the model per stretch.
One more vector per rank.

Source: Li, Sahu, Zaheer et al. 2020, algorithm 2, with all ranks in every round; theirs leaves the local solver open.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dsgd.collectives.group import Group
from dsgd.handover import ALIKE
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractLocalTerm, AbstractStrategy, LocalSteps
from dsgd.sync.momentum import MomentumPolicy, check_momentum
from dsgd.sync.taxonomy import Taxonomy
from dsgd.types import FloatVector
from dsgd.validation import check_numbers

__all__ = ["AnchorState", "FedProx"]


@dataclass
class AnchorState:
    """The state of FedProx.

    Parameters
    ----------
    anchor : array, shape (n_params,)
        The last average.
    """

    anchor: FloatVector = field(metadata=ALIKE)


@dataclass(frozen=True)
class FedProx(AbstractStrategy[AnchorState], AbstractLocalTerm[AnchorState]):
    """Average the models every `every` rows, and hold them near the last average in between.

    Parameters
    ----------
    every : int or None, default None
        Rows of the rank with the most rows between two averages; None as for `LocalSGD`.
    mu : float, default 0.001
        Strength of the spring; 0 is local SGD. The source tries 0.001 to 1.
    stretch : int, default 64
        Rows between two pulls.
    momentum : {"keep", "zero", "average"}, default "keep"
        What happens to the momentum of a local rule at an average.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    every: int | None = None
    mu: float = 0.001
    stretch: int = 64
    momentum: MomentumPolicy = "keep"
    weighs = "rates"
    taxonomy = Taxonomy("decentralised", "synchronous", "model", "all-reduce")

    def __post_init__(self) -> None:
        check_numbers(self, "every", low=1, integer=True, optional=True)
        check_numbers(self, "stretch", low=1, integer=True)
        check_numbers(self, "mu", low=0)
        check_momentum(self)

    def init(self, group: Group, params: FloatVector, weight: float) -> AnchorState:
        """Return the model to start from as the anchor."""
        return AnchorState(params.copy())

    def correct(self, params: FloatVector, steps: LocalSteps, state: AnchorState) -> None:
        """Pull the model to the anchor; see `AbstractLocalTerm.correct`."""
        strength = steps.rate_sum * self.mu
        if strength > 0.0:
            params -= params.dtype.type(strength / (1.0 + strength)) * (params - state.anchor)

    def sync(self, group: Group, vector: FloatVector, weight: float, state: AnchorState) -> None:
        """Replace the model, and the anchor, by the weighted mean of all models; see `AbstractStrategy.sync`."""
        if group.size > 1:
            weighted_mean(group, vector, weight)
            state.anchor[:] = vector
