"""Compiled kernels: losses, penalties, schedules, SGD over rows, packing, sorting and random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.kernels.evaluate import evaluate_rows
    from dsgd.kernels.gradients import gradient_rows, step_all
    from dsgd.kernels.losses import LOSSES, Loss, loss_and_slope
    from dsgd.kernels.penalties import PENALTIES, Penalty, truncate
    from dsgd.kernels.rng import draw, draw_each, draw_one, mix64, mix64_each
    from dsgd.kernels.rows import (
        fingerprint_dense,
        fingerprint_sparse,
        has_canonical_rows,
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

_HOMES: Final = {
    "LOSSES": "dsgd.kernels.losses",
    "PENALTIES": "dsgd.kernels.penalties",
    "SCHEDULES": "dsgd.kernels.schedules",
    "Loss": "dsgd.kernels.losses",
    "Penalty": "dsgd.kernels.penalties",
    "Schedule": "dsgd.kernels.schedules",
    "add_columns": "dsgd.kernels.vector",
    "add_row": "dsgd.kernels.vector",
    "all_finite": "dsgd.kernels.vector",
    "draw": "dsgd.kernels.rng",
    "draw_each": "dsgd.kernels.rng",
    "draw_one": "dsgd.kernels.rng",
    "evaluate_rows": "dsgd.kernels.evaluate",
    "fingerprint_dense": "dsgd.kernels.rows",
    "fingerprint_sparse": "dsgd.kernels.rows",
    "gradient_rows": "dsgd.kernels.gradients",
    "has_canonical_rows": "dsgd.kernels.rows",
    "learning_rate": "dsgd.kernels.schedules",
    "loss_and_slope": "dsgd.kernels.losses",
    "mix64": "dsgd.kernels.rng",
    "mix64_each": "dsgd.kernels.rng",
    "optimal_t0": "dsgd.kernels.schedules",
    "place_dense": "dsgd.kernels.rows",
    "place_sparse": "dsgd.kernels.rows",
    "place_wide": "dsgd.kernels.rows",
    "row_dot": "dsgd.kernels.vector",
    "run_rows": "dsgd.kernels.sgd",
    "score_columns": "dsgd.kernels.vector",
    "step_all": "dsgd.kernels.gradients",
    "truncate": "dsgd.kernels.penalties",
}

__getattr__ = loaded_on_use(__name__, _HOMES)
