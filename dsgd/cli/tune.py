"""``dsgd tune``: find the synchronisation and step size that reach a target soonest."""

from __future__ import annotations

import json
from typing import Any, Final

import typer

from dsgd.cli import options
from dsgd.cli.files import is_svmlight, read_rows, rows_or_dataset, tables_with_target
from dsgd.cli.fit import encoding, make_estimator
from dsgd.cli.options import connected, examples, option, parse_compress, parse_sync, telling

EXAMPLES: Final = examples(
    "dsgd tune --dataset a9a --workers 2",
    "dsgd tune --data train.svm --loss log_loss --scheduler tcp://10.0.0.5:8786 --budget 120",
    "dsgd tune --data 'clicks/*.parquet' --target clicked --loss log_loss --workers 2",
    "dsgd tune --data train.svm -s local -s minibatch -s easgd --compress auto --compress topk:0.01 --json",
)
_SEARCH: Final = "The search"
_OPTIONS: Final = {
    "data": options.DATA_OR_SET, "more": options.MORE, "dataset": options.DATASET, "target": options.TARGET,
    "read": options.READ, "task": options.TASK, "loss": options.LOSS, "penalty": options.PENALTY,
    "alpha": options.ALPHA, "categorical": options.CATEGORICAL,
    "budget": option(float, panel=_SEARCH, default=60.0, help="Seconds until the answer, all included."),
    "margin": option(float, panel=_SEARCH, default=0.003, help="The target is the best score reached minus this."),
    "strategy": option(
        list[str] | None, "--strategy", "-s", panel=_SEARCH,
        help=f"Strategies to try; repeat for several: {options.SYNC_HELP}. Periods and batches are searched; local and "
        "minibatch by default.",
    ),
    "compress": option(
        list[str] | None, panel=_SEARCH,
        help=f"Compressors to try; repeat for several: {options.COMPRESS_HELP}. Whole vectors are always tried.",
    ),
    "seed": option(int, panel=_SEARCH, default=0, help="Seed of rows held out, and of their order."),
    "workers": options.WORKERS, "scheduler": options.SCHEDULER, "jobs": options.jobs(-1),
    "transport": option(
        str, panel=options.PLACE, default="auto", help="Transport between ranks on a cluster, as in dsgd fit."
    ),
    "as_json": options.JSON,
    "quiet": option(bool, "--quiet", "-q", default=False, help="Print the line to paste and nothing else."),
}  # fmt: skip


@options.with_options(_OPTIONS)
def tune(
    *,
    data: list[str] | None,
    more: list[str] | None,
    dataset: str | None,
    target: str | None,
    read: list[str] | None,
    workers: int,
    scheduler: str | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Find the period, strategy and step size that train a model fastest here, and print them; takes a minute.

    The cluster is measured the first time, which tells what an epoch of each candidate takes; the others run for real
    by successive halving, scored on rows held out. What is printed can be pasted.
    """
    from dsgd import Gang
    from dsgd.tuning import tune as search

    paths = [*(data or []), *(more or [])]
    X, y = rows_or_dataset("dsgd tune", paths, dataset, reads=False)
    tables = tables_with_target(paths, target, read)
    parameters: dict[str, Any] = {
        "penalty": None if given["penalty"] == "none" else given["penalty"],
        "alpha": given["alpha"],
        "n_jobs": None if workers or scheduler else given["jobs"],
        **encoding(tables, given["categorical"]),
    }
    with connected(workers, scheduler) as client:
        estimator = make_estimator(
            given["task"], given["loss"], {**parameters, "client": Gang(client, transport=given["transport"])}
        )
        if tables is not None:
            X, y = tables, target
        elif paths and client is not None and is_svmlight(paths[0]):
            X, y = paths, None
        elif paths:
            X, y = read_rows(paths)
        with telling(quiet=quiet or as_json) as say:
            result = search(
                estimator,
                X,
                y,
                budget=given["budget"],
                margin=given["margin"],
                random_state=given["seed"],
                on_progress=say,
                strategies=[parse_sync(text, "--strategy") for text in given["strategy"] or ("local", "minibatch")],
                compressors=None if given["compress"] is None else [None, *map(parse_compress, given["compress"])],
            )
    if as_json:
        typer.echo(json.dumps(result.as_mapping()))
    elif quiet:
        typer.echo(result.line)
    else:
        typer.echo(result)
        typer.echo(f"\n{result.seconds:.1f} s of {result.budget:g} s were used. To paste:\n\n{result.code}")
