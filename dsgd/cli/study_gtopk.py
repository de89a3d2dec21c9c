"""``dsgd study gtopk``: what sparse sums save on a slow network, and what gTop-k loses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from dsgd.cli import study_options as options
from dsgd.cli.study import tell
from dsgd.cli.training_options import examples

__all__ = ["EXAMPLES", "gtopk"]

EXAMPLES: Final = examples(
    "dsgd study gtopk --out study/",
    "dsgd study gtopk --ranks 64 --tflops 10 --latency 0.05 --bandwidth 1.25 --out study/",
)


def gtopk(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the figures and the numbers.")],
    ranks: Annotated[int, typer.Option(help="Ranks of the tables, a power of two.")] = 32,
    tflops: Annotated[float, typer.Option(help="Million million operations a second of a rank.")] = 3.0,
    latency: Annotated[float, typer.Option(help="Milliseconds of an empty message.")] = 0.436,
    bandwidth: Annotated[float, typer.Option(help="Gigabytes a second between two ranks.")] = 1 / 9,
    density: Annotated[float, typer.Option(help="Share of the entries that is sent.")] = 0.001,
    as_json: options.AsJson = False,
) -> None:
    """What do sparse sums save on a slow network? Scaling efficiency from a model of cost, and the mass gTop-k loses.

    The published ranges (2.7 to 12 times the efficiency of dense sums, 1.1 to 1.7 times that of Top-k, on 32 ranks with
    1 GbE) are held against the model for each network of the publication, with stated compute times. Nothing is
    trained. OUT/gtopk.json holds the numbers, OUT/report.html and OUT/figures the rest.
    """
    from dsgd.collectives import LinkCost
    from dsgd.compress.sparse import check_density
    from dsgd.study import check_extras
    from dsgd.study import gtopk as study
    from dsgd.validation import check_number

    check_extras()
    check_number("--latency", latency, low=0.0)
    check_number("--bandwidth", bandwidth, low=0.0, open_low=True)
    check_density("--density", density)
    link = LinkCost(latency / 1e3, 1e-9 / bandwidth)
    steps = [study.scaling(model, ranks, tflops, link, density) for model in study.MODELS]
    sizes = [2**level for level in range(1, ranks.bit_length())]
    curves = [[study.scaling(model, size, tflops, link, density) for size in sizes] for model in study.MODELS]
    merged = [2, 4, 8, 16, 32]
    shares = [study.lost_share(size) for size in merged]

    facts = {"ranks": ranks, "steps": [step.as_row() for step in steps], "mass": study.mass_rows(merged, shares)}
    out.mkdir(parents=True, exist_ok=True)
    (out / "gtopk.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    settings = (
        f"{latency:g} ms and {bandwidth:.3g} GB/s between two ranks, {tflops:g} million million operations a second, "
        f"{density:.2%} of the entries sent"
    )
    page = study.gtopk_page(curves, sizes, merged, shares, settings)
    tell(page, out, page.tables, facts | {"rows": str(out / "gtopk.json")}, as_json=as_json)
