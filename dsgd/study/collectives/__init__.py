"""The study of collectives: measured and predicted time of an all-reduce, by algorithm, length and ranks.

::

    study = demo_collective_study()
    runs = list(run_collective_study(study, "study/"))
    collective_page(study, [run.row for run in runs]).save("study/")

`grid` lists the sums, `runner` has the rank program that times them, `summary` compares the rows of a gang with the
cost model and judges the claims, `parts` simulates sums in parts of a box of accelerators, `report` makes the page. The
command line and programs call what is exported here; begin with `runner`.
"""

from dsgd.study.collectives.grid import WIRES, CollectiveStudy, demo_collective_study
from dsgd.study.collectives.parts import PartOfBox, best_part, measure_parts, parts_figure, parts_table
from dsgd.study.collectives.report import collective_page
from dsgd.study.collectives.runner import run_collective_study
from dsgd.study.collectives.summary import (
    CollectiveGang,
    check_collective_claims,
    collective_table,
    collective_verdict,
    link_table,
    summarise_collectives,
)

__all__ = [
    "WIRES",
    "CollectiveGang",
    "CollectiveStudy",
    "PartOfBox",
    "best_part",
    "check_collective_claims",
    "collective_page",
    "collective_table",
    "collective_verdict",
    "demo_collective_study",
    "link_table",
    "measure_parts",
    "parts_figure",
    "parts_table",
    "run_collective_study",
    "summarise_collectives",
]
