"""The report of the study of gTop-k."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from dsgd.report import Axis, Claim, Figure, Level, Line, Page, Panel, origin, period_axis, ran, series
from dsgd.study.frame.missing import missing_runs
from dsgd.study.frame.report import doubts
from dsgd.study.frame.rows import Row
from dsgd.study.gtopk.efficiency import (
    HERE,
    PUBLISHED,
    check_gtopk_claims,
    efficiency_table,
    parts_table,
    scaling_table,
)
from dsgd.study.gtopk.model import Scaling, mass_rows, mass_table
from dsgd.study.gtopk.speeds import SIZES, SPEEDS
from dsgd.study.gtopk.summary import (
    CourseCell,
    Lesson,
    check_convergence,
    course_tables,
    lessons_table,
    summarise_courses,
)
from dsgd.study.published import SOURCES, STATEMENTS, Statement, citations

__all__ = ["courses_figure", "gtopk_page"]

_SUMS: Final = (("dense ring", "dense_s"), ("Top-k", "topk_s"), ("gTop-k, tree", "tree_s"), ("packed", "packed_s"))
_SPEEDS: Final = ("dense", "topk", "gtopk")
_EPOCHS: Final = Axis("epochs")


def gtopk_page(
    curves: Sequence[Sequence[Scaling]],
    sizes: Sequence[int],
    merged: Sequence[int],
    shares: Sequence[tuple[float, float]],
    settings: str,
    rows: Sequence[Row] = (),
    asked: int = 0,
) -> Page:
    """Return the report of the study.

    Parameters
    ----------
    curves : sequence of sequences of Scaling
        For each model and compute time, one for each number of ranks.
    sizes : sequence of int
        The numbers of ranks, the last of which the tables are of.
    merged : sequence of int
        Numbers of ranks whose choices were merged.
    shares : sequence of tuple of float
        What each merger lost: put-back and conserving.
    settings : str
        Network and machine of the model, in words.
    rows : sequence of dict, optional
        The rows of `run_gtopk_study`: compute times and courses of training.
    asked : int, default 0
        How many rows there should be.
    """
    steps, lessons = [found[-1] for found in curves], summarise_courses(rows)
    claims = check_gtopk_claims(steps, sizes[-1], [row for row in rows if "seconds" in row])
    judged = check_convergence(lessons)
    where = origin() | {"when": datetime.now(UTC).isoformat(timespec="seconds")}
    own = [{"key": f"{step.model.name}, {step.basis}", "ranks": sizes[-1], **step.as_row()} for step in steps]
    own += [{"key": f"mass-{row['ranks']}", **row} for row in mass_rows(merged, shares)]
    ranges = [("dense sums", STATEMENTS["gtopk/dense"], claims[::2]), ("Top-k", STATEMENTS["gtopk/topk"], claims[1::2])]
    return Page(
        title="What do sparse sums save on a slow network, and what do they cost?",
        answer=" ".join(filter(None, [_trained(lessons), _gained(steps, claims, sizes[-1]), _lost(merged, shares)])),
        ran=[("Command", where["command"]), ("Model", settings), *ran([*rows, where])],
        doubts=_doubts(rows, asked),
        highlights=[
            *((lesson.gap(cell).partition(" (")[0], f"{lesson.name}: gTop-k") for lesson, cell in _published(lessons)),
            *((_of(own), f"steps gain {_range(statement)} over {name}") for name, statement, own in ranges),
            (f"{shares[-1][0]:.1%}", f"of the chosen mass is lost by put-back on {merged[-1]} ranks"),
        ],
        claims=[*judged, *claims],
        source=f"{SOURCES['gtopk'].reference}.",
        figures=[*([courses_figure(lessons)] if lessons else []), _efficiency(curves, sizes), _mass(merged, shares)],
        data=[lessons_table(rows)] if lessons else [],
        tables=[
            *course_tables(lessons),
            scaling_table(steps, sizes[-1]),
            efficiency_table(curves, sizes),
            parts_table(steps),
            mass_table(merged, shares),
        ],
        rows=[*rows, *own],
        citations=citations([SOURCES["gtopk"]]),
    )


def _doubts(rows: Sequence[Row], asked: int) -> list[str]:
    """Return what to know before believing: the seconds of simulated ranks are not of this machine, others are."""
    missing, timed = missing_runs(len(rows), asked), [row for row in rows if "seconds" in row]
    return [*([missing] if missing else []), *(doubts(timed) if timed else [])]


def _published(lessons: Sequence[Lesson]) -> list[tuple[Lesson, CourseCell]]:
    return [(lesson, cell) for lesson in lessons for cell in lesson.cells if cell.name == "gtop-k"]


def _trained(lessons: Sequence[Lesson]) -> str:
    said = [f"{lesson.gap(cell)} for {lesson.name}" for lesson, cell in _published(lessons)]
    return f"The accuracy of gTop-k less that of dense sums is {', and '.join(said)}." if said else ""


def _gained(steps: Sequence[Scaling], claims: Sequence[Claim], size: int) -> str:
    said = []
    for basis in dict.fromkeys(step.basis for step in steps):
        own = [number for number, step in enumerate(steps) if step.basis == basis]
        inside, inside_topk = (sum(bool(claims[2 * number + of].holds) for number in own) for of in (0, 1))
        whose = {PUBLISHED: "the compute times of the authors", HERE: "those of one thread here"}.get(basis, basis)
        said.append(f"with {whose} for {inside} of {len(own)} networks, and over Top-k for {inside_topk}")
    return (
        f"On {size} ranks the cost of messages puts the gain of gTop-k over dense sums inside the published range "
        f"{'; '.join(said)}."
    )


def _lost(merged: Sequence[int], shares: Sequence[tuple[float, float]]) -> str:
    return (
        f"Putting back what the tree drops loses {shares[-1][0]:.1%} of the chosen mass on {merged[-1]} ranks; the "
        "conserving form loses none."
    )


def _of(claims: Sequence[Claim]) -> str:
    return f"{sum(bool(claim.holds) for claim in claims)} of {len(claims)}"


def _range(statement: Statement) -> str:
    return f"{statement.margin.least:g}x to {statement.margin.published:g}x"


def courses_figure(lessons: Sequence[Lesson]) -> Figure:
    """Return training loss and test accuracy against epochs, a line of two panels for each network."""
    panels = []
    for lesson in lessons:
        least = lesson.dense.rows[0]["least_loss"]
        losses = Axis("training loss", "log")
        for name, axis in (("train_loss", losses), ("accuracy", Axis("test accuracy", unit="%"))):
            marks: list[Line | Level] = []
            for number, cell in enumerate(lesson.cells):
                colour, _, dash = series(number)
                curve, seeds = cell.curve(), [row["curve"] for row in cell.rows]
                spans = [
                    (min(point), max(point)) for point in zip(*([at[name] for at in one] for one in seeds), strict=True)
                ]
                x, y = [point["epoch"] for point in curve], [point[name] for point in curve]
                names = [f"{cell.name} after {epoch:g} epochs" for epoch in x]
                marks.append(Line(cell.name, x, y, colour, "", dash, ranges=spans, names=names))
            if least is not None and name == "train_loss":
                marks.append(Level(least, "least possible"))
            panels.append(Panel(lesson.name, _EPOCHS, axis, marks))
    caption = (
        "Medians over the seeds, and their range. Densities are those of the warm-up in the first epochs, one each, "
        "and then one entry in a thousand. gTop-k is the published form, by a tree and with put-back. The least "
        "possible loss is that of new text: a network that remembers the text it is trained on falls below."
    )
    return Figure("courses", "Training to the end", caption, panels, columns=2, height=320)


def _efficiency(curves: Sequence[Sequence[Scaling]], sizes: Sequence[int]) -> Figure:
    panels = []
    for steps in curves:
        marks, speeds = [], SPEEDS[steps[0].model.name]
        for number, (label, field) in enumerate(_SUMS):
            colour, marker, dash = series(number)
            efficiencies = [step.efficiency(getattr(step, field)) for step in steps]
            marks.append(Line(label, sizes, efficiencies, colour, "", dash))
            if number < len(_SPEEDS):
                known = [size for size in sizes if size in SIZES]
                said = [speeds.efficiency(_SPEEDS[number], size) for size in known]
                marks.append(Line(f"{label}, published", known, said, colour, marker, width=0, hollow=True))
        title = f"{steps[0].model.name}: {1e3 * steps[0].compute_s:,.0f} ms ({steps[0].basis})"
        panels.append(Panel(title, period_axis("ranks", sizes), Axis("scaling efficiency", unit="%"), marks))
    caption = (
        "Share of a step that computes. Lines: from the cost of messages, nothing overlapped, with the compute time in "
        "the title. Rings: speeds that the authors measured."
    )
    return Figure("efficiency", "Scaling efficiency", caption, panels, share="xy")


def _mass(sizes: Sequence[int], shares: Sequence[tuple[float, float]]) -> Figure:
    marks = []
    for number, label in enumerate(("put-back, as published", "conserving")):
        colour, marker, dash = series(number)
        marks.append(Line(label, sizes, [share[number] for share in shares], colour, marker, dash))
    panel = Panel("", period_axis("ranks", sizes), Axis("chosen mass lost in one sum", unit="%"), marks)
    caption = "Entries that every rank chose and that are neither applied nor kept for later, in one sum by a tree."
    return Figure("mass", "What is lost", caption, [panel])
