"""Studies of the synchronisation frequency: what is run, what came out, and what it says of the published claims.

::

    study = Study(data=[DataSource("ijcnn1")], ranks=[1, 2], every=[1, 16, 256])
    runs = list(run_study(study, "study/"))
    write_report(study, [run.row for run in runs], "study/")

Figures need matplotlib and the report jinja2 (``pip install 'dsgd[study]'``); both are imported when used.
"""

from dsgd.report import Claim, Table, claims_table
from dsgd.study.claims import check_claims
from dsgd.study.grid import DataSource, RunSpec, Study, demo_study
from dsgd.study.page import check_extras
from dsgd.study.report import doubts, verdict, write_report
from dsgd.study.rows import RowFile, StudyRun, read_rows
from dsgd.study.runner import run_study
from dsgd.study.summary import Cell, Stat, Summary, summarise
from dsgd.study.tables import data_table, results_table, target_table

__all__ = [
    "Cell",
    "Claim",
    "DataSource",
    "RowFile",
    "RunSpec",
    "Stat",
    "Study",
    "StudyRun",
    "Summary",
    "Table",
    "check_claims",
    "check_extras",
    "claims_table",
    "data_table",
    "demo_study",
    "doubts",
    "read_rows",
    "results_table",
    "run_study",
    "summarise",
    "target_table",
    "verdict",
    "write_report",
]
