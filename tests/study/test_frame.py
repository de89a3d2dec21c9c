"""Laws of the frame of studies: grids, options, rows that are made once, failures, commands."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier as Peer

from dsgd import study as api
from dsgd.__main__ import main
from dsgd.cli import study as study_command
from dsgd.errors import ClusterUnreachableError, DsgdError, InvalidParameterError, ParseError
from dsgd.report import Table
from dsgd.report.page import command_line, machine, versions
from dsgd.runtime import connect_client
from dsgd.study import msf
from dsgd.study.frame.data import load_data, majority_accuracy, objective, score
from study_rows import made_rows
from web_page import check_page

CALLS: list[list[int]] = []


def measure(batch: api.Batch, runs: Sequence[api.Run]) -> Iterator[dict[str, Any]]:
    """Square a number; note what is made together, and fail on seven."""
    CALLS.append([run.number for run in runs])
    for run in runs:
        if run.number == 7:
            raise DsgdError("seven cannot be squared")
        yield {"square": run.number**2 + batch.study.more}


def report(study: api.Study, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a page with a table of squares."""
    table = Table.of("Squares", rows, "number = number | square = square")
    return {"answer": f"{len(rows)} squares.", "tables": [table]}


SQUARES = api.Study(
    "squares", "What is a square?", (),
    options={
        "kinds": api.Option(("odd", "even"), "Kinds.", choices=("odd", "even", "none")),
        "numbers": api.Option((1, 2, 3, 4), "Numbers.", least=1, demo=(1, 2)),
        "more": api.Option(0, "What is added.", least=0, above=-1),
    },
    grids=[
        api.Grid(
            lambda s: {"kind": s.kinds, "number": s.numbers}, measure, ("more",), together=("kind",),
            where=lambda run: (run.number % 2 == 1) == (run.kind == "odd"), derive=lambda run: {"definition": 2},
        )
    ],
    report=report, columns=("kind",),
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_calls() -> None:
    """Begin with nothing measured."""
    CALLS.clear()


def test_a_grid_is_the_product_of_its_axes_without_what_is_refused() -> None:
    """The outermost axis comes first, equal values count once, and rows say all that decides a run."""
    runs = SQUARES.replace(numbers=(1, 2, 3, 3, 1)).runs()
    assert [(run.kind, run.number) for run in runs] == [("odd", 1), ("odd", 3), ("even", 2)]
    assert runs[0].settings() == {"kind": "odd", "number": 1, "more": 0, "definition": 2}
    assert SQUARES.count() == 4
    assert SQUARES.demo().count() == 2
    assert len({run.key for study in (SQUARES, SQUARES.replace(more=1)) for run in study.runs()}) == 8


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"numbers": ()}, "numbers"), ({"numbers": (0,)}, "1 or more"), ({"kinds": ("big",)}, "odd, even"),
        ({"more": float("nan")}, "more"), ({"length": 3}, "length"),
    ],
)  # fmt: skip
def test_values_out_of_their_domain_are_refused(values: dict[str, Any], named: str) -> None:
    """The error names the option, and what there is to choose from."""
    with pytest.raises(InvalidParameterError, match=named):
        SQUARES.replace(**values)


def test_runs_are_made_once_and_together(tmp_path: Path) -> None:
    """An interrupted study goes on where it ended; what has a row is not measured again, but with force."""
    runs = api.run_study(SQUARES, tmp_path)
    first = next(runs)
    runs.close()
    every = list(api.run_study(SQUARES, tmp_path))
    assert [run.resumed for run in every] == [True, False, False, False]
    assert every[0].row == first.row
    assert CALLS == [[1, 3], [3], [2, 4]]
    assert [run.row for run in every] == api.read_rows(tmp_path / "rows.jsonl")
    assert all(run.resumed for run in api.run_study(SQUARES, tmp_path))
    assert not any(run.resumed for run in api.run_study(SQUARES, tmp_path, force=True))


def test_a_run_that_fails_leaves_those_before_it(tmp_path: Path) -> None:
    """The error comes through, finished rows are on disk, and the others are made without it."""
    with pytest.raises(DsgdError, match="seven"):
        list(api.run_study(SQUARES.replace(numbers=(1, 7, 9, 2)), tmp_path))
    assert [row["number"] for row in api.read_rows(tmp_path / "rows.jsonl")] == [1]
    assert [run.resumed for run in api.run_study(SQUARES.replace(numbers=(1, 9, 2)), tmp_path)] == [True, False, False]


def test_sets_are_loaded_once_and_named_in_rows(tmp_path: Path) -> None:
    """An axis of sets gives name and sizes to rows; its loader sees each set once."""
    loaded = []

    class Numbers:
        name, y, y_test = "ones", (1,) * 5, (1,)

    def load(source: api.DataSource, dtype: str, rows: Sequence[Any]) -> Numbers:
        loaded.append((source.name, dtype, len(rows)))
        return Numbers()

    def rows_of(batch: api.Batch, runs: Sequence[api.Run]) -> list[dict[str, Any]]:
        return [{"sum": sum(batch.data.y)} for _ in runs]

    axes = {"ranks": (1, 2), "dataset": (api.DataSource("a"),), "seed": (0, 1)}
    study = api.Study(
        "sums", "?", (), {"dtype": api.Option("float32")}, [api.Grid(lambda s: axes, rows_of, load=load)], report
    )
    rows = [run.row for run in api.run_study(study, tmp_path)]
    assert loaded == [("a", "float32", 0)]
    assert [(row["dataset"], row["rows"], row["test_rows"], row["ranks"], row["sum"]) for row in rows] == [
        ("ones", 5, 1, ranks, 5) for ranks in (1, 1, 2, 2)
    ]


def test_a_page_says_what_is_missing_and_what_is_doubtful() -> None:
    """Runs that are missing, other work of the machine and rows of several versions are named; no rows are refused."""
    rows = made_rows(SQUARES, lambda run: {"square": run.number**2}, load_at_start=4.0)
    rows[0]["versions"] = {"dsgd": "1"}
    page = api.study_page(SQUARES, rows[:3])
    check_page(page.render())
    said = " ".join(page.doubts)
    assert "1 of 4 runs are missing" in said
    assert len(page.doubts) >= 3
    with pytest.raises(DsgdError, match="no finished run"):
        api.study_page(SQUARES, [])


def test_a_command_is_made_of_the_declaration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options are read by their kinds, the small form is a preset, JSON says what was found, help names options."""
    monkeypatch.setattr(study_command, "STUDIES", {"squares": "What is a square?"})
    monkeypatch.setattr(study_command, "import_module", lambda name: type("module", (), {"STUDY": SQUARES}))
    command = ["study", "squares", "--out", str(tmp_path), "--json"]
    assert main([*command, "--demo", "--more", "5"]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (facts["n_runs"], facts["answer"], facts["claims"]) == (2, "2 squares.", [])
    assert main([*command, "--numbers", "2,4", "--kinds", "even"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["n_runs"] == 2
    assert main([*command, "--numbers", "2,x"]) == 2
    assert "--numbers" in capsys.readouterr().err
    assert main(["study", "squares", "--help"]) == 0
    assert all(f"--{name}" in capsys.readouterr().out for name in ("numbers",))
    assert (tmp_path / "report.html").exists()


# -- rows ----------------------------------------------------------------------------------------------------------


def test_rows_are_there_again_in_the_next_process(tmp_path: Path) -> None:
    """What was appended is read back, found by its key, and not run again."""
    rows = made_rows(SQUARES, lambda run: {"square": run.number**2})
    file = api.RowFile(tmp_path / "new" / "rows.jsonl")
    for row in rows[:3]:
        file.append(row)
    again = api.RowFile(file.path)
    assert [row["key"] for row in rows if row["key"] in again] == [row["key"] for row in rows[:3]]
    assert again.select(row["key"] for row in reversed(rows)) == rows[:3][::-1]
    assert len(api.RowFile(file.path, force=True)) == 0
    assert api.read_rows(file.path) == []


@pytest.mark.parametrize("cut", [1, 20, 300])
def test_a_torn_last_line_is_dropped_and_the_others_kept(tmp_path: Path, cut: int) -> None:
    """A run that was being written when the machine stopped is run again; the file is whole afterwards."""
    rows = made_rows(SQUARES, lambda run: {"square": run.number**2})
    path = tmp_path / "rows.jsonl"
    text = "".join(json.dumps(row) + "\n" for row in rows[:3])
    path.write_text(text[:-cut], encoding="utf-8")
    assert api.read_rows(path) == rows[:2]
    file = api.RowFile(path)
    file.append(rows[2])
    assert api.read_rows(path) == rows[:3]


def test_damage_before_the_last_line_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    """Damage that an interruption cannot explain is not passed over."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"key": "a"}\n[1, 2]\n{"key": "b"}\n', encoding="utf-8")
    with pytest.raises(ParseError, match=r"rows\.jsonl, line 2"):
        api.RowFile(path)


def test_a_row_names_the_machine_and_no_folder_of_it() -> None:
    """Rows can be passed on: the command keeps no absolute path."""
    assert command_line(["/home/me/bin/dsgd", "study", "--out", "/home/me/x/study"]) == "dsgd study --out study"
    assert command_line(["/a/dsgd/__main__.py", "study"]) == "dsgd study"
    assert machine()["cores"] >= 1
    assert versions()["numpy"] == np.__version__


def test_rows_that_do_not_compare_are_named() -> None:
    """Rows of two machines, of a busy one, and of more ranks than it has cores."""
    rows = made_rows(SQUARES, lambda run: {"ranks": 2})
    assert api.doubts(rows) == []
    assert "busy" in api.doubts([row | {"load_at_start": 3.0} for row in rows])[0]
    assert "took turns" in api.doubts([row | {"ranks": 4} for row in rows])[0]
    rows[0] = rows[0] | {"machine": rows[0]["machine"] | {"cores": 64}}
    assert "2 different machines" in api.doubts(rows)[0]


# -- measures ------------------------------------------------------------------------------------------------------


def test_scores_of_the_trivial_classifier_are_seen_through(rng: np.random.Generator) -> None:
    """A model that always says the commonest label has its accuracy, half balanced accuracy, and no F1."""
    X, y = rng.normal(size=(400, 3)), np.where(np.arange(400) % 10 == 0, 1.0, -1.0)
    model = Peer().fit(X, y)
    model.coef_[:], model.intercept_[:] = 0.0, -1.0
    assert score(model, X, y) == {"accuracy": 0.9, "balanced_accuracy": 0.5, "f1": 0.0}
    assert majority_accuracy(y, y) == 0.9
    assert objective(model, X, y, loss="hinge", alpha=1.0) == pytest.approx(0.1 * 2.0)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "log_loss"])
def test_objective_is_the_penalty_plus_the_mean_loss_of_all_outputs(loss: str, rng: np.random.Generator) -> None:
    """The full objective equals a loop over rows and classes."""
    X, y = rng.normal(size=(60, 4)), rng.integers(0, 3, 60)
    model = Peer(random_state=0).fit(X, y)
    plain = {
        "hinge": lambda m: max(0, 1 - m),
        "squared_hinge": lambda m: max(0, 1 - m) ** 2,
        "log_loss": lambda m: math.log1p(math.exp(-m)),
    }[loss]
    expected = 0.0
    for k, label in enumerate(model.classes_):
        expected += 0.25 * sum(w * w for w in model.coef_[k])
        for x, t in zip(X, y, strict=True):
            decision = x @ model.coef_[k] + model.intercept_[k]
            expected += plain(decision if t == label else -decision) / 60
    assert objective(model, X, y, loss=loss, alpha=0.5) == pytest.approx(expected)
    assert score(model, X, y)["f1"] is None


# -- commands and workers ------------------------------------------------------------------------------------------


def asked(monkeypatch: pytest.MonkeyPatch, *command: str) -> api.Study:
    """Return the study that a command would run."""
    found: list[api.Study] = []

    def run(study: api.Study, *others: Any, **options: Any) -> Any:
        found.append(study)
        raise DsgdError("that is enough")

    monkeypatch.setattr("dsgd.study.frame.study.run_study", run)
    assert main(["study", *command, "--out", "nowhere"]) == 2
    return found[0]


def test_options_change_the_preset_they_are_given_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given replaces the demo's own; what is not stays. Numbers stand between commas, blanks or not."""
    demo = msf.STUDY.demo()
    study = asked(
        monkeypatch,
        "msf",
        "--demo",
        "--epochs",
        "2",
        "--rows",
        "500",
        "--seeds",
        "2",
        "--no-intercept",
        "--every",
        "1, 4,16",
    )
    data = tuple(api.DataSource(source.name, 500) for source in demo.data)
    assert study == demo.replace(data=data, epochs=2, seeds=(0, 1), fit_intercept=False, every=(1, 4, 16))
    study = asked(monkeypatch, "msf", "-d", "a9a", "--schedule", "per-epoch")
    assert study == msf.STUDY.replace(data=(api.DataSource("a9a"),), schedule="per_epoch")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        *(([f"--every={text}"], "1,4,16") for text in ("", "1,,2", "0", "-1", "1.5", "a", "1;2", "²", "1,x")),
        (["--ranks", "two"], "--ranks"), (["--schedule", "fast"], "per_epoch"), (["--rows", "3"], "rows=3"),
        (["--dataset", "no-such-set"], "no-such-set"), (["--partition", "x"], "label-skewed"),
        (["--seeds", "0"], "no seed"), (["--seeds", "5-"], "5-14"), (["--seeds", "9-5"], "no seed"),
        (["--data", "nowhere.svm"], "nowhere.svm"), (["--data", __file__ + ".csv"], "read_csv"),
        (["--data", __file__, "--dataset", "a9a-like"], "leave one of them out"),
    ],
)  # fmt: skip
def test_a_bad_option_ends_the_command_in_one_line(
    options: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2 and one line on the error stream that names what is wrong."""
    assert main(["study", "msf", "--out", str(tmp_path), *options]) == 2
    assert named in capsys.readouterr().err.splitlines()[-1]


def test_rows_and_seeds_of_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Several files are one set, no row of which is both trained and tested on; seeds may begin anywhere."""
    X, y = np.arange(1200.0).reshape(600, 2), np.arange(600) % 2
    for k in (0, 1):
        np.savez(tmp_path / f"{k}.npz", X=X[k::2], y=y[k::2] + k)
    files = [word for k in (0, 1) for word in ("--data", str(tmp_path / f"{k}.npz"))]
    study = asked(monkeypatch, "msf", *files, "--seeds", "5-7")
    assert study.values["seeds"] == (5, 6, 7)
    assert asked(monkeypatch, "msf", *files, "--seeds", "3,9", "--rows", "200").values["seeds"] == (3, 9)
    data = load_data(study.values["data"][0], "float32")
    assert (data.name, data.X.dtype, len(data.y_test)) == ("0.npz", np.float32, 120)
    assert sorted([*data.X[:, 0], *data.X_test[:, 0]]) == X[:, 0].tolist()
    with pytest.raises(DsgdError, match="600 rows"):
        load_data(replace(study.values["data"][0], rows=550), "float32")


def test_missing_extras_are_named_before_anything_is_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without matplotlib the study does not start, and says what to install."""
    monkeypatch.setattr("dsgd.report.page.find_spec", lambda name: None if name == "matplotlib" else object())
    assert main(["study", "msf", "--dataset", "ijcnn1", "--out", str(tmp_path)]) == 2
    assert "dsgd[study]" in capsys.readouterr().err
    assert not (tmp_path / "rows.jsonl").exists()


def test_no_scheduler_at_the_address_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address where nothing answers ends the study before anything is trained."""
    monkeypatch.delenv("DSGD_DATA", raising=False)
    monkeypatch.setattr(connect_client, "__defaults__", (0.3,))  # longer would change nothing
    study = msf.STUDY.replace(data=[api.DataSource("ijcnn1-like", 200)])
    with pytest.raises(ClusterUnreachableError):
        next(api.run_study(study, tmp_path, scheduler="tcp://127.0.0.1:9"))
    assert api.read_rows(tmp_path / "rows.jsonl") == []
