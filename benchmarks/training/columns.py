"""From a Parquet file with strings and gaps to a model: `ColumnEncoder` inside the estimator, and what others need.

Rows in the shape of Criteo's: 13 columns of numbers, a tenth of them missing, and 26 of strings with up to 100,000
values each (``--values``), by a power law. Every way runs in a process of its own, which reads the file: seconds to the
model, the most memory beyond that of the libraries, and accuracy on other rows. Compiled kernels are loaded before.

dsgd          ``SGDClassifier(encoder=ColumnEncoder(categorical="onehot")).fit("rows.parquet", "y")``; or hashed, out
              of core, or from a data frame of pandas
scikit-learn  pandas, then `ColumnTransformer` (StandardScaler with SimpleImputer, OneHotEncoder) and SGDClassifier
tabmat        pandas, then its split matrix, and as many gradients of all rows as there are epochs (it has no SGD)
vw            Vowpal Wabbit over a text file of the rows, which is written before and not timed

    python -m benchmarks run columns [--quick] [--rows N] [--values N] [--only WAY]
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.measuring import Options, Rows, report
from benchmarks.common.suite import UnavailableError, child
from benchmarks.training.whole_fit import forget_peak, memory

PAGE = "tables"
QUICK_S = 60
QUICK = "30,000 rows, up to 1,000 values"
CASES = ("dsgd", "dsgd-hash", "dsgd-out-of-core", "dsgd-frame", "scikit-learn", "tabmat", "vw")

N_NUMBERS, N_STRINGS, EPOCHS, ALPHA = 13, 26, 5, 1e-6
GROUP_ROWS = 100_000


OPTIONS = {
    "--rows": {"type": int, "default": 0, "help": "rows; by default 1,000,000, or 30,000 with --quick"},
    "--values": {"type": int, "default": 0, "help": "most distinct strings of a column"},
}


def frame(n_rows: int, n_values: int, seed: int) -> Any:
    """Return rows with a class that depends on all columns."""
    import pandas as pd

    rng, hidden = np.random.default_rng(seed), np.random.default_rng(0)
    columns: dict[str, Any] = {}
    score = np.zeros(n_rows)
    for k in range(N_NUMBERS):
        values = rng.gamma(1.0 + k, 2.0, n_rows)
        score += hidden.normal() * (values - values.mean()) / values.std()
        values[rng.random(n_rows) < 0.1] = np.nan
        columns[f"I{k + 1}"] = values
    for k in range(N_STRINGS):
        n = max(3, int(n_values ** ((k + 1) / N_STRINGS)))
        weights = hidden.normal(size=n)
        codes = np.minimum((n + 1) ** rng.random(n_rows) - 1, n - 1).astype(np.int64)
        score += weights[codes]
        names = np.array([f"{(code * 2654435761 + k) & 0xFFFFFFFF:08x}" for code in range(n)], dtype=object)
        columns[f"C{k + 1}"] = pd.Series(names[codes], dtype="str").mask(rng.random(n_rows) < 0.03)
    columns["y"] = (score + rng.logistic(size=n_rows) > 0).astype(np.int64)
    return pd.DataFrame(columns)


def write(folder: Path, n_rows: int, n_values: int) -> None:
    """Write rows to train on and other ones, in row groups, and the text for Vowpal Wabbit."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, n, first in (("train", n_rows, 1), ("test", max(10_000, n_rows // 20), 10_001)):
        writer = None
        for number, start in enumerate(range(0, n, GROUP_ROWS)):
            part = pa.Table.from_pandas(frame(min(GROUP_ROWS, n - start), n_values, first + number))
            writer = writer or pq.ParquetWriter(folder / f"{name}.parquet", part.schema)
            writer.write_table(part)
        if writer is not None:
            writer.close()


def write_vw(folder: Path) -> None:
    """Write the training rows as Vowpal Wabbit reads them."""
    import pyarrow.parquet as pq

    with (folder / "rows.vw").open("w") as file:
        for batch in pq.ParquetFile(folder / "train.parquet").iter_batches(50_000):
            columns = batch.to_pydict()
            targets = columns.pop("y")
            names = list(columns)
            for target, *values in zip(targets, *columns.values(), strict=True):
                given = [(n, v) for n, v in zip(names, values, strict=True) if v is not None and v == v]
                text = " ".join(f"{n}:{v:.5g}" if isinstance(v, float) else f"{n}={v}" for n, v in given)
                file.write(f"{1 if target else -1} | {text}\n")


def by_dsgd(folder: Path, way: str) -> Any:
    from dsgd import Gang, SGDClassifier
    from dsgd.preprocessing import ColumnEncoder

    encoder = ColumnEncoder(categorical="hash" if way == "dsgd-hash" else "onehot")
    model = SGDClassifier(
        loss="log_loss",
        alpha=ALPHA,
        max_iter=EPOCHS,
        tol=None,
        random_state=0,
        encoder=encoder,
        client=Gang(out_of_core=way == "dsgd-out-of-core"),
    )
    X: Any = folder / "train.parquet"
    if way == "dsgd-frame":
        import pandas as pd

        X = pd.read_parquet(X)
    model.fit(X, "y")
    return lambda: model.score(folder / "test.parquet", "y")


def by_sklearn(folder: Path, way: str) -> Any:
    import pandas as pd
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import SGDClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    table = pd.read_parquet(folder / "train.parquet")
    y = table.pop("y")
    numbers = [name for name in table.columns if name.startswith("I")]
    encoder = make_column_transformer(
        (make_pipeline(StandardScaler(), SimpleImputer(add_indicator=True)), numbers),
        (OneHotEncoder(handle_unknown="ignore", dtype=np.float32), [n for n in table.columns if n not in numbers]),
        sparse_threshold=1.0,
    )
    fit = {"loss": "log_loss", "alpha": ALPHA, "max_iter": EPOCHS, "tol": None, "random_state": 0}
    model = make_pipeline(encoder, SGDClassifier(**fit)).fit(table, y)
    test = pd.read_parquet(folder / "test.parquet")
    return lambda: model.score(test.drop(columns="y"), test["y"])


def by_tabmat(folder: Path, way: str) -> Any:
    import pandas as pd
    import tabmat

    table = pd.read_parquet(folder / "train.parquet")
    y = table.pop("y").to_numpy(float)
    strings = [name for name in table.columns if name.startswith("C")]
    table[strings] = table[strings].astype("category")
    table = table.fillna({name: table[name].mean() for name in table.columns if name not in strings})
    matrix, _, _ = tabmat.from_pandas(table, cat_missing_method="zero").standardize(
        np.ones(len(y)) / len(y), True, True
    )
    w = np.zeros(matrix.shape[1])
    for _ in range(EPOCHS):
        w -= matrix.transpose_matvec(1 / (1 + np.exp(-matrix.matvec(w))) - y) / len(y)
    return lambda: float("nan")


def by_vw(folder: Path, way: str) -> Any:
    from vowpalwabbit import Workspace

    options = "--quiet --no_stdin --holdout_off -b 22 --loss_function logistic"
    workspace = Workspace(f"{options} -d {folder / 'rows.vw'} -c -k --passes {EPOCHS}")
    workspace.finish()
    return lambda: float("nan")


def inside(options: Options) -> None:
    """Run one way, and print what it took."""
    way, folder = options.inside[0], Path(options.inside[1])
    work = {"scikit-learn": by_sklearn, "tabmat": by_tabmat, "vw": by_vw}.get(way, by_dsgd)
    small = Path(tempfile.mkdtemp(dir=folder))
    write(small, 500, 10)
    if way == "vw":
        write_vw(small)
    work(small, way)()
    before = forget_peak()
    begin = time.perf_counter()
    score = work(folder, way)
    seconds, peak = time.perf_counter() - begin, memory()["VmHWM"] - before
    print(json.dumps({"seconds": seconds, "peak_bytes": peak, "accuracy": score()}))


def run(options: Options, rows: Rows) -> None:
    n_rows = options.rows or (30_000 if options.quick else 1_000_000)
    n_values = options.values or (1_000 if options.quick else 100_000)
    try:
        import pyarrow  # noqa: F401 - as a test
    except ImportError as error:
        raise UnavailableError("needs pyarrow") from error
    with tempfile.TemporaryDirectory() as place:
        write(Path(place), n_rows, n_values)
        if "vw" in options.only:
            write_vw(Path(place))
        columns = "way = method | s = seconds:.1f | peak MB = peak_bytes*1e-6:.0f | accuracy:.3f"
        facts = {"rows": n_rows, "values": n_values}
        with report(rows, f"{n_rows:,} rows, {EPOCHS} epochs", columns, **facts) as add:
            for way in options.only:
                command = child(__name__, [way, place])
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    print(f"{way}: {done.stderr.strip().splitlines()[-1]}")
                    continue
                add(method=way, **json.loads(done.stdout.strip().splitlines()[-1]))
