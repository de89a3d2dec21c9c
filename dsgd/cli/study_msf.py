"""``dsgd study msf``: measure the cost and accuracy of synchronisation periods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from dsgd.cli import study_options as options
from dsgd.cli.study import changed, follow, on_ranks, parse_numbers, seeds_of, sized, tell
from dsgd.cli.study_options import GRID, MODEL

if TYPE_CHECKING:
    from dsgd.study import Study, Summary

__all__ = ["EXAMPLES", "make_study", "msf"]

EXAMPLES: Final = """\
Examples:

  dsgd study msf --demo --out demo/

  dsgd study msf --dataset ijcnn1 --ranks 1,2 --every 1,4,16,64,256,1024,4096 --out study/

  dsgd study msf --dataset a9a --dataset w8a --ranks 1,2,4,8 --seeds 5 --scheduler tcp://10.0.0.5:8786 --out study/
"""
_Every: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Samples between two synchronisations, as 1,16,256.", rich_help_panel=GRID),
]
_Schedule: TypeAlias = Annotated[
    str | None,
    typer.Option(help="optimal, pegasos, or per-epoch as in the published study.", rich_help_panel=MODEL),
]
_Intercept: TypeAlias = Annotated[
    bool | None,
    typer.Option(help="Learn an intercept; the published study has none.", rich_help_panel=MODEL),
]
_Target: TypeAlias = Annotated[
    float | None,
    typer.Option(help="Time to target: loss above the sequential run's, as 0.02.", rich_help_panel=MODEL),
]
_Demo: TypeAlias = Annotated[
    bool, typer.Option("--demo", help="The three sets of the paper, sized for two cores and a minute or two.")
]


def msf(
    out: options.Out,
    dataset: options.Dataset = None,
    ranks: Annotated[str | None, typer.Option(help="Worker processes, as 1,2,4.", rich_help_panel=GRID)] = None,
    every: _Every = None,
    seeds: options.Seeds = None,
    epochs: options.Epochs = None,
    rows: options.Rows = None,
    alpha: options.Alpha = None,
    loss: options.Loss = None,
    schedule: _Schedule = None,
    partition: options.Partition = None,
    intercept: _Intercept = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64.", rich_help_panel=MODEL)] = None,
    target: _Target = None,
    scheduler: options.Scheduler = None,
    demo: _Demo = False,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """How often must ranks synchronise? Sweep the period and recompute the claims of arXiv 1905.01219.

    Every run is trained on real worker processes and becomes one row in OUT/rows.jsonl as soon as it is finished. The
    same command resumes an interrupted study. OUT/report.html is self-contained.
    """
    from dsgd.study import check_extras, run_study

    check_extras()  # before minutes of work, not after
    given = {
        "ranks": parse_numbers("--ranks", ranks),
        "every": parse_numbers("--every", every),
        "seeds": seeds_of(seeds),
        "epochs": epochs,
        "alpha": alpha,
        "loss": loss,
        "schedule": None if schedule is None else schedule.replace("-", "_"),
        "partition": partition,
        "fit_intercept": intercept,
        "dtype": dtype,
        "target_excess": target,
    }
    study = make_study(dataset or (), rows, given, demo=demo)

    def describe(row: dict[str, Any]) -> str:
        return f"{row['dataset']} {on_ranks(row)}"

    runs = run_study(study, out, scheduler=scheduler, force=force)
    _report(study, follow(runs, study.count(), describe, out, quiet=as_json), out, as_json=as_json)


def make_study(datasets: Sequence[str], rows: int | None, given: dict[str, Any], *, demo: bool) -> Study:
    """Return the study that the options describe.

    Parameters
    ----------
    datasets : sequence of str
        Names of datasets; the preset's own if empty.
    rows : int or None
        Training rows of each.
    given : dict
        Fields of `Study`; those that are None keep the value of the preset.
    demo : bool
        Whether the preset is the demo, and not the defaults.

    Raises
    ------
    InvalidParameterError
        A value is outside its domain.
    """
    from dsgd.study import DataSource, Study, demo_study

    study = demo_study() if demo else Study()
    data = sized([DataSource(name) for name in datasets] or study.data, rows)
    return changed(study, {"data": data, **given})


def _report(study: Study, rows: list[dict[str, Any]], out: Path, *, as_json: bool) -> None:
    """Write the report; print what it says."""
    from dsgd.study import results_table, study_page, summarise

    summary = summarise(rows)
    tables = [results_table(summary, dataset) for dataset in summary.datasets()]
    tell(study_page(study, rows), out, tables, {"cells": _cells(summary)}, as_json=as_json)


def _cells(summary: Summary) -> list[dict[str, Any]]:
    names = ("train_s", "communication_s", "test_accuracy", "balanced_accuracy", "majority_accuracy", "objective")
    return [
        {
            "dataset": cell.dataset,
            "ranks": cell.ranks,
            "every": cell.every,
            "seeds": len(cell.rows),
            **{name: stat.median if (stat := cell.stat(name)) else None for name in names},
        }
        for cell in summary.cells
    ]
