"""``dsgd simulate`` and ``dsgd what-if``: what strategies would cost on each network, and what a run would have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from dsgd.cli import options
from dsgd.cli.files import load_model, rows_or_dataset
from dsgd.cli.fit import make_estimator
from dsgd.cli.options import AsJson, examples, option, parse_compress, parse_sync, tracked, variants
from dsgd.cli.study import numbers
from dsgd.errors import InvalidParameterError
from dsgd.ledger import PHASES

EXAMPLES: Final = examples(
    "dsgd simulate --data train.svm --ranks 64 --network 1GbE --network InfiniBand --sync 512",
    "dsgd simulate --dataset ijcnn1 --ranks 16 -s local -s easgd -s minibatch --every 64,1024 --compress topk:0.01",
    "dsgd simulate --data train.svm --ranks 16 --network 10GbE --calibration ~/gang.json",
    "dsgd simulate --data train.svm --ranks 16 --stragglers heavy-tail --sync anytime:0.01 --json",
)
_OPTIONS: Final = {
    "data": options.DATA_OR_SET, "dataset": options.DATASET,
    "rows": option(int | None, min=1, help="Rows of the dataset; all by default."),
    "ranks": option(int, min=1, default=16, help="How many ranks."),
    "network": option(
        list[str] | None, help="1GbE, 10GbE, 100GbE, InfiniBand, NVLink or WAN; give several to compare them."
    ),
    "calibration": option(
        list[str] | None, help="File of dsgd calibrate: its links and cores; with --network also its cores there."
    ),
    "stragglers": option(str, default="none", help="none, exponential, slow-rank or heavy-tail."),
    "task": options.TASK, "loss": options.PLAIN_LOSS,
    "sync": option(
        list[str] | None, "--sync", "--strategy", "-s",
        help=f"What to compare; repeat for several: {options.SYNC_HELP}.",
    ),
    "every": option(
        str | None, callback=numbers, help="Periods, as 64,256,1024: strategies that have one run with each."
    ),
    "compress": option(
        list[str] | None,
        help=f"Run those that take a compressor with this one as well; repeat for several: {options.COMPRESS_HELP}.",
    ),
    "max_iter": option(int, min=1, default=5, help="Epochs."),
    "seed": option(int, default=0, help="Seed of the row order and of the stragglers."),
    "as_json": options.JSON,
}  # fmt: skip


@options.with_options(_OPTIONS)
def simulate(
    *,
    data: list[str] | None,
    dataset: str | None,
    rows: int | None,
    ranks: int,
    stragglers: str,
    every: Any,
    max_iter: int,
    seed: int,
    as_json: bool,
    **given: Any,
) -> None:
    """Train on a simulated cluster; print the seconds it would have taken, and where they went.

    Models, losses and bytes are real, seconds are those of the network and of a core of a known kind, or of what
    dsgd calibrate has measured. Of several strategies, periods, compressors and networks all combinations are run.
    Nothing is written.
    """
    clusters = _clusters(ranks, given["network"], given["calibration"], stragglers, seed)
    methods = variants(given["sync"] or (["local"] if every else ["1024"]), given["compress"] or (), every or ())
    X, y = rows_or_dataset("dsgd simulate", data or [], dataset, rows)
    parameters = {"max_iter": max_iter, "tol": None, "random_state": seed}
    runs = tracked([(where, what) for where in clusters for what in methods], "training", quiet=as_json)
    fitted = {
        (where, what): make_estimator(
            given["task"], given["loss"], {**parameters, "sync": methods[what], "client": clusters[where]}
        ).fit(X, y)
        for where, what in runs
    }
    reports = [
        {"network": where, "sync": what, **_report(estimator, X, y)} for (where, what), estimator in fitted.items()
    ]
    if as_json:
        common = {"ranks": ranks, "sync": ", ".join(methods), "stragglers": stragglers, "epochs": max_iter}
        typer.echo(json.dumps({**common, "networks": reports}))
    else:
        _show(fitted, reports, f"{len(y):,} rows, {ranks} simulated ranks, {max_iter} epochs")


def _clusters(
    ranks: int, network: list[str] | None, calibration: list[str] | None, stragglers: str, seed: int
) -> Mapping[str, Any]:
    """Return the simulated clusters by the names of their networks and files."""
    from dsgd.sim import SimulatedCluster, open_costs

    if not calibration:
        return {name: SimulatedCluster(ranks, name, None, stragglers, seed) for name in network or ["1GbE"]}
    twins = {path: open_costs(path).model.calibration for path in calibration}
    places: dict[str, tuple[Any, Any]] = {path: (twin.network, twin.compute) for path, twin in twins.items()}
    places |= {
        name if len(twins) == 1 else f"{name}, cores of {path}": (name, twin.compute)
        for name in network or ()
        for path, twin in twins.items()
    }
    return {name: SimulatedCluster(ranks, *place, stragglers, seed) for name, place in places.items()}


def _report(estimator: Any, X: Any, y: Any) -> dict[str, float]:
    return {
        "seconds": float(estimator.ledger_.elapsed_s),
        **{name: float(value) for name, value in estimator.ledger_.totals().items()},
        "training_loss": float(estimator.loss_curve_[-1]),
        "score": float(estimator.score(X, y)),
    }


def _show(fitted: Mapping[tuple[str, str], Any], reports: list[dict[str, Any]], title: str) -> None:
    from dsgd.report import Table, show_tables

    columns = (
        "network = network | strategy = sync | time = seconds:s | compute = compute | wire = wire | wait = wait | "
        "control = control | sent = bytes_sent:B | messages = messages:,.0f | control sent = control_bytes_sent:B | "
        "training loss = training_loss:.4g | score = score:.4f"
    )
    shares = {phase: partial(_share, phase=phase) for phase in PHASES}
    note = "Time: of the whole fit; shares: of the time of all ranks. Sent: by all ranks together, for the algorithm."
    console = show_tables([Table.of(title, reports, columns, note, 2, **shares)])
    if len(fitted) == 1:
        (estimator,) = fitted.values()
        console.print(estimator.ledger_.summary(), markup=False, soft_wrap=True)


def _share(report: Mapping[str, Any], phase: str) -> str:
    """Return the share of a phase in the time of all ranks."""
    spent = sum(report[f"{name}_s"] for name in PHASES) or 1.0
    return f"{report[f'{phase}_s'] / spent:.1%}"


WHAT_IF_EXAMPLES: Final = examples(
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
            f"{model} has no record of a run: models trained by SGD have one, in files of dsgd fit and of model.save, "
            "but not where strategy or simulated cluster have parts of classes of your own. Ask model.ledger_.what_if."
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
