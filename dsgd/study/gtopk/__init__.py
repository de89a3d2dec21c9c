"""What do sparse sums save on a slow network? A model of cost, and what gTop-k loses on the way.

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
