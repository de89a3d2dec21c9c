"""The study of speed-up: what is soonest, gains and claims from rows alone, the page, fits on workers, the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from distributed import LocalCluster

from dsgd.__main__ import main
from dsgd.datasets import load
from dsgd.errors import DsgdError, InvalidParameterError
from dsgd.study import DataSource, read_rows
from dsgd.study.speedup import (
    SpeedupStudy,
    Way,
    check_speedup_claims,
    demo_speedup_study,
    run_speedup_study,
    speedup_page,
    speedup_table,
    speedup_verdict,
    summarise_speedup,
)
from dsgd.study.speedup.runner import _rows_there as rows_there
from gang_cluster import start_cluster
from web_page import check_page

STUDY = SpeedupStudy(data=(DataSource("higgs-like", 400, 200),), epochs=(1, 2), seeds=(0, 1))
PEER, ONE, TWO, THERE = Way("scikit-learn", 1), Way("threads", 1), Way("threads", 2), Way("workers", 2)
SENT = Way("workers, rows sent", 2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Give two workers, threads of this process: what they take is not what these tests are about."""
    with start_cluster(2, processes=False) as cluster:
        yield cluster


def made_rows(seconds: dict[Way, float], slow: tuple[Way, ...] = (), accurate: float = 0.8) -> list[dict[str, Any]]:
    """Return rows of ways that take so long an epoch; the slow ones are accurate after two, the others after one."""
    rows = []
    for spec in STUDY.runs("made", 400, 200):
        accuracy = accurate if spec.epochs == 2 or spec.way not in slow else 0.6
        # Seeds are as far apart as ways are: only the medians must count.
        fit_s = seconds[spec.way] * spec.epochs * (1.0 + spec.seed)
        rows.append(
            {
                "key": spec.key, **spec.settings(), "source": "<made>", "features": 28, "density": 1.0,
                "majority_accuracy": 0.55, "bayes_accuracy": 0.9, "fit_s": fit_s, "made_s": 0.1,
                "test_accuracy": accuracy,
                "when": "2026-01-01T00:00:00+00:00", "versions": {"dsgd": "0"}, "load_at_start": 0.1, "commit": None,
                "command": "dsgd study", "cluster": "local",
                "machine": {"cpu": "<one>", "cores": 2, "memory_gib": 8, "system": "Linux"},
            }
            | ({} if spec.way == PEER else {"train_s": fit_s / 2, "bytes_sent": 8})
        )  # fmt: skip
    return rows


SECONDS = {PEER: 6.0, ONE: 2.0, TWO: 1.5, THERE: 1.0, SENT: 3.0}


def test_gains_are_of_the_shortest_fits_that_are_accurate() -> None:
    """A way that needs two epochs is held against one that needs one: 2 x 2 s against 1 s, medians over seeds."""
    (one,) = summarise_speedup(made_rows(SECONDS, slow=(ONE, PEER)), margin=0.002)
    assert one.target == pytest.approx(0.798)
    assert one.gain(THERE, ONE) == pytest.approx(4.0)
    assert one.gain(THERE, PEER) == pytest.approx(12.0)
    assert one.best() == THERE
    cells = {row[0]: row for row in speedup_table(one).rows}
    assert list(cells) == ["scikit-learn", "1 thread", "2 threads", "2 workers", "2 workers, rows sent"]
    assert cells["2 workers"][1:6] == ("1", "1.5", "0.75", "4x", "12x")
    assert "4x as fast as one thread and 12x as fast as scikit-learn" in speedup_verdict([one])


@pytest.mark.parametrize(("there", "verdict"), [(1.0, "holds"), (2.5, "fails")])
def test_claims_are_decided_by_the_rows(there: float, verdict: str) -> None:
    """Workers that are accurate before one thread confirm the promise, with every seed as many times as fast."""
    sets = summarise_speedup(made_rows({**SECONDS, THERE: there}), margin=0.002)
    claims = check_speedup_claims(sets)
    assert [claim.verdict for claim in claims] == [verdict, "holds"]
    assert claims[0].ours == f"{2.0 / there:.3g}x"


def test_what_no_way_learns_is_no_claim() -> None:
    """Where the best is no better than the commonest label, and where a way is never accurate, nothing is claimed."""
    trivial = summarise_speedup(made_rows(SECONDS, accurate=0.55), margin=0.002)
    assert {claim.verdict for claim in check_speedup_claims(trivial)} == {"no claim"}
    rows = made_rows(SECONDS)
    for row in rows:
        row["test_accuracy"] -= 0.1 * (row["place"] == "workers")
    (one,) = summarise_speedup(rows, margin=0.002)
    assert one.best() is None
    assert {claim.verdict for claim in check_speedup_claims([one])} == {"not run"}
    assert speedup_table(one).rows[3][2] == "not reached"
    assert "no fit on several workers reached" in speedup_verdict([one])


def test_a_page_is_made_from_rows_alone(tmp_path: Any) -> None:
    """The report has its figures, needs no network, and is refused where there is nothing to report."""
    page = speedup_page(STUDY, made_rows(SECONDS)).save(tmp_path)
    check_page(page.read_text(encoding="utf-8"))
    assert {path.stem for path in (tmp_path / "figures").glob("*.png")} == {"speedup", "speedup_seconds"}
    with pytest.raises(DsgdError, match="no finished run"):
        speedup_page(STUDY, [])


def test_workers_make_the_rows_that_are_loaded_here(cluster: LocalCluster) -> None:
    """Rows made where they are trained on are those of the set, each once, in equal parts on as many workers."""
    from dsgd.study.frame.data import load_data

    data = load_data(DataSource("criteo-like", 2_000, 100), "float32")
    with cluster.get_client() as client:
        blocks = rows_there(client, data, 2, "float32")
        homes = [next(iter(places)) for places in client.who_has(blocks).values()]
        X, y = zip(*client.gather(blocks), strict=True)
    assert sorted(homes.count(home) for home in set(homes)) == [4, 4]
    twin = load("criteo-like", n_rows=2_000, dtype="float32")
    assert sum(part.shape[0] for part in X) == 2_000
    assert np.array_equal(np.concatenate([part.data for part in X]), twin.X.data)
    assert np.array_equal(np.concatenate(y), twin.y)


@pytest.mark.slow
def test_the_command_resumes_and_reports(tmp_path: Any, cluster: LocalCluster, capsys: Any) -> None:
    """Every way is fitted; rows that are there are not made again; the command prints one JSON object."""
    runs = run_speedup_study(STUDY, tmp_path, scheduler=cluster.scheduler_address)
    begun = [next(runs) for _ in range(4)]
    runs.close()
    every = list(run_speedup_study(STUDY, tmp_path, scheduler=cluster.scheduler_address))
    assert [run.resumed for run in every] == [True] * 4 + [False] * 16
    assert [run.row for run in every[:4]] == [run.row for run in begun]
    assert [run.row for run in every] == read_rows(tmp_path / "rows.jsonl")
    assert len(every) == STUDY.count()
    options = ["-d", "higgs-like", "--rows", "400", "--epochs", "1,2", "--seeds", "2", "--out", str(tmp_path), "--json"]
    assert main(["study", "speedup", *options, "--scheduler", cluster.scheduler_address]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["n_runs"] >= STUDY.count()
    assert facts["sets"][0]["dataset"] == "higgs-like"


@pytest.mark.parametrize("values", [{"ranks": (1,)}, {"epochs": ()}, {"loss": "l"}, {"data": ()}, {"margin": -1.0}])
def test_what_cannot_be_studied_is_refused(values: dict[str, Any]) -> None:
    """A study with a value out of its domain is refused when it is made."""
    with pytest.raises(InvalidParameterError, match="SpeedupStudy"):
        SpeedupStudy(**values)


def test_the_demo_has_rows_enough() -> None:
    """The demo trains on more than a million rows, and on sparse ones."""
    sizes = {source.name: source.rows or 0 for source in demo_speedup_study().data}
    assert max(sizes.values()) > 1_000_000
    assert set(sizes) == {"higgs-like", "criteo-like"}
