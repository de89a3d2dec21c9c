"""Decentralised gradient descent with random features, all graphs at once.

Problem: agents that have rows of their own, neighbours, and no centre are to learn one function, of which the kernel is
known.

Update, as Richards, Rebeschini and Rosasco 2020: all agents draw the same features phi from a seed, and agent v with m
rows takes ``h_v = w_v - eta / m sum_i (<w_v, phi(x_i)> - y_i) phi(x_i)``; then ``w_v <- sum_u W_vu h_u`` with the
weights of its neighbours. There is no penalty: the number of steps regularises. One machine that has all rows has
``w_t = (I - (I - eta H)^t) H^+ b`` with H and b the means over all rows.

These are the steps of ``SGDRegressor(features=..., optimizer=GradientDescent(), sync=DPSGD(...))``, which a test holds
against this; here agents and graphs are one array, so that thousands of steps take seconds.

Cost of a step and graph: 2 m M multiplications an agent, or M^2 where that is less, and N^2 M for the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from dsgd.comm.topology import AbstractTopology, Complete, Grid, RandomRegular, Ring, mixing_matrix, spectral_gap
from dsgd.kernel_approximation import RandomFeatures
from dsgd.study.frame.rows import Row
from dsgd.types import AnyArray, FloatMatrix, FloatVector

#: Graphs of agents by name, from few links to all.
GRAPHS: Final[MappingProxyType[str, AbstractTopology]] = MappingProxyType(
    {"cycle": Ring(), "grid": Grid(), "expander": RandomRegular(4), "complete": Complete()}
)
#: Agents that never talk.
ALONE: Final = "alone"
#: One machine that has all rows.
ONE_MACHINE: Final = "one machine"

#: The kernel, of which the true function is a sum of values: a rough one, whose functions are slow to learn. Those are
#: what the rates of the source are the best possible for.
KERNEL: Final = "laplacian"
GAMMA: Final = 3.0
#: Length of a step: curvatures of these features are far below one.
RATE: Final = 1.0

_NOISE: Final = 1.0
_CENTRES: Final = 20
_TEST_ROWS: Final = 1_000
_TEST_SEED: Final = 1_000_000
_POINTS: Final = 60


class Agents(NamedTuple):
    """What agents learn from: of few rows their features, of many the second moments of these."""

    pulls: FloatMatrix
    features: AnyArray | None
    moments: AnyArray | None
    test_features: FloatMatrix
    test_values: FloatVector

    @classmethod
    def of(cls, blocks: Iterable[tuple[FloatMatrix, FloatVector]], features: int, seed: int) -> Agents:
        """Return what agents learn from blocks such as those of `blocks_of`, of which one is in memory at a time."""
        pulls, kept, moments = [], [], []
        for phi, values in blocks:
            pulls.append(phi.T @ values / len(phi))
            if features < 2 * len(phi):
                moments.append(phi.T @ phi / len(phi))
            else:
                kept.append(phi)
        X = np.random.default_rng(_TEST_SEED).uniform(-1.0, 1.0, (_TEST_ROWS, 2))
        few, many = np.stack(kept) if kept else None, np.stack(moments) if moments else None
        return cls(np.stack(pulls), few, many, _map(features, seed).transform(X), true_values(X))

    def slopes(self, models: AnyArray) -> AnyArray:
        """Return the second moments times models of shape (n_agents, n_features, n_graphs)."""
        if self.moments is not None:
            found: AnyArray = self.moments @ models
        else:
            assert self.features is not None
            found = self.features.transpose(0, 2, 1) @ (self.features @ models) / self.features.shape[1]
        return found

    def excess(self, models: AnyArray) -> tuple[FloatVector, FloatVector]:
        """Return the mean squared distance of predictions from the truth: mean and worst of the agents."""
        errors = np.empty(models.shape[::2])
        for agent, model in enumerate(models):
            errors[agent] = np.mean((self.test_features @ model - self.test_values[:, None]) ** 2, axis=0)
        return errors.mean(axis=0), errors.max(axis=0)


def true_values(X: FloatMatrix) -> FloatVector:
    """Return the function that is to be learnt, a sum of twenty values of the kernel, on rows of two columns."""
    rng = np.random.default_rng(99)
    centres, heights = rng.uniform(-1.0, 1.0, (_CENTRES, 2)), rng.standard_normal(_CENTRES)
    found = np.zeros(len(X))
    for centre, height in zip(centres, heights, strict=True):
        found += height * np.exp(-GAMMA * np.sum(np.abs(X - centre), axis=1))
    return found


def blocks_of(agents: int, rows: int, features: int, seed: int) -> Iterator[tuple[FloatMatrix, FloatVector]]:
    """Yield for each agent the features of its rows, from the square from -1 to 1, and values with noise."""
    made = _map(features, seed)
    for agent in range(agents):
        rng = np.random.default_rng((seed, agent))
        X = rng.uniform(-1.0, 1.0, (rows, 2))
        yield made.transform(X), true_values(X) + _NOISE * rng.standard_normal(rows)


def _map(features: int, seed: int) -> RandomFeatures:
    return RandomFeatures(features, gamma=GAMMA, kernel=KERNEL, random_state=seed).fit(np.zeros((1, 2)))


def weights_of(graphs: Sequence[str], agents: int) -> AnyArray:
    """Return the weights of neighbours on each graph, shape (n_graphs, n_agents, n_agents)."""
    return np.stack([np.eye(agents) if name == ALONE else mixing_matrix(GRAPHS[name], agents) for name in graphs])


def models_after(data: Agents, weights: AnyArray, steps: Sequence[int]) -> Iterator[AnyArray]:
    """Yield the models of all agents on all graphs, shape (n_agents, n_features, n_graphs), after so many steps."""
    models, done = np.zeros((*data.pulls.shape, len(weights))), 0
    for stop in steps:
        for _ in range(stop - done):
            halves = models - RATE * (data.slopes(models) - data.pulls[..., None])
            models = np.ascontiguousarray((weights @ halves.transpose(2, 0, 1)).transpose(1, 2, 0))
        done = stop
        yield models


def one_machine(data: Agents, steps: Sequence[int]) -> Iterator[FloatVector]:
    """Yield the model of one machine that has all rows, shape (n_features,), after so many steps: the closed form."""
    moments = data.moments
    if moments is None:
        assert data.features is not None
        moments = data.features.transpose(0, 2, 1) @ data.features / data.features.shape[1]
    values, vectors = np.linalg.eigh(moments.mean(axis=0))
    values = np.clip(RATE * values, 1e-15, None)
    pull = vectors.T @ data.pulls.mean(axis=0)
    for stop in steps:
        yield vectors @ (RATE * pull * -np.expm1(stop * np.log1p(-values)) / values)


def run_agents(batch: Any, runs: Sequence[Any]) -> list[Row]:
    """Return the contents of the rows of runs that differ in the graph only."""
    del batch
    first = runs[0]
    steps = np.unique(np.geomspace(1, first.steps, _POINTS).round().astype(int)).tolist()
    blocks = blocks_of(first.agents, first.rows, first.features, first.seed)
    data = Agents.of(blocks, first.features, first.seed)
    graphs = [run.graph for run in runs if run.graph != ONE_MACHINE]
    weights = weights_of(graphs, first.agents)
    found: dict[str, list[Row]] = {run.graph: [] for run in runs}
    for stop, models in zip(steps, models_after(data, weights, steps) if graphs else (), strict=bool(graphs)):
        for name, mean, worst in zip(graphs, *data.excess(models), strict=True):
            found[name].append({"steps": stop, "error": _short(mean), "worst": _short(worst)})
    if ONE_MACHINE in found:
        for stop, model in zip(steps, one_machine(data, steps), strict=True):
            error = _short(data.excess(model[None, :, None])[0][0])
            found[ONE_MACHINE].append({"steps": stop, "error": error, "worst": error})
    gaps = {name: spectral_gap(matrix) for name, matrix in zip(graphs, weights, strict=True)}
    return [_row(run, found[run.graph], gaps.get(run.graph, 1.0), data) for run in runs]


def _short(value: float) -> float:
    """Return a figure with as many digits as anybody reads: curves are most of the file of rows."""
    return float(f"{value:.5g}")


def _row(run: Any, curve: list[Row], gap: float, data: Agents) -> Row:
    best = min(curve, key=lambda at: at["error"])
    graph = GRAPHS.get(run.graph)
    peers = 0 if graph is None else max(len(graph.out_peers(v, run.agents)) for v in range(run.agents))
    return {
        "gap": gap, "neighbours": peers, "best": best["error"], "best_steps": best["steps"], "worst": best["worst"],
        "variance": float(np.var(data.test_values)), "curve": curve,
    }  # fmt: skip
