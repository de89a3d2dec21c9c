"""Studies: measurements that answer one question each, with a report.

::

    study = Study(data=[DataSource("ijcnn1")], ranks=[1, 2], every=[1, 16, 256])
    runs = list(run_study(study, "study/"))
    study_page(study, [run.row for run in runs]).save("study/")

That study is in `dsgd.study.msf`; each of the others has a folder beside it, and none imports from another, but that of
gTop-k, which trains a network of `dsgd.study.dnn`. What they share is in `dsgd.study.frame`. Both the command line and
programs call them.

The report needs jinja2 and matplotlib (``pip install 'dsgd[study]'``); they are imported when used.
"""

from dsgd.report import Claim, Table, check_extras, claims_table
from dsgd.study.frame.data import DataSource
from dsgd.study.frame.report import doubts
from dsgd.study.frame.rows import RowFile, StudyRun, read_rows, to_frame
from dsgd.study.frame.summary import Stat
from dsgd.study.msf.claims import check_claims
from dsgd.study.msf.grid import RunSpec, Study, demo_study
from dsgd.study.msf.report import study_page, verdict
from dsgd.study.msf.runner import run_study
from dsgd.study.msf.summary import Cell, Summary, summarise
from dsgd.study.msf.tables import data_table, results_table, target_table

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
    "to_frame",
    "verdict",
]
