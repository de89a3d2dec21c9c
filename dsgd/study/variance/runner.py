"""Running the study of variance: what is timed comes first, while nothing else runs; then problem after problem."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial

from dsgd.local import make_shard
from dsgd.study.frame.data import load_or_keep
from dsgd.study.frame.missing import MissingData
from dsgd.study.frame.rows import Row, StudyRun
from dsgd.study.frame.runner import Record
from dsgd.study.variance.courses import Course, lowest_objective
from dsgd.study.variance.draws import time_draws
from dsgd.study.variance.grid import METHODS, CourseRun, DrawRun, VarianceStudy
from dsgd.study.variance.problems import Problem, far_targets, of_data, one_of_many

__all__ = ["run_variance_study"]


def run_variance_study(
    study: VarianceStudy, out: str | os.PathLike[str], *, force: bool = False, command: str | None = None
) -> Iterator[StudyRun]:
    """Make the runs of a study that have no row yet; yield every run: draws by sizes, then courses by problems.

    Parameters and errors are those of `dsgd.study.run_study`.
    """
    record = Record(out, force=force, command=command, ranks=None)
    for size in dict.fromkeys(study.sizes):
        yield from record.finish(study.draws(size), _timed)
    for problem in (one_of_many(), far_targets(study.rows)):
        runs = study.courses(problem.name, len(problem.y))
        yield from record.finish(runs, partial(_courses, problem))
    for source in study.data:
        data = load_or_keep(source, "float64", record.rows(part="course"))
        runs = study.courses(data.name, len(data.y), len(data.y_test))
        if isinstance(data, MissingData):
            yield from record.kept(runs)
        else:
            yield from record.finish(runs, partial(_courses, of_data(data)))


def _timed(runs: Sequence[DrawRun]) -> Iterator[Row]:
    return time_draws(runs[0].rows, len(runs))


def _courses(problem: Problem, runs: Sequence[CourseRun]) -> Iterator[Row]:
    """Yield the contents of the rows of courses on one problem."""
    epochs = runs[0].study.epochs
    described = problem.describe() | {"lowest": lowest_objective(problem, epochs)}
    for run in runs:
        # The seed decides the order of the rows as well.
        shard = make_shard(problem.X, problem.y, seed=run.seed)
        course = Course(problem, shard, METHODS[run.method], run.seed)
        yield {**described, **course.row(problem.longer * epochs)}
