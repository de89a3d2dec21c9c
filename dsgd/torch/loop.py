"""The state of a training loop of your own: steps, losses, optimiser state, statistics."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from dsgd.errors import IncompatiblePartsError
from dsgd.kernels import state as places
from dsgd.ledger import RankLedger
from dsgd.local import AbstractState
from dsgd.local.base import Steps, new_counters
from dsgd.torch.memory import OptimizerMemory
from dsgd.torch.parts import is_plain_sgd
from dsgd.torch.statistics import ModuleStatistics
from dsgd.types import AnyArray, FloatVector


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
        """Take in a step, or one that was left out, on so many rows with this mean loss.

        - returned: its rate; the sum of them where the optimiser has stepped several times, and 0 where it has
          not.
        """
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
    """Return whether a step changes nothing, since its gradient is not finite.

    `GradScaler` skips a step by not calling the optimiser; only a fused one is called, with an attribute that tells it.
    """
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
