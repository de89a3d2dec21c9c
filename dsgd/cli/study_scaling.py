"""``dsgd study scaling``: compare published and predicted speed-ups of synchronous SGD."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from dsgd.cli import study_options as options
from dsgd.cli.study import show
from dsgd.cli.study_options import numbers
from dsgd.cli.training_options import examples
from dsgd.errors import InvalidParameterError

if TYPE_CHECKING:
    from dsgd.sim.scaling import Layer
    from dsgd.study.scaling import Own

__all__ = ["EXAMPLES", "scaling"]

EXAMPLES: Final = examples(
    "dsgd study scaling --out study/",
    "dsgd study scaling --model OverFeat-FAST --nodes 1,4,16,64 --batch 1024 --network 100GbE --out study/",
    "dsgd study scaling --model torchvision.models:resnet50 --input 3,224,224 --batch 256 --network 10GbE --out study/",
)
_own_option: Final[Any] = partial(typer.Option, rich_help_panel="A network of your own")
_Model: TypeAlias = Annotated[
    str | None, _own_option(help="VGG-A, OverFeat-FAST, ASR DNN, or what makes a torch module, as package.module:name.")
]
_Shape: TypeAlias = Annotated[
    str | None, _own_option("--input", help="Shape of a sample of that module, as 3,224,224.", callback=numbers)
]
_Network: TypeAlias = Annotated[str, _own_option(help="1GbE, 10GbE, 100GbE, InfiniBand, NVLink, WAN, Aries, FDR.")]


def scaling(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the report and its figures.")],
    model: _Model = None,
    shape: _Shape = None,
    nodes: Annotated[str, _own_option(help="Numbers of nodes.", callback=numbers)] = "1,2,4,8,16,32,64",
    batch: Annotated[int, _own_option(min=1, help="Samples of a step, over all nodes.")] = 256,
    tflops: Annotated[float, _own_option(help="Million million operations a second of a node.")] = 2.0,
    memory: Annotated[float, _own_option(help="Gigabytes a second of its memory.")] = 100.0,
    efficiency: Annotated[float, _own_option(help="Share of the peak that kernels reach.")] = 0.7,
    network: _Network = "10GbE",
    as_json: options.AsJson = False,
) -> None:
    """How far does synchronous SGD scale? Compare published speed-ups with predictions from the balance equations.

    For each published point: what data parallel training alone would reach, what the best sharing of each layer could,
    and under which assumptions. Nothing is trained; it takes seconds. With --model the same is said of another network.
    """
    from dsgd.report import check_extras, claims_table
    from dsgd.report.provenance import command_line
    from dsgd.study import scaling as study

    check_extras()
    own = None if model is None else _own(ctx.params)
    predicted = [study.predict_point(point) for point in study.PUBLISHED]
    page = study.scaling_page(predicted, own, command=command_line())
    path = page.save(out)
    if as_json:
        claims = [asdict(claim) | {"verdict": claim.verdict} for claim in page.claims]
        found = {"report": str(path), "answer": page.answer, "points": list(page.rows), "claims": claims}
        typer.echo(json.dumps(found))
        return
    show(page, [*page.tables, claims_table(page.claims)], path)


def _own(options: Mapping[str, Any]) -> Own:
    """Return the network, machine and wire that the options name."""
    from dsgd.sim.network import network_for
    from dsgd.sim.scaling import INTERCONNECTS, Node
    from dsgd.study.scaling import Own

    share, name = options["efficiency"], options["network"]
    node = Node("as given", 1e12 * options["tflops"], 1e9 * options["memory"], share, share, 2e-5)
    wire = INTERCONNECTS.get(name) or network_for(name)
    layers = _layers(options["model"], options["shape"])
    return Own(options["model"], layers, options["nodes"], options["batch"], node, wire)


def _layers(model: str, shape: tuple[int, ...] | None) -> tuple[Layer, ...]:
    from dsgd.sim.scaling import MODELS

    if model in MODELS:
        return MODELS[model]
    where, colon, name = model.partition(":")
    if not colon:
        raise InvalidParameterError(
            f"--model must be one of {', '.join(MODELS)}, or what makes a module, as package.module:name. "
            f"Got {model!r}."
        )
    if not shape:
        raise InvalidParameterError(f"--model {model!r} needs the shape of a sample: add --input, as 3,224,224.")
    from dsgd.torch import trace

    try:
        make = getattr(importlib.import_module(where), name)
    except (ImportError, AttributeError) as error:
        raise InvalidParameterError(f"--model {model!r} cannot be imported: {error}.") from error
    return trace(make(), shape)
