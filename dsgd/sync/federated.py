"""Strategies against drift where ranks have unlike rows, SCAFFOLD and FedProx; which strategies go with which steps.

A local term is applied every `stretch` rows (with a local rule, after every minibatch), for the rates of all steps
since the last time at once: every step of a sparse row would otherwise cost a pass over the model. Where ranks have
rows of different kinds, local steps lead each of them to the minimum of its own, and the fixed point of local SGD is
not the minimum of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import numpy as np

from dsgd.collectives.group import Group
from dsgd.compress.base import AbstractCompressor
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.handover import ALIKE
from dsgd.local.base import Steps
from dsgd.sync.averaging import MomentumPolicy, weighted_mean
from dsgd.sync.base import AbstractLocalTerm, AbstractRejoining, AbstractStrategy, Exchange, LocalSteps, Talk
from dsgd.sync.period import AbstractPeriod, Taxonomy, Weighing
from dsgd.types import FloatVector
from dsgd.validation import number


@dataclass
class ControlState(AbstractRejoining):
    """The state of SCAFFOLD."""

    # x, the model that all ranks had after the last exchange.
    anchor: FloatVector = field(metadata=ALIKE)
    # c, equal on all ranks.
    common: FloatVector
    # c_p of this rank.
    own: FloatVector
    # Sum of the rates of the steps since the last exchange.
    rate_sum: FloatVector

    def __post_init__(self) -> None:
        self.scratch = np.empty((2, self.anchor.shape[0]), self.anchor.dtype)
        # Of the rows of this rank in those of all; what is no field is not handed on to other ranks.
        self.share = 1.0

    def rejoin(self, params: FloatVector) -> None:
        """Take the mean of the controls, which each rank now has for its own, for the common one: they cancel."""
        self.common[:] = self.own


@dataclass(frozen=True)
class SCAFFOLD(AbstractStrategy[ControlState], AbstractLocalTerm[ControlState]):
    """Average the models every `every` rows, and correct local steps for differences between ranks.

    Update: every rank keeps c_p, its mean gradient over the last round, and c, the mean of them all; local steps go
    along ``g - c_p + c``. After a round from the common model x to y_p, with s the sum of the rates of its steps::

        c_p <- c_p - c + (x - y_p) / s
        x   <- x + rate (sum_q v_q y_q - x);  c <- sum_q (n_q / n) c_q

    V are the shares of `dsgd.sync.period`; once controls are right, any weights of the models lead to the minimum of
    the whole. Steps must be plain ones: the change that other rules make, divided by their rates, is not a gradient.

    Cost per round: one all-reduce of twice the model, `dsgd.collectives.allreduce_cost`, and a pass over the model per
    stretch. Three more vectors per rank.

    Source: Karimireddy, Kale, Mohri et al. 2020, algorithm 1, option II, with all ranks in every round; weighted by
    rows here.

    Parameters
    ----------
    every : int or None, default None
        Rows of the rank with the most rows between two exchanges; None as for `LocalSGD`.
    rate : float, default 1
        How far the common model moves to the mean of the models.
    stretch : int, default 64
        Rows between two corrections.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    every: int | None = number(None, low=1)
    rate: float = number(1.0, low=0, open_low=True)
    stretch: int = number(64, low=1)
    weighs = "rates"
    taxonomy = Taxonomy("decentralised", "synchronous", "model", "all-reduce")

    def sent_values(self, n_params: int) -> int:
        """Return the length of the model and of the control variate."""
        return 2 * n_params

    def init(self, group: Group, params: FloatVector, weight: float) -> ControlState:
        """Return the model to start from, and controls of zero."""
        state = ControlState(params.copy(), np.zeros_like(params), np.zeros_like(params), np.zeros(1))
        state.share = weight
        return state

    def correct(self, params: FloatVector, steps: LocalSteps, state: ControlState) -> None:
        """Apply the correction for some steps; see `AbstractLocalTerm.correct`."""
        state.rate_sum += steps.rate_sum
        correction = state.scratch[0]
        np.subtract(state.common, state.own, out=correction)
        correction *= params.dtype.type(steps.rate_sum)
        params -= correction

    def sync(self, group: Group, vector: FloatVector, weight: float, state: ControlState) -> None:
        """Exchange models and controls; see `AbstractStrategy.sync`."""
        if group.size == 1:
            return
        anchor, own = state.anchor, state.own
        mean_model, mean_control = state.scratch
        if state.rate_sum[0] > 0.0:
            np.subtract(anchor, vector, out=mean_model)
            mean_model /= vector.dtype.type(state.rate_sum[0])
            own -= state.common
            own += mean_model
        mean_model[:], mean_control[:] = vector, own
        if state.share != weight:
            # Controls are means over rows, and count by them.
            mean_control *= vector.dtype.type(state.share / weight if weight else 0.0)
        weighted_mean(group, state.scratch.reshape(-1), weight)
        state.common[:] = mean_control
        if self.rate != 1.0:
            mean_model -= anchor
            mean_model *= vector.dtype.type(self.rate)
            mean_model += anchor
        anchor[:] = vector[:] = mean_model
        state.rate_sum[0] = 0.0


@dataclass
class AnchorState:
    """The state of FedProx."""

    # The last average.
    anchor: FloatVector = field(metadata=ALIKE)


@dataclass(frozen=True)
class FedProx(AbstractStrategy[AnchorState], AbstractLocalTerm[AnchorState]):
    """Average the models every `every` rows, and hold them near the last average in between.

    Update: rank p minimises ``f_p(x) + (mu / 2) ||x - anchor||^2``, the anchor being the last average; then ``x_p <-
    sum_q v_q x_q`` with v of `dsgd.sync.period`. The spring is applied every `stretch` rows as an implicit step, which
    is stable at any rate: with s the sum of the rates since the last time, ``x <- (x + s mu anchor) / (1 + s mu)``.

    Cost per round: one all-reduce of the model, `dsgd.collectives.allreduce_cost`, and a pass over the model per
    stretch. One more vector per rank.

    Source: Li, Sahu, Zaheer et al. 2020, algorithm 2, with all ranks in every round; theirs leaves the local solver
    open.

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

    every: int | None = number(None, low=1)
    mu: float = number(0.001, low=0)
    stretch: int = number(64, low=1)
    momentum: MomentumPolicy = "keep"
    weighs = "rates"
    taxonomy = Taxonomy("decentralised", "synchronous", "model", "all-reduce")

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


#: What a strategy declares in one word of several.
_WORDS: Final = {"exchanges": Exchange, "talks": Talk, "weighs": Weighing, "momentum": MomentumPolicy}


def check_declared(strategy: AbstractStrategy[Any]) -> None:
    """Raise if what a strategy says of itself is no word that the rank loop knows, or if it has no period."""
    kind = type(strategy).__name__
    for name, choices in _WORDS.items():
        value = getattr(strategy, name)
        if value not in get_args(choices):
            known = ", ".join(map(repr, get_args(choices)))
            raise InvalidParameterError(f"{kind}.{name} must be one of {known}. Got {value!r}.")
    try:
        period = strategy.period
    except AttributeError as error:
        raise InvalidParameterError(
            f"{kind} says not when ranks synchronise: give it a field `every` (rows), or a property `period`, such as "
            f"dsgd.sync.EveryRows(64) ({error})."
        ) from error
    if not isinstance(period, AbstractPeriod):
        raise InvalidParameterError(f"{kind}.period must be a period of dsgd.sync, as EveryRows(64). Got {period!r}.")


def check_combination(strategy: AbstractStrategy[Any], steps: Steps) -> None:
    """Raise if a strategy and the steps of a local optimiser contradict each other.

    Parameters
    ----------
    strategy : AbstractStrategy
        When ranks exchange, and what.
    steps : Steps
        How they step.

    Raises
    ------
    IncompatiblePartsError
        Both are named.
    InvalidParameterError
        What the strategy says of itself means nothing; see `check_declared`.
    """
    check_declared(strategy)
    if not steps.remembers and strategy.momentum != "keep":
        raise IncompatiblePartsError(
            f"{strategy!r} sets what happens to momentum, but {steps.name} has none. Pass an optimizer that has, such "
            "as Momentum(0.9), or leave momentum='keep'."
        )
    if strategy.exchanges == "gradient" and steps.rows_given:
        raise IncompatiblePartsError(
            f"{strategy!r} has a batch of its own, so {steps.name} must leave its batch at None: ranks exchange the "
            "gradient of every batch."
        )
    sends = strategy.compressor
    if sends is not None and steps.remembers and _has_momentum(sends):
        raise IncompatiblePartsError(
            f"{sends!r} already applies momentum to what it sends, so it needs an optimizer without "
            f"momentum. Got {steps.name}."
        )
    if strategy.seconds is not None and not steps.by_row:
        raise IncompatiblePartsError(
            f"{strategy!r} counts rows by steps, and {steps.name} takes one step for many rows. Use LocalSGD, or "
            "an optimizer that takes a step per row."
        )
    if (strategy.seconds is not None or strategy.shares_memory) and steps.draws_rows:
        raise IncompatiblePartsError(
            f"{strategy!r} goes round the rows in an order of its own, and {steps.name} draws them. Use LocalSGD, or "
            "neither a sampling nor SAGA."
        )
    if steps.reduces:
        _check_reduction(strategy, steps)
    if isinstance(strategy, SCAFFOLD) and not steps.is_plain:
        raise IncompatiblePartsError(
            f"{strategy!r} computes the mean gradient from the changes made by plain steps, and {steps.name} "
            "takes other steps. Use an optimizer without momentum, or another strategy, such as SlowMo."
        )


def _has_momentum(compressor: AbstractCompressor[Any] | Literal["auto"]) -> bool:
    """Return whether a compressor applies momentum to what it sends."""
    from dsgd.compress import DGC, DeMo

    return isinstance(compressor, DeMo) or (isinstance(compressor, DGC) and compressor.momentum > 0.0)


def _check_reduction(strategy: AbstractStrategy[Any], steps: Steps) -> None:
    """Raise if a strategy breaks the account of what steps of reduced variance remember of rows."""
    has_own_steps = strategy.seconds is not None or strategy.shares_memory
    if has_own_steps or strategy.n_servers or strategy.talks == "by mailbox":
        raise IncompatiblePartsError(
            f"{strategy!r} has steps of its own, or stale ones, and {steps.name} needs every step to follow what it "
            "remembers of each row. Use LocalSGD or MinibatchSGD, or another optimizer."
        )
    if strategy.exchanges == "gradient" and strategy.compressor is not None:
        raise IncompatiblePartsError(
            f"{strategy.compressor!r} changes gradients on the way, and {steps.name} remembers them as they were. "
            "Leave compressor=None, or exchange models."
        )
