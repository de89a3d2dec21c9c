"""The study of variance: importance sampling, SAGA and SVRG beside SGD, by passes and by seconds, and a draw's cost.

::

    study = demo_variance_study()
    runs = list(run_variance_study(study, "study/"))
    variance_page(study, [run.row for run in runs]).save("study/")

`grid` has the methods, `problems` what they minimise, `courses` trains and `draws` times steps; `runner` makes the
rows, `summary` holds errors against each other, `report` draws the page. The command line and programs call what is
exported here; begin with `runner`.
"""

from dsgd.study.variance.grid import METHODS, CourseRun, DrawRun, VarianceStudy, demo_variance_study
from dsgd.study.variance.report import variance_page
from dsgd.study.variance.runner import run_variance_study
from dsgd.study.variance.summary import (
    DrawCell,
    VarianceCell,
    VarianceProblem,
    check_variance_claims,
    course_table,
    draw_table,
    summarise_draws,
    summarise_variance,
    variance_verdict,
)

__all__ = [
    "METHODS",
    "CourseRun",
    "DrawCell",
    "DrawRun",
    "VarianceCell",
    "VarianceProblem",
    "VarianceStudy",
    "check_variance_claims",
    "course_table",
    "demo_variance_study",
    "draw_table",
    "run_variance_study",
    "summarise_draws",
    "summarise_variance",
    "variance_page",
    "variance_verdict",
]
