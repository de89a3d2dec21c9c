"""The state of a module during training."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import nn

from dsgd.local import AbstractState
from dsgd.torch.flat import FlatModule
from dsgd.torch.memory import OptimizerMemory
from dsgd.torch.passes import LossScale
from dsgd.torch.randomness import repeatable
from dsgd.torch.rows import TensorRows
from dsgd.torch.statistics import ModuleStatistics
from dsgd.types import AnyArray, FloatVector


@dataclass
class ModuleState(AbstractState):
    """What changes while a module trains, beside its parameters."""

    counters: FloatVector
    flat: FlatModule
    criterion: nn.Module
    optimizer: torch.optim.Optimizer
    remembered: OptimizerMemory
    buffers: ModuleStatistics
    draws: bool
    loss_scale: LossScale | None = None
    rates: list[float] = field(default_factory=list)
    order: tuple[int, AnyArray | None] = (-1, None)

    @property
    def averaged(self) -> None:
        """None: the iterates are not averaged."""
        return None

    def memory(self) -> dict[str, FloatVector]:
        """Return what the optimiser remembers."""
        return self.remembered.vectors()

    def vectors(self) -> dict[str, AnyArray]:
        """Return the scale of the loss, where there is one."""
        return {} if self.loss_scale is None else {"loss_scale": self.loss_scale.vector}

    @property
    def scale(self) -> float:
        """What losses are multiplied by, and gradients divided."""
        return 1.0 if self.loss_scale is None else self.loss_scale.value

    def statistics(self) -> dict[str, AnyArray]:
        """Return the buffers of the module."""
        return self.buffers.vectors()

    def take_up(self, params: FloatVector) -> None:
        """Let the module have the parameters, and the statistics, that the host has."""
        self.flat.bind(params)
        self.flat.to_device()
        self.buffers.to_device()

    def order_of(self, rows: TensorRows) -> AnyArray | None:
        """Return the order in which this epoch walks the rows; it is made once."""
        if self.order[0] != self.epoch:
            self.order = self.epoch, rows.order(self.epoch)
        return self.order[1]

    def repeatable(self, seed: int) -> AbstractContextManager[None]:
        """Return the context in which the module draws the numbers of this step of this rank."""
        return repeatable((seed * 1_000_003 + int(self.t)) % 2**63) if self.draws else nullcontext()

    def unscale(self) -> bool:
        """Divide ``.grad`` by the scale of the loss; return whether a step may be taken along it."""
        if self.loss_scale is None:
            return True
        gradients = [parameter.grad for parameter in self.flat.parameters if parameter.grad is not None]
        for gradient in gradients:
            gradient.div_(self.scale)
        return self.may_step(is_finite=all(bool(torch.isfinite(gradient).all()) for gradient in gradients))

    def may_step(self, *, is_finite: bool) -> bool:
        """Tell the scale of the loss of a gradient; return whether to step along it. A step left out counts as one."""
        if self.loss_scale is None:
            return True  # without a scale, what is not finite is an error
        self.loss_scale.update(is_finite=is_finite)
        if not is_finite:
            self.rates.append(0.0)
            self.t += 1.0
        return is_finite
