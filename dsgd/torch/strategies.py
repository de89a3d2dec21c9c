"""The strategy that ``sync``, ``compressor`` and a batch size select for modules."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from dsgd.compress import AbstractCompressor, Layerwise
from dsgd.errors import IncompatiblePartsError
from dsgd.local.base import Steps
from dsgd.sync import AbstractStrategy, EveryBatch, EveryRows, GrowingBatch, MinibatchSGD, check_combination, resolve
from dsgd.torch.flat import FlatModule


def strategy_for(
    sync: AbstractStrategy[Any] | int | str | None, compressor: AbstractCompressor[Any] | str | None, batch_size: int
) -> AbstractStrategy[Any]:
    """Return a strategy."""
    strategy: Any = MinibatchSGD(batch_size) if sync is None else resolve(sync)
    if strategy.keep_models:
        raise IncompatiblePartsError(
            f"sync={strategy!r} has keep_models, for which linear models are small enough: leave it out."
        )
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
    """Return a strategy whose compressor knows the tensors of a module, where it goes tensor by tensor."""
    compressor = getattr(strategy, "compressor", None)
    if not isinstance(compressor, Layerwise) or compressor.tensors:
        return strategy
    changed: Any = strategy
    return replace(changed, compressor=compressor.bound(flat.shapes))  # type: ignore[no-any-return]


def check_loop(
    strategy: AbstractStrategy[Any], steps: Steps, batch_size: int | None, steps_per_epoch: int | None
) -> None:
    """Raise if a strategy does not go with a loop of your own."""
    what = f"sync={strategy!r}"
    if strategy.n_servers or strategy.talks == "by mailbox":
        raise IncompatiblePartsError(
            f"{what} has ranks that do not wait for each other, which needs the rank loop of "
            "dsgd.torch.TorchClassifier. Use a synchronous strategy, such as LocalSGD or EASGD."
        )
    if strategy.shares_memory:
        raise IncompatiblePartsError(
            f"{what} lets threads update one model, which needs the rank loop of dsgd.torch.TorchClassifier."
        )
    if strategy.seconds is not None:
        raise IncompatiblePartsError(
            f"{what} sets how long ranks train on their rows, which a loop of your own decides itself. Use LocalSGD."
        )
    check_combination(strategy, steps)
    period = strategy.period
    if strategy.overlap and strategy.exchanges == "gradient":
        raise IncompatiblePartsError(
            f"{what} sums buckets during the backward pass (overlap=True), but a loop of your own does not "
            "say which pass is the last before a step. Leave overlap out, or use dsgd.torch.TorchClassifier."
        )
    if isinstance(period, GrowingBatch):
        raise IncompatiblePartsError(
            f"{what} lets the batch grow, which a loop of your own cuts itself. Let your loader do it, or use "
            "dsgd.torch.TorchClassifier."
        )
    if batch_size is not None and isinstance(period, EveryBatch) and period.n != batch_size:
        raise IncompatiblePartsError(
            f"{what} takes steps for batch={period.n} rows of all ranks, but the loop for {batch_size}: "
            f"Synchronizer(batch_size=...) times the ranks. Pass MinibatchSGD({batch_size}, ...)."
        )
    if getattr(strategy, "asks_slopes", False):
        raise IncompatiblePartsError(
            f"{what} compares gradients at two models on the same rows, which a loop of your own does not do. Use "
            "another rule, such as CommFloor."
        )
    if steps_per_epoch is None:
        _check_without_epochs(strategy)


def _check_without_epochs(strategy: AbstractStrategy[Any]) -> None:
    what, text = f"sync={strategy!r}", "pass Synchronizer(steps_per_epoch=...)."
    if strategy.adaptation is not None:
        raise IncompatiblePartsError(f"{what} finds its period from the rows of an epoch: {text}")
    if strategy.rate_factor(0.0) != strategy.rate_factor(math.inf):
        raise IncompatiblePartsError(f"{what} has a warmup, which is given in epochs: {text}")
    if not isinstance(strategy.period, (EveryBatch, EveryRows)):
        raise IncompatiblePartsError(f"{what} counts epochs: {text}")
