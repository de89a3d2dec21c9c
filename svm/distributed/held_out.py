"""Calibration curves of a linear machine, from scores of rows that it was not trained on; on one rank or several.

Rows are taken once more, each by itself: equal rows may be in different folds, so they are not merged. Folds are those
of all rows (`dsgd.svm.calibration`), assigned on rank 0. The machine of each fold is trained by all ranks on
those of their rows that are not in it, and scores its rows where they are; rank 0 collects the scores and fits the
curves.

Cost: the rows a second time, in memory, and five fits; a number and a code for every row to rank 0, its fold to every
rank, and for each row its scores and its weight to rank 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsgd.collectives import Team
from dsgd.svm.linear_solver.rows import LinearRows, gather_rows
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector


@dataclass(frozen=True)
class HoldOut:
    """What curves are to be fitted; the same on every rank."""

    method: str
    classes: AnyArray
    seed: int | None


@dataclass(frozen=True)
class HeldRows:
    """The rows of one rank, none of them merged."""

    rows: LinearRows
    codes: IntVector
    weights: FloatVector
    places: IntVector
    all_numbers: IntVector
    all_codes: IntVector

    @classmethod
    def of(
        cls,
        X: Any,
        codes: AnyArray,
        weights: FloatVector,
        numbers: IntVector,
        *,
        bias: float,
        seed: int,
        team: Team | None = None,
    ) -> HeldRows:
        """Return the rows of blocks, or of arrays; see `gather_rows`."""
        codes = codes.astype(np.int64)
        # With a target of its own no row is equal to another.
        rows, own, weights = gather_rows(X, np.arange(len(codes)), weights, bias=bias, seed=seed, team=team)
        places = own.astype(np.int64)
        return cls(rows, codes[places], weights, places, numbers, codes)


def fit_held_out(
    held: HeldRows, hold_out: HoldOut, train: Callable[[LinearRows, IntVector, FloatVector, IntVector], Any], team: Team
) -> list[FloatMatrix]:
    """Return the curve of every output, on rank 0; none on the others."""
    # Loads scikit-learn, which a rank that fits no curves does without.
    from dsgd.svm.calibration import N_FOLDS, fit_curve

    folds = _share_folds(held, hold_out, team)[held.all_numbers[held.places]]
    scores: list[FloatMatrix] = []
    order: list[IntVector] = []
    for number in range(N_FOLDS):
        out, kept = np.flatnonzero(folds == number), np.flatnonzero(folds != number)
        machine = train(held.rows.take(kept), held.codes[kept], held.weights[kept], kept)
        scores.append(np.stack([held.rows.take(out).scores(weights, team) for weights in machine]))
        order.append(out)
    n_outputs, placed = len(scores[0]), np.concatenate(order)
    codes = team.gather(held.codes[placed])
    counts = team.gather(held.weights[placed])
    found = [team.gather(np.concatenate([part[k] for part in scores])) for k in range(n_outputs)]
    if not team.leads:
        return []
    label, count = np.concatenate(codes), np.concatenate(counts)
    positive = range(n_outputs) if n_outputs > 1 else [1]
    return [
        fit_curve(hold_out.method, np.concatenate(parts), label == code, count)
        for code, parts in zip(positive, found, strict=True)
    ]


def _share_folds(held: HeldRows, hold_out: HoldOut, team: Team) -> AnyArray:
    """Return the fold of every row of the whole, on all ranks."""
    from dsgd.svm.calibration import assign_folds

    n = int(team.totals(float(len(held.all_numbers)))[0])
    numbers, codes = team.gather(held.all_numbers), team.gather(held.all_codes)
    folds: AnyArray = np.empty(n, dtype=np.uint8)
    if team.leads:
        of_all = np.empty(n, dtype=np.int64)
        of_all[np.concatenate(numbers)] = np.concatenate(codes)
        folds = assign_folds(of_all, hold_out.classes, hold_out.seed)
    return team.agree(folds)
