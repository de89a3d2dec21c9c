"""``dsgd study tuning``: compare the rules of ``sync="auto"`` with fixed periods."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from dsgd.cli import study_options as options
from dsgd.cli.study import asked, follow, sized, tell
from dsgd.cli.study_options import grid_option, model_option, numbers
from dsgd.cli.training_options import examples

__all__ = ["EXAMPLES", "tuning"]

EXAMPLES: Final = examples(
    "dsgd study tuning --demo --out demo/",
    "dsgd study tuning --out study/",
    "dsgd study tuning --network 1GbE --ranks 8 --out study/",
    "dsgd study tuning -d a9a -r auto -r qsr --every 16,256,4096 --seeds 3 --scheduler tcp://10.0.0.5:8786 -o study/",
)
_Rules: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        "-r",
        help="auto, fixed, adacomm, qsr, variance-band, dynamic, budget, post-local; repeat for several.",
    ),
]
_Every: TypeAlias = Annotated[str | None, grid_option(help="The fixed periods, as 1,16,256.", callback=numbers)]
_Repeats: TypeAlias = Annotated[int | None, grid_option(min=1, help="Times that the longest run is trained.")]
_Share: TypeAlias = Annotated[
    float | None, model_option("--share", help="AutoSync(target=...): the share of communication.")
]
_Network: TypeAlias = Annotated[
    str | None, typer.Option(help="Simulate the ranks, on 1GbE, 10GbE, 100GbE, InfiniBand, NVLink or WAN.")
]
_Demo: TypeAlias = Annotated[bool, typer.Option("--demo", help="Two sets, small enough for two cores and a minute.")]


def tuning(
    ctx: typer.Context,
    out: options.Out,
    dataset: options.Dataset = None,
    rules: _Rules = None,
    every: _Every = None,
    ranks: Annotated[int | None, grid_option(min=2, help="Worker processes.")] = None,
    seeds: options.Seeds = None,
    epochs: options.Epochs = None,
    repeats: _Repeats = None,
    rows: options.Rows = None,
    target: _Share = None,
    alpha: options.Alpha = None,
    loss: options.Loss = None,
    network: _Network = None,
    scheduler: options.Scheduler = None,
    demo: _Demo = False,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """How good are automatic periods? Seconds to a target for every rule, relative to the best fixed period.

    The best period is found by trying all of them, on two worker processes. Every run becomes a row in OUT/rows.jsonl.
    The same command resumes an interrupted study. OUT/report.html is self-contained.
    """
    from dsgd.report import check_extras
    from dsgd.study import DataSource
    from dsgd.study import tuning as api

    check_extras()  # before minutes of work, not after
    preset = api.demo_tuning_study() if demo else api.TuningStudy()
    own = {source.name: source for source in preset.data}
    data = [own.get(name, DataSource(name)) for name in dataset or own]
    study = asked(preset, ctx, data=sized(data, rows))
    runs = api.run_tuning_study(study, out, scheduler=scheduler, force=force)
    found = follow(runs, study.count(), ("policy", "dataset"), out, quiet=as_json)

    sets = [
        {
            "dataset": one.dataset,
            "targets": one.targets,
            "best": one.best.period,
            "regret": {cell.policy: one.regret(cell) for cell in one.rules},
        }
        for one in api.summarise_tuning(found)
    ]
    page = api.tuning_page(study, found)
    tell(page, out, page.tables, {"sets": sets}, as_json=as_json)
