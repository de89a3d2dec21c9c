"""``dsgd study variance``: SRG, SAGA and SVRG beside SGD, and what a draw costs."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from dsgd.cli import study_options as options
from dsgd.cli.study import asked, follow, sized, tell
from dsgd.cli.study_options import grid_option, numbers
from dsgd.cli.training_options import examples

__all__ = ["EXAMPLES", "variance"]

EXAMPLES: Final = examples(
    "dsgd study variance --demo --out demo/",
    "dsgd study variance -d ijcnn1 -d a9a --rows 20000 --seeds 5 --out study/",
    "dsgd study variance --sizes 1000,1000000,10000000 --repeats 9 --out study/",
)
_Sizes: TypeAlias = Annotated[
    str | None, grid_option(help="Numbers of rows for which steps are timed, as 1000,1000000.", callback=numbers)
]
_Repeats: TypeAlias = Annotated[int | None, grid_option(min=1, help="Repetitions of what is timed.")]
_Demo: TypeAlias = Annotated[
    bool, typer.Option("--demo", help="Three seeds, and steps on up to a million rows: a minute.")
]


def variance(
    ctx: typer.Context,
    out: options.Out,
    dataset: options.Dataset = None,
    rows: options.Rows = None,
    epochs: options.Epochs = None,
    seeds: options.Seeds = None,
    sizes: _Sizes = None,
    repeats: _Repeats = None,
    demo: _Demo = False,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """When is less noise in steps worth its cost? SRG, SAGA and SVRG beside SGD, by passes and by seconds.

    Two problems have outliers; the datasets are for logistic regression. Every run becomes a row in OUT/rows.jsonl. The
    same command resumes an interrupted study. OUT/report.html is self-contained.
    """
    from dsgd.study import DataSource, check_extras
    from dsgd.study import variance as api

    check_extras()  # before minutes of work, not after
    preset = api.demo_variance_study() if demo else api.VarianceStudy()
    own = {source.name: source for source in preset.data}
    data = [own.get(name, DataSource(name)) for name in dataset or own]
    study = asked(preset, ctx, data=sized(data, rows))
    runs = api.run_variance_study(study, out, force=force)
    found = follow(runs, study.count(), ("part", "dataset"), out, quiet=as_json)

    errors = {
        problem.dataset: {method: cell.error() for method, cell in problem.cells.items()}
        for problem in api.summarise_variance(found)
    }
    page = api.variance_page(study, found)
    tell(page, out, page.tables, {"errors": errors}, as_json=as_json)
