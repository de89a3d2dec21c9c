"""Panels: the columns of many models, side by side, that take their steps on the same rows in one pass.

A column is one output of one model. Columns that have a fold, a schedule and, where ranks average them, their rounds in
common may stand in one panel (`dsgd.kernels.columns`), of up to `WIDTH` columns; which ones do changes no bit of any of
them. Panels do not wait for each other, so each may run in a thread of its own. `Panel.models` and `regroup` let models
leave between epochs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Any, Final, TypeVar

import numpy as np

from dsgd.kernels import columns as kernels
from dsgd.kernels import state as places
from dsgd.kernels.lanes import LANE_BYTES
from dsgd.kernels.scaled import add_penalties
from dsgd.kernels.state import INVSCALING
from dsgd.kernels.tiles import ROWS, WIDTH
from dsgd.local.rules import schedule_of
from dsgd.local.sgd import SGD
from dsgd.local.shard import Shard
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntMatrix, IntVector, PointerVector

_Item = TypeVar("_Item")

# Rows of the table of the kernel, and the constants of SGD that they are.
_GIVEN: Final = {
    kernels.ALPHA: places.ALPHA,
    kernels.SHRINK_RATE: places.SHRINK_RATE,
    kernels.L1_RATE: places.L1_RATE,
    kernels.EPSILON: places.EPSILON,
    kernels.ETA0: places.ETA0,
    kernels.T0: places.T0,
    kernels.INTERCEPT_RATE: places.INTERCEPT_RATE,
}
# The same of the places of the clock.
_SHARED: Final = {
    kernels.POWER_T: places.POWER_T,
    kernels.PEAK: places.PEAK,
    kernels.HALF_CYCLE: places.HALF_CYCLE,
    kernels.DECAY: places.DECAY,
}
# What a panel takes for a row beside its vectors of columns, in units of one of these: rows are multiplied with others.
_FIXED_COST: Final = 0.7
# An array that begins within a cache line would have every other vector lie across two.
_LINE_BYTES: Final = 64


@dataclass(frozen=True)
class Column:
    """One output of one model."""

    model: int
    output: int
    split: int
    optimizer: SGD
    rounds: int = 1

    @property
    def key(self) -> Hashable:
        """What the columns of a panel have in common."""
        sgd, row = self.optimizer, schedule_of(self.optimizer.schedule)
        has_l1 = sgd.objective.l1_share * sgd.objective.strength > 0.0
        power_t = sgd.power_t if row.code == INVSCALING else 0.0
        return self.split, self.rounds, has_l1, sgd.schedule, power_t


class Panel:
    """Columns with a fold, rounds and a schedule in common, and their state."""

    def __init__(self, columns: Sequence[Column], shard: Shard) -> None:
        self.columns = tuple(columns)
        first, n, d = columns[0], len(columns), shard.n_features
        objective = first.optimizer.objective
        has_l1 = objective.l1_share * objective.strength > 0.0
        self.weights = _aligned(d * WIDTH, shard.dtype)
        self.received = _aligned(d * WIDTH if has_l1 else 0, shard.dtype)
        self.table = _aligned(kernels.TABLE * WIDTH, np.dtype(np.float64))
        table = self._table
        # Those behind the last column have class weights of zero, and so no steps.
        table[[kernels.ALPHA, kernels.T0, kernels.SCALE, kernels.FACTOR, kernels.LOSS_PRODUCT]] = 1.0
        for c, column in enumerate(columns):
            own, constants = column.optimizer.objective, column.optimizer.constants(sparse=shard.is_sparse)
            for row, place in _GIVEN.items():
                table[row, c] = constants[place]
            table[kernels.POSITIVE, c] = own.positive_weights[column.output]
            table[kernels.NEGATIVE, c] = own.negative_weights[column.output]
            table[kernels.OUTPUT, c] = column.output
        self.clock = np.zeros(kernels.CLOCK)
        self.clock[kernels.T] = 1.0
        constants = first.optimizer.constants(sparse=shard.is_sparse)
        for place, given in _SHARED.items():
            self.clock[place] = constants[given]
        codes, lanes = np.zeros(kernels.PANEL_CODES, np.int64), LANE_BYTES // shard.dtype.itemsize
        codes[kernels.SCHEDULE] = schedule_of(first.optimizer.schedule).code
        codes[kernels.N_OUTPUTS], codes[kernels.N_FEATURES] = objective.n_outputs, d
        codes[kernels.HAS_L1], codes[kernels.N_COLUMNS] = has_l1, -(-n // lanes) * lanes
        self.codes: IntVector = codes
        self._losses: IntVector = np.array(_runs([column.optimizer.objective.row.code for column in columns]))
        self._scratch = _aligned(kernels.SCRATCH, shard.dtype)
        self._rows: PointerVector = np.zeros(ROWS, np.uint64)

    @property
    def cost(self) -> float:
        """What it takes for a row, in units of a vector of columns."""
        return _cost(len(self.columns), LANE_BYTES // self.weights.itemsize)

    @property
    def models(self) -> set[int]:
        """The models that have columns here."""
        return {column.model for column in self.columns}

    @property
    def t(self) -> float:
        """Step counter of all columns, from 1."""
        return float(self.clock[kernels.T])

    @property
    def n_seen(self) -> float:
        """Rows seen in this epoch."""
        return float(self.clock[kernels.N_SEEN])

    def start_epoch(self, eta_scales: Sequence[float]) -> None:
        """Begin the next epoch: sums start from zero, and rates are cut by a factor for each column."""
        self.clock[kernels.EPOCH] += 1.0
        self.clock[kernels.N_SEEN] = 0.0
        self._table[kernels.LOSS_SUM], self._table[kernels.LOSS_PRODUCT] = 0.0, 1.0
        for c, (column, eta_scale) in enumerate(zip(self.columns, eta_scales, strict=True)):
            self._table[kernels.ETA0, c] = column.optimizer.eta0 * eta_scale

    def run(self, shard: Shard, kept: AnyArray, order: IntMatrix, start: int, stop: int) -> None:
        """Take a step of every column on each of the kept rows at the places start..stop of a walk."""
        rows, own = (shard.values.reshape(-1), shard.targets, shard.weights), (self.weights, self.received, self.table)
        of_panel = *own, self._scratch, self._rows, self.clock, self.codes, self._losses
        kernels.run_panel(rows, shard.sparse, kept, of_panel, order, start, stop)

    def objectives(self) -> FloatVector:
        """Return of each column the mean loss in this epoch and the penalty at its end; see `SGD.objective_sums`."""
        n, n_seen = len(self.columns), max(1.0, self.n_seen)
        losses = self._table[kernels.LOSS_SUM, :n] + np.log(self._table[kernels.LOSS_PRODUCT, :n])
        sums: FloatVector = losses / n_seen
        for c, column in enumerate(self.columns):
            objective = column.optimizer.objective
            if objective.strength > 0.0:
                weights = np.ascontiguousarray(self._weights[:, c])
                add_penalties(
                    sums[c : c + 1], weights, len(weights), objective.l1_share, objective.strength, by_column=False
                )
        return sums

    def model(self, c: int) -> tuple[FloatVector, float]:
        """Return the weights, shape (n_features,), and the intercept of column c."""
        return self._weights[:, c].copy(), float(self._table[kernels.INTERCEPT, c])

    @property
    def n_mixed(self) -> int:
        """How many numbers of a column ranks average, the rows of `to_mix`."""
        return int(self.codes[kernels.N_FEATURES]) + (2 if self.received.size else 1)

    def to_mix(self) -> FloatMatrix:
        """Return what ranks average of all columns, a copy, shape (n_features + 1, n_columns).

        Weights and intercepts. With an L1 penalty weights without it, and one row more, the penalty due so far: see
        `dsgd.local.sgd`.
        """
        n = len(self.columns)
        parts = [self._weights[:, :n], self._table[kernels.INTERCEPT, None, :n]]
        if self.received.size:
            parts = [parts[0] - self._received[:, :n], parts[1], self._table[kernels.L1_TOTAL, None, :n]]
        return np.concatenate(parts, dtype=self.weights.dtype, casting="same_kind")

    def mixed(self, mean: FloatMatrix) -> None:
        """Take in the mean over ranks of what `to_mix` returns."""
        n, d = len(self.columns), int(self.codes[kernels.N_FEATURES])
        self._table[kernels.INTERCEPT, :n] = mean[d]
        if not self.received.size:
            self._weights[:, :n] = mean[:d]
            return
        owed = self._table[kernels.L1_TOTAL, :n] = mean[d + 1]
        weights = np.sign(mean[:d]) * np.maximum(np.abs(mean[:d]) - owed, 0.0)
        self._weights[:, :n], self._received[:, :n] = weights, weights - mean[:d]

    @property
    def _table(self) -> FloatMatrix:
        return self.table.reshape(kernels.TABLE, WIDTH)

    @property
    def _weights(self) -> FloatMatrix:
        return self.weights.reshape(-1, WIDTH)

    @property
    def _received(self) -> FloatMatrix:
        return self.received.reshape(-1, WIDTH)

    def _copy(self, c: int, other: Panel, k: int) -> None:
        """Make column c what column k of another panel is."""
        self._table[:, c] = other._table[:, k]
        self._weights[:, c] = other._weights[:, k]
        if self.received.size:
            self._received[:, c] = other._received[:, k]


def make_panels(columns: Iterable[Column], shard: Shard, n_threads: int = 1) -> list[Panel]:
    """Return panels of all columns, enough of them for the threads if there are columns for that."""
    groups: dict[Hashable, list[Column]] = {}
    for column in columns:
        groups.setdefault(column.key, []).append(column)
    lanes = LANE_BYTES // shard.dtype.itemsize

    def makespan(width: int) -> float:
        """Return what the thread with the most work takes if no panel is wider than that."""
        sizes = [size for group in groups.values() for size in _even(len(group), width)]
        return max(sum(share) for share in deal([_cost(size, lanes) for size in sizes], n_threads, lambda cost: cost))

    # Of equal ones the widest; without columns any.
    width = min(range(WIDTH, 0, -lanes), key=makespan) if groups and n_threads > 1 else WIDTH
    panels = []
    for group in groups.values():
        group.sort(key=lambda column: column.optimizer.objective.row.code)
        stops = list(accumulate(_even(len(group), width), initial=0))
        panels += [Panel(group[low:high], shard) for low, high in pairwise(stops)]
    return panels


def deal(items: Iterable[_Item], n_threads: int, cost: Callable[[_Item], float]) -> list[list[_Item]]:
    """Return the share of each thread, maybe none: the dearest item first, each to the thread that has least."""
    shares: list[list[_Item]] = [[] for _ in range(n_threads)]
    loads = [0.0] * n_threads
    for item in sorted(items, key=cost, reverse=True):
        least = loads.index(min(loads))
        shares[least].append(item)
        loads[least] += cost(item)
    return shares


def regroup(panels: Sequence[Panel], models: Collection[int], shard: Shard, n_threads: int = 1) -> list[Panel]:
    """Return panels with the columns of some models only, where these left off."""
    found = {column: (panel, k) for panel in panels for k, column in enumerate(panel.columns)}
    made = make_panels((column for column in found if column.model in models), shard, n_threads)
    for panel in made:
        for c, column in enumerate(panel.columns):
            before, k = found[column]
            panel._copy(c, before, k)
            panel.clock[:] = before.clock
    return made


def _even(n: int, most: int) -> list[int]:
    """Return the sizes of as few parts of n as there can be, none above a number, which differ by one at most."""
    parts = math.ceil(n / most)
    return [n * (k + 1) // parts - n * k // parts for k in range(parts)]


def _cost(n_columns: int, lanes: int) -> float:
    return _FIXED_COST + math.ceil(n_columns / lanes)


def _runs(codes: Sequence[int]) -> list[int]:
    """Return of each run of equal codes the code, where it begins, and where it ends, one after the other."""
    runs: list[int] = []
    for code, run in groupby(codes):
        first = runs[-1] if runs else 0
        runs += [code, first, first + len(list(run))]
    return runs


def _aligned(n: int, dtype: np.dtype[Any]) -> AnyArray:
    """Return n zeros that begin with a cache line."""
    memory = np.zeros(n * dtype.itemsize + _LINE_BYTES, np.uint8)
    first = -memory.ctypes.data % _LINE_BYTES
    return memory[first : first + n * dtype.itemsize].view(dtype)
