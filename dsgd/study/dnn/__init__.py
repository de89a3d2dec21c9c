"""The study of neural networks: accuracy against seconds and bytes, for fifteen methods.

::

    study = demo_dnn_study()
    runs = list(run_dnn_study(study, "study/"))
    dnn_page(study, [run.row for run in runs]).save("study/")

`grid` has the methods, `modules` the networks (they need torch), `runner` trains, `summary` makes tables and judges
claims, `report` draws the page. The command line and programs call what is exported here; begin with `grid.WAYS`.
"""

from dsgd.study.dnn.grid import WAYS, DnnRun, DnnStudy, Way, demo_dnn_study
from dsgd.study.dnn.report import dnn_doubts, dnn_page
from dsgd.study.dnn.runner import Images, load_images, run_dnn_study
from dsgd.study.dnn.summary import (
    DnnCell,
    DnnGang,
    check_dnn_claims,
    dnn_answer,
    dnn_data_table,
    dnn_table,
    summarise_dnn,
)

__all__ = [
    "WAYS",
    "DnnCell",
    "DnnGang",
    "DnnRun",
    "DnnStudy",
    "Images",
    "Way",
    "check_dnn_claims",
    "demo_dnn_study",
    "dnn_answer",
    "dnn_data_table",
    "dnn_doubts",
    "dnn_page",
    "dnn_table",
    "load_images",
    "run_dnn_study",
    "summarise_dnn",
]
