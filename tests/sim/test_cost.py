"""The cost model: closed forms, what it finds on a gang whose cost is known, and the file that keeps it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from dsgd import SGDClassifier
from dsgd.__main__ import main
from dsgd.collectives.cost import allreduce_seconds
from dsgd.compress import TopK
from dsgd.errors import InvalidParameterError
from dsgd.sim import (
    Calibration,
    Compute,
    CostModel,
    Link,
    Network,
    RowCost,
    SimulatedCluster,
    Workload,
    calibration,
    known_costs,
    measure,
    measure_costs,
)
from dsgd.sim.cost import interpolate, kind_of, spread
from dsgd.sim.measure import costs_path, read_costs, signature_of, write_costs
from dsgd.sync import ASGD, EpochAveraging, LocalSGD, MinibatchSGD, OneShotAveraging, PostLocalSGD

WAY = Link(byte_s=2e-9, overhead_s=3e-4)
COMPUTE = Compute(entry_s=3e-9, row_s=4e-8, param_s=2e-9, call_s=5e-5, added_byte_s=1e-10)
MODEL = CostModel(
    Calibration(2, Network("made", WAY, WAY), COMPUTE),
    rows={"dense float64 model": RowCost(1e-7, 1e-9), "dense float64 gradient": RowCost(2e-7, 2e-9)},
    rounds={"LocalSGD": ((80.0, 1e-4), (880.0, 2e-4)), "MinibatchSGD": ((80.0, 3e-4),)},
    waits=((0.0, 0.0), (1e-3, 1e-4)),
    end_s=5e-4,
    transport="made",
)
LOAD = Workload(n_rows=2000, entries_per_row=10, n_params=11)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure little: what is measured here is not meant to be precise."""
    values = {"_LENGTHS": (8, 2048), "_PERIODS": (1, 64), "_ROW_ENTRIES": 1 << 14, "_ROWS_OF_PERIODS": 512,
              "_N_TURNS": 1, "_MANY_EPOCHS": 3, "_MOST_PERIODS": 100, "_ENTRIES_OF_ROUNDS": 1 << 15}  # fmt: skip
    for name, value in values.items():
        monkeypatch.setattr(measure, name, value)
    monkeypatch.setattr(calibration, "_KINDS", ((8, 1), (8, 64), (64, 64), (4096, 1)))
    for name, value in {"_WIDE": 64, "_LONG": 4096, "_MANY": 64, "_N_EPOCHS": 2}.items():
        monkeypatch.setattr(calibration, name, value)


def test_an_epoch_is_work_rounds_waiting_and_an_end():
    """The parts of an epoch are those of the equations, and add up."""
    cost = MODEL.epoch(LOAD, 100)
    assert cost.rounds == 10
    assert cost.compute_s == pytest.approx(1000 * 1e-7 + 10_000 * 1e-9)
    assert cost.sync_s == pytest.approx(10 * interpolate(MODEL.rounds["LocalSGD"], 88.0))
    assert cost.wait_s == pytest.approx(10 * interpolate(MODEL.waits, cost.compute_s / 10))
    assert cost.seconds == pytest.approx(cost.compute_s + cost.sync_s + cost.wait_s + 5e-4)
    assert cost.communication == pytest.approx((cost.sync_s + cost.wait_s) / cost.seconds)


def test_more_ranks_add_the_closed_form_of_the_wire_and_the_slowest_of_them():
    """On eight ranks a round is longer by what the model of collectives says, and waiting by order statistics."""
    two, eight = MODEL.epoch(LOAD, 50, 2), MODEL.epoch(LOAD, 50, 8)
    link = Link(latency_s=WAY.alpha_s, byte_s=WAY.byte_s, added_byte_s=COMPUTE.added_byte_s)
    wire = [allreduce_seconds("recursive_doubling", 88, n, link) for n in (2, 8)]
    assert eight.sync_s / eight.rounds - two.sync_s / two.rounds == pytest.approx(wire[1] - wire[0])
    assert MODEL.wait_s(1e-3, 8) == pytest.approx(1e-4 * spread(8) / spread(2))


@pytest.mark.parametrize(
    ("sync", "rounds"),
    [
        (EpochAveraging(), 1),
        (OneShotAveraging(), 0),
        (MinibatchSGD(batch=100), 20),
        (PostLocalSGD(first=10, every=100), 10),
    ],
    ids=lambda value: type(value).__name__,
)
def test_rounds_are_those_of_a_late_epoch(sync, rounds):
    """Strategies are priced by the synchronisations of their epochs, once they have got going."""
    model = CostModel(
        MODEL.calibration, MODEL.rows, {**MODEL.rounds, kind_of(sync): ((80.0, 1e-4),)}, MODEL.waits, MODEL.end_s
    )
    assert model.epoch(LOAD, sync).rounds == rounds


def test_one_rank_talks_to_nobody():
    """An epoch of one rank is work and an end."""
    cost = MODEL.epoch(LOAD, 1, 1)
    assert (cost.rounds, cost.sync_s, cost.wait_s) == (0, 0.0, 0.0)
    assert cost.seconds == pytest.approx(2000 * 1.1e-7 + 5e-4)


def test_rows_that_were_measured_replace_the_kernels():
    """Seconds per row that are given count, and not those of rows of the same kind."""
    assert MODEL.epoch(Workload(2000, 10, 11, row_s=1e-6), 100).compute_s == pytest.approx(1e-3)


def test_what_was_not_measured_has_no_price():
    """Strategies and rows without a measurement are refused by name, with what to do."""
    with pytest.raises(InvalidParameterError, match=r"TopK.*measure_costs"):
        MODEL.epoch(LOAD, LocalSGD(compressor=TopK(0.1)))
    with pytest.raises(InvalidParameterError, match="sparse float64 model"):
        MODEL.epoch(Workload(10, 3, 11, layout="sparse"), 4)
    with pytest.raises(InvalidParameterError, match="n_rows"):
        Workload(0, 1, 2)


@pytest.mark.parametrize("options", [{"ranks": 1}, {"strategies": [ASGD()]}], ids=str)
def test_what_cannot_be_measured_is_refused(options: dict[str, Any]):
    """One rank alone and strategies with servers are refused by name."""
    with pytest.raises(InvalidParameterError, match="measure_costs"):
        measure_costs(**options)


def test_straight_lines_go_on_and_never_down():
    """Values between points lie on the line, before the first they stay, beyond the last they do not fall."""
    points = [(1.0, 1.0), (3.0, 5.0), (4.0, 2.0)]
    assert [interpolate(points, x) for x in (0.0, 2.0, 3.5, 9.0)] == [1.0, 3.0, 3.5, 2.0]


@pytest.mark.parametrize(("ranks", "mean"), [(2, 0.5642), (4, 1.0294), (64, 2.3437), (1000, 3.2414)])
def test_the_slowest_of_many_is_an_order_statistic(ranks, mean):
    """The mean of the largest of normal numbers is that of the tables, within 5 %."""
    assert spread(ranks) == pytest.approx(mean, rel=0.05)
    assert spread(1) == 0.0


def test_the_model_of_a_simulated_gang_predicts_it(small, monkeypatch):
    """Of a gang whose cost is known the model says what its epochs take, for all periods, and with more ranks."""
    network = Network("given", WAY, WAY)
    gang = SimulatedCluster(2, network, COMPUTE)
    monkeypatch.setattr(measure, "run_measurement", lambda program, args, **_: gang.run(program, [None] * 2, args))
    model = measure_costs(layouts=("dense",), strategies=[MinibatchSGD()])
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 40))
    y = np.where(X[:, 0] > 0, 1, -1)
    for ranks, sync, rel in ((2, 1, 0.02), (2, 16, 0.02), (2, 300, 0.05), (2, MinibatchSGD(8), 0.1), (4, 4, 0.05)):
        options = {"max_iter": 3, "tol": None, "random_state": 0, "learning_rate": "constant"}
        clf = SGDClassifier(sync=sync, client=SimulatedCluster(ranks, network, COMPUTE), **options).fit(X, y)
        taken = median(np.diff([record["seconds"] for record in clf.fit_report_["epochs"]]).tolist())
        assert model.epoch(Workload(600, 40, 41), sync, ranks).seconds == pytest.approx(taken, rel=rel), sync


def test_a_file_brings_the_same_model_back(tmp_path):
    """What is written is read again, number for number."""
    signature, now = signature_of(), datetime.now(UTC).replace(microsecond=0)
    path = costs_path(signature, tmp_path)
    write_costs(MODEL, path, signature, now)
    saved = read_costs(path, signature)
    assert saved is not None
    assert saved.reused
    assert saved.measured_at == now
    assert saved.model == MODEL


def test_a_file_of_another_gang_an_old_one_and_a_damaged_one_are_not_used(tmp_path):
    """Stale and corrupt files are as good as none."""
    signature, now = signature_of(), datetime.now(UTC)
    path = costs_path(signature, tmp_path)
    assert read_costs(path, signature) is None
    write_costs(MODEL, path, signature, now - timedelta(days=31))
    assert read_costs(path, signature) is None
    write_costs(MODEL, path, signature, now)
    assert read_costs(path, signature) is not None
    assert read_costs(path, signature_of(ranks=3)) is None
    assert costs_path(signature_of(ranks=3), tmp_path) != path
    content = json.loads(path.read_text())
    for damage in ({**content, "format": 0}, {**content, "model": {}}, [], {**content, "measured_at": "soon"}):
        path.write_text(json.dumps(damage))
        assert read_costs(path, signature) is None
    path.write_text("{")
    assert read_costs(path, signature) is None


def test_a_gang_is_measured_once(tmp_path, monkeypatch):
    """The second call reads the file; a strategy it lacks is measured and added; a read-only folder is no error."""
    calls: list[list[str]] = []

    def made(client: Any, *, strategies: Any, **options: Any) -> CostModel:
        calls.append([kind_of(sync) for sync in strategies])
        rounds = dict.fromkeys(("LocalSGD", *calls[-1]), ((80.0, 0.0001),))
        return CostModel(MODEL.calibration, MODEL.rows, rounds, MODEL.waits, MODEL.end_s, "made")

    monkeypatch.setattr("dsgd.sim.measure.measure_costs", made)
    options: dict[str, Any] = {"layouts": ("dense",), "folder": tmp_path}
    assert not known_costs(**options).reused
    assert known_costs(**options).reused
    more = known_costs(strategies=[MinibatchSGD()], **options)
    assert not more.reused
    assert set(more.model.rounds) == {"LocalSGD", "MinibatchSGD"}
    assert known_costs(strategies=[MinibatchSGD(batch=7)], **options).reused
    assert calls == [[], ["MinibatchSGD"]]
    assert not known_costs(**options, renew=True).reused
    file = tmp_path / "file"
    file.write_text("")
    assert not known_costs(**{**options, "folder": file / "below"}).reused


@pytest.mark.slow
def test_the_command_measures_prints_and_keeps(small, tmp_path: Path, monkeypatch, capsys):
    """``dsgd calibrate`` says what threads cost, and reads its file; of a busy machine there is none."""
    monkeypatch.setenv("DSGD_CACHE", str(tmp_path))
    monkeypatch.setattr("dsgd.report.page.load", lambda: 1e3)
    assert main(["calibrate"]) == 0
    assert "busy" in capsys.readouterr().out
    monkeypatch.setattr("dsgd.report.page.load", lambda: 0.0)
    assert main(["calibrate", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert not first["reused"]
    assert first["ranks"] == 2
    assert Path(first["file"]).is_relative_to(tmp_path)
    assert {"LocalSGD", "MinibatchSGD"} <= set(first["rounds"])
    assert main(["calibrate"]) == 0
    out = capsys.readouterr().out
    assert "read from" in out
    assert "bandwidth" in out


def test_the_command_names_what_is_wrong(capsys):
    """A strategy that cannot be measured ends the command in one line."""
    assert main(["calibrate", "--sync", "asgd"]) == 2
    assert "ranks wait for each other" in capsys.readouterr().err
