"""``dsgd study tuning``: every rule of ``sync="auto"`` against a sweep of fixed periods."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from dsgd.cli.study import follow, parse_numbers, tell

__all__ = ["EXAMPLES", "tuning"]

EXAMPLES: Final = """\
Examples:

  dsgd study tuning --demo --out demo/

  dsgd study tuning --out study/

  dsgd study tuning --network 1GbE --ranks 8 --out study/

  dsgd study tuning -d a9a -r auto -r qsr --every 16,256,4096 --seeds 3 --scheduler tcp://10.0.0.5:8786 --out study/
"""
_GRID: Final = "The grid"
_MODEL: Final = "The model"


def tuning(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for rows, figures and report.")],
    dataset: Annotated[
        list[str] | None,
        typer.Option("--dataset", "-d", help="Dataset; repeat for several. See `dsgd datasets list`."),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            "-r",
            help="auto, fixed, adacomm, qsr, variance-band, dynamic, budget, post-local; repeat for several.",
        ),
    ] = None,
    every: Annotated[str | None, typer.Option(help="The fixed periods, as 1,16,256.", rich_help_panel=_GRID)] = None,
    ranks: Annotated[int | None, typer.Option(min=2, help="Worker processes.", rich_help_panel=_GRID)] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions of each run.", rich_help_panel=_GRID)] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the rows.", rich_help_panel=_GRID)] = None,
    rows: Annotated[int | None, typer.Option(help="Training rows of each dataset.", rich_help_panel=_GRID)] = None,
    share: Annotated[
        float | None, typer.Option(help="AutoSync(target=...): the share of communication.", rich_help_panel=_MODEL)
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="Weight of the L2 penalty.", rich_help_panel=_MODEL)] = None,
    loss: Annotated[str | None, typer.Option(help="hinge, squared_hinge or log_loss.", rich_help_panel=_MODEL)] = None,
    network: Annotated[
        str | None, typer.Option(help="Simulate the ranks, on 1GbE, 10GbE, 100GbE, InfiniBand, NVLink or WAN.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Use the cluster at this address; by default one is started here.")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Two sets, small enough for two cores and a minute.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Run again what the folder has rows of.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """How good is the period that training chooses? Seconds to a target of every rule, over those of the best period.

    The best period is found by trying all of them, on two worker processes. Every run becomes a row in OUT/rows.jsonl:
    a study that was stopped goes on where it was when the same command is given again. OUT/report.html needs no
    network.
    """
    from dsgd.report import check_extras
    from dsgd.study import DataSource
    from dsgd.study.tuning import TuningStudy, demo_tuning_study, run_tuning_study

    check_extras()  # before minutes of work, not after
    given = {
        "every": parse_numbers("--every", every),
        "rules": tuple(rule) if rule else None,
        "ranks": ranks,
        "network": network,
        "seeds": None if seeds is None else tuple(range(seeds)),
        "epochs": epochs,
        "target": share,
        "alpha": alpha,
        "loss": loss,
    }
    preset = demo_tuning_study() if demo else TuningStudy()
    sizes = {source.name: source for source in preset.data}
    data = [sizes.get(name, DataSource(name)) for name in dataset or sizes]
    if rows is not None:
        data = [replace(source, rows=rows, test_rows=None) for source in data]
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    study = replace(preset, data=tuple(data), **changes)

    def describe(row: dict[str, Any]) -> str:
        return f"{row['policy']}, {row['dataset']}"

    runs = run_tuning_study(study, out, scheduler=scheduler, force=force)
    found = follow(runs, study.count(), describe, out, quiet=as_json)
    _report(study, found, out, as_json=as_json)


def _report(study: Any, rows: list[dict[str, Any]], out: Path, *, as_json: bool) -> None:
    """Write the report; print what it says."""
    from dsgd.study.tuning import summarise_tuning, tuning_page

    sets = [
        {
            "dataset": one.dataset,
            "target": one.target,
            "best": one.best.period,
            "regret": {cell.policy: one.regret(cell) for cell in one.rules},
        }
        for one in summarise_tuning(rows)
    ]
    page = tuning_page(study, rows)
    tell(page, out, page.tables, {"sets": sets}, as_json=as_json)
