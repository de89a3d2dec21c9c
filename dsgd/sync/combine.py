"""Which strategies and local optimisers can be combined; others are refused before training."""

from __future__ import annotations

from typing import Any

from dsgd.compress import DGC
from dsgd.errors import IncompatiblePartsError
from dsgd.local import Steps
from dsgd.sync.anytime import AnytimeSGD
from dsgd.sync.base import AbstractStrategy
from dsgd.sync.scaffold import SCAFFOLD

__all__ = ["check_combination"]


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
    """
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
    if isinstance(strategy.compressor, DGC) and steps.remembers:
        raise IncompatiblePartsError(
            f"{strategy.compressor!r} already applies momentum to what it sends, so it needs an optimizer without "
            f"momentum. Got {steps.name}."
        )
    if isinstance(strategy, AnytimeSGD) and not steps.by_row:
        raise IncompatiblePartsError(
            f"{strategy!r} counts rows by steps, and {steps.name} takes one step for many rows. Use LocalSGD, or "
            "an optimizer that takes a step per row."
        )
    if isinstance(strategy, SCAFFOLD) and not steps.is_plain:
        raise IncompatiblePartsError(
            f"{strategy!r} computes the mean gradient from the changes made by plain steps, and {steps.name} "
            "takes other steps. Use an optimizer without momentum, or another strategy, such as SlowMo."
        )
