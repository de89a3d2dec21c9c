"""A table is the same table whichever library or format has it, however its rows are cut into files.

``DSGD_EQUAL_TABLES=5000 pytest tests/inputs/test_equal_tables.py`` draws that many tables instead of a few.
"""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsgd import SGDClassifier
from dsgd.estimators.tables import encoded
from dsgd.preprocessing import ColumnEncoder

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pl = pytest.importorskip("polars")

from pyarrow import csv, feather, parquet  # noqa: E402 - only where there is pyarrow

N_TABLES = int(os.environ.get("DSGD_EQUAL_TABLES", "500"))
N_SHARES = max(4, N_TABLES // 50)
N_CUTS = 3
WORDS = ["red", "Grün", "a,b", 'say "x"', "two\nlines", "08:30", "x=1", " padded ", "1 2", "7a", "no one", "\U0001f600"]


@dataclass(frozen=True)
class Drawn:
    """A kind of column: values, the Arrow type, and the role that makes it unambiguous in a format without types."""

    draw: Callable[[np.random.Generator], Any]
    kind: Any
    role: str | None = None


def _at(rng: np.random.Generator) -> datetime:
    return datetime(1999, 1, 1) + timedelta(days=int(rng.integers(0, 9000)), seconds=int(rng.integers(0, 86400)))


KINDS = {
    "floats": Drawn(lambda rng: float(rng.normal() * 10.0 ** rng.integers(-3, 4)), pa.float64()),
    "whole numbers": Drawn(lambda rng: int(rng.integers(-5, 100)), pa.int64()),
    "small numbers": Drawn(lambda rng: int(rng.integers(0, 100)), pa.uint8()),
    "bools": Drawn(lambda rng: bool(rng.integers(2)), pa.bool_()),
    "decimals": Drawn(lambda rng: Decimal(int(rng.integers(-(10**6), 10**6))).scaleb(-3), pa.decimal128(12, 3)),
    "days": Drawn(lambda rng: _at(rng).date(), pa.date32()),
    "times": Drawn(_at, pa.timestamp("us")),
    "times of a zone": Drawn(lambda rng: _at(rng).replace(tzinfo=UTC), pa.timestamp("us", "UTC")),
    "strings": Drawn(lambda rng: str(rng.choice(WORDS)), pa.string()),
    "categories": Drawn(lambda rng: str(rng.choice(WORDS[:4])), pa.dictionary(pa.int32(), pa.string())),
    "codes": Drawn(lambda rng: str(rng.choice(["02134", "10001", "00501"])), pa.string(), "onehot"),
    "codes without zeros": Drawn(lambda rng: str(rng.choice(["10", "20", "30"])), pa.string(), "onehot"),
    "codes with letters": Drawn(lambda rng: str(rng.choice(["10", "20", "X1"], p=[0.6, 0.35, 0.05])), pa.string()),
    "codes, hashed": Drawn(lambda rng: str(rng.choice(["007", "42", "1e3"])), pa.string(), "hash"),
    "numbers as names": Drawn(lambda rng: int(rng.integers(0, 12)), pa.int64(), "onehot"),
    "floats as names": Drawn(lambda rng: float(rng.choice([0.5, 2.0, 10.25])), pa.float64(), "onehot"),
    "numbers, hashed": Drawn(lambda rng: int(rng.integers(0, 12)), pa.int64(), "hash"),
    "bools as names": Drawn(lambda rng: bool(rng.integers(2)), pa.bool_(), "onehot"),
    "categories of numbers": Drawn(
        lambda rng: int(rng.integers(0, 12)), pa.dictionary(pa.int8(), pa.int64()), "onehot"
    ),
    "days as names": Drawn(lambda rng: date(2024, 1, int(rng.integers(1, 9))), pa.date32(), "onehot"),
    "times, hashed": Drawn(_at, pa.timestamp("us"), "hash"),
    "texts": Drawn(lambda rng: " ".join(rng.choice(WORDS, 3)), pa.string(), "text"),
}
LABELS: list[tuple[Any, Any]] = [
    (["no", "yes"], pa.string()),
    ([0, 1], pa.int64()),
    (["0", "1", "N"], pa.string()),
    ([False, True], pa.bool_()),
]


def drawn_table(rng: np.random.Generator) -> tuple[Any, dict[str, str]]:
    """Return an Arrow table of a few columns and a label, and the roles of columns that need one."""
    n = int(rng.integers(12, 40))
    columns, roles = {}, {}
    for name in rng.choice(list(KINDS), int(rng.integers(2, 6)), replace=False):
        kind = KINDS[name]
        values = [kind.draw(rng) for _ in range(n)]
        if name == "codes with letters":
            values[0] = "X1"  # of digits alone, CSV cannot know that they are codes
        holes = rng.random(n) < rng.choice([0.0, 0.2])
        start = int(rng.integers(0, n))
        holes[start : start + int(rng.choice([0, n // 2]))] = True  # a file may have none at all
        holes[0] = False
        columns[name] = pa.array([None if hole else v for v, hole in zip(values, holes, strict=True)], kind.kind)
        roles |= {name: kind.role} if kind.role else {}
    labels, kind = LABELS[int(rng.integers(len(LABELS)))]
    p = [0.7, 0.25, 0.05] if len(labels) == 3 else None
    columns["y"] = pa.array([labels[-1], *(labels[k] for k in rng.choice(len(labels), n - 1, p=p))], kind)
    return pa.table(columns), {str(name): role for name, role in roles.items()}


class Streams:
    """What hands out Arrow memory, and is nothing else."""

    def __init__(self, table: Any) -> None:
        self.__arrow_c_stream__ = table.__arrow_c_stream__


IN_MEMORY: dict[str, Callable[[Any], Any]] = {
    "pandas": lambda table: table.to_pandas(),
    "pandas of Arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    # Whose decimals are objects.
    "nullable pandas": lambda table: table.to_pandas().convert_dtypes(),
    "Polars": pl.from_arrow,
    "Arrow": lambda table: table,
    "a batch": lambda table: table.combine_chunks().to_batches()[0],
    "a stream": Streams,
}


def write_csv(table: Any, path: Path, rng: np.random.Generator) -> None:
    """Write a file of CSV as one of three libraries does, each in its own way."""
    how, file = int(rng.integers(3)), io.BytesIO()
    if how == 0:
        table.to_pandas().to_csv(file, index=False)
    elif how == 1:
        pl.from_arrow(table).write_csv(file)
    else:
        plain = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in table.schema]
        kinds = [pa.string() if pa.types.is_decimal(kind) else kind for kind in plain]
        for types in (plain, kinds):
            table = table.cast(pa.schema(list(zip(table.column_names, types, strict=True))))
        csv.write_csv(table, file)
    path.write_bytes(gzip.compress(file.getvalue(), 1) if path.suffix == ".gz" else file.getvalue())


def write_parquet(table: Any, path: Path, rng: np.random.Generator) -> None:
    """Write a file of Parquet of small row groups, or as pandas and Polars do."""
    how = int(rng.integers(3))
    if how == 0:
        table.to_pandas().to_parquet(path)
    elif how == 1:
        parquet.write_table(table, path, row_group_size=7)
    else:
        parquet.write_table(table, path)


def write_arrow(table: Any, path: Path, rng: np.random.Generator) -> None:
    feather.write_feather(table, path, compression="uncompressed", chunksize=int(rng.choice([5, 1000])))


FILES = {".csv": write_csv, ".csv.gz": write_csv, ".parquet": write_parquet, ".arrow": write_arrow}


def cut(table: Any, rng: np.random.Generator, n_parts: int) -> tuple[list[Any], Any]:
    """Return parts of a table in some order, and which rows they have."""
    edges = np.sort(rng.integers(0, len(table) + 1, n_parts - 1))
    rows = np.split(np.arange(len(table)), edges)
    order = rng.permutation(n_parts)
    parts = [rows[k] for k in order]
    return [table.take(pa.array(part)) for part in parts], np.concatenate(parts)


def dense(rows: Any) -> Any:
    return rows.toarray() if hasattr(rows, "toarray") else np.asarray(rows)


def make(roles: dict[str, str]) -> SGDClassifier:
    return SGDClassifier(
        encoder=ColumnEncoder(roles, n_hashed=16, dtype=np.float64), max_iter=3, tol=None, random_state=0
    )


def with_model(estimator: Any, labels: Any) -> Any:
    """Return an estimator with an encoder as if it were fitted, without the seconds of a fit."""
    rng = np.random.default_rng(0)
    estimator.classes_ = np.unique(labels)
    k = len(estimator.classes_)
    estimator.coef_ = rng.normal(size=(1 if k == 2 else k, estimator.encoder_.n_features_out_))
    estimator.intercept_ = np.zeros(len(estimator.coef_))
    return estimator


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(10), id="few"),
        *(pytest.param(range(k, N_TABLES, N_SHARES), id=str(k), marks=pytest.mark.slow) for k in range(N_SHARES)),
    ],
)
def test_a_table_is_the_same_in_every_form_cut_and_order(seeds: range, tmp_path: Path) -> None:
    """Fits of a table in eleven forms have the same features and labels, and a model predicts the same of all forms."""
    for number, seed in enumerate(seeds):
        rng = np.random.default_rng([45, seed])
        table, roles = drawn_table(rng)
        first = make(roles)
        X, y, _ = encoded(first, (table, "y", None), goes_on=False)
        X, names = dense(X), first.encoder_.get_feature_names_out().tolist()
        scores = with_model(first, y).decision_function(table)
        forms: list[tuple[str, Any, Any]] = [(name, form(table), np.arange(len(y))) for name, form in IN_MEMORY.items()]
        for suffix, write in FILES.items():
            for k in range(N_CUTS):
                parts, order = cut(table, rng, [1, 2, 4][k])
                paths = [tmp_path / f"{k}-{p}{suffix}" for p in range(len(parts))]
                for part, path in zip(parts, paths, strict=True):
                    write(part, path, rng)
                forms.append((f"{k}{suffix}", paths if len(paths) > 1 else paths[0], order))
        crossed = int(rng.integers(len(forms)))  # what takes longer, in one form of each table
        for k, (form, given, order) in enumerate(forms):
            where = f"table {seed} as {form}"
            other = make(roles)
            rows, labels, _ = encoded(other, (given, "y", None), goes_on=False)
            assert other.encoder_.get_feature_names_out().tolist() == names, where
            np.testing.assert_array_equal(dense(rows), X[order], where)
            np.testing.assert_array_equal(labels, y[order], where)
            np.testing.assert_allclose(first.decision_function(given), scores[order], 1e-9, 1e-9, err_msg=where)
            if k == crossed:
                assert first.score(given, "y") == first.score(table, "y"), where
                found = with_model(other, labels).decision_function(table)
                np.testing.assert_allclose(found, scores, 1e-9, 1e-9, err_msg=where)
        if number < 5:  # what takes longest: a few fits, on rows in one order
            whole = make(roles).fit(table, "y")
            for form, given, order in forms:
                if np.array_equal(order, np.arange(len(y))):
                    found = make(roles).fit(given, "y")
                    np.testing.assert_array_equal(found.coef_, whole.coef_, f"table {seed} as {form}")
                    np.testing.assert_array_equal(found.predict(given), whole.predict(table))
        for path in tmp_path.iterdir():
            path.unlink()
