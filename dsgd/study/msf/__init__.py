"""The study of the synchronisation period: cost and accuracy at every period, and published claims.

`grid` says what is run, `runner` trains it, `summary` puts rows together, `claims`, `tables` and `plots` are what is
said of them, `report` the page. `dsgd.study` exports what users need; begin with `grid.Study`.
"""

from dsgd.study.msf.claims import check_claims
from dsgd.study.msf.grid import RunSpec, Study, demo_study
from dsgd.study.msf.report import study_page, verdict
from dsgd.study.msf.runner import run_study
from dsgd.study.msf.summary import Cell, Summary, summarise
from dsgd.study.msf.tables import data_table, results_table, target_table

__all__ = [
    "Cell",
    "RunSpec",
    "Study",
    "Summary",
    "check_claims",
    "data_table",
    "demo_study",
    "results_table",
    "run_study",
    "study_page",
    "summarise",
    "target_table",
    "verdict",
]
