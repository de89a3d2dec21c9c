"""Steps of synchronous SGD beside those of torch's DistributedDataParallel, on the same worker processes.

Every rank trains a small convolutional network on images of 28 x 28, with momentum and weight decay in float32, first
by DDP over gloo on the loopback interface and then by the rank loop, in turns; the table has the median step of each.

In the end both train once more, for 100 steps, and the table has the largest difference of their parameters over the
largest parameter: for that network, and for one that has tanh and means where it has ReLU and maxima. On two ranks
both are zero. The sum of three gradients depends on the order, in which gloo and the rank loop differ, so a difference
of rounding remains; for the smooth network it stays that small. ReLU and maximum have kinks, where the last bit decides
between two gradients: from then on the two trainings differ by more than rounding, whatever does the sums. In float64
this does not happen within 100 steps.

    python -m benchmarks run ddp --ranks 2 3 --batch 32 --repeats 5 --out rows.jsonl
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.measuring import Options, Rows, gloo, table, workers
from dsgd.runtime import run_on_cluster
from dsgd.runtime.rank import Rank
from dsgd.runtime.train import TrainData, TrainJob, train
from dsgd.sync import MinibatchSGD
from dsgd.torch import FlatModule
from dsgd.torch.oracle import ModuleOptimizer
from dsgd.torch.parts import fingerprint
from dsgd.torch.rows import TensorRows

PAGE = "torch"
QUICK_S = 30
QUICK = "one short turn"
REPEATS = (5, 1)

N_STEPS = 100
LR, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 1e-4


def network(
    channels: int = 16,
    hidden: int = 64,
    activation: type[nn.Module] = nn.ReLU,
    pool: Callable[[int], nn.Module] = nn.MaxPool2d,
) -> nn.Module:
    """Return the network, with the same parameters every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            activation(),
            pool(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            activation(),
            pool(2),
            nn.Flatten(),
            nn.Linear(2 * channels * 7 * 7, hidden),
            activation(),
            nn.Linear(hidden, 10),
        )


def smooth_network() -> nn.Module:
    """Return the network without kinks."""
    return network(activation=nn.Tanh, pool=nn.AvgPool2d)


def own_rows(number: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return n images of a rank, and their classes."""
    rng = np.random.default_rng(number)
    X = rng.standard_normal((n, 1, 28, 28), dtype=np.float32)
    return torch.from_numpy(X), torch.from_numpy(rng.integers(0, 10, n))


def by_ddp(
    X: Any, y: Any, batch: int, make: Callable[[], nn.Module] = network, **options: Any
) -> tuple[float, np.ndarray]:
    """Return the seconds of a step of DDP with these options, and the parameters."""
    module = make()
    parallel = DistributedDataParallel(module, **options)
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    dist.barrier()
    begin = time.perf_counter()
    for start in range(0, len(X), batch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(parallel(X[start : start + batch]), y[start : start + batch]).backward()
        optimizer.step()
    seconds = time.perf_counter() - begin
    return seconds / (len(X) // batch), torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()


def by_rank_loop(
    rank: Rank, X: Any, y: Any, batch: int, make: Callable[[], nn.Module] = network, **options: Any
) -> tuple[float, np.ndarray]:
    """Return the seconds of a step of the rank loop, whose strategy has these options, and the parameters."""
    module = make()
    optimizer = ModuleOptimizer(
        module=make,
        module_options={},
        buffers={},
        identity=fingerprint(module),
        criterion=nn.CrossEntropyLoss,
        criterion_options={},
        optimizer=torch.optim.SGD,
        optimizer_options={"lr": LR, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY},
    )
    initial = FlatModule(module).params.copy()
    sync = MinibatchSGD(batch * rank.size, **options)
    job = TrainJob(optimizer, sync, initial, max_iter=1, tol=None, n_iter_no_change=5)
    result = train(rank, TrainData(TensorRows(X, y, shuffle=False, seed=0)), job)
    # What the rank loop does once, before its first step, is not in it; DDP is made before its clock starts too.
    return result.history[0].seconds / (len(X) // batch), result.params


def measure(rank: Rank, data: Any, store: str, batch: int, turns: int) -> tuple[list[tuple[float, float]], list[float]]:
    """Return (step of DDP, step of the rank loop) of every turn, and both differences; a rank program."""
    del data
    with gloo(store, rank.number, rank.size):
        X, y = own_rows(rank.number, N_STEPS * batch)
        steps = [(by_ddp(X, y, batch)[0], by_rank_loop(rank, X, y, batch)[0]) for _ in range(turns + 1)]
        differences = []
        for make in (network, smooth_network):
            expected, params = by_ddp(X, y, batch, make)[1], by_rank_loop(rank, X, y, batch, make)[1]
            differences.append(float(np.abs(params - expected).max() / np.abs(expected).max()))
    return steps[1:], differences  # the first turn loads libraries


def nothing(blocks: object, rank: int) -> None:
    """Pack nothing."""


OPTIONS = {
    "--ranks": {"type": int, "nargs": "+", "default": [2]},
    "--batch": {"type": int, "default": 32, "help": "rows of a rank in a step"},
}


def run(options: Options, rows: Rows) -> None:
    batch = 8 if options.quick else options.batch
    heads = ("DDP ms/step:.3f", "dsgd ms/step:.3f", "ratio:.3f", "difference:.1e", "without kinks:.1e")
    with table(f"steps of {batch} rows of a rank, medians of {options.repeats} turns", "ranks", *heads) as line:
        for n in options.ranks:
            with tempfile.TemporaryDirectory() as folder, workers(n, set_as_default=False) as client:
                arguments = (str(Path(folder) / "store"), batch, options.repeats)
                gang = run_on_cluster(measure, [], client=client, pack=nothing, args=arguments)
            steps, differences = gang.value
            theirs, ours = (median(column) for column in zip(*steps, strict=True))
            line(n, 1e3 * theirs, 1e3 * ours, ours / theirs, *differences)
            taken = {"ddp_step_s": theirs, "dsgd_step_s": ours, "torch": torch.__version__}
            rows.add(ranks=n, batch=batch, difference=differences[0], difference_smooth=differences[1], **taken)
