"""The study of elimination: what sample elimination saves in a kernel SVM, and what it costs.

::

    study, data, skipped = find_problems(demo_elimination_study())
    runs = list(run_elimination_study(study, data, "study/"))
    elimination_page(study, [run.row for run in runs], skipped).save("study/")

`problems` and `grid` list the runs, `runner` trains, `measure` reads the counts of a fit, and `model` predicts more
ranks from them. `observe` measures the rounds of a fit on real ranks, and `rounds` predicts from these, phase by phase,
what thousands of ranks would take. `summary`, `claims`, `tables`, `plots` and `report` show the results. The command
line and programs call what is exported here; begin with `runner`.
"""

from dsgd.study.elimination.claims import check_elimination_claims, check_process_claim, check_round_claims
from dsgd.study.elimination.grid import (
    CACHES,
    PRESETS,
    REFERENCE,
    EliminationRun,
    EliminationStudy,
    demo_elimination_study,
)
from dsgd.study.elimination.model import Counts, Network, SimulatedTime, simulate
from dsgd.study.elimination.observe import RunSettings, observe
from dsgd.study.elimination.problems import PROBLEMS, Problem, find_problem
from dsgd.study.elimination.report import elimination_page, elimination_verdict
from dsgd.study.elimination.runner import find_problems, run_elimination_study
from dsgd.study.elimination.summary import EliminationCell, EliminationSummary, summarise_elimination
from dsgd.study.elimination.tables import elimination_data_table, elimination_table, overview_table, ranks_table

__all__ = [
    "CACHES",
    "PRESETS",
    "PROBLEMS",
    "REFERENCE",
    "Counts",
    "EliminationCell",
    "EliminationRun",
    "EliminationStudy",
    "EliminationSummary",
    "Network",
    "Problem",
    "RunSettings",
    "SimulatedTime",
    "check_elimination_claims",
    "check_process_claim",
    "check_round_claims",
    "demo_elimination_study",
    "elimination_data_table",
    "elimination_page",
    "elimination_table",
    "elimination_verdict",
    "find_problem",
    "find_problems",
    "observe",
    "overview_table",
    "ranks_table",
    "run_elimination_study",
    "simulate",
    "summarise_elimination",
]
