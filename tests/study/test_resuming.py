"""Studies that are resumed on a machine that no longer has their data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dsgd.__main__ import main
from dsgd.datasets import load_or_generate
from dsgd.study import DataSource
from dsgd.study.frame.data import MissingData, load_or_keep
from dsgd.study.frame.rows import read_rows


def write_rows(path: Path, n: int, labels: list[int], *, columns: int = 4, levels: int = 0) -> None:
    """Write a small svmlight file whose labels follow from the first columns."""
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, columns)) if not levels else rng.integers(1, levels, (n, columns))
    y = np.asarray(labels)[np.argmax(X[:, : len(labels)], axis=1)]
    lines = [
        f"{label} " + " ".join(f"{j}:{value:.4g}" for j, value in enumerate(row, start=1))
        for label, row in zip(y, X, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data sets that can be hidden; the cache is empty."""
    home = tmp_path / "data"
    home.mkdir()
    for name, n in (("ijcnn1", 400), ("ijcnn1.t", 200), ("a9a", 240), ("a9a.t", 120)):
        write_rows(home / name, n, [-1, 1])
    for name, n in (("mnist", 160), ("mnist.t", 100)):
        write_rows(home / name, n, list(range(10)), columns=784, levels=255)
    monkeypatch.setenv("DSGD_DATA", str(home))
    monkeypatch.setenv("DSGD_CACHE", str(tmp_path / "cache"))
    return home


_SIMULATED = ("--simulated", "--network", "10GbE")
#: By study: the command, what it measures at first, and what is asked of it later.
STUDIES: dict[str, tuple[list[str], list[str], list[str]]] = {
    "tuning": (
        ["tuning", "--dataset", "ijcnn1", "-r", "auto", "--network", "10GbE", "--seeds", "1", "--epochs", "2"],
        ["--every", "16"],
        ["--every", "16,64"],
    ),
    "strategies": (
        ["strategies", "--dataset", "ijcnn1", *_SIMULATED, "--ranks", "2", "--seeds", "1", "--epochs", "1"],
        ["--strategy", "local"],
        ["--strategy", "local", "--strategy", "sgp"],
    ),
    "dnn": (
        ["dnn", "--model", "mlp", *_SIMULATED, "--ranks", "2", "--looks", "1"],
        ["-s", "local"],
        ["-s", "local", "-s", "sgp"],
    ),
    "elimination": (
        ["elimination", "--problem", "a9a", "--ranks", "none", "--cache", "small", "--repeats", "1"],
        ["--presets", "multi"],
        ["--presets", "multi,single"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_what_was_measured_outlives_its_data(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the data the rows stay on disk and in the report, nothing else is run, and both say what is missing."""
    if name == "dnn":
        pytest.importorskip("torch")
    command, first, later = STUDIES[name]
    out = tmp_path / "study"
    assert main(["study", *command, *first, "--out", str(out)]) == 0
    before = read_rows(out / "rows.jsonl")
    assert {row.get("problem", row.get("dataset")) for row in before} <= {"ijcnn1", "mnist", "a9a"}
    monkeypatch.delenv("DSGD_DATA")
    assert main(["study", *command, *later, "--out", str(out)]) == 0
    assert read_rows(out / "rows.jsonl") == before
    page = (out / "report.html").read_text(encoding="utf-8")
    shown = json.loads(page.split('id="all-rows">')[1].split("</script>")[0])
    assert [row["key"] for row in shown] == [row["key"] for row in before]
    missing = f"of {len(before) + 1} runs"
    assert missing in page
    assert "DSGD_DATA" in page
    assert missing in capsys.readouterr().err


def test_only_a_set_of_the_same_size_is_taken_up_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of before stand for a set of at most as many rows as are asked for; without any the twin is made."""
    monkeypatch.delenv("DSGD_DATA")
    rows = [{"dataset": "ijcnn1", "rows": n, "test_rows": n // 4} for n in (400, 800)]

    def kept(*sizes: int) -> int | None:
        found = load_or_keep(DataSource("ijcnn1", *sizes), "float64", rows)
        return len(found.y) if isinstance(found, MissingData) else None

    assert kept() == 800
    assert kept(800) == 800
    assert kept(500) == 400
    assert kept(300) is None
    assert load_or_generate("ijcnn1", n_rows=100).name == "ijcnn1-like"
