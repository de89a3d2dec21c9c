"""The study of neural networks: its grid, rows that are resumed, tables, claims, figures and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from dsgd.cli import app
from dsgd.errors import DatasetError, InvalidParameterError
from dsgd.study.dnn import (
    WAYS,
    DnnStudy,
    check_dnn_claims,
    demo_dnn_study,
    dnn_answer,
    dnn_page,
    dnn_table,
    load_images,
    run_dnn_study,
    runner,
    summarise_dnn,
)
from dsgd.study.frame.rows import read_rows


@pytest.fixture(scope="module")
def small() -> DnnStudy:
    """All ways on 4 simulated ranks and few rows."""
    return DnnStudy(models=("mlp",), ranks=(4,), network="1GbE", rows=256, test_rows=100, looks=(1, 2), batch=4)


@pytest.fixture(scope="module")
def rows(small: DnnStudy, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of that study."""
    return [run.row for run in run_dnn_study(small, tmp_path_factory.mktemp("dnn"), command="a test")]


@pytest.mark.slow
def test_every_way_makes_a_row_with_its_bytes(small: DnnStudy, rows: list[dict[str, Any]]) -> None:
    """Fifteen methods; those that exchange every 16th batch send a 16th, sparse ones far less, and all have a curve."""
    assert [row["strategy"] for row in rows] == list(WAYS)
    assert len(rows) == small.count() == 15
    sent = {row["strategy"]: row["bytes_sent"] for row in rows}
    assert sent["synchronous"] / sent["local"] > 15
    assert sent["synchronous"] / sent["gtopk"] > 30
    assert sent["dgc"] < sent["synchronous"] / 15
    for row in rows:
        assert [point["epoch"] for point in row["curve"]] == [1, 2]
        assert row["curve"][0]["bytes_sent"] < row["curve"][1]["bytes_sent"] == row["bytes_sent"]
        # On the digits of scikit-learn, which stand in for MNIST.
        assert row["n_params"] == 8 * 8 * 64 + 64 + 640 + 10


def test_a_study_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """What has a row is not run again, whether the study was stopped or has grown."""
    study = DnnStudy(models=("mlp",), ways=("local",), ranks=(2,), network="1GbE", rows=100, test_rows=50, looks=(1,))
    first = next(iter(run_dnn_study(study, tmp_path)))
    assert not first.resumed
    resumed = [run.resumed for run in run_dnn_study(study, tmp_path)]
    assert resumed == [True, False]
    assert len(read_rows(tmp_path / "rows.jsonl")) == 2


@pytest.mark.slow
def test_tables_and_claims_say_what_rows_do(rows: list[dict[str, Any]]) -> None:
    """A line per way with its share of the synchronous bytes; the way that sends least is on the front."""
    [gang] = summarise_dnn(rows)
    table = dnn_table(gang)
    assert len(table.rows) == 15
    shares = {line[0].split(" ")[0]: line[7] for line in table.rows}
    assert shares["synchronous"] == "1"
    assert shares["local"].startswith("1/1")
    least = min(gang.cells, key=lambda cell: cell.median("bytes_sent"))
    assert least.name in gang.front("bytes_sent")
    assert "4 simulated ranks" in dnn_answer([gang])


def made_rows(**accuracies: tuple[float, ...]) -> list[dict[str, Any]]:
    """Return rows of all of MNIST on two worker processes: accuracies by way, one of each seed."""
    row = {
        "dataset": "mnist", "model": "cnn", "ranks": 2, "network": None, "rows": 60_000, "sync": "s",
        "majority_accuracy": 0.1, "train_s": 1.0, "curve": [],
    }  # fmt: skip
    return [
        {
            **row,
            "strategy": name,
            "seed": seed,
            "test_accuracy": one,
            "bytes_sent": 3200 if name == "synchronous" else 200,
        }
        for name, each in accuracies.items()
        for seed, one in enumerate(each)
    ]


def test_the_promises_are_checked_on_two_worker_processes() -> None:
    """Accuracy has an interval over the seeds and counts on all of MNIST only; bytes are counted, on any two ranks."""
    rows = made_rows(synchronous=(0.99, 0.99, 0.991), local=(0.983, 0.984, 0.983), gtopk=(0.983, 0.988, 0.985))
    claims = check_dnn_claims(summarise_dnn(rows))
    assert [claim.verdict for claim in claims] == ["holds", "fails", "undecided", "holds", "fails"]
    assert [claim.ours for claim in claims][-2:] == ["1/16.0", "1/16.0"]
    assert "every run" in claims[-1].note
    one = check_dnn_claims(summarise_dnn([row for row in rows if row["seed"] == 0]))
    assert [claim.verdict for claim in one] == ["undecided", "undecided", "undecided", "holds", "fails"]
    few = check_dnn_claims(summarise_dnn([row | {"rows": 300} for row in rows]))
    assert [claim.verdict for claim in few] == ["holds", "fails"]
    trivial = check_dnn_claims(summarise_dnn([row | {"test_accuracy": 0.1, "rows": 300} for row in rows]))
    assert {claim.verdict for claim in trivial} == {"no claim"}


@pytest.mark.slow
def test_the_report_has_a_pareto_figure(small: DnnStudy, rows: list[dict[str, Any]]) -> None:
    """Both figures have a panel for bytes and one for seconds, with every way by its name."""
    page = dnn_page(small, rows)
    pareto, curves = page.figures
    assert [panel.x.label for panel in pareto.panels] == ["sent by all ranks", "seconds"]
    assert {mark.names[0] for mark in pareto.panels[0].marks if getattr(mark, "names", ())} == set(WAYS)  # type: ignore[union-attr]
    assert len(curves.panels) == 2
    assert any("virtual clock" in doubt for doubt in page.doubts)


def test_digits_stand_in_where_mnist_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The images of scikit-learn have 8 by 8 pixels; no row is in both parts."""

    def missing(*args: object, **kwargs: object) -> None:
        raise DatasetError("not here")

    monkeypatch.setattr(runner, "load", missing)
    images = load_images(300, 100)
    assert (images.name, images.side) == ("digits", 8)
    assert images.X.shape == (300, 1, 8, 8)
    assert len(images.y_test) == 100
    whole = load_images()
    assert len(whole.y) + len(whole.y_test) == 1797


def test_networks_fit_both_kinds_of_images() -> None:
    """Ten scores for an image, of 28 by 28 and of 8 by 8 pixels."""
    import torch

    from dsgd.study.dnn.modules import CNN, MLP

    for side in (28, 8):
        for make in (CNN, MLP):
            assert make(side=side)(torch.zeros(3, 1, side, side)).shape == (3, 10)


def test_the_rate_falls_to_nothing() -> None:
    """Steps of one gradient are 1, 3/4, 1/2, 1/4 of the rate, and nothing from then on; the option stays as it was."""
    import torch

    from dsgd.study.dnn.modules import AnnealedSGD

    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = AnnealedSGD([weight], 4, lr=1.0)
    found = []
    for _ in range(6):
        weight.grad = torch.ones(1)
        optimizer.step()
        found.append(-float(weight.detach()))
    assert found == [1.0, 1.75, 2.25, 2.5, 2.5, 2.5]
    assert optimizer.param_groups[0]["lr"] == 1.0


def test_the_command_prints_tables_and_json(tmp_path: Path) -> None:
    """Three ways on two simulated ranks; the second time nothing is run."""
    options = ["study", "dnn", "--out", str(tmp_path), "--demo", "--ranks", "2", "--rows", "200", "--looks", "1"]
    done = CliRunner().invoke(app, [*options, "-s", "local", "-s", "gtopk", "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["n_runs"] == 3
    assert len(facts["claims"]) == 2
    assert (tmp_path / "figures" / "pareto.png").exists()


def test_studies_that_cannot_be_run_are_refused() -> None:
    """Unknown names and numbers out of range, each with the parameter."""
    for options, text in (
        ({"models": ("rnn",)}, "models"), ({"ways": ("pigeon",)}, "ways"), ({"ranks": (1,)}, "ranks"),
        ({"looks": (4, 1)}, "looks"), ({"lr": 0.0}, "lr"), ({"momentum": 1.0}, "momentum"), ({"batch": 0}, "batch"),
        ({"network": "string"}, "network"),
    ):  # fmt: skip
        with pytest.raises(InvalidParameterError, match=text):
            DnnStudy(**options)  # type: ignore[arg-type]
    assert demo_dnn_study().count() == 15
