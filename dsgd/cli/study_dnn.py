"""``dsgd study dnn``: accuracy of neural networks for seconds and for bytes, by how ranks talk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dsgd.cli.study import follow, parse_numbers, tell
from dsgd.errors import InvalidParameterError

if TYPE_CHECKING:
    from dsgd.study.dnn import DnnStudy

__all__ = ["EXAMPLES", "dnn"]

EXAMPLES: Final = """\
Examples:

  dsgd study dnn --demo --out demo/

  dsgd study dnn --model cnn --ranks 2 --out study/

  dsgd study dnn --model mlp -s local -s gtopk -s diloco --ranks 16 --simulated --network 1GbE --out study/
"""
_GRID: Final = "The grid"
_TRAINING: Final = "Training"
_PLACE: Final = "Where ranks run"


def dnn(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for rows, figures and report.")],
    model: Annotated[list[str] | None, typer.Option(help="mlp or cnn; repeat for both, which is the default.")] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy",
            "-s",
            help="synchronous, local, post-local, easgd, leader, sgp, dpsgd, gtopk, dgc, powersgd, qsgd or diloco; "
            "repeat for several. All by default.",
        ),
    ] = None,
    ranks: Annotated[str | None, typer.Option(help="Numbers of ranks, as 2,4.", rich_help_panel=_GRID)] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions of each run.", rich_help_panel=_GRID)] = None,
    looks: Annotated[
        str | None, typer.Option(help="Epochs after which a run is looked at, as 1,4.", rich_help_panel=_GRID)
    ] = None,
    rows: Annotated[int | None, typer.Option(min=100, help="Training rows.", rich_help_panel=_GRID)] = None,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Ranks on a virtual clock.", rich_help_panel=_PLACE)
    ] = False,
    network: Annotated[
        str | None,
        typer.Option(help="Of simulated ranks: 1GbE, 10GbE, 100GbE, InfiniBand, NVLink, WAN.", rich_help_panel=_PLACE),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="Use the cluster at this address; by default workers are started here.", rich_help_panel=_PLACE
        ),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Rows of a rank in a step.", rich_help_panel=_TRAINING)] = None,
    lr: Annotated[float | None, typer.Option(help="The learning rate.", rich_help_panel=_TRAINING)] = None,
    density: Annotated[
        float | None, typer.Option(help="Share of the entries that gTop-k and DGC send.", rich_help_panel=_TRAINING)
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="All of them on 16 simulated ranks, a small network, about a minute.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Run again what the folder has rows of.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """How should the ranks of a neural network talk? Train on handwritten digits with every way of talking.

    Every run becomes a row in OUT/rows.jsonl: a study that was stopped goes on where it was when the same command is
    given again. OUT/report.html needs no network.
    """
    from dsgd.report import check_extras
    from dsgd.study.dnn import DnnStudy, demo_dnn_study, run_dnn_study

    check_extras()  # before minutes of work, not after
    preset = demo_dnn_study() if demo else DnnStudy()
    if network is not None and not (simulated or demo):
        raise InvalidParameterError(f"--network {network!r} is of simulated ranks: add --simulated, or leave it out")
    if scheduler is not None and (simulated or demo):
        raise InvalidParameterError(f"--scheduler {scheduler!r} is of real workers: leave it out, or the simulation")
    given: dict[str, Any] = {
        "models": tuple(model) if model else None,
        "ways": tuple(strategy) if strategy else None,
        "ranks": parse_numbers("--ranks", ranks),
        "seeds": None if seeds is None else tuple(range(seeds)),
        "looks": parse_numbers("--looks", looks),
        "rows": rows,
        "network": network or ("10GbE" if simulated else None),
        "batch": batch,
        "lr": lr,
        "density": density,
    }
    study = replace(preset, **{name: value for name, value in given.items() if value is not None})

    def describe(row: dict[str, Any]) -> str:
        return f"{row['model']}, {row['strategy']} on {row['ranks']} ranks"

    runs = run_dnn_study(study, out, scheduler=scheduler, force=force)
    _report(study, follow(runs, study.count(), describe, out, quiet=as_json), out, as_json=as_json)


def _report(study: DnnStudy, rows: list[dict[str, Any]], out: Path, *, as_json: bool) -> None:
    """Write the report; print what it says."""
    from dsgd.study.dnn import dnn_page

    page = dnn_page(study, rows)
    tell(page, out, page.tables, {"answer": page.answer}, as_json=as_json)
