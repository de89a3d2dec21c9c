"""Epochs of networks on a GPU: the adapter beside loops of plain torch, and what an exchange through the host costs.

The loops are one that has its rows on the device, as a careful user writes it, and one that copies every batch there.
The adapter trains with one rank, and with two that share the device and average models after so many rows. These take
turns; the first turn loads the libraries of the device and does not count. The last row is one rank on the cores of the
processor, once.

    python -m benchmarks run gpu --out rows.jsonl
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.common.measuring import Options, Rows, epoch_s, in_turns, median_s, table, timed, waiting_share
from benchmarks.common.suite import UnavailableError
from dsgd.study.networks import CNN
from dsgd.torch import TorchClassifier

PAGE = "torch"
QUICK_S = 60
QUICK = "a tenth of the rows, one turn"
REPEATS = (3, 1)

BATCH = 128
N_ROWS = 20_000
PERIODS = (BATCH, 8 * BATCH, 64 * BATCH)
GPU = "cuda:0"


class Wide(nn.Sequential):
    """Three layers with 25 million parameters."""

    def __init__(self) -> None:
        layers = nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 5120), nn.ReLU(), nn.Linear(5120, 10)
        super().__init__(nn.Flatten(), *layers)


CASES: dict[str, Callable[[], nn.Module]] = {"CNN": CNN, "25 M parameters": Wide}


def images(n: int) -> tuple[Any, Any]:
    """Return images of noise with a bright row that tells the class."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((n, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, n)
    X[np.arange(n), 0, 2 * y] += 1.0
    return X, y


def plain_loop(make: Callable[[], nn.Module], X: Any, y: Any, epochs: int, *, is_there: bool) -> float:
    """Train as one does with torch alone; return the seconds of an epoch, without the first."""
    torch.manual_seed(0)
    module = make().to(GPU)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    home = GPU if is_there else "cpu"
    inputs, targets = torch.from_numpy(X).to(home), torch.from_numpy(y).to(home)

    def epoch() -> None:
        order = torch.randperm(len(inputs)).to(home)
        for start in range(0, len(inputs), BATCH):
            places = order[start : start + BATCH]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(inputs[places].to(GPU)), targets[places].to(GPU))
            loss.backward()
            optimizer.step()
        torch.cuda.synchronize()

    return float(np.median([timed(epoch).seconds for _ in range(epochs)][1:]))


def adapter(make: Callable[[], nn.Module], X: Any, y: Any, epochs: int, **options: Any) -> tuple[float, float]:
    """Return the seconds of an epoch, without the first, and the share of waiting and wire in the time of the ranks."""
    model = TorchClassifier(
        make,
        optimizer=torch.optim.SGD,
        optimizer__momentum=0.9,
        lr=0.05,
        batch_size=BATCH,
        max_epochs=epochs,
        random_state=0,
        **options,
    ).fit(X, y)
    return epoch_s(model), waiting_share(model.ledger_.totals())


OPTIONS = {
    "--epochs": {"type": int, "default": 4, "metavar": "N", "help": "epochs of a training (default: %(default)s)"},
}


def run(options: Options, rows: Rows) -> None:
    if not torch.cuda.is_available():
        raise UnavailableError("torch finds no GPU")
    X, y = images(N_ROWS // 10 if options.quick else N_ROWS)
    name = torch.cuda.get_device_name(0)
    for case in options.only:
        make, fit = CASES[case], partial(adapter, CASES[case], X, y, options.epochs)
        loop = partial(plain_loop, make, X, y, options.epochs)
        methods: dict[str, Callable[[], Any]] = {
            "torch, rows on the device": lambda loop=loop: (loop(is_there=True), None),
            "torch, batches copied": lambda loop=loop: (loop(is_there=False), None),
            "adapter, one rank": partial(fit, device=GPU, n_jobs=1),
            **{f"two ranks, every {n}": partial(fit, device=GPU, n_jobs=2, sync=n) for n in PERIODS},
        }
        found = in_turns(methods, options.repeats, warm_up=1)
        fit = partial(adapter, make, X, y, 2)
        found["adapter on the processor"] = in_turns({0: partial(fit, device="cpu", n_jobs=1)}, 1)[0]
        base = np.median([turn.value[0] for turn in found["torch, rows on the device"]])
        with table(
            f"{case}, {len(y)} images, {name}", "method", "epoch s:.3f", "of the loop:.2f", "waiting:.1%"
        ) as line:
            for method, turns in found.items():
                seconds = [turn.value[0] for turn in turns]
                waiting = turns[-1].value[1] if "two" in method else None
                line(method, np.median(seconds), np.median(seconds) / base, waiting)
                rows.add(case=case, method=method, epoch_s=seconds, whole_s=median_s(turns), waiting=waiting, gpu=name)
