"""``dsgd study gtopk``: training with gTop-k, what sparse sums save on a slow network, and what gTop-k loses."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from dsgd.cli import study_options as options
from dsgd.cli.study import asked, follow, tell
from dsgd.cli.study_options import grid_option
from dsgd.cli.training_options import examples

if TYPE_CHECKING:
    from dsgd.collectives import LinkCost
    from dsgd.study.gtopk import Scaling

__all__ = ["EXAMPLES", "gtopk"]

EXAMPLES: Final = examples(
    "dsgd study gtopk --demo --out demo/",
    "dsgd study gtopk --model lstm --epochs 40 --seeds 5 --out study/",
    "dsgd study gtopk --model none --no-timing --tflops 10 --ranks 64 --latency 0.05 --bandwidth 1.25 --out study/",
)
_cost_option: Final[Any] = partial(typer.Option, rich_help_panel="The cost of messages")
_MERGED: Final = (2, 4, 8, 16, 32)
_Tasks: TypeAlias = Annotated[
    list[str] | None, grid_option("--model", help="cnn, lstm or none; repeat for both, which is the default.")
]
_Ways: TypeAlias = Annotated[
    list[str] | None,
    grid_option("--strategy", "-s", help="dense, top-k, gtop-k or conserving; repeat for several. All by default."),
]
_Timing: TypeAlias = Annotated[
    bool, typer.Option("--timing/--no-timing", help="Time the published networks on one thread here.")
]
_Demo: TypeAlias = Annotated[bool, typer.Option("--demo", help="Few rows and two seeds, about two minutes.")]


def gtopk(
    ctx: typer.Context,
    out: options.Out,
    models: _Tasks = None,
    ways: _Ways = None,
    seeds: options.Seeds = None,
    rows: Annotated[int | None, grid_option(min=100, help="Most training rows.")] = None,
    epochs: options.Epochs = None,
    timing: _Timing = True,
    ranks: Annotated[int, _cost_option(help="Ranks of the tables, a power of two.")] = 32,
    tflops: Annotated[
        float | None, _cost_option(help="Also with computing at so many million million operations a second.")
    ] = None,
    latency: Annotated[float, _cost_option(help="Milliseconds of an empty message.")] = 0.436,
    bandwidth: Annotated[float, _cost_option(help="Gigabytes a second between two ranks.")] = 1 / 9,
    density: Annotated[float, _cost_option(help="Share of the entries that is sent.")] = 0.001,
    demo: _Demo = False,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Train with gTop-k beside dense sums, and predict what sparse sums save on a slow network.

    A small convolutional network and a small LSTM are trained on four simulated ranks with dense sums, Top-k and
    gTop-k, after the published warm-up. The networks of the publication are timed on one thread, and scaling efficiency
    follows from a model of the cost of messages with these times and with those of the authors, beside the published
    figures. Without torch, or with --model none and --no-timing, only the model is evaluated. OUT/gtopk.json holds its
    numbers, OUT/rows.jsonl the runs: the same command resumes them.
    """
    from importlib.util import find_spec

    from dsgd.collectives import LinkCost
    from dsgd.compress.sparse import check_density
    from dsgd.study import check_extras
    from dsgd.study import gtopk as study
    from dsgd.validation import check_number

    check_extras()  # before minutes of work, not after
    check_number("--latency", latency, low=0.0)
    check_number("--bandwidth", bandwidth, low=0.0, open_low=True)
    check_density("--density", density)
    link = LinkCost(latency / 1e3, 1e-9 / bandwidth)
    study.scaling(study.MODELS[0], ranks, 1.0)  # refuses ranks that it cannot have
    preset = study.demo_gtopk_study() if demo else study.GTopKStudy()
    has_torch = find_spec("torch") is not None
    tasks = () if models == ["none"] or not has_torch else tuple(models or preset.tasks)
    grid = asked(preset, ctx, tasks=tasks, networks=preset.networks if timing and has_torch else ())
    runs = study.run_gtopk_study(grid, out, force=force)
    found = follow(runs, grid.count(), ("model", "strategy"), out, quiet=as_json)

    sizes = [2**level for level in range(1, ranks.bit_length())]
    curves = _curves(sizes, link, density, found, tflops)
    shares = [study.lost_share(size) for size in _MERGED]
    facts = {"ranks": ranks, "steps": [own[-1].as_row() for own in curves], "mass": study.mass_rows(_MERGED, shares)}
    (out / "gtopk.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    settings = (
        f"{latency:g} ms and {bandwidth:.3g} GB/s between two ranks, {density:.2%} of the entries sent, no overlap"
    )
    page = study.gtopk_page(curves, sizes, _MERGED, shares, settings, found, grid.count())
    # What has a line for each number of ranks too is on the page.
    short = [table for table in page.tables if len(table.rows) <= max(len(curves), len(_MERGED))]
    tell(page, out, short, facts | {"numbers": str(out / "gtopk.json")}, as_json=as_json)


def _curves(
    sizes: list[int], link: LinkCost, density: float, rows: list[dict[str, Any]], tflops: float | None
) -> list[list[Scaling]]:
    """Return for each network and compute time what steps take on each number of ranks."""
    from dsgd.study import gtopk as study

    by_size = [
        [
            *study.published_steps(size, link, density),
            *study.measured_steps(rows, size, link, density),
            *([] if tflops is None else study.assumed_steps(size, tflops, link, density)),
        ]
        for size in sizes
    ]
    return [list(own) for own in zip(*by_size, strict=True)]
