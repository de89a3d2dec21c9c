"""``dsgd study dnn``: compare methods of training neural networks by accuracy, seconds and bytes."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, TypeAlias

import typer

from dsgd.cli import study_options as options
from dsgd.cli.study import asked, check_place, follow, tell
from dsgd.cli.study_options import grid_option, numbers
from dsgd.cli.training_options import examples

__all__ = ["EXAMPLES", "dnn"]

EXAMPLES: Final = examples(
    "dsgd study dnn --demo --out demo/",
    "dsgd study dnn --model cnn --ranks 2 --out study/",
    "dsgd study dnn --model mlp -s local -s gtopk -s diloco --ranks 16 --simulated --network 1GbE --out study/",
)
_training_option: Final[Any] = partial(typer.Option, rich_help_panel="Training")
_Models: TypeAlias = Annotated[
    list[str] | None, typer.Option("--model", help="mlp or cnn; repeat for both, which is the default.")
]
_Ways: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy",
        "-s",
        help="synchronous, local, post-local, easgd, leader, async-easgd, async-leader, sgp, dpsgd, gtopk, dgc, "
        "powersgd, qsgd, diloco or streaming; repeat for several. All by default.",
    ),
]
_Looks: TypeAlias = Annotated[
    str | None, grid_option(help="Epochs after which a run is looked at, as 1,4.", callback=numbers)
]
_Density: TypeAlias = Annotated[float | None, _training_option(help="Share of the entries that gTop-k and DGC send.")]
_Demo: TypeAlias = Annotated[
    bool, typer.Option("--demo", help="All of them on 16 simulated ranks, a small network, about a minute.")
]


def dnn(
    ctx: typer.Context,
    out: options.Out,
    models: _Models = None,
    ways: _Ways = None,
    ranks: options.Ranks = None,
    seeds: options.Seeds = None,
    looks: _Looks = None,
    rows: Annotated[int | None, grid_option(min=100, help="Training rows.")] = None,
    simulated: options.Simulated = False,
    network: options.OnNetwork = None,
    scheduler: options.OnScheduler = None,
    batch: Annotated[int | None, _training_option(help="Rows of a rank in a step.")] = None,
    lr: Annotated[float | None, _training_option(help="The learning rate.")] = None,
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
    from dsgd.study import dnn as api

    check_extras()  # before minutes of work, not after
    check_place(simulated=simulated or demo, scheduler=scheduler, network=network)
    preset = api.demo_dnn_study() if demo else api.DnnStudy(network="10GbE" if simulated else None)
    study = asked(preset, ctx)
    runs = api.run_dnn_study(study, out, scheduler=scheduler, force=force)
    found = follow(runs, study.count(), ("model", "strategy"), out, quiet=as_json)
    page = api.dnn_page(study, found)
    tell(page, out, page.tables, {"answer": page.answer}, as_json=as_json)
