"""The study of strategies: rows that are resumed, tables and claims from rows alone, figures, the command."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from dsgd.__main__ import main
from dsgd.errors import DsgdError, InvalidParameterError
from dsgd.study import DataSource, read_rows
from dsgd.study.comparison.methods import FAMILIES, family
from dsgd.study.comparison.training import looks
from dsgd.study.strategies import (
    StrategyStudy,
    check_strategy_claims,
    demo_strategy_study,
    run_strategy_study,
    strategy_page,
    strategy_table,
    strategy_verdict,
    summarise_strategies,
)
from dsgd.sync import STRATEGIES, resolve
from web_page import check_page

STUDY = StrategyStudy(
    data=(DataSource("ijcnn1-like", 400, 200),),
    strategies={"local": "local", "sgp": "sgp", "often": 16, "downpour": "downpour"},
    ranks=(3,),
    network="1GbE",
    seeds=(0, 1),
    epochs=3,
)
FIGURES = ("pareto", "loss_seconds", "loss_bytes")


def made_rows(
    points: dict[str, tuple[float, int, float]], *, excess: float = 0.02, schedule: str = "constant"
) -> list[dict[str, Any]]:
    """Return rows of strategies that reach the target after one epoch, at these seconds, bytes and this accuracy."""
    study = replace(STUDY, strategies=dict.fromkeys(points, 64), seeds=(0, 1), epochs=2, schedule=schedule)
    rows = []
    for ranks in study.all_ranks():
        for spec in study.runs("made", 400, 200, ranks):
            seconds, n_bytes, accuracy = points.get(spec.name, (1.0, 0, 0.9))
            start = 0.5 * (1 + excess) if seconds else 0.9
            curve = [
                {"epoch": epoch, "seconds": epoch * seconds, "bytes_sent": epoch * n_bytes, "objective": value}
                for epoch, value in ((1, start), (2, 0.5 if seconds else 0.9))
            ]
            rows.append(
                {
                    "key": spec.key, **spec.settings(), "family": family(spec.strategy), "source": "<made>",
                    "features": 22, "density": 0.5, "majority_accuracy": 0.8, "test_accuracy": accuracy,
                    "objective": curve[-1]["objective"], "train_s": 2 * seconds, "bytes_sent": 2 * n_bytes,
                    "messages": 4, "rounds": 2, "curve": curve, "when": "2026-01-01T00:00:00+00:00",
                    "versions": {"dsgd": "0"}, "load_at_start": 0.1, "commit": None, "command": "dsgd study",
                    "cluster": "simulated",
                    "machine": {"cpu": "<one>", "cores": 2, "memory_gib": 8, "system": "Linux"},
                }
            )  # fmt: skip
    return rows


def test_what_is_run_once_is_not_run_again(tmp_path) -> None:
    """Rows hold curves that end in what the whole run cost; a call after an interruption runs only what is missing."""
    runs = run_strategy_study(STUDY, tmp_path)
    begun = [next(runs) for _ in range(4)]
    runs.close()
    every = list(run_strategy_study(STUDY, tmp_path))
    assert len(every) == STUDY.count() == 2 * (1 + 4)
    assert [run.resumed for run in every] == [True] * 4 + [False] * 6
    assert [run.row for run in every[:4]] == [run.row for run in begun]
    assert [run.row for run in every] == read_rows(tmp_path / "rows.jsonl")
    for row in (run.row for run in every):
        assert [point["epoch"] for point in row["curve"]] == [1, 2, 3]
        assert row["curve"][-1]["bytes_sent"] == row["bytes_sent"]
        assert all(low["seconds"] < high["seconds"] for low, high in pairwise(row["curve"]))
        assert (row["bytes_sent"] > 0) == (row["ranks"] > 1)


def test_runs_on_a_virtual_clock_repeat_exactly(tmp_path) -> None:
    """Equal settings give equal seconds, bytes, objectives and accuracies, of asynchronous strategies as well."""
    one = replace(STUDY, strategies={"downpour": "downpour"}, seeds=(0,), stragglers="heavy-tail")
    found = [[run.row for run in run_strategy_study(one, tmp_path / name)] for name in ("a", "b")]
    for first, second in zip(*found, strict=True):
        for name in ("curve", "test_accuracy", "messages", "train_s"):
            assert first[name] == second[name]


def test_target_and_front_follow_from_rows() -> None:
    """A strategy is on the front unless another is as good in both and better in one; who never arrives is not."""
    points = {"quick": (1.0, 900, 0.9), "small": (3.0, 100, 0.9), "worse": (3.0, 900, 0.88), "never": (0.0, 1, 0.9)}
    (gang,) = summarise_strategies(made_rows(points))
    assert gang.target(0.02) == pytest.approx(0.51)
    assert gang.front(0.02) == ["quick", "small"]
    assert gang.reached(0.02)["small"] == {"epoch": 1, "seconds": 3.0, "bytes_sent": 100, "objective": 0.51}
    # With nothing to spare the target is reached an epoch later.
    assert gang.reached(0.0)["small"]["epoch"] == 2
    assert "never" not in gang.reached(0.02)
    table = strategy_table(gang, excess=0.02)
    cells = {row[0]: row for row in table.rows}
    assert list(cells) == ["sequential", "quick *", "small *", "worse", "never"]
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert cells["never"][table.columns.index("epochs to target")] == "not reached"
    assert cells["worse"][table.columns.index("- sequential")] == "-2.00"
    assert cells["small *"][table.columns.index("sent / epoch")] == "100 B"
    accuracy, objective = check_strategy_claims([gang], excess=0.02)
    assert accuracy.holds is False
    assert "worse" in accuracy.ours
    assert objective.holds is False
    assert "never" in objective.note
    assert "3 of 4 strategies" in strategy_verdict([gang], excess=0.02)
    assert "quick soonest" in strategy_verdict([gang], excess=0.02)


def test_where_nothing_was_learnt_nothing_is_claimed() -> None:
    """Strategies on a set whose sequential run is no better than the commonest label are not judged."""
    rows = [row | {"majority_accuracy": 0.9} for row in made_rows({"quick": (1.0, 900, 0.9)})]
    claims = check_strategy_claims(summarise_strategies(rows), excess=0.02)
    assert [claim.verdict for claim in claims] == ["no claim", "no claim"]


def test_one_seed_is_not_called_several() -> None:
    """A table of one seed says so, and a claim that rests on it is undecided."""
    rows = [row for row in made_rows({"quick": (1.0, 900, 0.9)}) if row["seed"] == 0]
    (gang,) = summarise_strategies(rows)
    assert "One seed." in strategy_table(gang, excess=0.02).note
    assert "edians over" not in strategy_table(gang, excess=0.02).note
    assert check_strategy_claims([gang], excess=0.02)[0].verdict == "undecided"


def test_without_a_sequential_run_there_is_nothing_to_compare() -> None:
    """Rows that lack the sequential run give no table; where none reaches the target, it is said."""
    rows = made_rows({"never": (0.0, 1, 0.9)})
    assert summarise_strategies([row for row in rows if row["ranks"] > 1]) == []
    assert "none of 1 strategies" in strategy_verdict(summarise_strategies(rows), excess=0.02)


def test_rates_are_small_where_gradients_are_stale() -> None:
    """Asynchronous strategies keep the constant rate under any schedule; means of gradients take more of it."""
    study = replace(STUDY, strategies=None, schedule="optimal", ranks=(16,))
    runs = {run.name: run for run in study.runs("ijcnn1", 400, 200, 16)}
    assert set(runs) == set(STRATEGIES) - {"hogwild"}
    assert runs["asgd"].schedule == runs["adpsgd"].schedule == "constant"
    assert runs["local"].schedule == runs["minibatch"].schedule == "optimal"
    assert runs["asgd"].eta0 == study.eta0
    assert runs["backup-workers"].eta0 == 10 * study.eta0
    assert {family(run.strategy) for run in runs.values()} == set(FAMILIES)
    assert looks(7) == [1, 2, 3, 4, 6, 7]


@pytest.mark.slow
def test_the_command_writes_a_report(tmp_path, capsys) -> None:
    """One command runs the study, prints what it says and leaves a page that needs no network."""
    options = [
        "study", "strategies", "-d", "ijcnn1-like", "--rows", "400", "-s", "local", "-s", "asgd", "--ranks", "3",
        "--compress", "topk:0.5", "--seeds", "1", "--epochs", "2", "--simulated", "--stragglers", "slow-rank",
        "--schedule", "optimal", "--out", str(tmp_path),
    ]  # fmt: skip
    assert main([*options, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["n_runs"] == 1 + 3
    assert {row["strategy"] for row in read_rows(tmp_path / "rows.jsonl")} == {
        "sequential", "local", "asgd", "local + topk:0.5",
    }  # fmt: skip
    assert main(options) == 0
    printed = capsys.readouterr().out
    assert "3 simulated ranks, 1GbE" in printed
    assert "differ by their rates first" in printed
    check_page((tmp_path / "report.html").read_text())
    for name in FIGURES:
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 5_000


def test_a_figure_says_that_nothing_was_reached() -> None:
    """A report of strategies that never reach the target has all of its figures."""
    rows = made_rows({"never": (0.0, 1, 0.9)})
    page = strategy_page(STUDY, rows)
    assert tuple(figure.name for figure in page.figures) == FIGURES
    assert "No strategy" in page.figures[0].panels[0].title
    assert page.render()


@pytest.mark.parametrize("network", [None, "10GbE"])
def test_a_study_leaves_out_what_needs_shared_memory(network: str | None) -> None:
    """Hogwild sends nothing: it is no strategy of ranks on a network, simulated or not, and is refused by name."""
    assert "hogwild" not in demo_strategy_study().chosen()
    assert set(StrategyStudy(network=network).chosen()) == set(STRATEGIES) - {"hogwild"}
    with pytest.raises(InvalidParameterError, match=r"'hogwild'.*share no memory"):
        StrategyStudy(strategies={"hogwild": resolve("hogwild")}, network=network)


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
        (["--ranks", "1"], "ranks=...) must be 2 or more"),
        (["--schedule", "steep"], "choose one of"),
        (["--eta0", "0"], "above 0"),
        (["--epochs", "0"], "epochs=...) must be 1 or more"),
    ],
)
def test_bad_input_is_told_what_to_do(options, advice, tmp_path, capsys) -> None:
    """An option that cannot be gives one line that says what can, before anything is run."""
    assert main(["study", "strategies", "--out", str(tmp_path), *options]) == 2
    assert advice in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "rows.jsonl").exists()


def test_a_study_of_nothing_is_refused() -> None:
    """No strategies, one that is called as the sequential run is, stragglers of real workers, and no rows to report."""
    for wrong, match in (
        ({"strategies": {}}, "at least one"),
        ({"strategies": {"sequential": "local"}}, "always runs"),
        ({"network": None, "stragglers": "heavy-tail"}, "simulated ranks"),
        ({"data": ()}, "no dataset"),
    ):
        with pytest.raises(InvalidParameterError, match=match):
            replace(STUDY, **wrong)
    with pytest.raises(DsgdError, match="no finished run"):
        strategy_page(STUDY, [])
