"""``dsgd calibrate``: measure the costs of rows, messages and waiting on a cluster, and save them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dsgd.cli.cluster import connected
from dsgd.cli.training_options import AsJson, examples

if TYPE_CHECKING:
    from dsgd.sim import SavedCosts

EXAMPLES: Final = examples(
    "dsgd calibrate --workers 2",
    "dsgd calibrate --scheduler tcp://10.0.0.5:8786 --compress topk:0.01 --json",
)
# Rows of which the table shows what an epoch takes: of ijcnn1.
_N_ROWS, _N_ENTRIES, _N_COLUMNS = 50_000, 13, 22
_PERIODS: Final = (1, 16, 256, 4096)


def calibrate(
    workers: Annotated[int, typer.Option(min=0, help="Start this many worker processes.")] = 0,
    scheduler: Annotated[str | None, typer.Option(help="Use the cluster at this address.")] = None,
    jobs: Annotated[int, typer.Option(min=2, help="Threads that are measured where there is no cluster.")] = 2,
    sync: Annotated[
        list[str] | None,
        typer.Option(help="Measure the rounds of this strategy too, as in dsgd fit; repeat for several."),
    ] = None,
    compress: Annotated[
        list[str] | None,
        typer.Option(help="Measure rounds with this compressor too, as topk:0.01; repeat for several."),
    ] = None,
    float32: Annotated[bool, typer.Option("--float32", help="Measure rows of single precision too.")] = False,
    transport: Annotated[str, typer.Option(help="The transport, as in dsgd fit.")] = "auto",
    renew: Annotated[bool, typer.Option("--renew", help="Measure again what is known.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure bandwidth, latency, reduction, kernels and waiting of a cluster; print them, and keep them in a file.

    It takes some ten seconds. dsgd tune, studies and the simulator read the file, which is measured again when workers
    or versions change. Without --workers and --scheduler, threads of this process are measured.
    """
    from dsgd.cli.parts import compressing, parse_sync
    from dsgd.sim import known_costs
    from dsgd.sync import MinibatchSGD

    strategies = [MinibatchSGD(), *(parse_sync(text) for text in sync or ())]
    strategies += [compressing(1024, text) for text in compress or ()]
    with connected(workers, scheduler) as client:
        saved = known_costs(
            client,
            strategies=strategies,
            dtypes=("float64", "float32") if float32 else ("float64",),
            ranks=None if client is not None else jobs,
            transport=transport,
            renew=renew,
        )
    if as_json:
        typer.echo(json.dumps(described(saved)))
    else:
        _show(saved)


def described(saved: SavedCosts) -> dict[str, Any]:
    """Return a calibration as plain numbers and strings."""
    model, link = saved.model, saved.model.link
    return {
        "file": str(saved.path),
        "measured_at": saved.measured_at.isoformat(timespec="seconds"),
        "reused": saved.reused,
        "seconds": saved.seconds,
        "ranks": model.calibration.ranks,
        "transport": model.transport,
        "latency_s": link.alpha_s,
        "byte_s": link.byte_s,
        "added_byte_s": link.added_byte_s,
        "rows": {name: {"row_s": cost.row_s, "entry_s": cost.entry_s} for name, cost in model.rows.items()},
        "rounds": {
            kind: [{"bytes": int(n_bytes), "seconds": seconds} for n_bytes, seconds in points]
            for kind, points in model.rounds.items()
        },
        "waits": [{"work_s": work_s, "wait_s": wait_s} for work_s, wait_s in model.waits],
        "end_s": model.end_s,
    }


def _show(saved: SavedCosts) -> None:
    from rich.console import Console
    from rich.table import Table

    from dsgd.sim import Workload

    console, model, link = Console(highlight=False), saved.model, saved.model.link
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_row("ranks", f"{model.calibration.ranks} over {model.transport}")
    facts.add_row("latency (alpha)", f"{1e6 * link.alpha_s:.3g} us a message")
    facts.add_row("bandwidth (1 / beta)", f"{_rate(link.byte_s)} GB/s")
    facts.add_row("reduction (1 / gamma)", f"{_rate(link.added_byte_s)} GB/s")
    for name, row in model.rows.items():
        facts.add_row(f"{name} rows", f"{1e9 * row.row_s:.3g} ns a row, {1e9 * row.entry_s:.3g} ns an entry")
    for kind, points in model.rounds.items():
        texts = (f"{1e6 * seconds:.3g} us at {n_bytes / 1e3:.3g} kB" for n_bytes, seconds in (points[0], points[-1]))
        facts.add_row(f"round of {kind}", ", ".join(texts))
    facts.add_row("end of an epoch", f"{1e6 * model.end_s:.3g} us")
    console.print(facts)
    table = Table("period", "work of a round", "waiting", "epoch", "communication", box=None, pad_edge=False)
    load = Workload(_N_ROWS, _N_ENTRIES, _N_COLUMNS + 1, layout="sparse")
    for every in _PERIODS:
        cost = model.epoch(load, every)
        work_s, wait_s = cost.compute_s / cost.rounds, cost.wait_s / cost.rounds
        table.add_row(
            f"{every}", f"{1e6 * work_s:.3g} us", f"{1e6 * wait_s:.3g} us", f"{1e3 * cost.seconds:.3g} ms",
            f"{cost.communication:.0%}",
        )  # fmt: skip
    console.print(f"\n{_N_ROWS:,} sparse rows of {_N_ENTRIES} entries, {_N_COLUMNS} columns, would take:")
    console.print(table)
    how = "read from" if saved.reused else f"measured in {saved.seconds:.1f} s, kept in"
    console.print(f"\n{how} {saved.path}", markup=False, soft_wrap=True)


def _rate(byte_s: float) -> str:
    return f"{1e-9 / byte_s:.3g}" if byte_s > 0.0 else "more than can be measured of"
