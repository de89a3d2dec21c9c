"""``dsgd study strategies``: compare strategies by seconds and bytes to a target, and accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, TypeAlias

import typer

from dsgd.cli import study_options as options
from dsgd.cli.parts import COMPRESS_HELP, SYNC_HELP, variants
from dsgd.cli.study import asked, check_place, follow, sized, tell
from dsgd.cli.study_options import model_option, place_option, underscored
from dsgd.cli.training_options import examples

__all__ = ["EXAMPLES", "strategies"]

EXAMPLES: Final = examples(
    "dsgd study strategies --demo --out demo/",
    "dsgd study strategies -d ijcnn1 -s local -s 64 -s easgd -s sgp --ranks 16 --simulated --network 1GbE --out study/",
    "dsgd study strategies -d ijcnn1 -s diloco:every=512,outer_rate=0.7 -s my.module:Mine:every=128 --out study/",
    "dsgd study strategies -d a9a -s local -s minibatch --compress topk:0.01 --compress qsgd --ranks 2,4 --out study/",
    "dsgd study strategies -d ijcnn1 --ranks 8 --scheduler tcp://10.0.0.5:8786 --out study/",
)
_NETWORK: Final = "1GbE"
_Strategy: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--strategy", "-s", help=f"What to compare; repeat for several: {SYNC_HELP}. All by default."),
]
_Compress: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(help=f"Run those that take a compressor with this one as well; repeat for several: {COMPRESS_HELP}."),
]
_Stragglers: TypeAlias = Annotated[
    str | None, place_option(help="Simulated ranks only: none, exponential, slow-rank, heavy-tail.")
]
_Schedule: TypeAlias = Annotated[
    str | None,
    model_option(help="constant, or another one for strategies that are not asynchronous.", callback=underscored),
]
_Target: TypeAlias = Annotated[
    float | None, model_option("--target", help="The target: objective above the sequential run's, as 0.02.")
]
_Demo: TypeAlias = Annotated[
    bool, typer.Option("--demo", help="All strategies on 16 simulated ranks and 10GbE, in about a minute.")
]


def strategies(
    ctx: typer.Context,
    out: options.Out,
    dataset: options.Dataset = None,
    strategy: _Strategy = None,
    compress: _Compress = None,
    ranks: options.Ranks = None,
    seeds: options.Seeds = None,
    epochs: options.Epochs = None,
    rows: options.Rows = None,
    simulated: options.Simulated = False,
    network: options.OnNetwork = None,
    stragglers: _Stragglers = None,
    scheduler: options.OnScheduler = None,
    alpha: options.Alpha = None,
    loss: options.Loss = None,
    schedule: _Schedule = None,
    eta0: Annotated[float | None, model_option(help="The constant rate.")] = None,
    partition: options.Partition = None,
    target_excess: _Target = None,
    demo: _Demo = False,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Which strategy is best? Train with all of them; compare seconds and bytes to a target, and accuracy.

    The target is the final training objective of the sequential run, and a little. Every run becomes a row in
    OUT/rows.jsonl. The same command resumes an interrupted study. OUT/report.html is self-contained.
    """
    from dsgd.study import DataSource, check_extras
    from dsgd.study import strategies as api

    check_extras()  # before minutes of work, not after
    check_place(simulated=simulated or demo, scheduler=scheduler, network=network, stragglers=stragglers)
    preset = api.demo_strategy_study() if demo else api.StrategyStudy(network=_NETWORK if simulated else None)
    data = [DataSource(name) for name in dataset or ()] or preset.data
    if demo and dataset:
        data = [replace(source, rows=preset.data[0].rows, test_rows=preset.data[0].test_rows) for source in data]
    chosen = _chosen(strategy, compress or (), simulated=simulated or demo)
    study = asked(preset, ctx, strategies=chosen, data=sized(data, rows))
    runs = api.run_strategy_study(study, out, scheduler=scheduler, force=force)
    found = follow(runs, study.count(), ("strategy", "dataset"), out, quiet=as_json)

    gangs, excess = api.summarise_strategies(found), study.target_excess
    facts = [
        {"name": gang.name, "target": gang.target(excess), "reached": gang.reached(excess), "front": gang.front(excess)}
        for gang in gangs
    ]
    tables = [api.strategy_table(gang, excess=excess) for gang in gangs]
    tell(api.strategy_page(study, found), out, tables, {"gangs": facts}, as_json=as_json)


def _chosen(strategy: Sequence[str] | None, compress: Sequence[str], *, simulated: bool) -> dict[str, Any] | None:
    """Return the strategies by name, each bare and with the compressors that it takes; None for all of them."""
    from dsgd.study.strategies import StrategyStudy

    if not strategy and not compress:
        return None
    # Of all strategies only those that can run there are meant.
    names = list(strategy or StrategyStudy(network=_NETWORK if simulated else None).chosen())
    return variants(names, compress)
