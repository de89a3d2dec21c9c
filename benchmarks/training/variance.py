"""Reduced variance: SGD, drawn rows (SRG), SAGA and SVRG by passes over the rows; and the cost of a draw.

Four problems at constant rates, five seeds: 40 numbers with one outlier; ridge regression with a few targets far off;
logistic regression on generated twins of ijcnn1 and a9a, where no rows stand out. SGD and SRG take steps of a quarter
of what the largest curvature of a row allows, SAGA and SVRG their own. Prints the distance of the objective to its
minimum: the mean over the second half of the epochs, and after 60 passes, with the seconds of all steps. The minimum is
the lowest objective that any method reached, SAGA in six times as many epochs among them.

Then nanoseconds of a step on rows of 22 float32 numbers: drawn in proportion to gradients, drawn uniformly, and
visited in the order of an epoch, in turns.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.common.rows import Rows
from benchmarks.common.table import table
from dsgd.datasets import load_or_generate
from dsgd.local import SAGA, SGD, SVRG, AbstractReduction, Importance, Objective, make_shard, n_params

PAGE = "variance"
QUICK_S = 20
QUICK = "two seeds, and rows up to 100,000"

METHODS: dict[str, Any] = {
    "SGD, drawn": Importance(1.0),
    "SGD, each once": None,
    "SRG": Importance(0.5),
    "SAGA": SAGA(),
    "SVRG": SVRG(),
}
N_ROWS, N_EPOCHS, N_PASSES = 4_000, 60, 60
SIZES = (10**3, 10**4, 10**5, 10**6, 10**7)


@dataclass(frozen=True)
class Problem:
    """Rows, an objective, epochs, and the rate of SGD where it is given."""

    X: Any
    y: Any
    objective: Objective
    epochs: int = N_EPOCHS
    rate: float | None = None


def problems() -> dict[str, Problem]:
    """Return the problems by name."""
    mean = Objective("squared_error", None, fit_intercept=False)
    numbers = np.r_[1.0, np.zeros(39)]
    found = {"one of 40": Problem(np.ones((40, 1)), numbers, mean, 3_600, 0.01)}
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_ROWS, 10))
    y = X @ rng.standard_normal(10) + 0.1 * rng.standard_normal(N_ROWS)
    y[::200] += 50.0 * rng.standard_normal(20)
    found["far targets"] = Problem(X, y, Objective("squared_error", "l2", 1e-3))
    for name in ("ijcnn1-like", "a9a-like"):
        data = load_or_generate(name, "train", n_rows=N_ROWS, dtype="float64")
        found[name] = Problem(data.X, np.where(data.y > 0, 1.0, -1.0), Objective("log_loss", "l2", 1e-2))
    return found


def course(problem: Problem, made: Any, seed: int, epochs: int) -> tuple[list[float], list[float], float]:
    """Return passes and objective after each epoch, and the seconds of all steps."""
    shard, objective = make_shard(problem.X, problem.y, seed=seed), problem.objective
    curvature = SAGA().curvature(shard, objective)
    reduction = made if isinstance(made, AbstractReduction) else None
    rate = 1.0 if reduction else problem.rate or 1.0 / (4.0 * curvature)
    sampling = None if reduction else made
    sgd = SGD(objective, "constant", eta0=rate, sampling=sampling, seed=seed, reduction=reduction)
    params, state = np.zeros(n_params(shard.n_features, 1)), sgd.init(shard)
    state.rate_factor = reduction.length(curvature) if reduction else 1.0
    passes, objectives, seconds, n_passes = [], [], 0.0, 0.0
    for _ in range(epochs):
        begin = time.perf_counter()
        state.start_epoch()
        sgd.arrange(shard, state)
        sgd.run(params, shard, 0, shard.n_rows, state)
        n_passes += 1.0 + (sgd.settle(params, shard, state, is_last=False) is not None)
        seconds += time.perf_counter() - begin
        passes.append(n_passes)
        penalty = 0.5 * objective.strength * float(params[:-1] @ params[:-1])
        objectives.append(float(sgd.evaluate(params, shard, state).mean_loss) + penalty)
    return passes, objectives, seconds


def compare(arguments: argparse.Namespace, rows: Rows) -> None:
    """Compare the methods on all problems."""
    heads = ("problem", "method", "plateau:.1e", "SGD's over it:.2f", f"after {N_PASSES} passes:.1e", "ms:.1f")
    with table("distance of the objective to its minimum", *heads) as line:
        for name, problem in problems().items():
            epochs = problem.epochs
            lowest = min(course(problem, SAGA(), 0, min(2_000, 6 * epochs))[1])
            course(problem, None, 0, 1)
            found = {
                method: [course(problem, made, seed, epochs) for seed in range(2 if arguments.quick else 5)]
                for method, made in METHODS.items()
            }
            lowest = min(lowest, *(min(objectives) for runs in found.values() for _, objectives, _ in runs))
            usual = None
            for method, runs in found.items():
                gaps = np.maximum(np.array([objectives for _, objectives, _ in runs]) - lowest, 1e-17)
                plateau = float(gaps[:, epochs // 2 :].mean())
                usual = usual or plateau
                last = max(k for k, n in enumerate(runs[0][0]) if n <= N_PASSES)
                reached, took_s = float(gaps[:, last].mean()), min(seconds for *_, seconds in runs)
                rows.add(problem=name, method=method, plateau=plateau, after=reached, seconds=took_s)
                line(name, method, plateau, usual / plateau, reached, 1e3 * took_s)


class Steps:
    """Epochs of steps of one kind, of which the first fills what is remembered and loads the kernel."""

    def __init__(self, sampling: Importance | None, shard: Any) -> None:
        self._sgd = SGD(Objective("log_loss", "l2", 1e-4), "constant", eta0=0.01, sampling=sampling)
        self._shard, self._state = shard, self._sgd.init(shard)
        self._params = np.zeros(n_params(shard.n_features, 1), np.float32)
        self.epoch()

    def epoch(self) -> float:
        """Return the nanoseconds of a step, over an epoch."""
        self._state.start_epoch()
        self._sgd.arrange(self._shard, self._state)
        walk = self._sgd.bind(self._params, self._shard, self._state)
        begin = time.perf_counter()
        walk(0, self._shard.n_rows)
        return 1e9 * (time.perf_counter() - begin) / self._shard.n_rows


def time_draws(arguments: argparse.Namespace, rows: Rows) -> None:
    """Time steps for each number of rows."""
    kinds = {"drawn": Importance(0.5), "uniform": Importance(1.0), "walk": None}
    heads = ("rows:,", "drawn, ns:.0f", "uniform, ns:.0f", "walk, ns:.0f", "over uniform:.2f", "over walk:.2f")
    with table("nanoseconds of a step", *heads) as line:
        for size in [n for n in SIZES if n <= 10**5 or not arguments.quick]:
            X = np.random.default_rng(0).standard_normal((size, 22), np.float32)
            shard = make_shard(X, np.where(X[:, 0] > 0.3, 1.0, -1.0), dtype=np.float32)
            del X
            steps = {name: Steps(sampling, shard) for name, sampling in kinds.items()}
            repeats = max(3, min(100, 10**6 // size))
            timed = [{name: one.epoch() for name, one in steps.items()} for _ in range(repeats)]
            least = {name: min(found[name] for found in timed) for name in kinds}
            ratios = least["drawn"] / least["uniform"], least["drawn"] / least["walk"]
            rows.add(rows=size, **least)
            line(size, *least.values(), *ratios)


def run(arguments: argparse.Namespace, rows: Rows) -> None:
    """Run both parts."""
    compare(arguments, rows)
    time_draws(arguments, rows)
