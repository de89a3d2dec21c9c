"""Tables in files: which paths name them, what is read of them, and what is said about others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

import fsspec  # noqa: E402 - what comes below needs pandas

from dsgd.errors import InvalidDataError, InvalidParameterError  # noqa: E402
from dsgd.inputs.table_files import TableFiles, are_table_files  # noqa: E402


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


def test_files_of_csv_have_the_types_of_the_first(tmp_path: Path) -> None:
    """Whole numbers of the first file may have fractions in another, and what is empty there may be strings."""
    (tmp_path / "1.csv").write_text("n,s,e\n1,x,\n2,,\n", encoding="utf-8")
    (tmp_path / "2.csv").write_text("n,s,e\n1.5,7,late\n", encoding="utf-8")
    files = TableFiles([tmp_path / "1.csv", tmp_path / "2.csv"])
    assert files.n_rows is None
    assert [files.empty(files.names).kind(name) for name in "nse"] == ["number", "category", "category"]
    first, second = files.tables(["n", "s", "e"])
    assert first.coded("s").codes.tolist() == [0, -1]
    assert (second.numbers("n").tolist(), second.coded("s").listed(), second.coded("e").listed()) == (
        [1.5],
        ["7"],
        ["late"],
    )


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
