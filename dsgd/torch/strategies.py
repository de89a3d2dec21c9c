"""What ``sync``, ``compressor`` and a batch mean together, for modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dsgd.compress import AbstractCompressor, Layerwise
from dsgd.errors import IncompatiblePartsError
from dsgd.sync import AbstractStrategy, MinibatchSGD, resolve
from dsgd.torch.flat import FlatModule

__all__ = ["bound_to", "strategy_for"]


def strategy_for(
    sync: AbstractStrategy[Any] | int | str | None, compressor: AbstractCompressor[Any] | str | None, batch_size: int
) -> AbstractStrategy[Any]:
    """Return a strategy.

    Parameters
    ----------
    sync : AbstractStrategy, int, str or None
        As in `dsgd.sync.resolve`, but None is synchronous SGD.
    compressor : AbstractCompressor, "auto" or None
        That of the strategy, if it is not None.
    batch_size : int
        Rows of a batch of all ranks, where `sync` is None.

    Raises
    ------
    IncompatiblePartsError
        The strategy takes no compressor, or has one already.
    """
    strategy: Any = MinibatchSGD(batch_size) if sync is None else resolve(sync)
    if compressor is None:
        return strategy  # type: ignore[no-any-return]
    if "compressor" not in vars(strategy):
        raise IncompatiblePartsError(f"sync={strategy!r} takes no compressor. Got compressor={compressor!r}.")
    if strategy.compressor is not None:
        raise IncompatiblePartsError(
            f"sync={strategy!r} has a compressor already. Leave out compressor={compressor!r}."
        )
    return replace(strategy, compressor=compressor)  # type: ignore[no-any-return]


def bound_to(strategy: AbstractStrategy[Any], flat: FlatModule) -> AbstractStrategy[Any]:
    """Return a strategy whose compressor knows the tensors of a module, where it goes tensor by tensor.

    Raises
    ------
    InvalidParameterError
        A pattern matches none of them.
    """
    compressor = getattr(strategy, "compressor", None)
    if not isinstance(compressor, Layerwise) or compressor.tensors:
        return strategy
    changed: Any = strategy
    return replace(changed, compressor=compressor.bound(flat.shapes))  # type: ignore[no-any-return]
