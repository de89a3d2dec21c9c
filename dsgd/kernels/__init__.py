"""Compiled kernels: losses, penalties, schedules, SGD over rows, packing, sorting and random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.kernels.losses import LOSSES, Loss, loss_and_slope
    from dsgd.kernels.order import draw, draw_each, draw_one, mix64, mix64_each
    from dsgd.kernels.rows import (
        fingerprint_dense,
        fingerprint_sparse,
        has_canonical_rows,
        place_dense,
        place_sparse,
        place_wide,
    )
    from dsgd.kernels.rules import gradient_rows, step_all
    from dsgd.kernels.scaled import PENALTIES, Penalty, truncate
    from dsgd.kernels.sgd import evaluate_rows, run_rows
    from dsgd.kernels.state import SCHEDULES, Schedule, learning_rate, optimal_t0
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
    "PENALTIES": "dsgd.kernels.scaled",
    "SCHEDULES": "dsgd.kernels.state",
    "Loss": "dsgd.kernels.losses",
    "Penalty": "dsgd.kernels.scaled",
    "Schedule": "dsgd.kernels.state",
    "add_columns": "dsgd.kernels.vector",
    "add_row": "dsgd.kernels.vector",
    "all_finite": "dsgd.kernels.vector",
    "draw": "dsgd.kernels.order",
    "draw_each": "dsgd.kernels.order",
    "draw_one": "dsgd.kernels.order",
    "evaluate_rows": "dsgd.kernels.sgd",
    "fingerprint_dense": "dsgd.kernels.rows",
    "fingerprint_sparse": "dsgd.kernels.rows",
    "gradient_rows": "dsgd.kernels.rules",
    "has_canonical_rows": "dsgd.kernels.rows",
    "learning_rate": "dsgd.kernels.state",
    "loss_and_slope": "dsgd.kernels.losses",
    "mix64": "dsgd.kernels.order",
    "mix64_each": "dsgd.kernels.order",
    "optimal_t0": "dsgd.kernels.state",
    "place_dense": "dsgd.kernels.rows",
    "place_sparse": "dsgd.kernels.rows",
    "place_wide": "dsgd.kernels.rows",
    "row_dot": "dsgd.kernels.vector",
    "run_rows": "dsgd.kernels.sgd",
    "score_columns": "dsgd.kernels.vector",
    "step_all": "dsgd.kernels.rules",
    "truncate": "dsgd.kernels.scaled",
}

__getattr__ = loaded_on_use(__name__, _HOMES)
