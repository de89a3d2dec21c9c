"""Torch modules on worker processes: beside torch's own data parallelism, and what goes wrong there."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from distributed import Client  # noqa: E402
from torch import nn  # noqa: E402

import torch_programs as programs  # noqa: E402
from dsgd.compress import TopK  # noqa: E402
from dsgd.errors import IncompatiblePartsError, VersionMismatchError  # noqa: E402
from dsgd.sync import LocalSGD  # noqa: E402
from dsgd.torch import TorchClassifier, compress_hook  # noqa: E402
from forks import forking  # noqa: E402
from gang_cluster import cluster_fixture  # noqa: E402

pytestmark = [pytest.mark.cluster]

N_WORKERS = 3
DDP_LIMIT_S = 250.0  # its ranks end themselves earlier
cluster = cluster_fixture(N_WORKERS)


@pytest.fixture
def client(cluster: Any) -> Iterator[Client]:
    """A client of the cluster. Sockets that torch keeps are its own affair, so what is left there is not looked at."""
    with Client(cluster, set_as_default=False) as client:
        yield client


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[np.ndarray]]:
    """What torch's own data parallelism has learned with each compressor of `DDP_RUNS`, by the number of ranks."""
    folder = tmp_path_factory.mktemp("ddp")
    training = forking().Process(target=programs.train_ddp, args=(folder,))
    training.start()
    try:
        training.join(DDP_LIMIT_S)
    finally:
        training.kill()
        training.join()
    assert training.exitcode == 0, "\n".join(log.read_text() for log in sorted(folder.rglob("*.log")))
    return {
        size: [np.load(folder / str(size) / f"{number}.npy") for number in range(len(compressors))]
        for size, compressors in programs.DDP_RUNS.items()
    }


@pytest.mark.parametrize("n", [2, 3])
def test_synchronous_sgd_equals_ddp(client: Client, ddp: dict[int, list[np.ndarray]], n: int) -> None:
    """After 100 steps with momentum and weight decay in float32 the parameters are those of torch DDP and of one rank.

    One rank takes the same steps with the batches of all.
    """
    X, y = programs.images(programs.N_STEPS * programs.BATCH * n)
    expected = ddp[n][0]
    fitted = TorchClassifier(
        programs.fresh()[0],
        lr=programs.LR,
        optimizer__momentum=programs.MOMENTUM,
        optimizer__weight_decay=programs.WEIGHT_DECAY,
        batch_size=programs.BATCH * n,
        max_epochs=1,
        shuffle=False,
        dataset=Parts(X, y),
        classes=range(4),
        n_jobs=n,
        client=client,
    ).fit()
    assert fitted.fit_report_["ranks"] == n
    found = programs.vector_of(fitted.module_)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * scale)
    module, optimizer = programs.fresh()
    # The batch of a step is that of every rank, one after the other.
    order = np.arange(len(X)).reshape(n, programs.N_STEPS, programs.BATCH).swapaxes(0, 1).ravel()
    programs.take_steps(module, optimizer, torch.from_numpy(X[order]), torch.from_numpy(y[order]), programs.BATCH * n)
    np.testing.assert_allclose(found, programs.vector_of(module), rtol=1e-5, atol=1e-5 * scale)


class Parts:
    """Consecutive rows for each rank."""

    def __init__(self, X: np.ndarray, y: np.ndarray) -> None:
        self.X, self.y = X, y

    def __call__(self, part: int, n_parts: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of a part."""
        cut = slice(len(self.X) * part // n_parts, len(self.X) * (part + 1) // n_parts)
        return self.X[cut], self.y[cut]


def test_validation_rows_are_scored_on_a_worker(client: Client) -> None:
    """The best epoch and its module are those of two threads, with the rows of this process."""
    (X, y), (X_val, y_val) = (programs.images(n) for n in (96, 60))
    options: dict[str, Any] = {"lr": 0.3, "max_epochs": 4, "random_state": 0, "n_jobs": 2, "sync": LocalSGD(12)}
    options |= {"scoring": "accuracy", "restore_best": True}
    module = programs.fresh()[0]
    here, there = (
        TorchClassifier(module, **options, client=where).fit(X, y, X_val=X_val, y_val=y_val) for where in (None, client)
    )
    assert there.fit_report_["ranks"] == 2
    assert there.history_[:, "valid_score"] == here.history_[:, "valid_score"]
    np.testing.assert_allclose(programs.vector_of(there.module_), programs.vector_of(here.module_), rtol=1e-5)
    assert there.best_score_ == there.score(X_val, y_val)


def test_compressors_are_hooks_of_ddp(ddp: dict[int, list[np.ndarray]]) -> None:
    """DDP with a compressor that loses nothing learns what it learns without one; with one that does, it learns too."""
    expected, whole, some = ddp[2]
    np.testing.assert_allclose(whole, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(some - expected).max() > 0.01
    module = programs.CNN()
    nn.utils.vector_to_parameters(torch.from_numpy(some), module.parameters())
    X, y = (torch.from_numpy(part) for part in programs.images(300))
    assert float((module(X).argmax(dim=1) == y).float().mean()) > 0.9
    with pytest.raises(IncompatiblePartsError, match="ErrorFeedback"):
        compress_hook(TopK(0.1))


def plant(code: str) -> None:
    """Let this process have a module `planted` of this code."""
    module = types.ModuleType("planted")
    exec(code, module.__dict__)
    sys.modules["planted"] = module


def uproot() -> None:
    """Let this process forget it."""
    sys.modules.pop("planted", None)


CODE = """
from torch import nn
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 4))
    def forward(self, X):
        return super().forward({} * X)
"""


def test_workers_with_another_version_of_the_module_are_found_out(client: Client) -> None:
    """A worker that imports another file than the client is refused before a step is taken, with the difference."""
    X, y = programs.images(60)
    plant(CODE.format(1.0))
    try:
        client.run(plant, CODE.format(2.0))
        with pytest.raises(VersionMismatchError, match="the code of its classes"):
            TorchClassifier(sys.modules["planted"].Net, client=client, random_state=0).fit(X, y)
    finally:
        del sys.modules["planted"]
        client.run(uproot)
