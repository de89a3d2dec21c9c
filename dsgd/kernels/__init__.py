"""Compiled kernels: losses, penalties, schedules, SGD over rows, packing, sorting and random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


__getattr__ = loaded_on_use(
    __name__,
    {
        ".losses": "LOSSES Loss loss_and_slope",
        ".order": "draw draw_each draw_one mix64 mix64_each",
        ".rows": "fingerprint_dense fingerprint_sparse has_canonical_rows place_dense place_sparse place_wide",
        ".rules": "gradient_rows step_all",
        ".scaled": "PENALTIES Penalty truncate",
        ".sgd": "evaluate_rows run_rows",
        ".state": "SCHEDULES Schedule learning_rate optimal_t0",
        ".vector": "add_columns add_row all_finite row_dot score_columns",
    },
)
