"""``dsgd study dnn``: compare methods of training neural networks by accuracy, seconds and bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from dsgd.cli import study_options as options
from dsgd.cli.study import changed, check_place, follow, parse_numbers, seeds_of, tell
from dsgd.cli.study_options import GRID

if TYPE_CHECKING:
    from dsgd.study.dnn import DnnStudy

__all__ = ["EXAMPLES", "dnn"]

EXAMPLES: Final = """\
Examples:

  dsgd study dnn --demo --out demo/

  dsgd study dnn --model cnn --ranks 2 --out study/

  dsgd study dnn --model mlp -s local -s gtopk -s diloco --ranks 16 --simulated --network 1GbE --out study/
"""
_TRAINING: Final = "Training"
_Strategy: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy",
        "-s",
        help="synchronous, local, post-local, easgd, leader, sgp, dpsgd, gtopk, dgc, powersgd, qsgd or diloco; "
        "repeat for several. All by default.",
    ),
]
_Looks: TypeAlias = Annotated[
    str | None, typer.Option(help="Epochs after which a run is looked at, as 1,4.", rich_help_panel=GRID)
]
_Density: TypeAlias = Annotated[
    float | None, typer.Option(help="Share of the entries that gTop-k and DGC send.", rich_help_panel=_TRAINING)
]
_Demo: TypeAlias = Annotated[
    bool, typer.Option("--demo", help="All of them on 16 simulated ranks, a small network, about a minute.")
]


def dnn(
    out: options.Out,
    model: Annotated[list[str] | None, typer.Option(help="mlp or cnn; repeat for both, which is the default.")] = None,
    strategy: _Strategy = None,
    ranks: options.Ranks = None,
    seeds: options.Seeds = None,
    looks: _Looks = None,
    rows: Annotated[int | None, typer.Option(min=100, help="Training rows.", rich_help_panel=GRID)] = None,
    simulated: options.Simulated = False,
    network: options.OnNetwork = None,
    scheduler: options.OnScheduler = None,
    batch: Annotated[int | None, typer.Option(help="Rows of a rank in a step.", rich_help_panel=_TRAINING)] = None,
    lr: Annotated[float | None, typer.Option(help="The learning rate.", rich_help_panel=_TRAINING)] = None,
    density: _Density = None,
    demo: _Demo = False,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare methods of training neural networks on handwritten digits: accuracy, seconds and bytes.

    Every run becomes a row in OUT/rows.jsonl. The same command resumes an interrupted study. OUT/report.html is
    self-contained.
    """
    from dsgd.report import check_extras
    from dsgd.study.dnn import DnnStudy, demo_dnn_study, run_dnn_study

    check_extras()  # before minutes of work, not after
    preset = demo_dnn_study() if demo else DnnStudy()
    check_place(simulated=simulated or demo, scheduler=scheduler, network=network)
    given = {
        "models": tuple(model) if model else None,
        "ways": tuple(strategy) if strategy else None,
        "ranks": parse_numbers("--ranks", ranks),
        "seeds": seeds_of(seeds),
        "looks": parse_numbers("--looks", looks),
        "rows": rows,
        "network": network or ("10GbE" if simulated else None),
        "batch": batch,
        "lr": lr,
        "density": density,
    }
    study = changed(preset, given)

    def describe(row: dict[str, Any]) -> str:
        return f"{row['model']}, {row['strategy']} on {row['ranks']} ranks"

    runs = run_dnn_study(study, out, scheduler=scheduler, force=force)
    _report(study, follow(runs, study.count(), describe, out, quiet=as_json), out, as_json=as_json)


def _report(study: DnnStudy, rows: list[dict[str, Any]], out: Path, *, as_json: bool) -> None:
    """Write the report; print what it says."""
    from dsgd.study.dnn import dnn_page

    page = dnn_page(study, rows)
    tell(page, out, page.tables, {"answer": page.answer}, as_json=as_json)
