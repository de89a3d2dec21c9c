"""A script for torchrun: a loop of torch, with two lines of dsgd, for each of several strategies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from dsgd.collectives import Group
from dsgd.compress import TopK
from dsgd.errors import InvalidDataError, ProtocolError
from dsgd.runtime.rank import Rank
from dsgd.sync import DPSGD, DiLoCo, LocalSGD, MinibatchSGD
from dsgd.torch import Synchronizer
from dsgd.torch.process_group import current_rank

BATCH, N_STEPS = 4, 10
STRATEGIES: tuple[Any, ...] = (
    None,
    "local:every=8",
    LocalSGD(8, overlap=True),
    DiLoCo(12),
    DPSGD(8),
    LocalSGD(4, compressor=TopK(0.3)),
    MinibatchSGD(8, bucket_bytes=64),
)


def train(strategy: Any, rank: Rank | None = None) -> tuple[np.ndarray, dict[str, float]]:
    """Return the parameters after a loop with a strategy, and what the rank has sent."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(2 * BATCH * N_STEPS, 5, generator=generator, dtype=torch.float64)
    y = (X[:, 0] * X[:, 1] > 0).to(torch.float64)
    generator.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sync = Synchronizer(model, optimizer, sync=strategy, batch_size=BATCH, steps_per_epoch=N_STEPS, rank=rank)
    before = sync.rank.ledger.totals()["bytes_sent"]
    rows, targets = sync.rows(X, y)
    for start in range(0, len(rows), BATCH):
        optimizer.zero_grad()
        inputs, truth = rows[start : start + BATCH], targets[start : start + BATCH]
        nn.functional.binary_cross_entropy_with_logits(model(inputs).ravel(), truth).backward()
        optimizer.step()
        sync.step()
    sync.finish()
    sent = sync.rank.ledger.totals()["bytes_sent"] - before
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy(), {"bytes_sent": sent}


def errors() -> str:
    """Return what a rank hears when ranks are not at the same point, and when one ends early."""
    rank = current_rank()
    try:
        vector = np.zeros(3 + rank.number)
        rank.group.transport.exchange(1 - rank.number, vector, 1 - rank.number, np.zeros_like(vector))
    except ProtocolError as error:
        return str(error)
    return "nothing"


def uneven() -> str:
    """Return what a rank hears when it takes another number of steps."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sync = Synchronizer(model, optimizer, sync=2)
    try:
        for _ in range(4 - 2 * sync.rank.number):
            optimizer.step()
            sync.step()
        sync.finish()
    except InvalidDataError as error:
        return str(error)
    return "nothing"


def main(folder: Path) -> None:
    """Train with each strategy, and save what this rank has then."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    found = [train(strategy) for strategy in STRATEGIES]
    assert isinstance(current_rank().group, Group)
    assert current_rank() is current_rank()
    np.savez(
        folder / f"{dist.get_rank()}.npz",
        *[params for params, _ in found],
        bytes_sent=[sent["bytes_sent"] for _, sent in found],
        uneven=uneven(),
        errors=errors(),
        hosts=current_rank().group.transport.hosts,
    )
    dist.barrier()  # a rank that ends closes its connections, and what the other has not read yet is lost
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
