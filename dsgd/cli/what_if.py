"""``dsgd what-if``: what the run that trained a model would have taken elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from dsgd.cli.files import load_model
from dsgd.cli.options import AsJson, examples, parse_compress, parse_sync
from dsgd.cli.study import numbers
from dsgd.errors import InvalidParameterError

EXAMPLES: Final = examples(
    "dsgd what-if model.dsgd --network WAN --ranks 64",
    "dsgd what-if model.dsgd --network 10GbE --every 64,256,1024,4096",
    "dsgd what-if model.dsgd --compressor topk:0.01 --json",
)


def what_if(
    model: Annotated[Path, typer.Argument(help="A model of dsgd fit, or of model.save.")],
    network: Annotated[str | None, typer.Option(help="1GbE, 10GbE, 100GbE, InfiniBand, NVLink or WAN.")] = None,
    ranks: Annotated[int | None, typer.Option(min=1, help="How many ranks.")] = None,
    every: Annotated[
        str | None, typer.Option(callback=numbers, help="Rows between two exchanges; several as 64,256 show the knee.")
    ] = None,
    compressor: Annotated[str | None, typer.Option(help="How vectors are encoded, as topk:0.01.")] = None,
    stragglers: Annotated[str | None, typer.Option(help="none, exponential, slow-rank or heavy-tail.")] = None,
    sync: Annotated[str | None, typer.Option(help="Another strategy, as diloco:every=512.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print what the run that trained a model would have taken with other settings, with an interval.

    The rounds that were recorded are played again; the model is not trained.
    """
    record = vars(load_model(model)).get("run_")
    if record is None:
        raise InvalidParameterError(
            f"{model} has no record of a run: models trained by SGD have one, in files of dsgd fit and of model.save."
        )
    changes: dict[str, Any] = {"network": network, "ranks": ranks, "stragglers": stragglers}
    changes["compressor"] = parse_compress(compressor, "--compressor") if compressor else None
    changes["sync"] = parse_sync(sync) if sync else None
    periods: Any = every or ()
    found = (
        record.sweep(periods, **changes)
        if len(periods) > 1
        else record.what_if(**changes, every=next(iter(periods), None))
    )
    if as_json:
        points = getattr(found, "points", [found])
        typer.echo(json.dumps([vars(point) for point in points]))
    else:
        typer.echo(found)
