"""``dsgd predict`` and ``dsgd score``: use a model on files."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import typer

from dsgd.cli import options as options
from dsgd.cli.files import load_model, read_rows, tables_in
from dsgd.cli.options import examples
from dsgd.errors import InvalidParameterError

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
    X, _ = _rows(estimator, [*data, *(more or [])], None, read)
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
    X, y = _rows(estimator, [*data, *(more or [])], target, read)
    if y is None:
        raise InvalidParameterError(f"--target names the column with the targets: {', '.join(X.names[:9])}, ...")
    value = float(estimator.score(X, y))
    if as_json:
        own = "r2" if getattr(estimator, "_deviance", None) is None else "d2"
        metric = "accuracy" if hasattr(estimator, "classes_") else own
        typer.echo(json.dumps({"metric": metric, "value": value, "rows": len(y)}))
    else:
        typer.echo(f"{value:.6f}")


def _rows(estimator: Any, paths: list[str], target: str | None, read: list[str] | None) -> tuple[Any, Any]:
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
