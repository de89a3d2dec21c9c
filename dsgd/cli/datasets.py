"""``dsgd datasets``: list, describe, download or generate data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dsgd.cli.options import as_text, examples, print_facts, print_table, tracked
from dsgd.errors import InvalidParameterError
from dsgd.files import replacing
from dsgd.validation import check_choice

if TYPE_CHECKING:
    from dsgd.datasets import DatasetInfo, Twin


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

_LIST_EXAMPLES: Final = examples("dsgd datasets list", "dsgd datasets list --json")
_INFO_EXAMPLES: Final = examples("dsgd datasets info ijcnn1", "dsgd datasets info epsilon-like --json")
_FETCH_EXAMPLES: Final = examples("dsgd datasets fetch a9a")
_MAKE_EXAMPLES: Final = examples(
    "dsgd datasets make ijcnn1-like --rows 50000 --out train.svm",
    "dsgd datasets make ijcnn1-like --rows 10000 --split test --out test.svm.gz",
    "dsgd datasets make epsilon-like --rows 20000 --dtype float32 --out epsilon.npz",
)
_PIECE_VALUES: Final = 4_000_000  # about how many numbers are made at a time while writing svmlight

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list", epilog=_LIST_EXAMPLES)
def list_(as_json: _Json = False) -> None:
    """List the sets that are known, and whether they are on this machine."""
    from dsgd.datasets import TWINS, catalog

    rows = [{**_shape(info), "here": _parts_here(info), "used_by": list(info.used_by)} for info in catalog()]
    rows += [{**_twin_shape(name), "here": ["generated"], "used_by": []} for name in sorted(TWINS)]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    columns = ("name", "task", "train rows", "test rows", "features", "classes", "here", "used by")
    print_table(columns, [[as_text(value) for value in row.values()] for row in rows], numbers=range(2, 6))


@app.command("info", epilog=_INFO_EXAMPLES)
def info(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A set or a twin that `dsgd datasets list` shows.")],
    as_json: _Json = False,
) -> None:
    """Describe a set: shape, source, licence, the files found here and their checksums."""
    from dsgd.datasets import TWINS, find

    base = name.removesuffix("-like")
    facts = _twin_facts(base) if name != base and base in TWINS else _set_facts(find(name))
    if as_json:
        typer.echo(json.dumps(facts))
        return
    if "here" in facts:
        parts = facts.pop("here")
        facts |= {f"here: {part}": entry for part, entry in parts.items()} or {"here": "not on this machine"}
    print_facts({name.replace("_", " "): value for name, value in facts.items()})


@app.command("fetch", epilog=_FETCH_EXAMPLES)
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A set that `dsgd datasets list` shows.")],
    as_json: _Json = False,
) -> None:
    """Make sure the files of a set are on this machine; download those that are not into the cache."""
    from dsgd.datasets import fetch as fetch_files

    files = {part: str(path) for part, path in fetch_files(name).items()}
    if as_json:
        typer.echo(json.dumps(files))
        return
    for part, path in files.items():
        typer.echo(f"{part}\t{path}")


@app.command("make", epilog=_MAKE_EXAMPLES)
def make(
    twin: Annotated[str, typer.Argument(metavar="TWIN", help="A twin, such as ijcnn1-like.")],
    out: Annotated[Path, typer.Option(help="File to write: .npz, or else svmlight (also .gz, .bz2 or .xz).")],
    rows: Annotated[int | None, typer.Option(min=1, help="Rows; as many as the published part by default.")] = None,
    split: Annotated[str, typer.Option(help="train or test: rows of the same law that never coincide.")] = "train",
    seed: Annotated[int, typer.Option(min=0, help="Chooses the separator and the rows.")] = 0,
    dtype: Annotated[str, typer.Option(help="float64 or float32, of an .npz.")] = "float64",
    as_json: _Json = False,
) -> None:
    """Make a set with the shape of a published one, a known separator and a known best accuracy."""
    from dsgd.datasets import make_like
    from dsgd.datasets.files import write_npz

    check_choice("--dtype", dtype, ("float32", "float64"))
    if not out.parent.is_dir():
        raise InvalidParameterError(f"--out {out}: there is no folder {out.parent}: create it first")
    # One row settles whether there is such a twin and split before anything is written.
    made = make_like(twin, 1, split=split, seed=seed)
    n_rows = _published_rows(twin, split) if rows is None else rows
    with replacing(out) as path:
        if out.suffix == ".npz":
            whole = make_like(twin, n_rows, split=split, seed=seed, dtype=dtype)
            write_npz(path, whole.X, whole.y)
        else:
            _write_svmlight(path, made.twin, n_rows, split)
    facts = {
        "file": str(out),
        "n_rows": n_rows,
        "n_features": made.twin.n_features,
        "seed": seed,
        "best_accuracy": made.bayes_accuracy,
    }
    if as_json:
        typer.echo(json.dumps({**facts, "intercept": made.intercept, "coef": made.coef.tolist()}))
        return
    typer.echo(
        f"wrote {n_rows:,} rows x {made.twin.n_features:,} columns to {out}; "
        f"the best accuracy possible is {made.bayes_accuracy:.1%}"
    )


def _published_rows(twin: str, split: str) -> int:
    from dsgd.datasets import TWINS

    shape = TWINS[twin.removesuffix("-like")]
    return shape.n_train if split == "train" else shape.n_test


def _write_svmlight(path: Path, twin: Twin, n_rows: int, split: str) -> None:
    """Write svmlight text piece by piece: the rows are never in memory all at once."""
    from dsgd.datasets.generators import TEST_START
    from dsgd.datasets.svmlight import append_svmlight, open_for_writing

    first = 0 if split == "train" else TEST_START
    step = max(1024, _PIECE_VALUES // twin.n_features // 1024 * 1024)
    starts = range(0, n_rows, step)
    with open_for_writing(path) as stream:
        for start in tracked(starts, "writing"):
            X, y = twin.rows(first + start, first + min(start + step, n_rows))
            append_svmlight(X, y, stream)


def _parts_here(info: DatasetInfo) -> list[str]:
    """Return the parts of a set that are on this machine."""
    from dsgd.datasets import locate

    return [part for part in ("train", "test") if locate(info, part) is not None]


def _shape(info: DatasetInfo) -> dict[str, Any]:
    """Return name, task and sizes of a set."""
    return {name: getattr(info, name) for name in ("name", "task", "n_train", "n_test", "n_features", "n_classes")}


def _twin_shape(base: str) -> dict[str, Any]:
    """Return the same of a generated twin."""
    from dsgd.datasets import TWINS

    shape = TWINS[base]
    sizes = {"n_train": shape.n_train, "n_test": shape.n_test, "n_features": shape.twin.n_features, "n_classes": 2}
    return {"name": f"{base}-like", "task": "binary", **sizes}


def _set_facts(info: DatasetInfo) -> dict[str, Any]:
    """Return what is known about a set."""
    return {
        **_shape(info),
        "source": info.source,
        "licence": info.licence,
        "used_by": list(info.used_by),
        "note": info.note,
        "twin": info.twin,
        "urls": [file.url for file in (*info.train, *info.test) if file.url],
        "here": {part: _file_facts(info, part) for part in _parts_here(info)},
    }


def _file_facts(info: DatasetInfo, part: str) -> dict[str, Any]:
    """Return where a part is and whether it is the file whose checksum is known."""
    from dsgd.datasets import locate
    from dsgd.datasets.files import checksum_of

    found = locate(info, part)
    if found is None:  # it was there a moment ago
        return {}
    _, path = found
    known = {file.checksum for file in info.files(part) if file.checksum is not None and file.name == path.name}
    states = {checksum_of(path, checksum.split(":")[0]) == checksum for checksum in known}
    state = "not published" if not known else ("as known" if True in states else "differs from the known one")
    return {"file": str(path), "bytes": path.stat().st_size, "checksum": checksum_of(path), "checksum_is": state}


def _twin_facts(base: str) -> dict[str, Any]:
    """Return what is known about a generated twin."""
    from dsgd.datasets import TWINS

    twin = TWINS[base].twin
    law = {name: getattr(twin, name) for name in ("density", "positive_share", "noise")}
    return {**_twin_shape(base), **law, "best_accuracy": twin.bayes_accuracy, "source": "generated"}
