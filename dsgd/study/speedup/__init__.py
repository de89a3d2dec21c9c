"""The study of speed-up: seconds to an accuracy, in one process and in several, beside scikit-learn.

::

    study = demo_speedup_study()
    runs = list(run_speedup_study(study, "study/"))
    speedup_page(study, [run.row for run in runs]).save("study/")

`grid` has the ways to fit, `runner` makes the rows where they are trained on and times whole fits, `summary` finds how
soon each way is accurate, `report` draws the page. The command line and programs call what is exported here; begin with
`runner`.
"""

from dsgd.study.speedup.grid import SpeedupRun, SpeedupStudy, Way, demo_speedup_study
from dsgd.study.speedup.report import speedup_page
from dsgd.study.speedup.runner import run_speedup_study
from dsgd.study.speedup.summary import (
    SpeedupCell,
    SpeedupSet,
    check_speedup_claims,
    speedup_table,
    speedup_verdict,
    summarise_speedup,
)

__all__ = [
    "SpeedupCell",
    "SpeedupRun",
    "SpeedupSet",
    "SpeedupStudy",
    "Way",
    "check_speedup_claims",
    "demo_speedup_study",
    "run_speedup_study",
    "speedup_page",
    "speedup_table",
    "speedup_verdict",
    "summarise_speedup",
]
