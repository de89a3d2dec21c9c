"""What `Synchronizer` needs besides: its strategy, what ranks agree on before they exchange, the state of the loop."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from dsgd.collectives import Group
from dsgd.compress import AbstractCompressor, Layerwise
from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError, VersionMismatchError
from dsgd.kernels import state as places
from dsgd.ledger import RankLedger
from dsgd.local import AbstractState
from dsgd.local.base import Steps, new_counters
from dsgd.runtime.rank import Rank
from dsgd.sync import AbstractStrategy, EveryBatch, EveryRows, GrowingBatch, MinibatchSGD, check_combination, resolve
from dsgd.torch.flat import FlatModule, OptimizerMemory
from dsgd.torch.parts import fingerprint, is_plain_sgd
from dsgd.torch.rows import ModuleStatistics
from dsgd.types import AnyArray, FloatVector


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
    if steps_per_epoch is not None:
        return
    text = "pass Synchronizer(steps_per_epoch=...)."
    if strategy.adaptation is not None:
        raise IncompatiblePartsError(f"{what} finds its period from the rows of an epoch: {text}")
    if strategy.rate_factor(0.0) != strategy.rate_factor(math.inf):
        raise IncompatiblePartsError(f"{what} has a warmup, which is given in epochs: {text}")
    if not isinstance(period, (EveryBatch, EveryRows)):
        raise IncompatiblePartsError(f"{what} counts epochs: {text}")


_SHARE_TOL: Final = 1e-6


def check_ranks(rank: Rank, module: nn.Module, weight: float) -> None:
    """Raise unless all ranks have the same module, and shares that add up to one; called by all ranks."""
    ours = fingerprint(module)
    digest = np.frombuffer(bytes.fromhex(ours["parameters"] + ours["code"]), dtype=np.int64)
    total = np.array([weight])
    rank.ledger.begin_round("setup")
    digests: AnyArray = rank.group.roll_call(digest)
    rank.group.allreduce(total)
    rank.ledger.end_round()
    for number, theirs in enumerate(digests):
        if (theirs != digests[0]).any():
            what = "parameters" if theirs[0] != digests[0][0] else "code"
            raise VersionMismatchError(
                f"the {type(module).__name__} of rank {number} is not that of rank 0: its {what} differ. Bring the "
                "same version of the file to all workers."
            )
    if abs(total[0] - 1.0) > _SHARE_TOL:
        raise InvalidParameterError(
            f"Synchronizer(weight=...) is the share of a rank, and those of all {rank.size} must add up to one. They "
            f"add up to {total[0]:.6g}."
        )


def share_buffers(group: Group, module: nn.Module, buffers: ModuleStatistics) -> None:
    """Give all ranks the buffers of rank 0, of whatever dtype, such as masks of bools; called by all ranks."""
    for vector in buffers.vectors().values():
        group.broadcast(vector.view(np.uint8))
    for tensor in module.buffers():
        if tensor.dtype == torch.bfloat16:
            words = tensor.detach().cpu().reshape(-1)
            group.broadcast(words.view(torch.uint8).numpy())
            tensor.copy_(words.view(tensor.shape))


def agree(group: Group, *, leaves_out: bool = False, ends: bool = False, moved: bool = False) -> tuple[bool, bool]:
    """Tell all ranks what this one is about to do, before every exchange; return whether any rank is, of either."""
    message = np.array([leaves_out, ends, moved], dtype=np.float64)
    group.allreduce(message)
    n_leaving, n_ending, n_moved = message.tolist()
    if 0 < n_ending < group.size:
        raise InvalidDataError(
            f"{n_ending:.0f} of {group.size} ranks have ended their loop, but the others have not: all ranks must "
            "take the same number of steps. Synchronizer.rows gives each the same number of rows; call step() after "
            "every step, including skipped ones."
        )
    return n_leaving > 0, n_moved > 0


class LoopState(AbstractState):
    """What changes while a loop of your own trains, beside the model."""

    def __init__(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, buffers: ModuleStatistics, *, remembers: bool
    ) -> None:
        self.counters = new_counters(n_losses=1)
        self.buffers = buffers
        self.last_rate = 0.0
        self._rates: list[float] = []
        self._optimizer = optimizer
        self._remembered: OptimizerMemory | None = None
        if remembers:
            # Found out before the first step: ranks that leave it out remember as much as the others.
            self._remembered = OptimizerMemory(optimizer, module, lambda _: copy.deepcopy(optimizer))

    @property
    def averaged(self) -> None:
        """None: the iterates are not averaged."""
        return None

    def memory(self) -> dict[str, FloatVector]:
        """Return what the optimiser remembers, where anybody asks."""
        return {} if self._remembered is None else self._remembered.vectors()

    def vectors(self) -> dict[str, AnyArray]:
        """Return nothing: the loop keeps what else it has."""
        return {}

    def statistics(self) -> dict[str, AnyArray]:
        """Return the buffers of the module."""
        return self.buffers.vectors()

    def before_step(self) -> None:
        """Give the optimiser, which is about to step, what has become of its memory."""
        if self._remembered is not None:
            self._remembered.before_step()

    def after_step(self) -> None:
        """Note the rate of a step that the optimiser has just taken."""
        if self._remembered is not None:
            self._remembered.after_step()
        if not has_overflowed(self._optimizer):
            self._rates.append(float(self._optimizer.param_groups[0]["lr"]))

    def count(self, n_rows: int, loss: float) -> float:
        """Take in a step, or one left out, with its mean loss; return the sum of its rates, 0 for one left out."""
        self.last_rate = self._rates[-1] if self._rates else 0.0
        total = float(sum(self._rates))
        self._rates.clear()
        self.t += 1.0
        self.loss_sum += loss * n_rows
        self.counters[places.N_SEEN] += n_rows
        return total


class LoopSteps:
    """What `dsgd.runtime.train.adaptation.Adaptation` asks of an optimiser, as far as a loop of your own can tell."""

    def rate_sum(self, t_start: float, state: LoopState) -> float:
        """Return the rate of the last step."""
        return state.last_rate

    def gradient(self, *args: Any) -> None:
        """Raise: strategies that exchange gradients are refused earlier."""
        raise AssertionError("a loop of your own makes gradients by itself")


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self, ledger: RankLedger) -> None:
        self._clock = ledger.clock
        self._began = self._clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since then."""
        return self._clock() - self._began


def check_owned(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise `IncompatiblePartsError` if an optimiser steps on tensors that are no parameters of the module."""
    owned = set(map(id, module.parameters()))
    stepped = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if n := sum(id(parameter) not in owned for parameter in stepped):
        raise IncompatiblePartsError(
            f"Synchronizer(module, optimizer): {n} of the {len(stepped)} tensors that the optimizer steps on are no "
            f"parameters of the {type(module).__name__}, so that ranks would train them apart. Pass a module that has "
            "all of them, such as nn.ModuleList."
        )


def has_overflowed(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a step changes nothing, since its gradient is not finite; a fused optimiser says so itself."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and float(found) > 0.0


def steps_of_loop(optimizer: torch.optim.Optimizer, n_rows: int) -> Steps:
    """Return how the optimiser of a loop steps, on so many rows at a time."""
    is_plain = is_plain_sgd(optimizer, optimizer.param_groups)
    momenta = sorted({group["momentum"] for group in optimizer.param_groups if group.get("momentum")})
    options = ", ".join(f"momentum={value!r}" for value in momenta)
    return Steps(
        f"{type(optimizer).__name__}({options})",
        rows=n_rows,
        by_row=False,
        remembers=not is_plain,
        is_plain=is_plain,
        may_overflow=True,
    )
