"""The study of automatic periods: the rules of ``sync="auto"`` compared with fixed periods.

::

    study = demo_tuning_study()
    runs = list(run_tuning_study(study, "study/"))
    tuning_page(study, [run.row for run in runs]).save("study/")

`grid` has the rules and the periods, `runner` trains them in turns, `summary` computes targets and regret, `report`
draws the page. The command line and programs call what is exported here; begin with `runner`.
"""

from dsgd.study.tuning.grid import AUTO, RULES, TuningRun, TuningStudy, demo_tuning_study
from dsgd.study.tuning.report import tuning_page
from dsgd.study.tuning.runner import run_tuning_study
from dsgd.study.tuning.summary import (
    TuningCell,
    TuningSet,
    check_tuning_claims,
    regret_table,
    seconds_to,
    summarise_tuning,
    sweep_table,
    targets_of,
    tuning_verdict,
)

__all__ = [
    "AUTO",
    "RULES",
    "TuningCell",
    "TuningRun",
    "TuningSet",
    "TuningStudy",
    "check_tuning_claims",
    "demo_tuning_study",
    "regret_table",
    "run_tuning_study",
    "seconds_to",
    "summarise_tuning",
    "sweep_table",
    "targets_of",
    "tuning_page",
    "tuning_verdict",
]
