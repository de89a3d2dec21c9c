"""The networks of the study of neural networks, and their optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


class AnnealedSGD(torch.optim.SGD):
    """SGD whose rate falls linearly, from ``lr`` at the first step to zero after the last."""

    def __init__(self, params: Iterable[Any], steps: int, **options: Any) -> None:
        super().__init__(params, **options)
        self._steps, self._taken = steps, 0

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step; see `torch.optim.SGD.step`."""
        rates = [group["lr"] for group in self.param_groups]
        left = max(0.0, 1.0 - self._taken / self._steps)
        for group in self.param_groups:
            group["lr"] *= left
        try:
            return super().step(closure)
        finally:
            self._taken += 1
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = rate


class MLP(nn.Module):
    """A fully connected layer of 64, and one of classes."""

    def __init__(self, side: int = 28, classes: int = 10, hidden: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(side * side, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a score per class; images have shape (n, 1, side, side)."""
        scores: torch.Tensor = self.layers(images)
        return scores


class CNN(nn.Module):
    """Two convolutions with pooling, a fully connected layer of 64, and one of classes."""

    def __init__(self, side: int = 28, classes: int = 10, maps: tuple[int, int] = (16, 32)) -> None:
        super().__init__()
        kernel = 5 if side >= 16 else 3
        first = (side - kernel + 1) // (2 if side >= 16 else 1)
        second = (first - kernel + 1) // 2
        self.layers = nn.Sequential(
            nn.Conv2d(1, maps[0], kernel),
            nn.ReLU(),
            nn.MaxPool2d(2) if side >= 16 else nn.Identity(),
            nn.Conv2d(maps[0], maps[1], kernel),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(maps[1] * second * second, 64),
            nn.ReLU(),
            nn.Linear(64, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a score per class; images have shape (n, 1, side, side)."""
        scores: torch.Tensor = self.layers(images)
        return scores
