"""``dsgd study msf``: measure the cost and accuracy of synchronisation periods."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from dsgd.cli import study_options as options
from dsgd.cli.study import asked, follow, sized, tell
from dsgd.cli.study_options import grid_option, model_option, numbers, underscored
from dsgd.cli.training_options import examples

__all__ = ["EXAMPLES", "msf"]

EXAMPLES: Final = examples(
    "dsgd study msf --demo --out demo/",
    "dsgd study msf --dataset ijcnn1 --ranks 1,2 --every 1,4,16,64,256,512,1024,4096 --out study/",
    "dsgd study msf --dataset a9a --dataset w8a --ranks 1,2,4,8 --seeds 5 --scheduler tcp://10.0.0.5:8786 --out study/",
)
_Ranks: TypeAlias = Annotated[str | None, grid_option(help="Worker processes, as 1,2,4.", callback=numbers)]
_Every: TypeAlias = Annotated[
    str | None, grid_option(help="Samples between two synchronisations, as 1,16,256.", callback=numbers)
]
_Schedule: TypeAlias = Annotated[
    str | None, model_option(help="optimal, pegasos, or per-epoch as in the published study.", callback=underscored)
]
_Intercept: TypeAlias = Annotated[
    bool | None, model_option("--intercept/--no-intercept", help="Learn an intercept; the published study has none.")
]
_Target: TypeAlias = Annotated[
    float | None, model_option("--target", help="Time to target: loss above the sequential run's, as 0.02.")
]
_Demo: TypeAlias = Annotated[
    bool, typer.Option("--demo", help="The three sets of the paper, sized for two cores and a minute or two.")
]


def msf(
    ctx: typer.Context,
    out: options.Out,
    dataset: options.Dataset = None,
    ranks: _Ranks = None,
    every: _Every = None,
    seeds: options.Seeds = None,
    epochs: options.Epochs = None,
    rows: options.Rows = None,
    alpha: options.Alpha = None,
    loss: options.Loss = None,
    schedule: _Schedule = None,
    partition: options.Partition = None,
    fit_intercept: _Intercept = None,
    dtype: options.Dtype = None,
    target_excess: _Target = None,
    scheduler: options.Scheduler = None,
    demo: _Demo = False,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """How often must ranks synchronise? Sweep the period (model synchronisation frequency, hence MSF).

    Recomputes the claims of arXiv 1905.01219.

    Every run is trained on real worker processes and becomes one row in OUT/rows.jsonl as soon as it is finished. The
    same command resumes an interrupted study. OUT/report.html is self-contained.
    """
    from dsgd import study as api
    from dsgd.study.frame.rows import picked

    api.check_extras()  # before minutes of work, not after
    preset = api.demo_study() if demo else api.Study()
    data = [api.DataSource(name) for name in dataset or ()] or preset.data
    study = asked(preset, ctx, data=sized(data, rows))
    runs = api.run_study(study, out, scheduler=scheduler, force=force)
    found = follow(runs, study.count(), ("dataset",), out, quiet=as_json)

    summary = api.summarise(found)
    columns = ("train_s", "communication_s", "test_accuracy", "balanced_accuracy", "majority_accuracy", "objective")
    cells = [
        {**picked(cell, "dataset", "ranks", "every"), "seeds": len(cell.rows), **cell.medians(*columns)}
        for cell in summary.cells
    ]
    tables = [api.results_table(summary, name) for name in summary.datasets()]
    tell(api.study_page(study, found), out, tables, {"cells": cells}, as_json=as_json)
