"""What ranks of torch tests run on worker processes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dsgd.runtime.rank import Rank
from dsgd.torch import compress_hook

N_STEPS = 100
BATCH = 4
LR, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 1e-3


class CNN(nn.Module):
    """A small network for images of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 16))
        self.head = nn.Linear(16, 4)

    def forward(self, X: Any) -> Any:
        """Return scores."""
        return self.head(torch.relu(self.body(X)))


def images(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images with a bright corner, and which corner it is."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, n)
    X = rng.standard_normal((n, 1, 8, 8)).astype(np.float32)
    for k in range(4):
        X[y == k, 0, 4 * (k // 2) : 4 * (k // 2) + 4, 4 * (k % 2) : 4 * (k % 2) + 4] += 1.0
    return X, y


def fresh(state: dict[str, torch.Tensor]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a network with these parameters and an optimiser for it."""
    module = CNN()
    module.load_state_dict(state)
    return module, torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)


def take_steps(module: nn.Module, optimizer: torch.optim.Optimizer, X: Any, y: Any, batch: int) -> None:
    """Take the steps of one pass over rows in their order."""
    for start in range(0, len(X), batch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(X[start : start + batch]), y[start : start + batch]).backward()
        optimizer.step()


def vector_of(module: nn.Module) -> np.ndarray:
    """Return the parameters as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()


def train_ddp(rank: Rank, data: Any, state: dict[str, torch.Tensor], store: str, compressor: Any = None) -> np.ndarray:
    """Train with torch's own data parallelism on the rows of this rank; return the parameters."""
    del data
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank.number, world_size=rank.size)
    try:
        X, y = (torch.from_numpy(part) for part in images(N_STEPS * BATCH * rank.size))
        n = N_STEPS * BATCH
        own = slice(n * rank.number, n * (rank.number + 1))
        module, optimizer = fresh(state)
        parallel = DistributedDataParallel(module)
        if compressor is not None:
            parallel.register_comm_hook(None, compress_hook(compressor))
        take_steps(parallel, optimizer, X[own], y[own], BATCH)
        return vector_of(module)
    finally:
        dist.destroy_process_group()


def keep(blocks: Any, rank: int) -> None:
    """Pack nothing."""
