"""``dsgd study tuning``: compare the rules of ``sync="auto"`` with fixed periods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from dsgd.cli import study_options as options
from dsgd.cli.study import changed, follow, parse_numbers, seeds_of, sized, tell
from dsgd.cli.study_options import GRID, MODEL

__all__ = ["EXAMPLES", "tuning"]

EXAMPLES: Final = """\
Examples:

  dsgd study tuning --demo --out demo/

  dsgd study tuning --out study/

  dsgd study tuning --network 1GbE --ranks 8 --out study/

  dsgd study tuning -d a9a -r auto -r qsr --every 16,256,4096 --seeds 3 --scheduler tcp://10.0.0.5:8786 --out study/
"""
_Rule: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        "-r",
        help="auto, fixed, adacomm, qsr, variance-band, dynamic, budget, post-local; repeat for several.",
    ),
]
_Repeats: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Times that the longest run is trained.", rich_help_panel=GRID)
]
_Share: TypeAlias = Annotated[
    float | None,
    typer.Option(help="AutoSync(target=...): the share of communication.", rich_help_panel=MODEL),
]
_Network: TypeAlias = Annotated[
    str | None, typer.Option(help="Simulate the ranks, on 1GbE, 10GbE, 100GbE, InfiniBand, NVLink or WAN.")
]


def tuning(
    out: options.Out,
    dataset: options.Dataset = None,
    rule: _Rule = None,
    every: Annotated[str | None, typer.Option(help="The fixed periods, as 1,16,256.", rich_help_panel=GRID)] = None,
    ranks: Annotated[int | None, typer.Option(min=2, help="Worker processes.", rich_help_panel=GRID)] = None,
    seeds: options.Seeds = None,
    epochs: options.Epochs = None,
    repeats: _Repeats = None,
    rows: options.Rows = None,
    share: _Share = None,
    alpha: options.Alpha = None,
    loss: options.Loss = None,
    network: _Network = None,
    scheduler: options.Scheduler = None,
    demo: Annotated[bool, typer.Option("--demo", help="Two sets, small enough for two cores and a minute.")] = False,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """How good are automatic periods? Seconds to a target for every rule, relative to the best fixed period.

    The best period is found by trying all of them, on two worker processes. Every run becomes a row in OUT/rows.jsonl.
    The same command resumes an interrupted study. OUT/report.html is self-contained.
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
        "seeds": seeds_of(seeds),
        "epochs": epochs,
        "repeats": repeats,
        "target": share,
        "alpha": alpha,
        "loss": loss,
    }
    preset = demo_tuning_study() if demo else TuningStudy()
    sizes = {source.name: source for source in preset.data}
    data = sized([sizes.get(name, DataSource(name)) for name in dataset or sizes], rows)
    study = changed(preset, {"data": data, **given})

    def describe(row: dict[str, Any]) -> str:
        return f"{row['policy']}, {row['dataset']}"

    runs = run_tuning_study(study, out, scheduler=scheduler, force=force)
    _report(study, follow(runs, study.count(), describe, out, quiet=as_json), out, as_json=as_json)


def _report(study: Any, rows: list[dict[str, Any]], out: Path, *, as_json: bool) -> None:
    """Write the report; print what it says."""
    from dsgd.study.tuning import summarise_tuning, tuning_page

    sets = [
        {
            "dataset": one.dataset,
            "targets": one.targets,
            "best": one.best.period,
            "regret": {cell.policy: one.regret(cell) for cell in one.rules},
        }
        for one in summarise_tuning(rows)
    ]
    page = tuning_page(study, rows)
    tell(page, out, page.tables, {"sets": sets}, as_json=as_json)
