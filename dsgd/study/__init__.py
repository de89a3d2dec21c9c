"""Studies of the synchronisation frequency: what is run, what came out, and what it says of the published claims.

::

    study = Study(data=[DataSource("ijcnn1")], ranks=[1, 2], every=[1, 16, 256])
    runs = list(run_study(study, "study/"))
    study_page(study, [run.row for run in runs]).save("study/")

The report needs bokeh, jinja2 and matplotlib (``pip install 'dsgd[study]'``); they are imported when used.
"""

from dsgd.report import Claim, Table, check_extras, claims_table
from dsgd.study.claims import check_claims
from dsgd.study.grid import DataSource, RunSpec, Study, demo_study
from dsgd.study.report import doubts, study_page, verdict
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
    "study_page",
    "summarise",
    "target_table",
    "verdict",
]
