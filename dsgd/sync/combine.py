"""Which strategies and local optimisers can be combined; others are refused before training.

So are strategies that say of themselves what means nothing.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from dsgd.compress.base import AbstractCompressor
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.local import Steps
from dsgd.sync.base import AbstractStrategy, Exchange, Talk
from dsgd.sync.federated import SCAFFOLD
from dsgd.sync.momentum import MomentumPolicy
from dsgd.sync.period import AbstractPeriod
from dsgd.sync.weighing import Weighing

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
