"""Measurements of a solver run: counts, origin of kernel values, and the curve over its steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Final

import numpy as np

from dsgd.svm import EliminationRecord
from dsgd.svm.kernel_solver.smo import solve_block
from dsgd.types import FloatMatrix

__all__ = ["BLOCK", "CURVE_COLUMNS", "curve", "reuse", "serial_seconds", "step_seconds"]

#: Columns of a curve: steps, seconds, active samples, gap among them, rows found in the cache, kernel values computed.
CURVE_COLUMNS: Final = ("n_iter", "seconds", "n_active", "gap", "cache_hits", "kernel_evaluations")
#: Variables of a block, and of the largest.
BLOCK: Final = 512
_LARGEST_BLOCK: Final = 2048
_POINTS: Final = 60

History = Sequence[EliminationRecord]


def curve(histories: Sequence[History]) -> dict[str, list[float]]:
    """Return a run as a table of points over its steps.

    Pairs of classes are solved side by side. A point lies at the same share of the run of every pair: steps, seconds
    and counts are summed, and the gap is the widest.

    Returns
    -------
    dict
        For each of `CURVE_COLUMNS` a list with a value per point, some 60 of them. Starts at zero steps.
    """
    tables = [_table(history) for history in histories]
    if len(tables) == 1:
        points = tables[0]
        if len(points) > _POINTS + 1:
            # Evenly spaced steps, and both sides of every jump of the active samples: otherwise eliminations would look
            # gradual.
            even = np.searchsorted(points[:, 0], np.linspace(0.0, points[-1, 0], _POINTS))
            jumps = np.flatnonzero(np.abs(np.diff(points[:, 2])) > 0.03 * points[0, 2])
            points = points[np.unique(np.concatenate([even, jumps, jumps + 1, [len(points) - 1]]))]
    else:
        places = np.linspace(0.0, 1.0, _POINTS)
        parts = np.array([[_at(table, place) for place in places] for table in tables])
        points = parts.sum(axis=0)
        points[:, 3] = parts[:, :, 3].max(axis=0)
    return {name: [_short(value) for value in points[:, k]] for k, name in enumerate(CURVE_COLUMNS)}


def reuse(histories: Sequence[History]) -> dict[str, float]:
    """Return where the kernel values of a run came from.

    Returns
    -------
    dict
        ``block_evaluations``, ``reconstruct_evaluations``, ``verify_evaluations``: values computed for blocks, to
        update indicators, and for the proof at the end. ``cache_share``: the cached share of the values that blocks
        used.
    """
    computed = {"block": 0.0, "reconstruct": 0.0, "verify": 0.0}
    found = 0.0
    for history in histories:
        table = _table(history)
        for record, (before, after) in zip(history, pairwise(table), strict=True):
            # Old events are merged when samples are eliminated, and rows that move update their columns.
            kind = record.event if record.event in computed else "reconstruct"
            computed[kind] += after[5] - before[5]
            found += (after[4] - before[4]) * after[2]
    used = found + computed["block"]
    return {
        **{f"{kind}_evaluations": value for kind, value in computed.items()},
        "cache_share": found / used if used else 0.0,
    }


def serial_seconds(histories: Sequence[History], n_free: int) -> float:
    """Return the seconds of a run that more ranks do not divide: those of the steps inside blocks.

    A step passes once over the variables of its block. The history does not have their number, so it is taken to be the
    target of `dsgd.svm.kernel_solver.block`: an eighth of the samples and at most `BLOCK`, or once few samples are
    active one and a half times the free ones.
    """
    total = 0.0
    for history in histories:
        table = _table(history)
        base = min(BLOCK, max(64, int(table[0, 2]) // 8))
        for record, steps in zip(history, np.diff(table[:, 0]), strict=True):
            grown = min(_LARGEST_BLOCK, 3 * n_free // 2) if record.n_active <= 4 * _LARGEST_BLOCK else 0
            total += float(steps) * min(record.n_active, max(base, grown)) * step_seconds(BLOCK) / BLOCK
    return total


@cache
def step_seconds(q: int, repeats: int = 7) -> float:
    """Return the seconds of a two-variable step in a block of q on this machine: the fastest of some solves."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(q, 4)), rng.choice([-1.0, 1.0], q)
    squares = (X * X).sum(axis=1)
    K = np.exp(-0.5 * (squares[:, None] + squares - 2.0 * X @ X.T))
    group, upper = np.zeros(q, dtype=np.int64), np.ones(q)
    best = np.inf
    for _ in range(repeats + 1):  # the first one loads compiled code
        alpha, f = np.zeros(q), -y
        begin = time.perf_counter()
        steps = solve_block(K, y, group, upper, alpha, f, 1e-3, 100 * q, 1)
        best = min(best, (time.perf_counter() - begin) / max(1, int(steps)))
    return best


def _table(history: History) -> FloatMatrix:
    """Return one line per record, and before it the start with all samples; columns as `CURVE_COLUMNS`."""
    lines = [[float(getattr(record, name)) for name in CURVE_COLUMNS] for record in history]
    everyone, gap = max((line[2] for line in lines), default=0.0), lines[0][3] if lines else 0.0
    return np.array([[0.0, 0.0, everyone, gap, 0.0, 0.0], *lines])


def _at(table: FloatMatrix, share: float) -> FloatMatrix:
    """Return the record that holds at a share of the steps."""
    place = int(np.searchsorted(table[:, 0], share * table[-1, 0], side="right")) - 1
    return np.asarray(table[max(place, 0)] if share < 1.0 else table[-1])


def _short(value: float) -> float:
    """Return five digits: curves are most of a file of rows."""
    short = float(f"{value:.5g}")
    return int(short) if short == int(short) else short
