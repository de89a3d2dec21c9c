"""``dsgd study features``: random features on one machine and on agents without a centre."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from dsgd.cli import study_options as options
from dsgd.cli.study import asked, follow, sized, tell
from dsgd.cli.study_options import grid_option, numbers
from dsgd.cli.training_options import examples

__all__ = ["EXAMPLES", "features"]

EXAMPLES: Final = examples(
    "dsgd study features --demo --out demo/",
    "dsgd study features -d ijcnn1 --rows 20000 --components 1000,10000 --out study/",
    "dsgd study features --agents 64 --rows-per-agent 10,100,1000 --seeds 5 --out study/",
)
_Agents: TypeAlias = Annotated[int | None, grid_option(help="Agents.")]
_RowsPerAgent: TypeAlias = Annotated[
    str | None, grid_option(help="Rows of each agent, as 10,100,1000.", callback=numbers)
]
_Features: TypeAlias = Annotated[
    str | None, grid_option(help="Features of a row of agents, as 25,100.", callback=numbers)
]
_Steps: TypeAlias = Annotated[int | None, grid_option(help="Steps of agents.")]
_Components: TypeAlias = Annotated[
    str | None, grid_option(help="Features of a row of machines, as 100,1000.", callback=numbers)
]
_Epochs: TypeAlias = Annotated[str | None, grid_option(help="Epochs of machines, as 10,40.", callback=numbers)]
_Demo: TypeAlias = Annotated[
    bool, typer.Option("--demo", help="Up to 1,600 rows per agent, machines of up to 1,000 features: a minute.")
]


def features(
    ctx: typer.Context,
    out: options.Out,
    dataset: options.Dataset = None,
    rows: options.Rows = None,
    components: _Components = None,
    epochs: _Epochs = None,
    agents: _Agents = None,
    rows_per_agent: _RowsPerAgent = None,
    features: _Features = None,
    steps: _Steps = None,
    seeds: options.Seeds = None,
    demo: _Demo = False,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """What do random features cost? Beside the exact kernel machine, and learnt by agents on a cycle, a grid and more.

    Every run becomes a row in OUT/rows.jsonl. The same command resumes an interrupted study. OUT/report.html is
    self-contained. A set that is not on this machine has generated clusters of its shape in its place.
    """
    from dsgd.study import DataSource, check_extras
    from dsgd.study import features as api

    check_extras()  # before minutes of work, not after
    preset = api.demo_feature_study() if demo else api.FeatureStudy()
    own = {source.name: source for source in preset.data}
    data = [own.get(name, DataSource(name)) for name in dataset or own]
    study = asked(preset, ctx, data=sized(data, rows))
    runs = api.run_feature_study(study, out, force=force)
    found = follow(runs, study.count(), ("part", "dataset"), out, quiet=as_json)

    best = {
        f"{size.rows} rows, {size.features} features": {name: cell.median("best") for name, cell in size.cells.items()}
        for size in api.summarise_agents(found)
    }
    page = api.feature_page(study, found)
    tell(page, out, page.tables, {"best": best}, as_json=as_json)
