"""The command line, from files to files."""

from __future__ import annotations

import bz2
import csv
import functools
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import joblib
import numpy as np
import pytest
import rich.console

import dsgd
from dsgd import SGDClassifier
from dsgd.__main__ import main
from dsgd.cli.fit import _train
from dsgd.datasets import load_svmlight
from dsgd.errors import ParseError, RankError
from dsgd.kernel_approximation import parse_features
from dsgd.local import SVRG, Importance, Momentum
from dsgd.local.rules import parse_optimizer, parse_sampling
from dsgd.preprocessing import ColumnEncoder
from dsgd.runtime import connect_client

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command in this process and gives its status, output and errors."""

    def call(*args: object) -> tuple[int, str, str]:
        status = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with training and test rows that a line separates, as svmlight and as npz."""
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(7)
    X = rng.standard_normal((600, 5))
    X[:, 4] = 0.0  # the last column is empty in the files, so a reader has to be told how many there are
    X[0, 4] = 1.0
    y = np.where(X @ np.array([2.0, -1.0, 0.5, 0.0, 0.0]) > 0, 1, -1)
    lines = [
        f"{target:+d} " + " ".join(f"{column + 1}:{value:.6g}" for column, value in enumerate(row) if value) + "\n"
        for row, target in zip(X, y, strict=True)
    ]
    (folder / "train.svm").write_text("".join(lines[:400]), encoding="ascii")
    (folder / "part-1.svm").write_text("".join(lines[:200]), encoding="ascii")
    (folder / "part-2.svm.bz2").write_bytes(bz2.compress("".join(lines[200:400]).encode("ascii")))
    (folder / "test.svm").write_text("".join(lines[400:]), encoding="ascii")
    np.savez(folder / "train.npz", X=X[:400], y=y[:400])
    np.savez(folder / "values.npz", X=X[:400], y=X[:400] @ np.arange(5.0))
    return folder


@pytest.fixture(scope="module")
def model(files: Path) -> Path:
    """Return a model fitted by the command line."""
    path = files / "model.dsgd"
    command = ["fit", "--data", str(files / "train.svm"), "--model", str(path), "--loss", "log_loss", "--quiet"]
    assert main([*command, "--max-iter", "10", "--tol", "0"]) == 0
    return path


def test_fit_score_predict_go_together(files: Path, model: Path, run: Run) -> None:
    """What fit writes, score rates and predict uses: the share of right predictions in the file is the score."""
    status, out, _ = run("score", "--model", model, "--data", files / "test.svm", "--json")
    score = json.loads(out)
    assert status == 0
    assert (score["metric"], score["rows"]) == ("accuracy", 200)
    assert score["value"] > 0.9

    predictions = files / "predictions.csv"
    status, _, _ = run("predict", "--model", model, "--data", files / "test.svm", "--out", predictions)
    assert status == 0
    with predictions.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    truth = [line.split()[0] for line in (files / "test.svm").read_text(encoding="ascii").splitlines()]
    right = [int(row["prediction"]) == int(target) for row, target in zip(rows, truth, strict=True)]
    assert np.mean(right) == pytest.approx(score["value"])


def test_probabilities_go_to_standard_output(files: Path, model: Path, run: Run) -> None:
    """`--proba --out -` prints a header and one line per row, with probabilities that add up to one."""
    status, out, _ = run("predict", "--model", model, "--data", files / "test.svm", "--proba", "--out", "-")
    rows = list(csv.DictReader(out.splitlines()))
    assert status == 0
    assert list(rows[0]) == ["prediction", "proba_-1", "proba_1"]
    assert all(float(row["proba_-1"]) + float(row["proba_1"]) == pytest.approx(1) for row in rows)


def test_fit_reports_as_json(files: Path, tmp_path: Path, run: Run) -> None:
    """`--json` prints one object with rows, features, classes, seconds, training loss and the totals of the ledger."""
    path = tmp_path / "model.dsgd"
    status, out, _ = run(
        "fit", "--data", files / "train.svm", "--model", path, "--max-iter", 3, "--tol", 0, "--jobs", 2, "--json"
    )
    report = json.loads(out)
    assert status == 0
    assert (report["rows"], report["features"], report["ranks"], report["epochs"]) == (400, 5, 2, 3)
    assert report["classes"] == [-1, 1]
    assert {"compute_s", "encode_s", "wire_s", "wait_s", "bytes_sent", "rounds"} <= set(report["ledger"])
    assert report["training_loss"] > 0


@pytest.mark.slow
def test_local_optimisers_and_drawn_rows_have_texts(files: Path, tmp_path: Path, run: Run) -> None:
    """`--optimizer` and `--sampling` make what their texts name; others, and wrong parameters, are refused."""
    path, rest = tmp_path / "model.dsgd", ("--loss", "log_loss", "--max-iter", 2, "--tol", 0, "--quiet")
    given = {"--optimizer": ("svrg:every=2", SVRG(every=2)), "--sampling": ("importance:0.2", Importance(0.2))}
    for option, (text, made) in given.items():
        assert run("fit", "--data", files / "train.npz", "--model", path, option, text, *rest)[0] == 0
        assert getattr(dsgd.load(path), option[2:]) == made
    assert parse_optimizer("none") is parse_sampling("uniform") is None
    assert parse_optimizer("momentum:0.5") == Momentum(0.5)
    wrong = {
        ("--optimizer", "sagas"): "none or one of momentum.*svrg", ("--optimizer", "saga:every=2"): "SAGA has step",
        ("--sampling", "weighted"): "uniform, importance", ("--sampling", "importance:2"): "uniform",
    }  # fmt: skip
    for pair, named in wrong.items():
        status, _, error = run("fit", "--data", files / "train.npz", "--model", path, *pair)
        assert status == 2
        assert re.search(named, error)


def test_validation_files_choose_the_epoch(files: Path, tmp_path: Path, run: Run) -> None:
    """The model is that of ``fit`` with the same rows, which name fewer columns than those of training."""
    path = tmp_path / "model"
    options = ["--model", path, "--loss", "log_loss", "--eta0", 5.0, "--learning-rate", "constant", "--max-iter", 30]
    chosen = ["--early-stopping", "--scoring", "roc_auc", "--restore-best", "--json"]
    status, out, _ = run(
        "fit", "--data", files / "train.svm", "--valid", files / "test.svm", "--tol", 1e-3, *options, *chosen
    )
    assert status == 0
    X, y = load_svmlight(files / "train.svm")
    X_val, y_val = load_svmlight(files / "test.svm", n_features=5)
    expected = SGDClassifier(
        loss="log_loss",
        eta0=5.0,
        learning_rate="constant",
        max_iter=30,
        tol=1e-3,
        early_stopping=True,
        random_state=0,
        scoring="roc_auc",
        restore_best=True,
    ).fit(X, y, X_val=X_val, y_val=y_val)
    report = json.loads(out)
    assert (report["best_score"], report["best_epoch"]) == (expected.best_score_, expected.best_epoch_)
    np.testing.assert_array_equal(dsgd.load(path).coef_, expected.coef_)


def test_features_have_a_text(files: Path, tmp_path: Path, run: Run) -> None:
    """`--features` trains on the random features that its text names, and refuses others before a file is read."""
    path, rest = tmp_path / "model.dsgd", ("--max-iter", 2, "--tol", 0, "--jobs", 2, "--quiet")
    text = "rff:40,gamma=0.1,kernel=laplacian"
    assert run("fit", "--data", files / "train.npz", "--model", path, "--features", text, *rest)[0] == 0
    model = dsgd.load(path)
    assert repr(model.features) == "RandomFeatures(gamma=0.1, kernel='laplacian', n_components=40)"
    assert model.coef_.shape == (1, 40)
    assert run("score", "--model", path, "--data", files / "test.svm")[0] == 0
    assert repr(parse_features("rff:random_state=7")) == "RandomFeatures(random_state=7)"
    assert parse_features("none") is None
    wrong = {
        "nystroem:30": "none, rff, or rff with", "rff:0": "n_components=...*Got 0", "rff:gama=1": "n_components, gamma",
        "rff:9,gamma=-1": "gamma=...*Got -1", "rff:9,kernel=poly": "rbf or laplacian", "rff:random_state=x": "Got 'x'",
        "rff:kernel=laplacian,orthogonal=true": "kernel='rbf'",
    }  # fmt: skip
    for bad, named in wrong.items():
        status, _, error = run("fit", "--data", files / "train.npz", "--model", path, "--features", bad)
        assert status == 2
        assert re.search(named, error)


def test_several_files_of_any_packing_are_one_set(files: Path, tmp_path: Path, run: Run) -> None:
    """Parts, one of them compressed, give the model that the whole file gives."""
    options = ["--max-iter", 2, "--tol", 0, "--quiet", "--model"]
    assert run("fit", "--data", files / "train.svm", *options, tmp_path / "whole")[0] == 0
    assert run("fit", "--data", files / "part-1.svm", files / "part-2.svm.bz2", *options, tmp_path / "parts")[0] == 0
    whole, parts = dsgd.load(tmp_path / "whole"), dsgd.load(tmp_path / "parts")
    np.testing.assert_array_equal(whole.coef_, parts.coef_)


def test_loss_chooses_the_task(files: Path, tmp_path: Path, run: Run) -> None:
    """A regression loss trains a regressor, whose score is R2."""
    path = tmp_path / "model.dsgd"
    options = ["--loss", "squared_error", "--alpha", "1e-6", "--max-iter", 30, "--tol", 0, "--quiet"]
    assert run("fit", "--data", files / "values.npz", "--model", path, *options)[0] == 0
    status, out, _ = run("score", "--model", path, "--data", files / "values.npz", "--json")
    assert status == 0
    assert json.loads(out)["metric"] == "r2"
    assert json.loads(out)["value"] > 0.9


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["fit", "--data", "{missing}", "--model", "{out}"], "missing.svm: no such file"),
        (["fit", "--data", "{train}", "--model", "{nowhere}"], "create it first"),
        (["fit", "--data", "{train}", "--model", "{folder}"], "is a folder: name a file"),
        (["fit", "--data", "{train}", "{npz}", "--model", "{out}"], "files of one format"),
        (["fit", "--data", "{parquet}", "--model", "{out}"], "parquet"),
        (["tune", "--data", "{parquet}"], "parquet"),
        (["fit", "--data", "{train}", "--model", "{out}", "--target", "y"], "--target y: svmlight files"),
        (["fit", "--data", "{binary}", "--model", "{out}"], r"expected a label (a number), got '\x01\ufffd\x1b"),
        (["score", "--data", "{wide}", "--model", "{model}"], "and the model was trained on 5 features"),
        (["fit", "--data", "{train}", "--model", "{out}", "--loss", "hinged"], "hinge"),
        (["fit", "--data", "{train}", "--model", "{out}", "--scoring", "roc_auc"], "scoring"),
        (["fit", "--data", "{train}", "--model", "{out}", "--restore-best"], "restore_best"),
        (["fit", "--data", "{train}", "--model", "{out}", "--valid", "{missing}"], "--valid takes"),
        (["fit", "--data", "{train}", "--model", "{out}", "--valid", "{table}"], "--valid names tables"),
        (["fit", "--data", "{train}", "--model", "{out}", "--task", "sorting"], "'classification', 'regression'"),
        (["fit", "--data", "{train}", "--model", "{out}", "--sync", "often"], "minibatch:64"),
        (["fit", "--data", "{train}", "--model", "{out}", "--compress", "topk:dense=1"], "TopK has density, exact"),
        (["fit", "--data", "{bad}", "--model", "{out}"], "bad.svm, line 2"),
        (["fit", "--data", "{train}", "--model", "{out}", "--workers", "2", "--scheduler", "x"], "leave one out"),
        (["score", "--model", "{missing}", "--data", "{train}"], "missing.svm: No such file"),
        (["predict", "--model", "{model}", "--data", "{narrow}", "--out", "-"], "2] features where"),
    ],
)
def test_error_is_one_line_with_a_remedy(
    args: list[str], message: str, files: Path, model: Path, tmp_path: Path, run: Run
) -> None:
    """A wrong command ends with status 2 and one line on standard error that says what to do, and no traceback."""
    (tmp_path / "bad.svm").write_text("1 1:2\n-1 1:two\n", encoding="ascii")
    (tmp_path / "wide.svm").write_text("1 1:2 9:1\n", encoding="ascii")
    for name in ("rows.parquet", "rows.bin"):
        (tmp_path / name).write_bytes(b"\x01\xff\x1b[31m\x00" * 9)
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n", encoding="ascii")
    np.savez(tmp_path / "narrow.npz", X=np.ones((3, 2)), y=np.ones(3))
    paths = {
        "missing": tmp_path / "missing.svm",
        "nowhere": tmp_path / "nowhere" / "model.dsgd",
        "folder": tmp_path,
        "out": tmp_path / "model.dsgd",
        "train": files / "train.svm",
        "npz": files / "train.npz",
        "bad": tmp_path / "bad.svm",
        "narrow": tmp_path / "narrow.npz",
        "parquet": tmp_path / "rows.parquet",
        "binary": tmp_path / "rows.bin",
        "table": tmp_path / "rows.csv",
        "wide": tmp_path / "wide.svm",
        "model": model,
    }
    status, _, errors = run(*[arg.format(**paths) for arg in args])
    assert status == 2
    assert errors.startswith("dsgd: error: ")
    assert errors.count("\n") == 1
    assert message in errors


def test_error_of_a_rank_is_shown_without_its_traceback(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """A failed rank is one line: rank, worker, host, and the last line of its traceback."""
    cause = "Traceback (most recent call last):\n  File ...\nValueError: no rows"

    def fail(args: list[str]) -> None:
        raise RankError(1, "tcp://w:1", "node7", cause)

    monkeypatch.setattr("dsgd.__main__._run", fail)
    status, _, errors = run("fit")
    assert status == 2
    assert "rank 1 on worker tcp://w:1 (host node7) raised ValueError: no rows" in errors
    assert errors.count("\n") == 1


def test_model_is_replaced_whole_or_not_at_all(files: Path, model: Path, tmp_path: Path, run: Run) -> None:
    """A fit that fails leaves the model that was there, and no temporary file."""
    path = tmp_path / "model.dsgd"
    path.write_bytes(model.read_bytes())
    (tmp_path / "bad.svm").write_text("1 1:two\n", encoding="ascii")
    assert run("fit", "--data", tmp_path / "bad.svm", "--model", path)[0] == 2
    with pytest.raises(ParseError, match="line 1"):
        run("fit", "--data", tmp_path / "bad.svm", "--model", path, "--debug")
    assert path.read_bytes() == model.read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bad.svm", "model.dsgd"]


@pytest.mark.filterwarnings("always:.*read as a pickle:UserWarning")
def test_pickles_are_read_with_a_warning(files: Path, model: Path, tmp_path: Path, run: Run) -> None:
    """A model named .joblib is a pickle, which is said wherever one is read; a file without code is read in silence."""
    path, rest = tmp_path / "model.joblib", ("--max-iter", 2, "--tol", 0, "--quiet")
    assert run("fit", "--data", files / "train.npz", "--model", path, *rest)[0] == 0
    assert isinstance(joblib.load(path), SGDClassifier)
    for name, says in ((path, "read as a pickle, which runs the code"), (model, "")):
        status, _, errors = run("score", "--model", name, "--data", files / "test.svm")
        assert status == 0
        assert says in errors
        assert bool(errors) is bool(says)
    ColumnEncoder().fit(np.eye(3)).save(path)
    status, _, errors = run("score", "--model", path, "--data", files / "test.svm")
    assert status == 2
    assert "holds a ColumnEncoder, which predicts nothing" in errors
    status, _, errors = run("score", "--model", files / "test.svm", "--data", files / "test.svm")
    assert status == 2
    assert "dsgd: error: " in errors
    assert "test.svm: not a model" in errors


def test_a_model_that_cannot_be_written_is_not_trained(
    files: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A strategy of the user's own is code: the error comes before training and says how it can be kept."""
    (tmp_path / "mine_to_fit.py").write_text(
        "from dsgd.sync import LocalSGD\nclass Mine(LocalSGD):\n    pass\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    fit = ["fit", "--data", files / "train.npz", "--sync", "mine_to_fit:Mine", "--quiet", "--max-iter", 2, "--tol", 0]
    status, _, errors = run(*fit, "--model", tmp_path / "model.dsgd")
    assert status == 2
    assert "SGDClassifier(sync=...)" in errors
    assert f"--model {tmp_path / 'model.joblib'}" in errors
    assert not (tmp_path / "model.dsgd").exists()
    assert run(*fit, "--model", tmp_path / "model.joblib")[0] == 0


@pytest.mark.slow
def test_warm_leaves_nothing_to_compile(tmp_path: Path) -> None:
    """After `warm` a fit at the defaults compiles nothing; a wrong name lists those that there are."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "dsgd", "warm", "--estimators"]
    done = subprocess.run([*command, "linear-svc"], env=environment, capture_output=True, text=True, check=True)
    assert str(tmp_path) in done.stdout
    script = "import numpy as np; from dsgd.svm import LinearSVC; X = np.eye(9); LinearSVC().fit(X, X[:, 0] > 0)"
    fitted = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert ("compiling" in done.stderr, "compiling" in fitted.stderr) == (True, False)
    done = subprocess.run([*command, "svx"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "'svx' is none of sgd, linear, linear-svc, svc" in done.stderr) == (2, True)


def test_info_says_versions_and_what_does_not_answer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions are those of what is imported; an address where no scheduler answers is an error that says so."""
    assert json.loads(run("info", "--json")[1])["versions"]["numpy"] == np.__version__
    monkeypatch.setattr(connect_client, "__defaults__", (0.3,))  # longer would change nothing
    status, _, errors = run("info", "--scheduler", "tcp://127.0.0.1:9")
    assert status == 2
    assert "tcp://127.0.0.1:9" in errors


@pytest.mark.cluster
@pytest.mark.slow
def test_fit_on_worker_processes(files: Path, tmp_path: Path) -> None:
    """A real run on two workers prints clean JSON and writes a model that loads without a cluster."""
    path = tmp_path / "model.dsgd"
    data = [str(files / "part-1.svm"), str(files / "part-2.svm.bz2")]
    options = ["--sync", "64", "--max-iter", "3", "--tol", "0", "--workers", "2", "--transport", "tcp", "--out-of-core"]
    options.append("--json")
    outcome = subprocess.run(
        [sys.executable, "-m", "dsgd", "fit", "--data", *data, "--model", str(path), *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    report = json.loads(outcome.stdout)
    assert (report["ranks"], report["rows"], report["transport"]) == (2, 400, "tcp")
    assert report["ledger"]["bytes_sent"] > 0
    assert dsgd.load(path).client is None


@pytest.mark.slow
def test_interrupt_ends_with_status_130(files: Path, tmp_path: Path) -> None:
    """Ctrl-C ends a run with status 130 and one line, and writes no model."""
    command = ["fit", "--data", str(files / "train.svm"), "--model", str(tmp_path / "m"), "--jobs", "2"]
    endless = ["--max-iter", "1000000000", "--tol", "0", "--sync", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "dsgd", *command, *endless],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        _wait_until_it_trains(process.pid)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert not (tmp_path / "m").exists()


def _wait_until_it_trains(pid: int) -> None:
    """Wait until the process has threads that use the processor, which its start-up does not have for long."""
    import psutil

    deadline = time.monotonic() + 60
    while psutil.Process(pid).cpu_times().user < 4 and time.monotonic() < deadline:
        time.sleep(0.1)


def test_tables_are_read_with_their_strings_and_gaps(run: Run, tmp_path: Path) -> None:
    """``--target`` names a column of Parquet files; ``predict`` and ``score`` find the columns of the model."""
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=300), "city": rng.choice(["Oslo", "Rome", None], 300)})
    table["clicked"] = np.where(table.a + 2 * (table.city == "Rome") > 0.5, "yes", "no")
    table.loc[::11, "a"] = np.nan
    table[:200].to_parquet(tmp_path / "part-1.parquet")
    table[200:].to_parquet(tmp_path / "part-2.parquet")
    table.to_csv(tmp_path / "rows.csv", index=False)
    model, rows = tmp_path / "m.dsgd", tmp_path / "*.parquet"
    fit = ["fit", "--data", rows, "--model", model, "--loss", "log_loss", "--max-iter", 20, "--tol", 0, "--json"]
    status, out, _ = run(*fit, "--target", "clicked", "--categorical", "onehot")
    assert status == 0
    assert json.loads(out)["rows"] == 300
    assert json.loads(out)["classes"] == ["no", "yes"]
    for data in (rows, tmp_path / "rows.csv"):
        status, out, _ = run("score", "--model", model, "--data", data, "--target", "clicked", "--json")
        assert json.loads(out)["value"] > 0.9
    status, out, _ = run("predict", "--model", model, "--data", tmp_path / "rows.csv", "--out", "-", "--proba")
    predicted = list(csv.reader(io.StringIO(out)))
    assert predicted[0] == ["prediction", "proba_no", "proba_yes"]
    assert np.mean([row[0] == label for row, label in zip(predicted[1:], table.clicked, strict=True)]) > 0.9
    for wrong in (fit, ["score", "--model", model, "--data", rows]):
        status, _, errors = run(*wrong)
        assert status == 2
        assert "--target" in errors


def test_tables_are_read_as_the_command_says(run: Run, tmp_path: Path) -> None:
    """``--read`` has the options of `TableFiles` for every command; what is none of them is refused."""
    pytest.importorskip("pyarrow")
    rows = [
        f"{z};{'?' if k % 7 == 0 else k};{'' if k % 5 == 0 else int(z == '010')}"
        for k, z in enumerate(["010", "020"] * 60)
    ]
    (tmp_path / "x.csv").write_bytes("\n".join(["zé;n;y", *rows]).encode("latin-1"))
    read = ["sep=;", "na_values=?", "dtype=zé:str", "encoding=latin-1", "drop_missing_target"]
    options = [word for each in read for word in ("--read", each)]
    common = ["--data", tmp_path / "x.csv", *options]
    status, out, _ = run("fit", *common, "--target", "y", "--model", tmp_path / "m.dsgd", "--json")
    assert (status, json.loads(out)["rows"]) == (0, 96)
    assert dsgd.load(tmp_path / "m.dsgd").encoder_.roles_ == {"zé": "onehot", "n": "numeric"}
    status, out, _ = run("score", *common, "--target", "y", "--model", tmp_path / "m.dsgd", "--json")
    assert json.loads(out) == {"metric": "accuracy", "value": 1.0, "rows": 96}
    status, out, _ = run("predict", *common, "--model", tmp_path / "m.dsgd", "--out", "-")
    assert len(out.split()) == 121
    for wrong in ("sep", "dtype=z", "engine=c"):
        status, _, errors = run("tune", "--data", tmp_path / "x.csv", "--target", "y", "--read", wrong)
        assert status == 2
        assert f"--read {wrong}" in errors


def test_a_terminal_shows_how_training_gets_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a live line tells of epochs, loss and rows per second, and is gone when the table comes."""
    screen = io.StringIO()
    monkeypatch.setattr(
        rich.console, "Console", functools.partial(rich.console.Console, file=screen, force_terminal=True, width=100)
    )
    estimator, before = SGDClassifier(max_iter=3, tol=None), sys.stdout
    _train(estimator, {"X": np.array([[-1.0], [1.0]]), "y": [0, 1]}, show=True)
    assert "SGDClassifier" in screen.getvalue()
    assert "epoch 3/3  loss" in screen.getvalue()
    assert sys.stdout is before
    assert not hasattr(estimator, "_skl_callbacks")
