"""The study of gTop-k: what sparse sums save on a slow network, and what gTop-k loses.

`model` computes, judges the published ranges and makes tables, `report` draws the page; nothing is trained. The command
line and programs call what is exported here; begin with `model`.
"""

from dsgd.study.gtopk.model import (
    GIGABIT,
    MODELS,
    NetModel,
    Scaling,
    check_gtopk_claims,
    compute_range,
    lost_share,
    mass_rows,
    mass_table,
    scaling,
    scaling_table,
)
from dsgd.study.gtopk.report import gtopk_page

__all__ = [
    "GIGABIT",
    "MODELS",
    "NetModel",
    "Scaling",
    "check_gtopk_claims",
    "compute_range",
    "gtopk_page",
    "lost_share",
    "mass_rows",
    "mass_table",
    "scaling",
    "scaling_table",
]
