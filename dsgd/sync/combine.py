"""Which strategies and local rules go together; what does not is refused before work starts."""

from __future__ import annotations

from typing import Any

from dsgd.compress import DGC
from dsgd.errors import IncompatiblePartsError
from dsgd.local import AbstractRule, Momentum
from dsgd.sync.anytime import AnytimeSGD
from dsgd.sync.base import AbstractStrategy
from dsgd.sync.scaffold import SCAFFOLD

__all__ = ["check_combination"]


def check_combination(strategy: AbstractStrategy[Any], rule: AbstractRule | None) -> None:
    """Raise if a strategy and a local rule contradict each other.

    Parameters
    ----------
    strategy : AbstractStrategy
        When ranks talk and what they say.
    rule : AbstractRule or None
        How they step; None is plain SGD.

    Raises
    ------
    IncompatiblePartsError
        Both are named.
    """
    if rule is None:
        if strategy.momentum != "keep":
            raise IncompatiblePartsError(
                f"{strategy!r} says what becomes of momentum, but without an optimizer there is none. Pass one, "
                "such as optimizer=Momentum(0.9), or leave momentum='keep'."
            )
        return
    if strategy.exchanges == "gradient" and rule.batch is not None:
        raise IncompatiblePartsError(
            f"{strategy!r} has a batch of its own, so {rule!r} must have batch=None: ranks exchange the gradient of "
            "every batch."
        )
    if isinstance(strategy.compressor, DGC):
        raise IncompatiblePartsError(
            f"{strategy.compressor!r} has the momentum of what it sends already, so it goes with optimizer=None. Got "
            f"{rule!r}."
        )
    if isinstance(strategy, AnytimeSGD):
        raise IncompatiblePartsError(
            f"{strategy!r} counts rows by steps, and {rule!r} takes one step for many rows. Use LocalSGD, or "
            "optimizer=None."
        )
    if isinstance(strategy, SCAFFOLD) and rule != Momentum(0.0, batch=rule.batch):
        raise IncompatiblePartsError(
            f"{strategy!r} takes what steps have changed, over their rates, for the mean gradient, and the steps of "
            f"{rule!r} are no plain ones. Use optimizer=Momentum(0.0) or None, or another strategy, such as SlowMo."
        )
