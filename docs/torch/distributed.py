"""Train a small network on rows of its own making."""

import torch
from torch import nn

from dsgd.torch import Synchronizer, launch


def rows():
    """Return points in the plane, and the half of a spiral that each belongs to."""
    generator = torch.Generator().manual_seed(0)
    radius = 3.0 * torch.rand(6000, generator=generator)
    half = torch.arange(6000) % 2
    angle = 2.0 * radius + torch.pi * half + 0.2 * torch.randn(6000, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), half


def train():
    """Return a trained network."""
    X, y = rows()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sync = Synchronizer(model, optimizer, sync=16)
    X, y = sync.rows(X, y)
    for _ in range(10):
        for batch in torch.randperm(len(X)).split(50):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(X[batch]), y[batch])
            loss.backward()
            optimizer.step()
            sync.step()
    return model


def accuracy(model):
    """Return the share of the points that a network puts on the right half."""
    X, y = rows()
    return float((model(X).argmax(dim=1) == y).float().mean())


if __name__ == "__main__":
    print(accuracy(launch(train).value))
