"""``dsgd study speedup``: seconds to an accuracy in one process and in several."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from dsgd.cli import study_options as options
from dsgd.cli.study import asked, follow, sized, tell
from dsgd.cli.study_options import grid_option, model_option, numbers
from dsgd.cli.training_options import examples

__all__ = ["EXAMPLES", "speedup"]

EXAMPLES: Final = examples(
    "dsgd study speedup --demo --out demo/",
    "dsgd study speedup -d higgs-like --rows 10000000 --ranks 2,4,8,16 --seeds 5 --out study/",
    "dsgd study speedup -d criteo-like --rows 45000000 --ranks 64 --scheduler tcp://10.0.0.5:8786 --out study/",
)
_Epochs: TypeAlias = Annotated[
    str | None, grid_option(help="Passes over the rows, as 1,2,5: a fit for each number.", callback=numbers)
]
_Margin: TypeAlias = Annotated[
    float | None, model_option(help="Accurate is what is at most so much below the best test accuracy, as 0.002.")
]
_Demo: TypeAlias = Annotated[
    bool, typer.Option("--demo", help="Two sets that are large enough for two processes, in a minute.")
]


def speedup(
    ctx: typer.Context,
    out: options.Out,
    dataset: options.Dataset = None,
    ranks: options.Ranks = None,
    epochs: _Epochs = None,
    seeds: options.Seeds = None,
    rows: options.Rows = None,
    alpha: options.Alpha = None,
    loss: options.Loss = None,
    dtype: options.Dtype = None,
    margin: _Margin = None,
    scheduler: options.Scheduler = None,
    demo: _Demo = False,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """When are several processes faster than one? Seconds of whole fits to the same accuracy, beside scikit-learn.

    Rows of generated sets are made by the workers that train on them. Every fit becomes a row in OUT/rows.jsonl. The
    same command resumes an interrupted study. OUT/report.html is self-contained.
    """
    from dsgd.study import DataSource, check_extras
    from dsgd.study import speedup as api

    check_extras()  # before minutes of work, not after
    preset = api.demo_speedup_study() if demo else api.SpeedupStudy()
    own = {source.name: source for source in preset.data}
    data = [own.get(name, DataSource(name)) for name in dataset or own]
    study = asked(preset, ctx, data=sized(data, rows))
    runs = api.run_speedup_study(study, out, scheduler=scheduler, force=force)
    found = follow(runs, study.count(), ("place", "dataset"), out, quiet=as_json)

    sets = [
        {
            "dataset": one.dataset,
            "target": one.target,
            "seconds": {way.name: cell.median("fit_s") for way in one.ways if (cell := one.soonest(way))},
        }
        for one in api.summarise_speedup(found, margin=study.margin)
    ]
    page = api.speedup_page(study, found)
    tell(page, out, page.tables, {"sets": sets}, as_json=as_json)
