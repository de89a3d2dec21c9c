"""The claims of the published study, compared with measurements."""

from __future__ import annotations

from dataclasses import replace

from dsgd.report import Claim
from dsgd.study.frame.report import time_text
from dsgd.study.msf import published
from dsgd.study.msf.summary import Cell, Summary
from dsgd.study.published import STATEMENTS
from dsgd.study.verdict import Interval, difference, ratio, were_busy

__all__ = ["check_claims", "is_trivial"]

# A model this close to the majority vote, or with this balanced accuracy, has learnt almost nothing about the rare
# class.
_TRIVIAL_MARGIN = 0.005
_TRIVIAL_BALANCED = 0.55


def check_claims(summary: Summary) -> list[Claim]:
    """Return the published claims, each with the result of a study on each of its datasets.

    Claims are evaluated at the largest number of ranks that was run.
    """
    checks = (_less_communication, _faster_than_frequent, _faster_than_sequential, _same_accuracy)
    return [check(summary, dataset) for check in checks for dataset in summary.datasets()]


def is_trivial(cell: Cell) -> bool:
    """Return whether the models of a cell are no better than the majority vote.

    True when test accuracy is not half a point above that of the commonest label, or balanced accuracy is below
    0.55 (0.5 is a coin).
    """
    gain = cell.median("test_accuracy") - cell.median("majority_accuracy")
    return gain < _TRIVIAL_MARGIN or cell.median("balanced_accuracy") < _TRIVIAL_BALANCED


def _ends(summary: Summary, dataset: str) -> tuple[Cell, Cell] | None:
    """Return the cells of period 1 and 512 at the most ranks, if both were run."""
    cells = {cell.every: cell for cell in summary.parallel(dataset)}
    return (cells[1], cells[published.RARE]) if 1 in cells and published.RARE in cells else None


def _less_communication(summary: Summary, dataset: str) -> Claim:
    family, statement = published.family(dataset), STATEMENTS["msf/communication"]
    if family is not None:
        two, most = (published.communication_reduction(family, ranks) for ranks in (2, 32))
        statement = replace(statement, figure=f"{two:.1%} (2 processes), {most:.1%} (32)")
    ends = _ends(summary, dataset)
    if ends is None:
        return statement.not_run(dataset, f"Needs every=1 and every={published.RARE} on 2 ranks or more.")
    before, after = (cell.median("communication_s") for cell in ends)
    share = ratio(ends[1].by_seed("communication_s"), ends[0].by_seed("communication_s"))
    if share is None:
        return statement.not_run(dataset, "Nothing was communicated.")
    fall = share.mapped(lambda left: 1.0 - left)
    note = (
        f"Wire plus waiting, per rank: {time_text(before)} -> {time_text(after)} over {ends[0].rows[0]['epochs']} "
        f"epochs on {ends[0].ranks} processes; {ends[0].median('rounds'):,.0f} -> {ends[1].median('rounds'):,.0f} "
        "exchanges."
    )
    return statement.judged(dataset, fall, note, busy=_busy(*ends), baseline="0%: every=1")


def _faster_than_frequent(summary: Summary, dataset: str) -> Claim:
    family, statement = published.family(dataset), STATEMENTS["msf/frequent"]
    if family is not None:
        two, most = (published.period_speedup(family, ranks) for ranks in (2, 32))
        statement = replace(statement, figure=f"{statement.figure}; its data: {two:.1f}x (2), {most:.1f}x (32)")
    cells = {cell.every: cell for cell in summary.parallel(dataset)}
    if 1 not in cells or len(cells) < 2:
        return statement.not_run(dataset, "Needs every=1 and a larger period on 2 ranks or more.")
    base = cells[1].median("train_s")
    best = min(cells.values(), key=lambda cell: cell.median("train_s"))
    found = _speedup(cells[1], best)
    note = (
        f"Training time {time_text(base)} at every=1, {time_text(best.median('train_s'))} at every={best.every} "
        f"on {best.ranks} processes. The ratio is set by what a sample costs against what an exchange costs here."
    )
    return statement.judged(
        dataset, found, note, busy=_busy(cells[1], best), baseline=_one_rank(summary, dataset, cells[1])
    )


def _faster_than_sequential(summary: Summary, dataset: str) -> Claim:
    statement, low = STATEMENTS["msf/sequential"], STATEMENTS["msf/sequential"].margin.least
    cells, sequential = summary.parallel(dataset), summary.sequential(dataset)
    if not cells or sequential is None:
        return statement.not_run(dataset, "Needs the sequential run and 2 ranks or more.")
    best = min(cells, key=lambda cell: cell.median("train_s"))
    base = sequential.median("train_s")
    note = (
        f"Sequential {time_text(base)}, best parallel {time_text(best.median('train_s'))} (every={best.every}). "
        f"{best.ranks} processes can be about {best.ranks}x as fast as one, not {low:.0f}x: "
        "this claim needs the published 32 processes and cannot hold here."
        if best.ranks < low
        else f"Sequential {time_text(base)}, best parallel {time_text(best.median('train_s'))} (every={best.every})."
    )
    found = _speedup(sequential, best)
    return statement.judged(dataset, found, note, busy=_busy(sequential, best), baseline="1x: one process")


def _same_accuracy(summary: Summary, dataset: str) -> Claim:
    statement = STATEMENTS["msf/accuracy"]
    cells, sequential = summary.parallel(dataset), summary.sequential(dataset)
    if not cells or sequential is None:
        return statement.not_run(dataset, "Needs the sequential run and 2 ranks or more.")
    chosen = next((cell for cell in cells if cell.every == published.RARE), cells[-1])
    accuracy, base = chosen.median("test_accuracy"), sequential.median("test_accuracy")
    change = difference(chosen.by_seed("test_accuracy"), sequential.by_seed("test_accuracy"))
    if change is None:
        return statement.not_run(dataset, "Needs both with the same seed.")
    worst = min(cells, key=lambda cell: cell.median("test_accuracy"))
    trivial = is_trivial(chosen)
    note = (
        f"every={chosen.every} {accuracy:.2%}, sequential {base:.2%}; always predicting the commonest label scores "
        f"{chosen.median('majority_accuracy'):.2%}. Balanced accuracy {chosen.median('balanced_accuracy'):.2%} "
        f"(sequential {sequential.median('balanced_accuracy'):.2%}). Lowest over all periods: "
        f"{worst.median('test_accuracy'):.2%} at every={worst.every}."
    )
    best = chosen.rows[0].get("bayes_accuracy")
    if best is not None:
        note += f" The best possible on this generated set is {best:.2%}."
    if trivial:
        note += " No better than trivial: this accuracy says almost nothing."
    commonest = statement.form(chosen.median("majority_accuracy") - base)
    return statement.judged(dataset, change, note, trivial=trivial, baseline=f"{commonest}: commonest label")


def _one_rank(summary: Summary, dataset: str, frequent: Cell) -> str:
    """Return how many times as fast as the frequent runs one process is."""
    sequential = summary.sequential(dataset)
    if sequential is None:
        return ""
    return f"{frequent.median('train_s') / sequential.median('train_s'):.1f}x: one process"


def _speedup(base: Cell, best: Cell) -> Interval:
    found = ratio(base.by_seed("train_s"), best.by_seed("train_s"))
    # Seeds are run in their order, so that both have the first.
    assert found is not None
    return found


def _busy(*cells: Cell) -> bool:
    return any(were_busy(cell.rows) for cell in cells)
