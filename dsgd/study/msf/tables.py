"""The tables of the study of the period."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dsgd.ledger import PHASES
from dsgd.report import Table, byte_text, figure_text
from dsgd.study.frame.report import data_table as sets_table
from dsgd.study.msf.claims import is_trivial
from dsgd.study.msf.summary import Cell, Summary, target_reached

__all__ = ["BRIEF", "TIME", "WORTH", "data_table", "results_table", "target_table"]


def data_table(summary: Summary) -> Table:
    """Return what the study trained on."""
    note = "commonest label: test accuracy of always predicting it; best possible: of a generated set, from its noise."
    rows = (cell.rows[0] for cell in summary.cells)
    return sets_table(rows, "features", "non-zero", "commonest label", "best possible", note=note)


# Groups of columns: a table that fits a terminal, the costs of a run, and the quality of its model.
BRIEF: Final = (
    "ranks", "every", "time s", "comm. share", "comm. saved", "x sequential", "accuracy", "balanced", "exchanges",
)  # fmt: skip
TIME: Final = (
    "ranks", "every", "time s", "compute s", "encode s", "wire s", "wait s", "comm. share", "comm. saved",
    "x sequential", "exchanges", "sent", "peak memory",
)  # fmt: skip
WORTH: Final = (
    "ranks", "every", "accuracy", "lowest", "highest", "balanced", "F1", "training accuracy", "objective",
    "dispersion",
)  # fmt: skip


def results_table(summary: Summary, dataset: str, columns: Sequence[str] = BRIEF, title: str = "Results") -> Table:
    """Return one row per number of ranks and period, with `BRIEF`, `TIME` or `WORTH` of the columns."""
    sequential = summary.sequential(dataset)
    base = sequential.median("train_s") if sequential else None
    found = [_result(summary, cell, base) for cell in summary.cells if cell.dataset == dataset]
    notes = ["Medians over seeds."]
    if "comm. saved" in columns:
        notes.append("Seconds and bytes per rank; comm. = wire + wait; saved: against every=1 on as many ranks.")
    if any(cells["accuracy"].endswith("*") for cells in found):
        notes.append("* no better than always predicting the commonest label.")
    rows = [tuple(cells[name] for name in columns) for cells in found]
    return Table(f"{title} on {dataset}", columns, rows, " ".join(notes), n_text=0)


def target_table(summary: Summary, *, excess: float) -> Table:
    """Return epochs and seconds until the training loss is within `excess` of the sequential run's final one."""
    rows: list[tuple[str, ...]] = []
    for dataset in summary.datasets():
        sequential = summary.sequential(dataset)
        finals = [row["curve"][-1]["train_loss"] for row in sequential.rows if row.get("curve")] if sequential else []
        finals = [loss for loss in finals if loss is not None]
        if not finals:
            continue
        target = sorted(finals)[len(finals) // 2] * (1.0 + excess)
        for cell in (cell for cell in summary.cells if cell.dataset == dataset):
            reached = [target_reached(row, target) for row in cell.rows]
            hits = sorted(hit for hit in reached if hit is not None)
            middle = hits[len(hits) // 2] if 2 * len(hits) > len(reached) else None
            rows.append(
                (
                    dataset,
                    f"{target:.4g}",
                    str(cell.ranks),
                    _every(cell),
                    f"{middle[0]}" if middle else "not reached",
                    figure_text(middle[1]) if middle else "-",
                )
            )
    columns = ("data", "target loss", "ranks", "every", "epochs", "seconds")
    note = (
        f"Target: the training loss of the sequential run's last epoch plus {excess:.0%}. The loss of an epoch is the "
        "mean over its rows, each before its own update; half of the seeds or more must reach it."
    )
    return Table("Time to target", columns, rows, note)


def _result(summary: Summary, cell: Cell, sequential_s: float | None) -> dict[str, str]:
    """Return every column of a cell by its heading."""
    phases = {phase: cell.median(f"{phase}_s") for phase in (*PHASES, "other")}
    communication, spent = phases["wire"] + phases["wait"], sum(phases.values())
    first = summary.cell(cell.dataset, cell.ranks, 1)
    before = first.median("communication_s") if first else 0.0
    accuracy, f1 = cell.stat("test_accuracy"), cell.stat("f1")
    dispersion, memory = cell.stat("dispersion"), cell.stat("peak_rss_bytes")
    alone = cell.ranks == 1  # nothing is exchanged
    return {
        "ranks": str(cell.ranks),
        "every": _every(cell),
        "time s": figure_text(cell.median("train_s")),
        "compute s": figure_text(phases["compute"]),
        "encode s": "-" if alone else figure_text(phases["encode"]),
        "wire s": "-" if alone else figure_text(phases["wire"]),
        "wait s": "-" if alone else figure_text(phases["wait"]),
        "control s": "-" if alone else figure_text(phases["control"]),
        "comm. share": "-" if alone or not spent else f"{communication / spent:.1%}",
        "comm. saved": f"{1 - communication / before:.1%}" if before > 0 and cell.every not in (None, 1) else "-",
        "x sequential": figure_text(sequential_s / cell.median("train_s")) if sequential_s else "-",
        "accuracy": f"{cell.median('test_accuracy'):.2%}" + "*" * is_trivial(cell),
        "lowest": f"{accuracy.low:.2%}" if accuracy else "-",
        "highest": f"{accuracy.high:.2%}" if accuracy else "-",
        "balanced": f"{cell.median('balanced_accuracy'):.2%}",
        "F1": f"{f1.median:.3f}" if f1 else "-",
        "training accuracy": f"{cell.median('train_accuracy'):.2%}",
        "objective": f"{cell.median('objective'):.4f}",
        "dispersion": f"{dispersion.median:.2g}" if dispersion and not alone else "-",
        "exchanges": "-" if alone else f"{cell.median('rounds'):,.0f}",
        "sent": "-" if alone else byte_text(cell.median("bytes_sent")),
        "control": "-" if alone else byte_text(cell.median("control_bytes_sent")),
        "peak memory": byte_text(memory.median) if memory else "-",
    }


def _every(cell: Cell) -> str:
    return "sequential" if cell.every is None else f"{cell.every:,}"
