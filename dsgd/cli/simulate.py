"""``dsgd simulate``: train on a simulated cluster and report the time on each network."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

import typer

from dsgd.cli.files import read_rows
from dsgd.cli.fit import make_estimator
from dsgd.cli.parts import parse_sync
from dsgd.cli.training_options import DATA, AsJson, Task, examples
from dsgd.ledger import PHASES

__all__ = ["EXAMPLES", "simulate"]

EXAMPLES: Final = examples(
    "dsgd simulate --data train.svm --ranks 64 --network 1GbE --network InfiniBand --sync 512",
    "dsgd simulate --data train.svm --ranks 16 --network 10GbE --calibration ~/gang.json",
    "dsgd simulate --data train.svm --ranks 16 --stragglers heavy-tail --sync anytime:0.01 --json",
)


def simulate(
    data: Annotated[list[str], DATA],
    ranks: Annotated[int, typer.Option(min=1, help="How many ranks.")] = 16,
    network: Annotated[
        list[str] | None,
        typer.Option(help="1GbE, 10GbE, 100GbE, InfiniBand, NVLink or WAN; give several to compare them."),
    ] = None,
    calibration: Annotated[
        list[str] | None,
        typer.Option(help="File of dsgd calibrate: the links and cores measured there, as one more network."),
    ] = None,
    stragglers: Annotated[str, typer.Option(help="none, exponential, slow-rank or heavy-tail.")] = "none",
    task: Task = "auto",
    loss: Annotated[str | None, typer.Option(help="Loss: hinge, log_loss, squared_error, ...")] = None,
    sync: Annotated[str, typer.Option(help="How often ranks average their models; as in dsgd fit.")] = "1024",
    max_iter: Annotated[int, typer.Option(min=1, help="Epochs.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the row order and of the stragglers.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Train on a simulated cluster; print the seconds it would have taken, and where they went.

    Models, losses and bytes are real, seconds are those of the network and of a core of a known kind, or of what
    dsgd calibrate has measured. Nothing is written.
    """
    from dsgd.sim import SimulatedCluster, open_costs

    names = network or ([] if calibration else ["1GbE"])
    clusters = {name: SimulatedCluster(ranks, name, stragglers=stragglers, seed=seed) for name in names}
    for path in calibration or ():
        twin = open_costs(path).model.calibration
        clusters[path] = SimulatedCluster(ranks, twin.network, twin.compute, stragglers, seed)
    parameters = {"max_iter": max_iter, "tol": None, "random_state": seed, "sync": parse_sync(sync)}
    X, y = read_rows(data)
    fitted = {
        name: make_estimator(task, loss, {**parameters, "client": cluster}).fit(X, y)
        for name, cluster in clusters.items()
    }
    reports = [{"network": name, **_report(estimator, X, y)} for name, estimator in fitted.items()]
    if as_json:
        common = {"ranks": ranks, "sync": sync, "stragglers": stragglers, "epochs": max_iter}
        typer.echo(json.dumps({**common, "networks": reports}))
    else:
        _show(fitted, reports)


def _report(estimator: Any, X: Any, y: Any) -> dict[str, float]:
    return {
        "seconds": float(estimator.ledger_.elapsed_s),
        **{name: float(value) for name, value in estimator.ledger_.totals().items()},
        "training_loss": float(estimator.loss_curve_[-1]),
        "score": float(estimator.score(X, y)),
    }


def _show(fitted: dict[str, Any], reports: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console, table = Console(highlight=False), Table(box=None, pad_edge=False)
    shares = [phase for phase in PHASES if phase != "encode"]
    for column in ("network", "seconds", *shares, "MB sent", "MB control", "training loss", "score"):
        table.add_column(column, justify="left" if column == "network" else "right")
    for report in reports:
        spent = sum(report[f"{phase}_s"] for phase in PHASES) or 1.0
        sent = [f"{report[name] / 1e6:.3g}" for name in ("bytes_sent", "control_bytes_sent")]
        numbers = [*sent, f"{report['training_loss']:.6g}", f"{report['score']:.4f}"]
        spent_on = [f"{report[f'{phase}_s'] / spent:.1%}" for phase in shares]
        table.add_row(report["network"], f"{report['seconds']:.4g}", *spent_on, *numbers)
    console.print(table)
    for name, estimator in fitted.items():
        console.print(f"\n{name}\n{estimator.ledger_.summary()}", markup=False, soft_wrap=True)
