"""Leader SGD beside elastic averaging and local SGD where the loss has several equally good valleys.

Two losses: a well on either side of a ridge, ``f(x) = (x^2 - 1)^2 / 4`` in one dimension, and phase retrieval, ``f(w) =
mean(((a'w)^2 - (a'v)^2)^2) / 4`` in ten, whose minima are v and -v. Ranks start beside the ridge, each with a
random disturbance, and take noisy gradient steps. Elastic averaging pulls its centre to the mean of the ranks, which is
on the ridge while they are in both valleys; the leader is in one of them. Prints, over seeds, the
loss of the model that each strategy would return, and how many runs have left the ridge (a loss of at most a tenth of
that on it).

    python -m benchmarks run leaders --out docs/figures/leaders.jsonl
    python docs/figures/leaders.py
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from benchmarks.common.measuring import Options, Rows, table
from dsgd.runtime import Rank, run_on_threads
from dsgd.sync import EASGD, AbstractLocalTerm, LeaderSGD, LocalSGD, LocalSteps

PAGE = "strategies"
QUICK_S = 10
QUICK = "two seeds"
REPEATS = (20, 2)

N_RANKS, N_ROUNDS, N_STEPS = 8, 60, 10
STRATEGIES: dict[str, Any] = {
    "local SGD": LocalSGD(1),
    "EASGD": EASGD(1, beta=0.9),
    "leader SGD": LeaderSGD(1, global_pull=0.1, returns="leader"),
}
Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]


def two_wells(x: np.ndarray) -> tuple[float, np.ndarray]:
    """Return loss and gradient of the two wells."""
    return float(np.sum((x * x - 1.0) ** 2) / 4.0), x * (x * x - 1.0)


def phase_retrieval() -> Loss:
    """Return loss and gradient of phase retrieval."""
    rng = np.random.default_rng(0)
    a, v = rng.standard_normal((200, 10)), np.ones(10) / np.sqrt(10.0)
    squares = (a @ v) ** 2

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        p = a @ w
        rest = p * p - squares
        return float(np.mean(rest * rest) / 4.0), a.T @ (rest * p) / len(a)

    return loss


LOSSES: dict[str, tuple[Loss, int, float, float]] = {
    "two wells": (two_wells, 1, 0.1, 0.5),
    "phase retrieval": (phase_retrieval(), 10, 0.02, 0.5),
}


def descend(
    rank: Rank, data: Any, strategy: Any, loss: Loss, n: int, rate: float, noise: float, seed: int
) -> list[float]:
    """Take noisy steps and exchange, and return the loss of what would be returned after every exchange."""
    rng = np.random.default_rng([seed, rank.number])
    params = np.zeros(n)
    state = strategy.init(rank.group, params, 1.0 / rank.size)
    params += 0.3 * rng.standard_normal(n)
    found = []
    for _ in range(N_ROUNDS):
        total = 0.0
        for _ in range(N_STEPS):
            value, gradient = loss(params)
            total += value
            params -= rate * (gradient + noise * rng.standard_normal(n))
        if isinstance(strategy, AbstractLocalTerm):
            strategy.correct(params, LocalSteps(rate * N_STEPS, total, N_STEPS), state)
        strategy.sync(rank.group, params, 1.0 / rank.size, state)
        returned = params.copy()
        if not strategy.ends_equal:
            strategy.collect(rank.group, returned, 1.0 / rank.size, state)
        found.append(loss(returned)[0])
    return found


def run(options: Options, rows: Rows) -> None:
    """Run all and print the table; a seed for every repeat."""
    heads = ("loss", "strategy", "on the ridge:.3f", "median at the end:.4f", "left the ridge")
    with table(f"{options.repeats} runs", *heads) as line:
        for (name, (loss, n, rate, noise)), (title, strategy) in product(LOSSES.items(), STRATEGIES.items()):
            ridge, ends = loss(np.zeros(n))[0], []
            for seed in range(options.repeats):
                job = strategy, loss, n, rate, noise, seed
                curve = run_on_threads(descend, [None] * N_RANKS, job).value
                rows.add(case=name, strategy=title, seed=seed, ridge=ridge, curve=[round(v, 6) for v in curve])
                ends.append(curve[-1])
            left = sum(end <= ridge / 10 for end in ends)
            line(name, title, ridge, np.median(ends), f"{left} of {len(ends)}")
