"""The state of a torch optimiser as flat vectors.

A torch optimiser makes its memory at its first step, one tensor per parameter and name (``momentum_buffer``,
``exp_avg``, ``step``, ...). Here the tensors of one name become views of one vector, so that the momentum policy of a
strategy, snapshots and checkpoints find plain arrays. Which there will be is found out by a step of a copy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from dsgd.errors import InvalidParameterError
from dsgd.torch.flat import NamedTensors


class OptimizerMemory(NamedTensors):
    """The memory of an optimiser that has not taken a step yet."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, module: nn.Module, make: Callable[[nn.Module], torch.optim.Optimizer]
    ) -> None:
        self._optimizer = optimizer
        ours = _parameters(optimizer)
        probe = make(copy.deepcopy(module))
        theirs = _parameters(probe)
        for parameter in theirs:
            parameter.grad = torch.zeros_like(parameter)
        try:
            probe.step()
        except TypeError as error:
            raise InvalidParameterError(
                f"optimizer={type(optimizer).__name__} cannot take a step from a gradient alone ({error}). Use one "
                "that needs no closure."
            ) from error
        found: dict[str, list[tuple[torch.Tensor, str, torch.Tensor]]] = {}
        for mine, parameter in zip(ours, theirs, strict=True):
            for key, value in probe.state[parameter].items():
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    # Some are there before the first step, with values of their own.
                    value = optimizer.state[mine].get(key, torch.zeros_like(value))
                    name = f"{key}.{str(value.dtype).removeprefix('torch.')}.{value.device.type}"
                    found.setdefault(name, []).append((mine, key, value))
        super().__init__({name: [value for *_, value in entries] for name, entries in found.items()})
        self._places = {name: [(owner, key) for owner, key, _ in entries] for name, entries in found.items()}
        self._is_bound = False

    def before_step(self) -> None:
        """Take up what the host may have written; before the first step, only if there is something."""
        if self.to_device() and not self._is_bound and any(flat.host.any() for flat in self._flat.values()):
            self._bind()

    def after_step(self) -> None:
        """Move what the first step has made into the vectors."""
        if not self._is_bound:
            for name, flat in self._flat.items():
                for (owner, key), view in zip(self._places[name], flat.tensors, strict=True):
                    made = self._optimizer.state[owner].get(key)
                    if made is not None and made is not view:
                        view.copy_(made)
            self._bind()

    def _bind(self) -> None:
        self._is_bound = True
        for name, flat in self._flat.items():
            for (owner, key), view in zip(self._places[name], flat.tensors, strict=True):
                self._optimizer.state[owner][key] = view


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
