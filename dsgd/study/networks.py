"""The networks of the studies of neural networks and of gTop-k, in plain torch, and their optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

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


_WORDS: Final = 10_000
_STEPS: Final = 35


class CharLSTM(nn.Module):
    """An embedding, an LSTM, and a score for each character that may come next."""

    def __init__(self, n_symbols: int, embedded: int = 16, hidden: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_symbols, embedded)
        self.lstm = nn.LSTM(embedded, hidden, batch_first=True)
        self.out = nn.Linear(hidden, n_symbols)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Return a score per symbol, shape (n, n_symbols); `characters` are codes of shape (n, length)."""
        states, _ = self.lstm(self.embedding(characters))
        scores: torch.Tensor = self.out(states[:, -1])
        return scores


class _Residual(nn.Module):
    """A block of convolutions and the identity beside it, or a projection where the shape changes."""

    def __init__(self, branch: nn.Module, shape: tuple[int, int], stride: int) -> None:
        super().__init__()
        self.branch = branch
        self.beside = nn.Identity() if shape[0] == shape[1] and stride == 1 else _conv(*shape, 1, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the images of the next block."""
        return torch.relu(self.branch(images) + self.beside(images))


def _conv(n_in: int, n_out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution that keeps the size for a stride of one, and its normalisation."""
    return nn.Sequential(nn.Conv2d(n_in, n_out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(n_out))


def _basic(n_in: int, n_out: int, stride: int) -> _Residual:
    branch = nn.Sequential(_conv(n_in, n_out, 3, stride), nn.ReLU(), _conv(n_out, n_out, 3))
    return _Residual(branch, (n_in, n_out), stride)


def _bottleneck(n_in: int, width: int, stride: int) -> _Residual:
    branch = nn.Sequential(
        _conv(n_in, width, 1), nn.ReLU(), _conv(width, width, 3, stride), nn.ReLU(), _conv(width, 4 * width, 1)
    )
    return _Residual(branch, (n_in, 4 * width), stride)


def resnet20() -> nn.Module:
    """Return ResNet-20 for images of 32 by 32 pixels, with projections where the shape changes (He et al. 2016)."""
    blocks, n_in = [], 16
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        for number in range(3):
            blocks.append(_basic(n_in, width, stride if number == 0 else 1))
            n_in = width
    return nn.Sequential(_conv(3, 16, 3), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def resnet50() -> nn.Module:
    """Return ResNet-50 for images of 224 by 224 pixels (He et al. 2016)."""
    blocks, n_in = [], 64
    for width, stride, count in ((64, 1, 3), (128, 2, 4), (256, 2, 6), (512, 2, 3)):
        for number in range(count):
            blocks.append(_bottleneck(n_in, width, stride if number == 0 else 1))
            n_in = 4 * width
    stem = (_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def vgg16() -> nn.Module:
    """Return VGG-16 with batch normalisation for images of 32 by 32 pixels (Simonyan and Zisserman 2015)."""
    layers: list[nn.Module] = []
    n_in = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(n_in, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            n_in = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


def alexnet() -> nn.Module:
    """Return AlexNet in one tower, for images of 224 by 224 pixels (Krizhevsky 2014)."""
    layers: list[nn.Module] = []
    n_in = 3
    for width, kernel, stride, padding, pooled in (
        (64, 11, 4, 2, True), (192, 5, 1, 2, True), (384, 3, 1, 1, False), (256, 3, 1, 1, False), (256, 3, 1, 1, True),
    ):  # fmt: skip
        layers += [nn.Conv2d(n_in, width, kernel, stride, padding), nn.ReLU()]
        layers += [nn.MaxPool2d(3, 2)] if pooled else []
        n_in = width
    dense: list[nn.Module] = [nn.Dropout(), nn.Linear(9216, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096)]
    return nn.Sequential(*layers, nn.Flatten(), *dense, nn.ReLU(), nn.Linear(4096, 1000))


class _WordLSTM(nn.Module):
    """Two layers of an LSTM over words, with a score for each word that may come next, after each word."""

    def __init__(self, width: int = 1500) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.out = nn.Linear(width, _WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return scores, shape (n, words, length)."""
        states, _ = self.lstm(self.embedding(words))
        scores: torch.Tensor = self.out(states).transpose(1, 2)
        return scores


def ptb_lstm() -> nn.Module:
    """Return the large LSTM for Penn Treebank, two layers of 1,500 and 10,000 words (Zaremba et al. 2014)."""
    return _WordLSTM()


def _images(side: int, classes: int) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
    return lambda batch: (torch.randn(batch, 3, side, side), torch.randint(classes, (batch,)))


def _sentences(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(_WORDS, (batch, _STEPS)), torch.randint(_WORDS, (batch, _STEPS))


#: By the name of a model of the publication: what makes the network, and what makes a batch of rows with targets.
BUILDERS: Final[Mapping[str, tuple[Callable[[], nn.Module], Callable[[int], Any]]]] = MappingProxyType(
    {
        "ResNet-20, CIFAR-10": (resnet20, _images(32, 10)),
        "VGG-16, CIFAR-10": (vgg16, _images(32, 10)),
        "ResNet-50, ImageNet": (resnet50, _images(224, 1000)),
        "AlexNet, ImageNet": (alexnet, _images(224, 1000)),
        "LSTM, PTB": (ptb_lstm, _sentences),
    }
)
