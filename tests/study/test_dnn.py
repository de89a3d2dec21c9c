"""The study of neural networks: rows of all methods, promises from rows alone, digits, networks and their rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from dsgd.errors import DatasetError
from dsgd.report import Claim
from dsgd.study import dnn, run_study, study_page
from dsgd.study.dnn import STUDY, WAYS, load_images
from study_rows import made_rows


@pytest.mark.slow
def test_every_way_makes_a_row_with_its_bytes(tmp_path: Path) -> None:
    """Fifteen methods; those that exchange every 16th batch send a 16th, sparse ones far less, and all have a curve."""
    small = STUDY.replace(models=("mlp",), ranks=(4,), network="1GbE", rows=256, test_rows=100, looks=(1, 2), batch=4)
    rows = [run.row for run in run_study(small, tmp_path)]
    assert [row["strategy"] for row in rows] == list(WAYS)
    sent = {row["strategy"]: row["bytes_sent"] for row in rows}
    assert sent["synchronous"] / sent["local"] > 15
    assert sent["synchronous"] / sent["gtopk"] > 30
    assert sent["dgc"] < sent["synchronous"] / 15
    for row in rows:
        assert [point["epoch"] for point in row["curve"]] == [1, 2]
        assert row["curve"][0]["bytes_sent"] < row["curve"][1]["bytes_sent"] == row["bytes_sent"]
        # On the digits of scikit-learn, which stand in for MNIST.
        assert row["n_params"] == 8 * 8 * 64 + 64 + 640 + 10
    page = study_page(small, rows)
    shares = {line[0].split(" ")[0]: line[7] for line in page.tables[0].rows}
    assert shares["synchronous"] == "1"
    assert shares["local"].startswith("1/1")
    least = min(sent, key=lambda name: sent[name])
    assert f"{least} *" in {line[0][: len(least) + 2] for line in page.tables[0].rows}
    pareto, curves = page.figures
    assert [panel.x.label for panel in pareto.panels] == ["sent by all ranks", "seconds"]
    assert {mark.names[0] for mark in pareto.panels[0].marks if getattr(mark, "names", ())} == set(WAYS)  # type: ignore[union-attr]
    assert len(curves.panels) == 2


def claims_of(seeds: tuple[int, ...] = (0, 1, 2), **more: Any) -> list[Claim]:
    """Return the claims of rows of all of MNIST on two worker processes, with accuracies by way and seed."""
    accuracies = {
        "synchronous": (0.99, 0.99, 0.991), "local": (0.983, 0.984, 0.983), "gtopk": (0.983, 0.988, 0.985),
    }  # fmt: skip

    def found(run: Any) -> dict[str, Any]:
        sent = 3200 if run.strategy == "synchronous" else 200
        counts = dict.fromkeys(("train_s", "wire_s", "wait_s", "encode_s", "rounds", "messages", "n_params"), 1)
        return {
            **counts, "test_accuracy": accuracies[run.strategy][run.seed], "bytes_sent": sent, "shape": [1, 28, 28],
            "dataset": "mnist", "rows": 60_000, "majority_accuracy": 0.1, "curve": [],
        } | more  # fmt: skip

    study = STUDY.replace(models=("cnn",), ways=("local", "gtopk"), ranks=(2,), seeds=seeds, looks=(1,))
    return list(study_page(study, made_rows(study, found)).claims)


def test_the_promises_are_checked_on_two_worker_processes() -> None:
    """Accuracy has an interval over the seeds and counts on all of MNIST only; bytes are counted, on any two ranks."""
    claims = claims_of()
    assert [claim.verdict for claim in claims] == ["holds", "fails", "undecided", "arithmetic", "fails"]
    assert [claim.ours for claim in claims][-2:] == ["1/16.0", "1/16.0"]
    assert [claim.verdict for claim in claims_of((0,))] == ["undecided"] * 3 + ["arithmetic", "fails"]
    assert [claim.verdict for claim in claims_of(rows=300)] == ["arithmetic", "fails"]
    assert {claim.verdict for claim in claims_of(rows=300, test_accuracy=0.1)} == {"no claim"}


def test_digits_stand_in_where_mnist_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The images of scikit-learn have 8 by 8 pixels; no row is in both parts."""

    def missing(*args: object, **kwargs: object) -> None:
        raise DatasetError("not here")

    monkeypatch.setattr(dnn, "load", missing)
    images = load_images(300, 100)
    assert images.name == "digits"
    assert images.X.shape == (300, 1, 8, 8)
    assert len(images.y_test) == 100
    whole = load_images()
    assert len(whole.y) + len(whole.y_test) == 1797


def test_the_rate_falls_to_nothing() -> None:
    """Steps of one gradient are 1, 3/4, 1/2, 1/4 of the rate, and nothing from then on; the option stays as it was."""
    import torch

    from dsgd.study.networks import AnnealedSGD

    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = AnnealedSGD([weight], 4, lr=1.0)
    found = []
    for _ in range(6):
        weight.grad = torch.ones(1)
        optimizer.step()
        found.append(-float(weight.detach()))
    assert found == [1.0, 1.75, 2.25, 2.5, 2.5, 2.5]
    assert optimizer.param_groups[0]["lr"] == 1.0
