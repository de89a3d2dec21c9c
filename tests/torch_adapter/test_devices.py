"""Torch modules on a device of their own: training there is training on the CPU, whatever the ranks exchange.

That device is the first GPU, where there is one, which all ranks share; and always a part of the memory of the host
that the ranks take for such a device. Networks are smooth and in float64, so that trainings differ by rounding alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsgd import Gang

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - what comes below needs torch

from dsgd.compress import GTopK  # noqa: E402
from dsgd.sim import SimulatedCluster  # noqa: E402
from dsgd.sync import EASGD, SGP, ChocoSGD, DiLoCo, LeaderSGD, LocalSGD, MinibatchSGD, PostLocalSGD  # noqa: E402
from dsgd.torch import FlatModule, Passes, Synchronizer, TorchClassifier, launch  # noqa: E402

GPU, APART = "cuda:0", "apart"
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")
MOMENTUM = {"optimizer": torch.optim.SGD, "optimizer__momentum": 0.9}


DEVICES = [pytest.param(APART, id="apart"), pytest.param(GPU, marks=NEEDS_GPU, id="cuda")]
on_devices = pytest.mark.parametrize("device", DEVICES)


@contextmanager
def memory_of(device: str) -> Iterator[str]:
    """Give the device that torch is asked for, with memory that numpy does not see unless it is the plain CPU."""
    with pytest.MonkeyPatch.context() as patch:
        if device == APART:
            patch.setattr("dsgd.torch.flat.is_of_host", lambda device: False)
        yield "cpu" if device == APART else device


class Net(nn.Module):
    """A smooth network in float64, with layers that have state or draw numbers if that is wanted."""

    def __init__(self, *, normalised: bool = False, dropout: float = 0.0, n_outputs: int = 2) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(8) if normalised else nn.Identity()
        self.body = nn.Sequential(nn.Linear(4, 8), norm, nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, n_outputs))
        self.double()

    def forward(self, X: Any) -> Any:
        """Return scores."""
        return self.body(X)


def rows(n: int = 240) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and the quadrant of each as its class."""
    X = np.random.default_rng(0).standard_normal((n, 4))
    return X, np.where(X[:, 0] * X[:, 1] > 0, "same", "other")


def trained(device: str, X: Any, y: Any, kind: Any = TorchClassifier, module: Any = Net, **options: Any) -> Any:
    """Return an estimator that two ranks have trained on a device."""
    usual: dict[str, Any] = {"lr": 0.1, "batch_size": 12, "max_epochs": 3, "random_state": 0, "n_jobs": 2}
    with memory_of(device) as name:
        return kind(module, device=name, **{**usual, **options}).fit(X, y)


def vector_of(module: nn.Module) -> np.ndarray:
    """Return parameters and buffers as one vector."""
    return np.concatenate([tensor.double().numpy().reshape(-1) for tensor in module.state_dict().values()])


def assert_alike(device: str, **options: Any) -> None:
    """Assert that a training on a device is that on the CPU."""
    X, y = rows()
    cpu, gpu = (trained(name, X, y, **options) for name in ("cpu", device))
    assert all(tensor.device.type == "cpu" for tensor in gpu.module_.state_dict().values())
    np.testing.assert_allclose(vector_of(gpu.module_), vector_of(cpu.module_), rtol=1e-9, atol=1e-9)
    assert gpu.ledger_.totals()["bytes_sent"] == cpu.ledger_.totals()["bytes_sent"]
    np.testing.assert_allclose(gpu.predict_proba(X), cpu.predict_proba(X), rtol=1e-8, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sync",
    [
        MinibatchSGD(12),
        LocalSGD(36),
        EASGD(36),
        LeaderSGD(36),
        DiLoCo(36),
        SGP(36),
        ChocoSGD(36),
        PostLocalSGD(36, 1),
        MinibatchSGD(12, compressor=GTopK(0.2)),
    ],
    ids=repr,
)
@on_devices
def test_training_on_a_device_is_training(device: str, sync: Any) -> None:
    """Every kind of exchange finds the model of the device, and the device finds what was exchanged."""
    # Of two outputs the gradients are negatives of each other: which of equals is the largest, rounding would decide.
    one: dict[str, Any] = {"module__n_outputs": 1, "criterion": nn.BCEWithLogitsLoss}
    is_sparse = isinstance(sync, MinibatchSGD) and sync.compressor is not None
    batch = None if isinstance(sync, MinibatchSGD) else 12
    assert_alike(device, sync=sync, batch_size=batch, **(one if is_sparse else {}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {**MOMENTUM, "sync": LocalSGD(36, momentum="average")},
        {**MOMENTUM, "sync": LocalSGD(36, momentum="zero")},
        {"optimizer": torch.optim.Adam, "lr": 0.01, "sync": LocalSGD(36, momentum="average")},
        {"module__normalised": True, "batch_norm": "average"},
        {"module__normalised": True, "batch_norm": "recompute", "sync": LocalSGD(36)},
        {"passes": Passes(rows=4, clip=0.05)},
        {"early_stopping": True, "max_epochs": 5},
    ],
    ids=str,
)
@on_devices
def test_what_trains_beside_parameters_is_found_too(device: str, options: dict[str, Any]) -> None:
    """Memory of optimisers, running statistics, accumulated and clipped gradients, held-out rows."""
    assert_alike(device, **options)


@on_devices
def test_a_fit_that_was_stopped_goes_on(device: str, tmp_path: Path) -> None:
    """Resumed from a checkpoint, training ends with the bits of one that was never stopped."""
    X, y = rows()
    options: dict[str, Any] = {**MOMENTUM, "sync": LocalSGD(36, momentum="average"), "module__normalised": True}
    whole = trained(device, X, y, max_epochs=4, **options)
    trained(device, X, y, max_epochs=2, client=Gang(checkpoint=tmp_path / "made"), **options)
    resumed = trained(device, X, y, max_epochs=4, client=Gang(resume_from=tmp_path / "made"), **options)
    np.testing.assert_array_equal(vector_of(resumed.module_), vector_of(whole.module_))


def loop(rank: Any, device: str, sync: Any) -> np.ndarray:
    """Train by a loop of its own on the rows of a rank; return the parameters."""
    X, y = rows(96)
    torch.manual_seed(rank.number)
    module = Net(normalised=True).to(device)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    synchronizer = Synchronizer(module, optimizer, sync=sync, steps_per_epoch=12)
    inputs, codes = synchronizer.rows(torch.from_numpy(X), torch.from_numpy((y == "same").astype(np.int64)))
    for k in range(12):
        batch = slice(4 * k % len(inputs), 4 * k % len(inputs) + 4)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(inputs[batch].to(device)), codes[batch].to(device))
        loss.backward()
        optimizer.step()
        synchronizer.step(loss)
    synchronizer.finish()
    return vector_of(module.cpu())


@pytest.mark.parametrize("sync", [None, 4, LeaderSGD(4), DiLoCo(4), LocalSGD(4, momentum="average")], ids=repr)
@on_devices
def test_a_loop_of_ones_own_trains_on_a_device(device: str, sync: Any) -> None:
    """A `Synchronizer` finds parameters, gradients, momenta and running statistics on the device."""
    found = []
    for name in ("cpu", device):
        with memory_of(name) as place:
            found.append(launch(partial(loop, device=place, sync=sync), SimulatedCluster(2)).value)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9, atol=1e-9)


@on_devices
def test_the_vector_of_the_host_follows_the_device(device: str) -> None:
    """What either side writes, the other sees after a copy; a vector of the caller's stays the caller's."""
    module = Net()
    with memory_of(device) as place:
        flat = FlatModule(module, place)
    vector = np.arange(flat.n_params, dtype=np.float64)
    flat.bind(vector)
    flat.to_device()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)
    np.testing.assert_array_equal(vector, np.arange(flat.n_params))
    flat.to_host()
    np.testing.assert_array_equal(vector, np.arange(flat.n_params) + 1.0)
    assert flat.params is vector
