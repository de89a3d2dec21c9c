"""Networks of torch tests, and torch's own data parallelism on processes of its own."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dsgd.compress import ErrorFeedback, TopK
from dsgd.torch import compress_hook

N_STEPS = 100
BATCH = 4
LR, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 1e-3
#: Numbers of ranks that torch's own data parallelism trains, each once with every compressor here, None for none.
DDP_RUNS: dict[int, tuple[Any, ...]] = {2: (None, ErrorFeedback(TopK(1.0)), ErrorFeedback(TopK(0.1))), 3: (None,)}
_DDP_LIMIT_S = 90.0


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


def first_state() -> dict[str, torch.Tensor]:
    """Return the parameters that all trainings begin with."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return CNN().state_dict()


def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a network with those parameters and an optimiser for it."""
    module = CNN()
    module.load_state_dict(first_state())
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


def train_ddp(folder: Path) -> None:
    """Train with torch's own data parallelism, as `DDP_RUNS` says; models go into a folder for each number of ranks.

    Its ranks are forked from here: torch and what an optimiser imports at its first step take much longer than they do.
    """
    fresh()[1].step()
    context = multiprocessing.get_context("fork")
    for size in DDP_RUNS:
        own = folder / str(size)
        own.mkdir()
        ranks = [context.Process(target=_train_rank, args=(rank, size, own)) for rank in range(size)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        if any(rank.exitcode for rank in ranks):
            sys.exit(1)


def _train_rank(rank: int, size: int, folder: Path) -> NoReturn:
    """Train once with each compressor and end the process, also where it hangs; rank 0 saves results."""
    with (folder / f"{rank}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    faulthandler.dump_traceback_later(_DDP_LIMIT_S, exit=True)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    X, y = (torch.from_numpy(part) for part in images(N_STEPS * BATCH * size))
    n = N_STEPS * BATCH
    own = slice(n * rank, n * (rank + 1))
    # No destructor may run: that of DDP joins the threads of gloo with the interpreter lock held, and waits for ever
    # where one of them wants the lock to drop a tensor. So all are kept until the process ends.
    kept = []
    for number, compressor in enumerate(DDP_RUNS[size]):
        module, optimizer = fresh()
        parallel = DistributedDataParallel(module)
        kept.append(parallel)
        if compressor is not None:
            parallel.register_comm_hook(None, compress_hook(compressor))
        take_steps(parallel, optimizer, X[own], y[own], BATCH)
        if rank == 0:
            np.save(folder / f"{number}.npy", vector_of(module))
    os._exit(0)
