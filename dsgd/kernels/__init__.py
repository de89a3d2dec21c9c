"""Compiled kernels: losses, penalties, schedules, SGD over rows, packing, sorting and random numbers."""

from __future__ import annotations

from dsgd.kernels.evaluate import evaluate_rows
from dsgd.kernels.gradients import gradient_rows, step_all
from dsgd.kernels.losses import LOSSES, Loss, loss_and_slope
from dsgd.kernels.penalties import PENALTIES, Penalty, truncate
from dsgd.kernels.rng import draw, draw_each, draw_one, mix64, mix64_each
from dsgd.kernels.rows import (
    fingerprint_dense,
    fingerprint_sparse,
    has_canonical_rows,
    hash_contents,
    place_dense,
    place_sparse,
    place_wide,
)
from dsgd.kernels.schedules import SCHEDULES, Schedule, learning_rate, optimal_t0
from dsgd.kernels.sgd import run_rows
from dsgd.kernels.vector import add_columns, add_row, all_finite, row_dot, score_columns

__all__ = [
    "LOSSES",
    "PENALTIES",
    "SCHEDULES",
    "Loss",
    "Penalty",
    "Schedule",
    "add_columns",
    "add_row",
    "all_finite",
    "draw",
    "draw_each",
    "draw_one",
    "evaluate_rows",
    "fingerprint_dense",
    "fingerprint_sparse",
    "gradient_rows",
    "has_canonical_rows",
    "hash_contents",
    "learning_rate",
    "loss_and_slope",
    "mix64",
    "mix64_each",
    "optimal_t0",
    "place_dense",
    "place_sparse",
    "place_wide",
    "row_dot",
    "run_rows",
    "score_columns",
    "step_all",
    "truncate",
]
