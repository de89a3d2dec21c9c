"""The study of strategies: tables and claims from rows alone, rates, and what cannot be run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsgd.__main__ import main
from dsgd.study import DataSource, read_rows, study_page
from dsgd.study.comparison.runs import FAMILIES, family, looks
from dsgd.study.strategies import STUDY, chosen, rate_of
from dsgd.sync import STRATEGIES
from study_rows import made_rows

SMALL = STUDY.replace(
    data=[DataSource("ijcnn1-like", 400, 200)],
    strategies={"local": "local", "sgp": "sgp", "often": 16, "downpour": "downpour"},
    ranks=(3,), network="1GbE", seeds=(0, 1), epochs=3,
)  # fmt: skip


def rows_of(points: dict[str, tuple[float, int, float]], **about: Any) -> list[dict[str, Any]]:
    """Return rows of strategies that reach the target after one epoch, at these seconds, bytes and this accuracy."""

    def found(run: Any) -> dict[str, Any]:
        seconds, n_bytes, accuracy = points.get(run.strategy, (1.0, 0, 0.9))
        values = (0.51, 0.5) if seconds else (0.9, 0.9)
        curve = [
            {"epoch": epoch, "seconds": epoch * seconds, "bytes_sent": epoch * n_bytes, "objective": value}
            for epoch, value in enumerate(values, start=1)
        ]
        return {
            "family": FAMILIES[0], "test_accuracy": accuracy, "objective": values[-1], "train_s": 2 * seconds,
            "bytes_sent": 2 * n_bytes, "messages": 4, "rounds": 2, "curve": curve,
        }  # fmt: skip

    study = SMALL.replace(strategies=dict.fromkeys(points, 64), epochs=2)
    return made_rows(study, found, **{"majority_accuracy": 0.8, "cluster": "simulated"} | about)


def test_target_and_front_follow_from_rows() -> None:
    """A strategy is on the front unless another is as good in both and better in one; who never arrives is not."""
    points = {"quick": (1.0, 900, 0.9), "small": (3.0, 100, 0.9), "worse": (3.0, 900, 0.88), "never": (0.0, 1, 0.9)}
    page = study_page(SMALL, rows_of(points))
    table = page.tables[0]
    cells = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert list(cells) == ["sequential", "quick *", "small *", "worse", "never"]
    assert cells["never"]["epochs to target"] == "not reached"
    assert cells["small *"]["s to target"] == "3"
    assert cells["worse"]["- sequential"] == "-2.00"
    assert cells["small *"]["sent / epoch"] == "100 B"
    assert [claim.holds for claim in page.claims] == [False, False]
    assert [claim.ours for claim in page.claims] == ["-2.00 points, worse", "3 strategies"]


def test_where_nothing_was_learnt_nothing_is_claimed() -> None:
    """Strategies on a set whose sequential run is no better than the commonest label are not judged."""
    rows = rows_of({"quick": (1.0, 900, 0.9)}, majority_accuracy=0.9)
    assert [claim.verdict for claim in study_page(SMALL, rows).claims] == ["no claim", "no claim"]
    rows = [row for row in rows_of({"quick": (1.0, 900, 0.9)}) if row["seed"] == 0]
    assert study_page(SMALL, rows).claims[0].verdict == "undecided"


def test_without_a_sequential_run_there_is_nothing_to_compare() -> None:
    """Rows that lack the sequential run give no table; where none reaches the target, figures have what there is."""
    rows = rows_of({"never": (0.0, 1, 0.9)})
    assert study_page(SMALL, [row for row in rows if row["ranks"] > 1]).tables == []
    page = study_page(SMALL, rows)
    assert [figure.name for figure in page.figures] == ["pareto", "loss_seconds"]
    assert page.render()


def test_rates_are_small_where_gradients_are_stale() -> None:
    """Asynchronous strategies keep the constant rate under any schedule; means of gradients take more of it."""
    study = SMALL.replace(strategies=None, schedule="optimal", ranks=(16,))
    every = chosen(study)
    rates = {name: rate_of(study, one, 16) for name, one in every.items()}
    assert set(rates) == set(STRATEGIES) - {"hogwild"}
    assert rates["asgd"] == ("constant", study.eta0)
    assert rates["adpsgd"][0] == "constant"
    assert rates["local"][0] == rates["minibatch"][0] == "optimal"
    assert rates["backup-workers"][1] == 10 * study.eta0
    assert {family(one) for one in every.values()} == set(FAMILIES)
    assert looks(7) == [1, 2, 3, 4, 6, 7]


@pytest.mark.slow
def test_the_command_takes_compressors(tmp_path: Path) -> None:
    """Those that take a compressor run with it as well; stragglers are those of simulated ranks."""
    options = [
        "study", "strategies", "-d", "ijcnn1-like", "--rows", "400", "-s", "local", "-s", "asgd", "--ranks", "3",
        "--compress", "topk:0.5", "--seeds", "1", "--epochs", "2", "--simulated", "--stragglers", "slow-rank",
        "--schedule", "optimal", "--out", str(tmp_path),
    ]  # fmt: skip
    assert main(options) == 0
    rows = read_rows(tmp_path / "rows.jsonl")
    assert {row["strategy"] for row in rows} == {"sequential", "local", "asgd", "local + topk:0.5"}
    assert {(row["network"], row["stragglers"]) for row in rows} == {("1GbE", "slow-rank")}


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["--network", "1GbE"], "add --simulated"),
        (["--stragglers", "none"], "add --simulated"),
        (["--simulated", "--network", "pigeon"], "'InfiniBand'"),
        (["--simulated", "--stragglers", "late"], "'heavy-tail'"),
        (["--simulated", "--scheduler", "tcp://127.0.0.1:1"], "leave one of the two out"),
        (["--strategy", "telepathy"], "--strategy 'telepathy': give"),
        (["--strategy", "sgp", "--compress", "topk:0.1"], "SGP takes no compressor"),
        (["--strategy", "local", "--compress", "zip"], "No compressor 'zip'"),
        (["--ranks", "1"], "ranks must be 2 or more"),
        (["--schedule", "steep"], "choose one of"),
        (["--eta0", "0"], "above 0"),
    ],
)
def test_bad_input_is_told_what_to_do(
    options: list[str], advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option that cannot be gives one line that says what can, before anything is run."""
    assert main(["study", "strategies", "--out", str(tmp_path), *options]) == 2
    assert advice in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "rows.jsonl").exists()
