"""The study of gTop-k: whether it ends where dense sums do, what sparse sums save on a slow network, what is lost.

::

    study = demo_gtopk_study()
    rows = [run.row for run in run_gtopk_study(study, "study/")]
    print(summarise_courses(rows)[0].cells[1].median("test_accuracy"))

`grid` has the runs, `runner` trains them and times networks (`timing`, `networks`: they need torch), `text` makes a
text whose least loss is known, `summary` judges the courses. `model` is the cost of messages, `efficiency` what follows
from it, and `report` draws the page. Begin with `model`.
"""

from dsgd.study.gtopk.efficiency import (
    assumed_steps,
    check_gtopk_claims,
    efficiency_table,
    measured_steps,
    parts_table,
    published_steps,
    scaling_table,
)
from dsgd.study.gtopk.grid import TASKS, WAYS, ComputeRun, CourseRun, GTopKStudy, Task, demo_gtopk_study
from dsgd.study.gtopk.model import (
    GIGABIT,
    MODELS,
    NetModel,
    Scaling,
    compute_range,
    lost_share,
    mass_rows,
    mass_table,
    scaling,
)
from dsgd.study.gtopk.report import gtopk_page
from dsgd.study.gtopk.runner import Lessons, lessons_of, run_gtopk_study, train
from dsgd.study.gtopk.summary import (
    CourseCell,
    Lesson,
    check_convergence,
    course_tables,
    lessons_table,
    summarise_courses,
)
from dsgd.study.gtopk.text import InventedText

__all__ = [
    "GIGABIT",
    "MODELS",
    "TASKS",
    "WAYS",
    "ComputeRun",
    "CourseCell",
    "CourseRun",
    "GTopKStudy",
    "InventedText",
    "Lesson",
    "Lessons",
    "NetModel",
    "Scaling",
    "Task",
    "assumed_steps",
    "check_convergence",
    "check_gtopk_claims",
    "compute_range",
    "course_tables",
    "demo_gtopk_study",
    "efficiency_table",
    "gtopk_page",
    "lessons_of",
    "lessons_table",
    "lost_share",
    "mass_rows",
    "mass_table",
    "measured_steps",
    "parts_table",
    "published_steps",
    "run_gtopk_study",
    "scaling",
    "scaling_table",
    "summarise_courses",
    "train",
]
