"""Reproducible random numbers of torch.

torch has one stream of random numbers per process, and ranks may be threads of one process. To get reproducible
numbers, a rank takes the stream for itself and restores its position afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import nn

_STREAM: Final = threading.Lock()


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """Have torch draw numbers that follow from a seed, on the CPU and on GPUs; other threads wait for their turn."""
    # The seed is for all devices, so the streams of all are kept; that asks nothing of a device itself.
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with _STREAM, torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def draws(module: nn.Module) -> bool:
    """Return whether a module draws random numbers while it trains (dropout)."""
    return any(_part_draws(part) for part in module.modules())


def _part_draws(part: nn.Module) -> bool:
    rate = getattr(part, "dropout", 0.0)
    return isinstance(part, (nn.modules.dropout._DropoutNd, nn.RReLU)) or (isinstance(rate, float) and rate > 0.0)
