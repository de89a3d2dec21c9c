"""Tables in files: which paths name them, what is read of them, and what is said about others."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

import fsspec  # noqa: E402 - what comes below needs pandas

from dsgd import SGDClassifier, TableFiles  # noqa: E402
from dsgd.errors import InvalidDataError, InvalidParameterError  # noqa: E402
from dsgd.inputs.table_files import are_table_files  # noqa: E402
from dsgd.linear_model import Lasso, Ridge  # noqa: E402
from dsgd.preprocessing import ColumnEncoder  # noqa: E402
from dsgd.svm import LinearSVR  # noqa: E402


def frame() -> Any:
    """Return a few rows of two columns."""
    return pd.DataFrame({"a": np.arange(10.0), "c": list("abcab") * 2})


def test_names_say_what_is_a_table(tmp_path: Path) -> None:
    """Parquet, CSV and Arrow are, packed or not, as are folders of these; svmlight and all else are not."""
    frame().to_parquet(tmp_path / "x.parquet")
    assert all(are_table_files(path) for path in ("a.parquet", "s3://b/*.CSV.gz", ["a.ipc", "b.arrow"], tmp_path))
    others: list[Any] = ["a.svm", "a.npz", ["a.parquet", "b.svm"], [], None, np.zeros(3), str(tmp_path / "none"), [1]]
    assert not any(are_table_files(other) for other in others)


def test_globs_of_any_file_system_are_read_in_order(tmp_path: Path) -> None:
    """A glob of a URL names its files sorted, pieces are row groups, and one piece can be read alone."""
    system = fsspec.filesystem("memory")
    for name, rows in (("2", frame()[6:]), ("1", frame()[:6])):
        with system.open(f"/tables/{name}.parquet", "wb") as file:
            rows.to_parquet(file, row_group_size=4)
    try:
        files = TableFiles("memory://tables/*.parquet")
        assert (files.names, files.n_rows, [piece.n_rows for piece in files.pieces]) == (["a", "c"], 10, [4, 2, 4])
        values = [table.numbers("a") for table in files.tables(["a"])]
        np.testing.assert_array_equal(np.concatenate(values), np.arange(10.0))
        (part,) = files.pieces[2].tables(["c"])
        assert part.names == ["c"]
        coded = part.coded("c")
        assert [coded.listed()[code] for code in coded.codes] == list("bcab")
    finally:
        system.rm("/tables", recursive=True)


def test_columns_of_csv_are_what_all_rows_of_all_files_are(tmp_path: Path) -> None:
    """In any order of the files; texts of digits are no numbers where one is none, or where they are names."""
    (tmp_path / "1.csv").write_text("n,s,e,b,t,z\n1,7,,True,2024-01-01,02134\n2,,,,,10001\n", encoding="utf-8")
    (tmp_path / "2.csv").write_text("n,s,e,b,t,z\n 1.5,X1,late,False,2024-01-01 10:00,3\n", encoding="utf-8")
    for order in ((0, 1), (1, 0)):
        files = TableFiles([tmp_path / f"{1 + k}.csv" for k in order])
        assert files.n_rows is None
        kinds = files.kinds(files.names, as_categories=["z"])
        assert kinds == {"n": "number", "s": "category", "e": "category", "b": "number", "t": "date", "z": "category"}
        assert files.kinds(["z"]) == {"z": "number"}
        tables = [table for table in files.tables(files.names, kinds) if len(table)]
        first, second = (tables[k] for k in order)
        assert [first.coded("s").codes.tolist(), first.coded("z").listed()] == [[0, -1], ["02134", "10001"]]
        assert [second.numbers("n").tolist(), second.coded("e").listed()] == [[1.5], ["late"]]
        assert np.array_equal(first.numbers("b"), [1.0, np.nan], equal_nan=True)
        assert np.diff([first.microseconds("t")[0][0], second.microseconds("t")[0][0]]) == 36_000_000_000


def test_errors_name_the_file_or_column(tmp_path: Path) -> None:
    """A missing file, a column that is not there, bytes of another format and mixed formats are said."""
    frame().to_parquet(tmp_path / "x.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"\x01\xff" * 40)
    (tmp_path / "y.csv").write_text("a\n1\n", encoding="utf-8")
    with pytest.raises(FileNotFoundError, match=r"none\*"):
        TableFiles(str(tmp_path / "none*.parquet"))
    with pytest.raises(InvalidDataError, match="no column 'z'"):
        list(TableFiles(tmp_path / "x.parquet").tables(["z"]))
    with pytest.raises(InvalidDataError, match=r"bad\.parquet"):
        TableFiles(tmp_path / "bad.parquet")
    with pytest.raises(InvalidParameterError, match="csv, parquet"):
        TableFiles([tmp_path / "x.parquet", tmp_path / "y.csv"])


def values_of(files: Any, name: str) -> list[Any]:
    """Return a column of files as a list."""
    files = TableFiles(files) if not isinstance(files, TableFiles) else files
    tables = files.tables([name], files.kinds([name]))
    return [value for table in tables for value in table.columns.column(name).to_pylist()]


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_folders_of_hive_are_columns(tmp_path: Path, suffix: str) -> None:
    """Of a folder, and of a glob from its first sign on; what looks like a number is one, in all folders or in none."""
    for country, code, values in (("de", "1", [1.0, 2.0]), ("fr%2Fx", "__HIVE_DEFAULT_PARTITION__", [3.0])):
        folder = tmp_path / "run=7" / "table" / f"country={country}" / f"code={code}"
        folder.mkdir(parents=True)
        rows = pd.DataFrame({"v": values})
        rows.to_parquet(folder / "p.parquet") if suffix == "parquet" else rows.to_csv(folder / "p.csv", index=False)
    table = tmp_path / "run=7" / "table"
    for path in (table, f"{table}/country=*", f"{table}/country=*/code=*/p.{suffix}"):
        files = TableFiles(path)
        assert files.names == ["v", "country", "code"]
        assert files.kinds(files.names) == {"v": "number", "country": "category", "code": "number"}
        assert [values_of(files, name) for name in files.names] == [
            [1.0, 2.0, 3.0],
            ["de", "de", "fr/x"],
            [1.0, 1.0, None],
        ]
    assert values_of(TableFiles(table, dtype={"code": str}), "code") == ["1", "1", None]
    # A part of the table is known by its path, and a file alone has no columns but its own.
    part = table / "country=de" / "code=1" / f"p.{suffix}"
    assert TableFiles(part).names == ["v"]
    assert values_of(part, "country") == ["de", "de"]


def test_what_is_hidden_is_no_part_of_a_table(tmp_path: Path) -> None:
    """Folders of Spark, of notebooks and of logs are left out; deleted files of a Delta table are warned of."""
    frame().to_parquet(tmp_path / "part-0.parquet")
    for hidden in (
        "_temporary/0/p.parquet",
        ".ipynb_checkpoints/p.parquet",
        "_delta_log/p.checkpoint.csv",
        "_p.parquet",
    ):
        (tmp_path / hidden).parent.mkdir(parents=True, exist_ok=True)
        frame().to_parquet(tmp_path / hidden)
    assert TableFiles(tmp_path).n_rows == 10
    (tmp_path / "_delta_log" / "1.json").write_text('{"remove":{"path":"part-1.parquet"}}', encoding="utf-8")
    with pytest.warns(UserWarning, match="Delta table with deleted files"):
        TableFiles(tmp_path)


def test_paths_that_exist_are_no_globs_and_names_may_lie_about_packing(tmp_path: Path) -> None:
    """Brackets are part of a name where a file has it; Parquet is read by its first bytes, packed or not."""
    folder = tmp_path / "run[1]"
    folder.mkdir()
    frame().to_csv(folder / "x[2].csv", index=False)
    for path in (folder, folder / "x[2].csv", str(folder / "x[2].csv"), f"{tmp_path}/run[[]1]/x*.csv"):
        assert values_of(path, "a") == list(range(10))
    for name in ("df.parquet.gzip", "df.parquet.gz"):
        frame().to_parquet(tmp_path / name, compression="gzip")
        assert values_of(tmp_path / name, "a") == list(range(10))
    packed = gzip.compress((tmp_path / name).read_bytes())
    (tmp_path / "twice.parquet.gz").write_bytes(packed)
    assert values_of(tmp_path / "twice.parquet.gz", "a") == list(range(10))


def test_csv_is_read_as_pandas_reads_it_and_as_it_is_told(tmp_path: Path) -> None:
    """Missing values are those of pandas, times of day are names, and separators, encodings and types can be given."""
    path = tmp_path / "x.csv"
    path.write_text('a,b,c\nNone,08:30,"two\nlines"\nNA,,x\n1.5,09:00,"say ""x"""\n', encoding="utf-8")
    assert values_of(path, "a") == [None, None, 1.5]
    assert values_of(path, "b") == ["08:30", None, "09:00"]
    assert values_of(path, "c") == ["two\nlines", "x", 'say "x"']
    path.write_bytes("a;é;z\n?;ü;02\n3;y;10\n".encode("latin-1"))
    told = TableFiles(path, sep=";", encoding="latin-1", na_values=["?"], dtype={"z": str})
    assert (told.names, values_of(told, "a"), values_of(told, "é"), values_of(told, "z")) == (
        ["a", "é", "z"],
        [None, 3.0],
        ["ü", "y"],
        ["02", "10"],
    )
    with pytest.raises(InvalidDataError, match=r"x\.csv: not in the encoding 'utf8'.*encoding='latin-1'"):
        values_of(TableFiles(path, sep=";"), "a")
    for options in ({"sep": ";;"}, {"na_values": "?"}, {"encoding": "latin-11"}, {"dtype": {"a": "complex"}}):
        with pytest.raises(InvalidParameterError, match=next(iter(options))):
            TableFiles(path, **options)


def test_a_long_csv_with_lines_in_quotes_is_read(tmp_path: Path) -> None:
    """A newline in quotes is no end of a row, wherever blocks of the file end; a quote without an end is said."""
    text = "x" * 300
    with (tmp_path / "x.csv").open("w", encoding="utf-8") as file:
        file.write("a,n\n" + "".join(f'{k},"{text}\n{text}"\n' for k in range(20_000)))
    assert values_of(tmp_path / "x.csv", "a") == list(range(20_000))
    (tmp_path / "y.csv").write_text('a,n\n1,"x\n' + f"2,{text}\n" * 60_000, encoding="utf-8")
    with pytest.raises(InvalidDataError, match=r"y\.csv: a quote that does not end"):
        values_of(tmp_path / "y.csv", "a")


def test_the_saved_index_is_no_column(tmp_path: Path) -> None:
    """Neither that of pandas in Parquet and Arrow, nor the column without a name of its CSV."""
    rows = frame().sort_values("c").set_index(pd.Index(list("klmnopqrst"), name="id"))
    for index in (None, "id"):
        rows.index.name = index
        rows.to_parquet(tmp_path / "x.parquet")
        rows.to_feather(tmp_path / "x.feather") if index is None else None
        rows.to_csv(tmp_path / "x.csv", index=index is None)
        for path in tmp_path.iterdir():
            assert TableFiles(path).names == ["a", "c"], path
        arrow = pytest.importorskip("pyarrow").Table.from_pandas(rows, preserve_index=True)
        assert ColumnEncoder().fit(arrow).feature_names_in_.tolist() == ["a", "c"]
        numbers = arrow.drop_columns(["c"])
        assert Lasso().fit(numbers, np.arange(10.0)).predict(numbers).shape == (10,)
    kept = SGDClassifier(encoder=ColumnEncoder({"id": "onehot"})).fit(tmp_path / "x.parquet", "c").encoder_
    assert kept.roles_ == {"a": "numeric", "id": "onehot"}
    assert values_of(tmp_path / "x.parquet", "id") == list("klmnopqrst")


@pytest.mark.filterwarnings("ignore::dsgd.errors.DivergenceWarning")
def test_what_a_later_file_lacks_or_holds_otherwise_is_named(tmp_path: Path) -> None:
    """With the file and the column, in any order, in Parquet and in CSV; a column that is dropped may be anything."""
    rows = frame().assign(y=[0, 1] * 5)
    for suffix in ("parquet", "csv"):
        paths = [tmp_path / f"{k}.{suffix}" for k in "xyz"]
        for path, part in zip(paths, (rows, rows.drop(columns="a"), rows.assign(a="n")), strict=True):
            part.to_parquet(path) if suffix == "parquet" else part.to_csv(path, index=False)
        dropping = SGDClassifier(encoder=ColumnEncoder({"a": "drop"}))
        model = SGDClassifier(encoder="auto").fit(paths[0], "y")
        for one, other in ((paths[0], paths[1]), (paths[1], paths[0])):
            for estimator in (SGDClassifier(encoder="auto"), Lasso()):
                with pytest.raises(InvalidDataError, match=rf"y\.{suffix} has no column 'a'"):
                    estimator.fit([one, other], "y")
            assert dropping.fit([one, other], "y").encoder_.n_samples_seen_ == 20
        with pytest.raises(InvalidDataError, match=rf"y\.{suffix} has no column 'a'"):
            model.predict(paths[:2])
        with pytest.raises(InvalidDataError, match=r"z\.\w+: column 'a' was taken for numbers, and has the value 'n'"):
            model.predict([paths[0], paths[2]])
    with pytest.raises(InvalidDataError, match=r"column 'a' holds numbers in .*x\.parquet and strings in .*z\.parquet"):
        SGDClassifier(encoder="auto").fit([tmp_path / "x.parquet", tmp_path / "z.parquet"], "y")


@pytest.mark.parametrize("base", [Lasso(), Ridge(), LinearSVR(random_state=0)], ids=repr)
def test_numbers_are_numbers_however_each_file_stores_them(tmp_path: Path, base: Any) -> None:
    """Whole ones, floats, decimals and bools in turn are the numbers of one frame; nulls are missing ones."""
    from decimal import Decimal

    a = np.arange(40) % 2.0
    parts = [a[:10].astype(int), a[10:20], a[20:30].astype(bool), [Decimal(int(v)) for v in a[30:]]]
    y = 3.0 * a + np.sin(np.arange(40))
    for k, part in enumerate(parts):
        pd.DataFrame({"a": part, "y": y[10 * k : 10 * k + 10]}).to_parquet(tmp_path / f"{k}.parquet")
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        found = clone(base).fit([tmp_path / f"{k}.parquet" for k in order], "y")
        rows = np.concatenate([np.arange(10 * k, 10 * k + 10) for k in order])
        expected = clone(base).fit(a[rows, None], y[rows])
        np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-9)
        np.testing.assert_allclose(found.predict(tmp_path / "3.parquet"), expected.predict(a[30:, None]), rtol=1e-9)
    pd.DataFrame({"a": [None] * 5, "y": y[:5]}).to_parquet(tmp_path / "null.parquet")
    with pytest.raises(InvalidDataError, match="'a' has missing values"):
        clone(base).fit([tmp_path / "null.parquet", tmp_path / "0.parquet"], "y")


@pytest.mark.filterwarnings("ignore::dsgd.errors.DivergenceWarning")
def test_rows_without_a_target_are_left_out_on_request(tmp_path: Path) -> None:
    """From what the encoder learns, from training and from scores, in Parquet and CSV; otherwise they are an error."""
    rows = frame().assign(y=[0, 1, None, 1, 0, 1, 0, None, 0, 1])
    rows.loc[2, "a"] = 1e6
    for suffix in ("parquet", "csv"):
        path = tmp_path / f"x.{suffix}"
        rows.to_parquet(path) if suffix == "parquet" else rows.to_csv(path, index=False)
        model = SGDClassifier(encoder="auto", random_state=0)
        with pytest.raises(InvalidDataError, match="'y' has missing values"):
            model.fit(path, "y")
        files = TableFiles(path, drop_missing_target=True)
        model.fit(files, "y")
        known = rows.dropna()
        same = SGDClassifier(encoder="auto", random_state=0).fit(known[["a", "c"]], known.y.astype(int))
        np.testing.assert_array_equal(model.coef_, same.coef_)
        assert model.score(files, "y") == same.score(known[["a", "c"]], known.y)
        assert len(model.predict(files)) == 10


def test_no_rows_are_predicted_as_none(tmp_path: Path) -> None:
    """A file without rows is scored, alone and among others, and is not trained on."""
    rows = frame().assign(y=[0, 1] * 5)
    rows.to_parquet(tmp_path / "x.parquet")
    rows[:0].to_parquet(tmp_path / "empty.parquet")
    rows[:0].to_csv(tmp_path / "empty.csv", index=False)
    (tmp_path / "header.csv").write_text("a,c,y", encoding="utf-8")
    model = SGDClassifier(loss="log_loss", encoder="auto", alpha=0.1, random_state=0).fit(
        [tmp_path / "empty.parquet", tmp_path / "x.parquet"], "y"
    )
    for name in ("empty.parquet", "empty.csv", "header.csv"):
        assert model.predict(tmp_path / name).shape == (0,)
        assert model.predict_proba(tmp_path / name).shape == (0, 2)
        with pytest.raises(InvalidDataError, match=r"no rows|0 sample"):
            model.fit(tmp_path / name, "y")
    assert len(model.predict([tmp_path / "empty.parquet", tmp_path / "x.parquet"])) == 10
