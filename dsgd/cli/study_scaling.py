"""``dsgd study scaling``: compare published and predicted speed-ups of synchronous SGD."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsgd.cli import study_options as options
from dsgd.cli.study import parse_numbers, show
from dsgd.errors import InvalidParameterError

if TYPE_CHECKING:
    from dsgd.sim.scaling import Layer
    from dsgd.study.scaling import Own

__all__ = ["EXAMPLES", "scaling"]

EXAMPLES: Final = """\
Examples:

  dsgd study scaling --out study/

  dsgd study scaling --model OverFeat-FAST --nodes 1,4,16,64 --batch 1024 --network 100GbE --out study/

  dsgd study scaling --model torchvision.models:resnet50 --input 3,224,224 --batch 256 --network 10GbE --out study/
"""
_OWN: Final = "A network of your own"


def scaling(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the report and its figures.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="VGG-A, OverFeat-FAST, ASR DNN, or what makes a torch module, as package.module:name.",
            rich_help_panel=_OWN,
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option("--input", help="Shape of a sample of that module, as 3,224,224.", rich_help_panel=_OWN),
    ] = None,
    nodes: Annotated[str, typer.Option(help="Numbers of nodes.", rich_help_panel=_OWN)] = "1,2,4,8,16,32,64",
    batch: Annotated[int, typer.Option(min=1, help="Samples of a step, over all nodes.", rich_help_panel=_OWN)] = 256,
    tflops: Annotated[
        float, typer.Option(help="Million million operations a second of a node.", rich_help_panel=_OWN)
    ] = 2.0,
    memory: Annotated[float, typer.Option(help="Gigabytes a second of its memory.", rich_help_panel=_OWN)] = 100.0,
    efficiency: Annotated[
        float, typer.Option(help="Share of the peak that kernels reach.", rich_help_panel=_OWN)
    ] = 0.7,
    network: Annotated[
        str,
        typer.Option(help="1GbE, 10GbE, 100GbE, InfiniBand, NVLink, WAN, Aries, FDR.", rich_help_panel=_OWN),
    ] = "10GbE",
    as_json: options.AsJson = False,
) -> None:
    """How far does synchronous SGD scale? Compare published speed-ups with predictions from the balance equations.

    For each published point: what data parallel training alone would reach, what the best sharing of each layer could,
    and under which assumptions. Nothing is trained; it takes seconds. With --model the same is said of another network.
    """
    from dsgd.report import check_extras
    from dsgd.report.provenance import command_line
    from dsgd.study import scaling as study

    check_extras()
    own = None
    if model is not None:
        own = _own(model, shape, nodes, batch, network, (1e12 * tflops, 1e9 * memory, efficiency))
    predicted = [study.predict_point(point) for point in study.PUBLISHED]
    page = study.scaling_page(predicted, own, command=command_line())
    path = page.save(out)
    if as_json:
        typer.echo(json.dumps({"report": str(path), "answer": page.answer, "points": list(page.rows)}))
        return
    show(page, page.tables, path)


def _own(model: str, shape: str | None, nodes: str, batch: int, network: str, rates: tuple[float, float, float]) -> Own:
    """Return the network, machine and wire that the options name."""
    from dsgd.sim.network import network_for
    from dsgd.sim.scaling import INTERCONNECTS, Node
    from dsgd.study.scaling import Own

    flop_per_s, memory, efficiency = rates
    node = Node("as given", flop_per_s, memory, efficiency, efficiency, 2e-5)
    wire = INTERCONNECTS.get(network) or network_for(network)
    return Own(model, _layers(model, shape), parse_numbers("--nodes", nodes) or (), batch, node, wire)


def _layers(model: str, shape: str | None) -> tuple[Layer, ...]:
    from dsgd.sim.scaling import MODELS

    if model in MODELS:
        return MODELS[model]
    where, colon, name = model.partition(":")
    if not colon:
        raise InvalidParameterError(
            f"--model must be one of {', '.join(MODELS)}, or what makes a module, as package.module:name. "
            f"Got {model!r}."
        )
    sizes = parse_numbers("--input", shape)
    if not sizes:
        raise InvalidParameterError(f"--model {model!r} needs the shape of a sample: add --input, as 3,224,224.")
    from dsgd.torch import trace

    try:
        make = getattr(importlib.import_module(where), name)
    except (ImportError, AttributeError) as error:
        raise InvalidParameterError(f"--model {model!r} cannot be imported: {error}.") from error
    return trace(make(), sizes)
