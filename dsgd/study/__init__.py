"""Studies: measurements that answer one question each, with a report.

::

    study = msf.STUDY.replace(ranks=[1, 2], every=[1, 16, 256])
    rows = [run.row for run in run_study(study, "study/")]
    study_page(study, rows).save("study/")

Each study is a module with its declaration, ``STUDY``; what they share is in `dsgd.study.frame`. Both the command line
and programs call them.

The report needs jinja2 and matplotlib (``pip install 'dsgd[study]'``); they are imported when used.
"""

from dsgd.report import Claim, Table, check_extras, claims_table
from dsgd.study.frame.data import DataSource
from dsgd.study.frame.report import doubts
from dsgd.study.frame.rows import RowFile, Run, StudyRun, read_rows, to_frame
from dsgd.study.frame.study import Batch, Grid, Option, Study, run_study, study_page

__all__ = [
    "Batch",
    "Claim",
    "DataSource",
    "Grid",
    "Option",
    "RowFile",
    "Run",
    "Study",
    "StudyRun",
    "Table",
    "check_extras",
    "claims_table",
    "doubts",
    "read_rows",
    "run_study",
    "study_page",
    "to_frame",
]
