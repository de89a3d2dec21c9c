"""Running statistics of normalisation layers, and other buffers of a module.

Problem: the running mean and variance of a batch normalisation are not trained; every rank has those of the batches
that it has seen. No gradient brings them together, and the mean model has statistics of its own, which no rank has
seen. Which of several wrong answers is meant must be said.

Policies: ``"average"`` takes the mean over ranks, weighted by rows, at the end of every epoch. A running mean is linear
in what goes into it, so this is what an average after every step would give. ``"local"`` leaves every rank its own, and
those of rank 0 go home. ``"recompute"`` leaves them while training lasts; in the end every rank passes its rows once
more through the model that training returns, and the mean over ranks of what the layers find goes home. That is
right also where models were far apart, and costs one pass.

Buffers of other layers are those of rank 0.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from dsgd.local.shard import split
from dsgd.torch.flat import NamedTensors
from dsgd.torch.rows import ROWS_PER_LOOK, TensorRows
from dsgd.types import AnyArray

#: What becomes of running statistics.
BatchNormPolicy: TypeAlias = Literal["average", "local", "recompute"]

_RUNNING = "running"


class ModuleStatistics(NamedTensors):
    """The buffers of a module, as one vector for the running statistics and one of each dtype for all others."""

    def __init__(self, module: nn.Module) -> None:
        #: Layers that keep running statistics.
        self.layers = [m for m in module.modules() if isinstance(m, _NormBase) and m.running_mean is not None]
        running = [b for layer in self.layers for b in (layer.running_mean, layer.running_var) if b is not None]
        kinds: dict[str, list[torch.Tensor]] = {}
        for tensor in running:
            kinds.setdefault(f"{_RUNNING}.{tensor.dtype}", []).append(tensor)
        known = {id(tensor) for tensor in running}
        for tensor in module.buffers():
            if id(tensor) not in known:
                kinds.setdefault(f"other.{tensor.dtype}", []).append(tensor)
        # numpy has no bfloat16.
        super().__init__(
            {n.replace("torch.", ""): found for n, found in kinds.items() if found[0].dtype != torch.bfloat16}
        )

    def running(self) -> AnyArray | None:
        """Return the running statistics, shape (n,); None if there are none."""
        return next((v for name, v in self.vectors().items() if name.startswith(_RUNNING)), None)

    def load(self, vectors: dict[str, AnyArray]) -> None:
        """Take up buffers that another copy of the module had."""
        self._may_differ = True
        for name, vector in vectors.items():
            self._flat[name].host[...] = vector.reshape(self._flat[name].host.shape)
        self.to_device()

    def recompute(self, module: nn.Module, rows: TensorRows, device: torch.device) -> None:
        """Replace running statistics by those of one pass over the rows; batches count alike."""
        momenta = [layer.momentum for layer in self.layers]
        module.eval()
        for layer in self.layers:
            layer.reset_running_stats()
            layer.momentum = None
            layer.train()
        with torch.no_grad():
            n_batches = -(-rows.n_rows // ROWS_PER_LOOK)
            for k in range(n_batches):
                inputs, _ = rows.batch(None, *split(rows.n_rows, n_batches, k))
                module(inputs.to(device))
        for layer, momentum in zip(self.layers, momenta, strict=True):
            layer.momentum = momentum
