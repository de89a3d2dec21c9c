"""``dsgd fit``, ``dsgd predict`` and ``dsgd score``: a model is trained on files, and used on others."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import typer

from dsgd.cli import files, options
from dsgd.cli.files import load_model, read_rows, tables_in
from dsgd.cli.options import compressing, connected, examples, option, parse_sync, print_facts, stepping
from dsgd.errors import InvalidParameterError
from dsgd.validation import check_choice

EXAMPLES: Final = examples(
    "dsgd fit --data train.svm --loss hinge --sync 256 --workers 2 --model model.dsgd",
    "dsgd fit --data train.svm --sync diloco:every=512,outer_rate=0.7 --compress topk:0.01 --jobs 4 -m model.dsgd",
    "dsgd fit --data train.svm --loss log_loss --optimizer svrg --tol 0 --max-iter 60 --jobs 4 --model model.dsgd",
    "dsgd fit --data train.svm --features rff:2000,gamma=0.1 --jobs 4 --model model.dsgd",
    "dsgd fit --data 's3://bucket/clicks/*.parquet' --target clicked --loss log_loss --model model.dsgd",
    "dsgd fit --data train.svm --valid test.svm --early-stopping --scoring roc_auc --restore-best --model model.dsgd",
    "dsgd fit --data part-*.svm.gz --loss log_loss --scheduler tcp://10.0.0.5:8786 --model model.dsgd --json",
)

_TRAINING, _VALIDATION = "Training", "Validation"
_OPTIONS: Final = {
    "data": options.DATA,
    "model": option(
        Path, "--model", "-m", default=..., help="Where to write the model; an existing file is replaced."
    ),
    "more": options.MORE, "target": options.TARGET, "read": options.READ, "task": options.TASK, "loss": options.LOSS,
    "penalty": options.PENALTY, "alpha": options.ALPHA,
    "l1_ratio": option(float, panel=options.OBJECTIVE, default=0.15, help="Share of l1 in elasticnet."),
    "features": option(
        str, panel=options.OBJECTIVE, default="none", help=f"What the model is linear in: {options.FEATURES_HELP}."
    ),
    "categorical": options.CATEGORICAL,
    "sync": option(
        str, panel=_TRAINING, default="1024", help=f"When ranks exchange, and what: {options.SYNC_HELP}."
    ),
    "compress": option(
        str | None, panel=_TRAINING, help=f"Compression of what ranks exchange: {options.COMPRESS_HELP}."
    ),
    "optimizer": option(
        str, panel=_TRAINING, default="none", help=f"How steps are made of gradients: {options.OPTIMIZER_HELP}."
    ),
    "sampling": option(
        str, panel=_TRAINING, default="uniform", help=f"How rows are chosen: {options.SAMPLING_HELP}."
    ),
    "max_iter": option(int, panel=_TRAINING, default=1000, help="Epochs at most."),
    "tol": option(
        float, panel=_TRAINING, default=1e-3, help="Stop when the loss falls by less; 0 runs all epochs."
    ),
    "learning_rate": option(
        str | None, panel=_TRAINING,
        help="Schedule: optimal, constant, invscaling, adaptive, pegasos, triangular, one_cycle.",
    ),
    "eta0": option(float | None, panel=_TRAINING, help="First step size."),
    "average": option(
        bool, "--average", panel=_TRAINING, default=False,
        help="Return the mean of the weights over all steps (averaged SGD).",
    ),
    "seed": option(int, panel=_TRAINING, default=0, help="Seed of the row order."),
    "valid": option(
        list[str] | None, panel=_VALIDATION,
        help="Validation files, of the format of --data; this process reads them, and svmlight files of --data too. "
        "May be repeated.",
    ),
    "early_stopping": option(
        bool, "--early-stopping", panel=_VALIDATION, default=False,
        help="Stop by the score on --valid, or on a tenth of the rows, held out.",
    ),
    "scoring": option(
        str | None, panel=_VALIDATION, help="What is scored: a name of scikit-learn's, as roc_auc or neg_log_loss."
    ),
    "restore_best": option(
        bool, "--restore-best", panel=_VALIDATION, default=False,
        help="Write the model of the epoch with the best score.",
    ),
    "workers": options.WORKERS, "scheduler": options.SCHEDULER, "jobs": options.jobs(1),
    "transport": option(
        str, panel=options.PLACE, default="auto",
        help="Transport between ranks on a cluster: auto, spin, shm, tcp, rpc (only the workers' own ports), "
        "or MODULE:FUNCTION, a wire of another package.",
    ),
    "on_failure": option(
        str, panel=options.PLACE, default="raise",
        help="When a worker is lost or hangs: raise an error, restart with all rows, or shrink to those left.",
    ),
    "timeout": option(
        list[str] | None, panel=options.PLACE,
        help="How long a cluster is waited for, as queue=1h; also peer, hung, lease and scheduler. May be repeated.",
    ),
    "checkpoint": option(
        str | None, panel=_TRAINING, help="Folder or URL that gets the state of training twice a minute."
    ),
    "resume_from": option(
        str | None, panel=_TRAINING,
        help="Folder or URL of checkpoints to continue from; auto: that of --checkpoint, if it has any.",
    ),
    "out_of_core": option(
        bool, "--out-of-core", panel=options.PLACE, default=False,
        help="Keep rows on disk, for data larger than memory.",
    ),
    "as_json": options.JSON,
    "quiet": option(bool, "--quiet", "-q", default=False, help="Print nothing but errors."),
}  # fmt: skip
# Options that the estimator takes as they are; where one is not given it has a default that goes by its loss.
_PARAMETERS: Final = (
    "alpha", "l1_ratio", "max_iter", "average", "scoring", "learning_rate", "eta0", "early_stopping", "restore_best",
)  # fmt: skip
# Those that the gang takes.
_DEPLOYMENT: Final = ("transport", "on_failure", "checkpoint", "resume_from", "out_of_core")


@options.with_options(_OPTIONS)
def fit(
    *,
    data: list[str],
    model: Path,
    more: list[str] | None,
    target: str | None,
    read: list[str] | None,
    valid: list[str] | None,
    workers: int,
    scheduler: str | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Train a linear model on files and write it: a file without code, or a pickle if named .joblib, .pickle or .pkl.

    Workers read the files in parallel; without --workers and --scheduler this process does everything.
    """
    files.check_model_path(model)
    files.check_inputs(paths := [*data, *(more or [])])
    files.check_inputs(valid or [], option="--valid")
    tables, sync, timeouts = files.tables_with_target(paths, target, read), parse_sync(given["sync"]), given["timeout"]
    from dsgd import Gang
    from dsgd.runtime.timeouts import Timeouts

    deployment = {name: given[name] for name in _DEPLOYMENT}
    gang = Gang(timeouts=Timeouts.parse("--timeout", timeouts) if timeouts else None, **deployment)
    parameters: dict[str, Any] = {
        "penalty": None if given["penalty"] == "none" else given["penalty"],
        "tol": given["tol"] or None,
        "random_state": given["seed"],
        "n_jobs": None if workers or scheduler else given["jobs"],
        "sync": sync if given["compress"] is None else compressing(sync, given["compress"]),
        **encoding(tables, given["categorical"]),
    }
    own = {name: given[name] for name in _PARAMETERS}
    own |= stepping(given["optimizer"], given["sampling"], given["features"])
    parameters |= {name: value for name, value in own.items() if value is not None}
    with connected(workers, scheduler) as client:
        estimator = make_estimator(given["task"], given["loss"], {**parameters, "client": replace(gang, client=client)})
        estimator = files.savable_model(estimator, model)
        _train(estimator, _rows(client, paths, tables, target, valid, read), show=not (quiet or as_json))
    # The model outlives the cluster it was trained on.
    files.save_model(estimator.set_params(client=None), model)
    report = _report(estimator, model)
    if as_json:
        typer.echo(json.dumps(report))
    elif not quiet:
        _show(estimator, report)


def make_estimator(task: str, loss: str | None, parameters: Mapping[str, Any]) -> Any:
    """Return the classifier or the regressor for a task; ``"auto"`` goes by the loss."""
    check_choice("--task", task, ("auto", "classification", "regression"))
    from dsgd import SGDClassifier, SGDRegressor

    if task == "auto":
        task = "regression" if loss in SGDRegressor.loss_functions else "classification"

    kind = SGDRegressor if task == "regression" else SGDClassifier
    return kind(**parameters) if loss is None else kind(loss=loss, **parameters)


def encoding(tables: Any, categorical: str) -> dict[str, Any]:
    """Return the parameters of an estimator that make rows of numbers of tables; none for other files."""
    if tables is None:
        return {}
    from dsgd.preprocessing import ColumnEncoder

    # The line that dsgd tune prints is shorter with the default by its name.
    made = ColumnEncoder(categorical=categorical)  # type: ignore[arg-type] # fit checks it
    return {"encoder": "auto" if categorical == "auto" else made}


def _rows(
    client: Any, paths: list[str], tables: Any, target: str | None, valid: list[str] | None, read: list[str] | None
) -> dict[str, Any]:
    """Return the rows of files for ``fit``, or the files, which workers read by themselves if they can."""
    if tables is not None:
        return {"X": tables, "y": target} | (
            {"X_val": _valid_tables(valid, target, read), "y_val": target} if valid else {}
        )
    if not valid:
        X, y = (paths, None) if client is not None and files.is_svmlight(paths[0]) else files.read_rows(paths)
        return {"X": X, "y": y}
    if files.tables_in(valid) is not None:
        raise InvalidParameterError(
            f"--valid names tables ({valid[:9]}), and --data does not: give files of one format"
        )
    from dsgd.inputs.blocks import widen

    (X, y), (X_val, y_val) = files.read_rows(paths), files.read_rows(valid)
    if files.is_svmlight(paths[0]) and files.is_svmlight(valid[0]):
        # Files of rows with few entries name no column beyond their last one.
        X, X_val = (widen(rows, max(X.shape[1], X_val.shape[1])) for rows in (X, X_val))
    return {"X": X, "y": y, "X_val": X_val, "y_val": y_val}


def _valid_tables(valid: list[str], target: str | None, read: list[str] | None) -> Any:
    tables = files.tables_in(valid, read)
    if tables is None:
        raise InvalidParameterError(
            f"--data names tables, and --valid does not ({valid[:9]}): give files of one format"
        )
    tables.check([target])
    return tables


def _train(estimator: Any, rows: Mapping[str, Any], *, show: bool) -> None:
    from rich.console import Console

    from dsgd.progress import ProgressLine

    console = Console(stderr=True)
    if show and console.is_terminal:
        # The table of results follows, so the progress line is no longer needed.
        estimator.set_callbacks(ProgressLine(console, keep=False))
    estimator.fit(**rows)
    estimator.set_callbacks()


def _report(estimator: Any, path: Path) -> dict[str, Any]:
    """Return what happened, as plain numbers and strings."""
    fitted: Mapping[str, Any] = estimator.fit_report_
    report: dict[str, Any] = {
        "model": str(path),
        "estimator": type(estimator).__name__,
        "loss": estimator.loss,
        "rows": sum(int(rank["rows"]) for rank in fitted["stats"]),
        "features": int(estimator.n_features_in_),
        "ranks": int(fitted["ranks"]),
        "sync": fitted["strategy"],
        "transport": fitted["transport"],
        "epochs": int(estimator.n_iter_),
        "converged": bool(fitted["converged"]),
        "training_loss": float(estimator.loss_curve_[-1]),
        "seconds": float(fitted["elapsed_s"]),
        "peak_rss_bytes": int(fitted["peak_rss_bytes"]),
        "ledger": {name: float(value) for name, value in estimator.ledger_.totals().items()},
    }
    if getattr(estimator, "best_score_", None) is not None:
        report |= {"best_score": float(estimator.best_score_), "best_epoch": int(estimator.best_epoch_)}
    if hasattr(estimator, "classes_"):
        report["classes"] = estimator.classes_.tolist()
    return report


def _show(estimator: Any, report: Mapping[str, Any]) -> None:
    shown = {name: value for name, value in report.items() if name not in ("ledger", "model")}
    if classes := report.get("classes"):
        shown["classes"] = str(classes) if len(classes) <= 10 else f"{len(classes)}: {classes[0]} ... {classes[-1]}"
    print_facts(shown)
    typer.echo(f"\n{estimator.ledger_.summary()}\n\nmodel written to {report['model']}")


PREDICT_EXAMPLES: Final = examples(
    "dsgd predict --model model.dsgd --data test.svm --out predictions.csv",
    "dsgd predict --model model.dsgd --data test.svm --proba --out - | head",
)
SCORE_EXAMPLES: Final = examples(
    "dsgd score --model model.dsgd --data test.svm",
    "dsgd score --model model.dsgd --data test.svm --json",
    "dsgd score --model model.dsgd --data test.parquet --target clicked",
)

_Model = Annotated[
    Path, typer.Option("--model", "-m", help="A model of dsgd fit. One that is a pickle runs code: use only your own.")
]
_Data = Annotated[list[str], typer.Option("--data", "-d", help="Files: svmlight, .npz, .parquet, .csv or .arrow.")]
_More = Annotated[list[str] | None, typer.Argument(metavar="FILES", help="Further files.")]


def predict(
    model: _Model,
    data: _Data,
    out: Annotated[str, typer.Option("--out", "-o", help="CSV file to write; - is standard output.")],
    more: _More = None,
    read: options.Read = None,
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of each class.")] = False,
) -> None:
    """Predict the rows of files, one line of CSV per row."""
    estimator = load_model(model)
    if proba and not hasattr(estimator, "predict_proba"):
        raise InvalidParameterError(
            f"--proba: {estimator!r:.60} gives no probabilities; fit with --loss log_loss, softmax or modified_huber"
        )
    X, _ = _rows_to_answer(estimator, [*data, *(more or [])], None, read)
    predictions = _labels(estimator.predict(X))
    with _opened(out) as file:
        writer = csv.writer(file, lineterminator="\n")
        if proba:
            writer.writerow(["prediction", *(f"proba_{label}" for label in _labels(estimator.classes_))])
            rows: Iterable[Sequence[Any]] = (
                [label, *row] for label, row in zip(predictions, estimator.predict_proba(X).tolist(), strict=True)
            )
        else:
            writer.writerow(["prediction"])
            rows = ([label] for label in predictions)
        writer.writerows(rows)


def score(
    model: _Model,
    data: _Data,
    more: _More = None,
    target: Annotated[str | None, typer.Option("--target", "-t", help="Column of the targets, of tables.")] = None,
    read: options.Read = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: metric, value, rows.")] = False,
) -> None:
    """Print the accuracy of a classifier, R2 of a regressor, or D2 of one with a log link, on files."""
    estimator = load_model(model)
    X, y = _rows_to_answer(estimator, [*data, *(more or [])], target, read)
    if y is None:
        raise InvalidParameterError(f"--target names the column with the targets: {', '.join(X.names[:9])}, ...")
    value = float(estimator.score(X, y))
    if as_json:
        own = "r2" if getattr(estimator, "_deviance", None) is None else "d2"
        metric = "accuracy" if hasattr(estimator, "classes_") else own
        typer.echo(json.dumps({"metric": metric, "value": value, "rows": len(y)}))
    else:
        typer.echo(f"{value:.6f}")


def _rows_to_answer(estimator: Any, paths: list[str], target: str | None, read: list[str] | None) -> tuple[Any, Any]:
    """Return rows, or files of tables that the model reads by itself, and their targets."""
    tables = tables_in(paths, read)
    if tables is None:
        return read_rows(paths, n_features=estimator.n_features_in_)
    from dsgd.inputs.named import take_named

    return take_named(tables, target, None, classes=getattr(estimator, "classes_", None))[:2]


def _labels(values: Any) -> list[Any]:
    """Return a vector as Python values; whole numbers lose the .0 that svmlight files do not have either."""
    if values.dtype.kind == "f" and (values == values.round()).all():
        values = values.astype("int64")
    plain: list[Any] = values.tolist()
    return plain


@contextmanager
def _opened(out: str) -> Iterator[TextIO]:
    if out == "-":
        yield sys.stdout
    else:
        with open(out, "w", encoding="utf-8", newline="") as file:
            yield file
