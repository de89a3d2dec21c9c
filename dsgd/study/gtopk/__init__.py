"""The study of gTop-k: what sparse sums save on a slow network, and what gTop-k loses.

`model` computes and puts into tables, `report` draws the page; nothing is trained. The command line calls it, and so
may programs; begin with `model`.
"""

from dsgd.study.gtopk.model import (
    GIGABIT,
    MODELS,
    NetModel,
    Scaling,
    compute_range,
    lost_share,
    mass_rows,
    mass_table,
    scaling,
    scaling_table,
    verdict_table,
)
from dsgd.study.gtopk.report import gtopk_page

__all__ = [
    "GIGABIT",
    "MODELS",
    "NetModel",
    "Scaling",
    "compute_range",
    "gtopk_page",
    "lost_share",
    "mass_rows",
    "mass_table",
    "scaling",
    "scaling_table",
    "verdict_table",
]
