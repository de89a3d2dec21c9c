"""Summary of the courses of training: tables, and the claim that gTop-k ends where dense sums do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dsgd.report import Claim, Table, byte_text
from dsgd.study.frame.report import data_table
from dsgd.study.frame.rows import Row
from dsgd.study.frame.summary import AbstractCell, grouped
from dsgd.study.gtopk.grid import DENSE, TASKS
from dsgd.study.published import STATEMENTS, as_points
from dsgd.study.verdict import difference

__all__ = ["CourseCell", "Lesson", "check_convergence", "course_tables", "lessons_table", "summarise_courses"]


@dataclass(frozen=True)
class CourseCell(AbstractCell):
    """The courses of one way of summing that differ only in the seed.

    Parameters
    ----------
    name : str
        The way.
    rows : sequence of dict
        Their rows.
    """

    name: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Lesson:
    """All ways of summing for one network, the dense one first.

    Parameters
    ----------
    task, dataset : str
        The network and the data.
    cells : sequence of CourseCell
        One for each way.
    """

    task: str
    dataset: str
    cells: Sequence[CourseCell]

    @property
    def dense(self) -> CourseCell:
        """The courses with dense sums."""
        return self.cells[0]

    @property
    def name(self) -> str:
        """What it is called in tables and figures."""
        row = self.dense.rows[0]
        return f"{TASKS[self.task].title} on {self.dataset}, {row['ranks']} ranks"

    def gap(self, cell: CourseCell, column: str = "test_accuracy") -> str:
        """Return how far a way ends from dense sums, with its interval over the seeds."""
        found = difference(cell.column(column), self.dense.column(column))
        if found is None or cell.name == DENSE:
            return "-"
        return found.text(as_points if column == "test_accuracy" else "{:+.4f}".format)


def summarise_courses(rows: Iterable[Row]) -> list[Lesson]:
    """Return one entry for each network of these rows that has a course with dense sums."""
    lessons = []
    trained = [row for row in rows if "curve" in row]
    for (task, dataset), own in grouped(trained, "model", "dataset").items():
        cells = {name: CourseCell(name, seeds) for (name,), seeds in grouped(own, "strategy").items()}
        if DENSE in cells:
            lessons.append(Lesson(task, dataset, [cells.pop(DENSE), *cells.values()]))
    return lessons


def course_tables(lessons: Sequence[Lesson]) -> list[Table]:
    """Return a table for each network, one row for each way of summing."""
    return [_course_table(lesson) for lesson in lessons]


def _course_table(lesson: Lesson) -> Table:
    dense_bytes = lesson.dense.median("bytes_sent")
    columns: dict[str, Callable[[CourseCell], str]] = {
        "sums": lambda cell: cell.name,
        "accuracy": lambda cell: f"{cell.median('test_accuracy'):.2%}",
        "- dense, 95 %": lambda cell: lesson.gap(cell),
        "test loss": lambda cell: f"{cell.median('test_loss'):.4f}",
        "loss - dense, 95 %": lambda cell: lesson.gap(cell, "test_loss"),
        "training loss": lambda cell: f"{cell.median('train_loss'):.4f}",
        "sent": lambda cell: byte_text(cell.median("bytes_sent")),
        "dense / sent": lambda cell: f"{dense_bytes / cell.median('bytes_sent'):.0f}x",
    }
    first = lesson.dense.rows[0]
    least = (
        "" if first["least_loss"] is None else f" No model can have a lower mean loss than {first['least_loss']:.4f}."
    )
    note = (
        f"{first['n_params']:,} parameters, {first['epochs']} epochs over {first['rows']:,} rows, {first['batch']} of "
        f"a rank in a step; tested on {first['test_rows']:,} others, {len(lesson.dense.rows)} seeds. Sent: by all "
        f"ranks, with the warm-up.{least}"
    )
    return Table.of(lesson.name, lesson.cells, columns, note)


def lessons_table(rows: Sequence[Row]) -> Table:
    """Return what was trained on."""
    return data_table([row for row in rows if "curve" in row], "a row", "commonest label")


def check_convergence(lessons: Sequence[Lesson]) -> list[Claim]:
    """Return whether gTop-k as published ends as accurate as dense sums, one claim for each network."""
    claims = []
    for lesson in lessons:
        cell = next((cell for cell in lesson.cells if cell.name == "gtop-k"), None)
        found = None if cell is None else difference(cell.column("test_accuracy"), lesson.dense.column("test_accuracy"))
        if cell is None or found is None:
            continue
        row = cell.rows[0]
        commonest = row["majority_accuracy"] - lesson.dense.median("test_accuracy")
        steps = row["rows"] // row["ranks"] // row["batch"]
        note = (
            f"Dense {lesson.dense.median('test_accuracy'):.2%}, gTop-k {cell.median('test_accuracy'):.2%} after "
            f"{row['epochs']} epochs of {steps} steps; {row['n_params']:,} parameters."
        )
        claims.append(
            STATEMENTS["gtopk/convergence"].judged(
                lesson.name,
                found,
                note,
                trivial=commonest > -0.005,
                baseline=f"{as_points(commonest)}: commonest label",
            )
        )
    return claims
