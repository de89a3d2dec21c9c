"""``dsgd fit``: train a model on files and write it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from dsgd.cli import files
from dsgd.cli import options as options
from dsgd.cli.options import (
    COMPRESS_HELP,
    FEATURES_HELP,
    OPTIMIZER_HELP,
    SAMPLING_HELP,
    SYNC_HELP,
    compressing,
    connected,
    examples,
    model_option,
    parse_sync,
    place_option,
    stepping,
)
from dsgd.errors import InvalidParameterError
from dsgd.printing import printable
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

_training_option: Final[Any] = partial(typer.Option, rich_help_panel="Training")
_validation_option: Final[Any] = partial(typer.Option, rich_help_panel="Validation")

_Files: TypeAlias = Annotated[list[str], options.DATA]
_Model: TypeAlias = Annotated[
    Path, typer.Option("--model", "-m", help="Where to write the model; an existing file is replaced.")
]
_Sync: TypeAlias = Annotated[str, _training_option(help=f"When ranks exchange, and what: {SYNC_HELP}.")]
_Compress: TypeAlias = Annotated[
    str | None, _training_option(help=f"Compression of what ranks exchange: {COMPRESS_HELP}.")
]
_Optimizer: TypeAlias = Annotated[str, _training_option(help=f"How steps are made of gradients: {OPTIMIZER_HELP}.")]
_Sampling: TypeAlias = Annotated[str, _training_option(help=f"How rows are chosen: {SAMPLING_HELP}.")]
_Features: TypeAlias = Annotated[str, model_option(help=f"What the model is linear in: {FEATURES_HELP}.")]
_L1Ratio: TypeAlias = Annotated[float, model_option(help="Share of l1 in elasticnet.")]
_MaxIter: TypeAlias = Annotated[int, _training_option(help="Epochs at most.")]
_Tol: TypeAlias = Annotated[float, _training_option(help="Stop when the loss falls by less; 0 runs all epochs.")]
_LearningRate: TypeAlias = Annotated[
    str | None,
    _training_option(help="Schedule: optimal, constant, invscaling, adaptive, pegasos, triangular, one_cycle."),
]
_Eta0: TypeAlias = Annotated[float | None, _training_option(help="First step size.")]
_Average: TypeAlias = Annotated[
    bool, _training_option("--average", help="Return the mean of the weights over all steps (averaged SGD).")
]
_Seed: TypeAlias = Annotated[int, _training_option(help="Seed of the row order.")]
_Valid: TypeAlias = Annotated[
    list[str] | None,
    _validation_option(
        help="Validation files, of the format of --data; this process reads them, and svmlight files of --data too. "
        "May be repeated."
    ),
]
_EarlyStopping: TypeAlias = Annotated[
    bool,
    _validation_option("--early-stopping", help="Stop by the score on --valid, or on a tenth of the rows, held out."),
]
_Scoring: TypeAlias = Annotated[
    str | None, _validation_option(help="What is scored: a name of scikit-learn's, as roc_auc or neg_log_loss.")
]
_RestoreBest: TypeAlias = Annotated[
    bool, _validation_option("--restore-best", help="Write the model of the epoch with the best score.")
]
_Transport: TypeAlias = Annotated[
    str,
    place_option(
        help="Transport between ranks on a cluster: auto, spin, shm, tcp, rpc (only the workers' own ports), "
        "or MODULE:FUNCTION, a wire of another package."
    ),
]
_OnFailure: TypeAlias = Annotated[
    str,
    place_option(
        help="When a worker is lost or hangs: raise an error, restart with all rows, or shrink to those left."
    ),
]
_Timeout: TypeAlias = Annotated[
    list[str] | None,
    place_option(
        help="How long a cluster is waited for, as queue=1h; also peer, hung, lease and scheduler. May be repeated."
    ),
]
_Checkpoint: TypeAlias = Annotated[
    str | None, _training_option(help="Folder or URL that gets the state of training twice a minute.")
]
_ResumeFrom: TypeAlias = Annotated[
    str | None,
    _training_option(help="Folder or URL of checkpoints to continue from; auto: that of --checkpoint, if it has any."),
]
_OutOfCore: TypeAlias = Annotated[
    bool, place_option("--out-of-core", help="Keep rows on disk, for data larger than memory.")
]
_Quiet: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def fit(
    data: _Files,
    model: _Model,
    more: options.More = None,
    target: options.Target = None,
    read: options.Read = None,
    task: options.Task = "auto",
    loss: options.Loss = None,
    penalty: options.Penalty = "l2",
    alpha: options.Alpha = 1e-4,
    l1_ratio: _L1Ratio = 0.15,
    features: _Features = "none",
    categorical: options.Categorical = "auto",
    sync: _Sync = "1024",
    compress: _Compress = None,
    optimizer: _Optimizer = "none",
    sampling: _Sampling = "uniform",
    max_iter: _MaxIter = 1000,
    tol: _Tol = 1e-3,
    learning_rate: _LearningRate = None,
    eta0: _Eta0 = None,
    average: _Average = False,
    seed: _Seed = 0,
    valid: _Valid = None,
    early_stopping: _EarlyStopping = False,
    scoring: _Scoring = None,
    restore_best: _RestoreBest = False,
    workers: options.Workers = 0,
    scheduler: options.Scheduler = None,
    jobs: options.Jobs = 1,
    transport: _Transport = "auto",
    on_failure: _OnFailure = "raise",
    timeout: _Timeout = None,
    checkpoint: _Checkpoint = None,
    resume_from: _ResumeFrom = None,
    out_of_core: _OutOfCore = False,
    as_json: options.AsJson = False,
    quiet: _Quiet = False,
) -> None:
    """Train a linear model on files and write it: a file without code, or a pickle if named .joblib, .pickle or .pkl.

    Workers read the files in parallel; without --workers and --scheduler this process does everything.
    """
    files.check_model_path(model)
    files.check_inputs(paths := [*data, *(more or [])])
    files.check_inputs(valid or [], option="--valid")
    tables = files.tables_with_target(paths, target, read)
    parameters: dict[str, Any] = {
        "penalty": None if penalty == "none" else penalty,
        "tol": tol or None,
        "random_state": seed,
        "n_jobs": None if workers or scheduler else jobs,
        "sync": parse_sync(sync) if compress is None else compressing(parse_sync(sync), compress),
        "timeouts": _timeouts(timeout),
        "out_of_core": out_of_core,
        "early_stopping": early_stopping,
        "restore_best": restore_best,
        **_given(alpha=alpha, l1_ratio=l1_ratio, max_iter=max_iter, average=average),
        **_given(transport=transport, on_failure=on_failure, scoring=scoring),
        **_given(learning_rate=learning_rate, eta0=eta0, checkpoint=checkpoint, resume_from=resume_from),
        **encoding(tables, categorical),
        **_given(**stepping(optimizer, sampling, features)),
    }
    with connected(workers, scheduler) as client:
        estimator = files.savable_model(make_estimator(task, loss, {**parameters, "client": client}), model)
        _train(estimator, _rows(client, paths, tables, target, valid, read), show=not (quiet or as_json))
    # The model outlives the cluster it was trained on.
    files.save_model(estimator.set_params(client=None), model)
    _tell(estimator, _report(estimator, model), as_json=as_json, quiet=quiet)


def _tell(estimator: Any, report: dict[str, Any], *, as_json: bool, quiet: bool) -> None:
    """Print what came of the fit."""
    if as_json:
        typer.echo(json.dumps(report))
    elif not quiet:
        _show(estimator, report)


def _timeouts(texts: list[str] | None) -> Any:
    from dsgd.runtime.timeouts import Timeouts

    return Timeouts.parse("--timeout", texts) if texts else None


def make_estimator(task: str, loss: str | None, parameters: Mapping[str, Any]) -> Any:
    """Return the classifier or the regressor for a task.

    Parameters
    ----------
    task : {"auto", "classification", "regression"}
        ``"auto"`` goes by the loss.
    loss : str or None
        The loss; None takes the default of the estimator.
    parameters : mapping
        The other parameters of the estimator.

    Returns
    -------
    SGDClassifier or SGDRegressor
        Not fitted.

    Raises
    ------
    InvalidParameterError
        The task is unknown.
    """
    check_choice("--task", task, ("auto", "classification", "regression"))
    from dsgd import SGDClassifier, SGDRegressor

    if task == "auto":
        task = "regression" if loss in SGDRegressor.loss_functions else "classification"

    kind = SGDRegressor if task == "regression" else SGDClassifier
    return kind(**parameters) if loss is None else kind(loss=loss, **parameters)


def _given(**options: Any) -> dict[str, Any]:
    """Return the options that were given; the estimator has defaults for the others that go by its loss."""
    return {name: value for name, value in options.items() if value is not None}


def encoding(tables: Any, categorical: str) -> dict[str, Any]:
    """Return the parameters of an estimator that make rows of numbers of tables.

    Parameters
    ----------
    tables : TableFiles or None
        None where the files are others, which hold numbers.
    categorical : str
        What becomes of columns of strings; see `dsgd.preprocessing.ColumnEncoder`.
    """
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
    from dsgd.inputs import widen

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
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in report.items():
        if name in ("ledger", "model"):
            continue
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        if name == "classes" and len(value) > 10:
            text = f"{len(value)}: {value[0]} ... {value[-1]}"
        table.add_row(name, escape(printable(text)))
    console = Console(highlight=False)
    console.print(table)
    console.print(f"\n{estimator.ledger_.summary()}\n", markup=False, soft_wrap=True)
    console.print(f"model written to {report['model']}", markup=False, soft_wrap=True)
