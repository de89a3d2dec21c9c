"""Tuning: halving and its budget, what is searched, the line to paste, and real searches on threads and processes."""

from __future__ import annotations

import json
import math
import time
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import BaseEstimator
from sklearn.linear_model import SGDClassifier as PlainSGDClassifier

from dsgd import SGDClassifier, SGDRegressor
from dsgd.__main__ import main
from dsgd.compress import ErrorFeedback, TopK
from dsgd.errors import ClusterUnreachableError, IncompatiblePartsError, InvalidDataError, InvalidParameterError
from dsgd.kernel_approximation import RandomFeatures
from dsgd.local import Adam, Momentum
from dsgd.preprocessing import ColumnEncoder
from dsgd.sim import Calibration, Compute, CostModel, Link, Network, RowCost, SavedCosts, SimulatedCluster, Workload
from dsgd.sim.cost import estimated_costs
from dsgd.sync import EASGD, EpochAveraging, LocalSGD, MinibatchSGD
from dsgd.tuning import TuningResult, tune
from dsgd.tuning import space as api
from dsgd.tuning.search import place_rows
from gang_cluster import module_client, start_cluster, wait_until

WAY = Link(byte_s=1e-9, overhead_s=1e-5)
BUDGET_S = 2.0


def model_of(round_s: float, row_s: float) -> CostModel:
    """Return a model of two ranks whose rounds and rows take so long."""
    kinds = ("dense float64 model", "dense float64 gradient")
    rounds = dict.fromkeys(("LocalSGD", "MinibatchSGD"), ((80.0, round_s),))
    twin = Calibration(2, Network("made", WAY, WAY), Compute())
    return CostModel(twin, dict.fromkeys(kinds, RowCost(row_s, 0.0)), rounds)


def load_kernels(rows: tuple[np.ndarray, np.ndarray], **options: Any) -> None:
    """Train in the ways that are tried: kernels that are loaded now take nothing of a budget of seconds."""
    for sync in ("local", "minibatch"):
        SGDClassifier(sync=sync, early_stopping=True, max_iter=1, tol=None, **options).fit(*rows)


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Return rows that a line separates, but for some."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((1500, 6))
    y = np.where(X @ np.array([2.0, -1.0, 0.5, 0.0, 1.0, 0.0]) + 0.3 * rng.standard_normal(1500) > 0, "yes", "no")
    return X, y


@pytest.fixture(scope="module")
def result(rows) -> TuningResult:
    """Return what a short search on threads has found."""
    load_kernels(rows, n_jobs=2)
    return tune(SGDClassifier(alpha=1e-3, n_jobs=2), *rows, budget=BUDGET_S, random_state=1)


@given(st.integers(0, 5000))
def test_a_third_goes_on_until_three_are_left(n):
    """Rungs shrink by a third, begin with all and end with three or fewer."""
    sizes = api.rung_sizes(n)
    assert sum(sizes[:1]) == n
    assert all(after == -(-before // 3) for before, after in pairwise(sizes))
    assert not sizes or 1 <= sizes[-1] <= 3


@given(st.floats(0.01, 1e4), st.integers(1, 300))
def test_slices_of_all_rungs_add_up_to_what_is_left(left_s, n):
    """A rung gets its share and its candidates divide it, so the budget is used up and not exceeded."""
    sizes, spent = api.rung_sizes(n), 0.0
    for rung, size in enumerate(sizes):
        spent += size * api.slice_s(left_s - spent, sizes[rung:])
    assert spent == pytest.approx(left_s)


@given(st.floats(0.0, 100.0), st.floats(0.0, 10.0), st.floats(1e-6, 10.0), st.integers(1, 1000))
def test_epochs_fit_into_their_slice(seconds, overhead_s, epoch_s, most):
    """As many epochs are run as fit beside the overhead, and one more would not."""
    n = api.epochs_within(seconds, overhead_s, epoch_s, most)
    assert 0 <= n <= most
    assert n == 0 or overhead_s + n * epoch_s <= seconds * (1 + 1e-9)
    assert n == most or overhead_s + (n + 1) * epoch_s > seconds * (1 - 1e-9)


def test_a_target_is_reached_for_good_or_not_at_all():
    """One lucky epoch does not count where the later ones are worse; a lasting rise counts from its first epoch."""
    curve = [api.Point(1.0, 0.95), api.Point(2.0, 0.5), api.Point(3.0, 0.9), api.Point(4.0, 0.89), api.Point(5.0, 0.93)]
    assert api.seconds_to(curve, 0.9) == 3.0
    assert api.seconds_to(curve, 0.94) == math.inf
    assert api.seconds_to([], 0.5) == math.inf
    better, worse = [api.Point(2.0, 0.9)], [api.Point(1.0, 0.8)]
    assert api.standing(better, 0.85) < api.standing(worse, 0.85)
    assert api.standing(worse, 0.7) < api.standing(better, 0.7)


@given(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=30))
def test_the_best_score_is_one_that_is_reached(scores):
    """The score that a curve holds is a target that it reaches, and no higher one is."""
    curve = [api.Point(float(k), score) for k, score in enumerate(scores)]
    held = api.held_score(curve)
    assert math.isfinite(api.seconds_to(curve, held))
    assert not math.isfinite(api.seconds_to(curve, np.nextafter(held, 2.0)))
    assert scores[-1] <= held <= max(scores)


def test_periods_that_cannot_win_are_left_out():
    """Cheap rounds leave the shortest period; dear rounds leave out short ones, and all that save nothing."""
    load = Workload(n_rows=8192, entries_per_row=4, n_params=5)
    assert api.useful_periods(4096, LocalSGD(), model_of(0.0, 1e-6), load) == [1]
    dear = api.useful_periods(4096, LocalSGD(), model_of(1e-4, 1e-5), load)
    assert (dear[0], dear[-1]) == (4, 256)
    seconds = [model_of(1e-4, 1e-5).epoch(load, period).seconds for period in dear]
    assert all(after < 0.95 * before for before, after in pairwise(seconds))


def test_the_search_has_periods_steps_batches_and_compressors():
    """All that applies is combined, along diagonals from the cheapest; step sizes are in units of the rows."""
    load = Workload(n_rows=8192, entries_per_row=4, n_params=5)
    ways = api.strategies_of(["local", "minibatch"], [None])
    found = api.candidates(SGDClassifier(), ways, model_of(1e-3, 1e-6), load, row_norm=4.0)
    assert found[0].predicted_s == min(c.predicted_s for c in found)
    assert [c.sync for c in found[:3]] == [found[0].sync, found[0].sync, found[2].sync]
    assert found[0].steps == found[2].steps != found[1].steps
    firsts = [c.predicted_s for c in found if c.steps == found[0].steps]
    assert firsts == sorted(firsts)
    assert {type(c.sync) for c in found} == {LocalSGD, MinibatchSGD, EpochAveraging}
    assert {(c.steps.learning_rate, c.steps.eta0) for c in found} >= {("constant", 0.0075), ("invscaling", 0.75)}
    assert len({str(c.parameters) for c in found}) == len(found)
    rule = api.candidates(SGDClassifier(optimizer=Momentum(0.9, batch=8)), ways, model_of(1e-3, 1e-6), load, 1.0)
    assert {c.optimizer for c in rule} == {Momentum(0.9, batch=8), Momentum(0.9, batch=32)}
    assert all(c.sync.exchanges == "model" for c in rule)
    topk = api.strategies_of(["local", "minibatch", "dpsgd"], [TopK(0.1)])
    assert [s.compressor for s in topk[:2]] == [TopK(0.1), ErrorFeedback(TopK(0.1))]
    with pytest.raises(IncompatiblePartsError, match="batch"):
        api.candidates(SGDClassifier(optimizer=Adam(batch=8)), [MinibatchSGD()], model_of(1e-3, 1e-6), load, 1.0)


@pytest.mark.parametrize(
    "estimator",
    [
        SGDClassifier(),
        SGDClassifier(loss="log_loss", sync=LocalSGD(every=256), eta0=0.3, learning_rate="constant", random_state=7),
        SGDClassifier(sync=MinibatchSGD(32, compressor=ErrorFeedback(TopK(0.05))), class_weight={np.int64(0): 2.0}),
        SGDRegressor(sync=EASGD(every=64, beta=0.5), optimizer=Momentum(0.9, nesterov=True), average=True),
        SGDClassifier(sync="epoch", tol=None, alpha=np.float64(0.5), n_jobs=2),
        SGDClassifier(encoder=ColumnEncoder({"city": "hash"}, min_frequency=3), sync=LocalSGD(every=8)),
        SGDRegressor(features=RandomFeatures(200, gamma=0.1, random_state=0)),
    ],
    ids=lambda e: api.estimator_line(e)[:60],
)
def test_the_line_makes_the_same_estimator(estimator):
    """What is printed runs as it is, and gives the parameters it was made from."""
    line = api.estimator_line(estimator)
    assert "alpha=0.0001" not in line, "a default is written"
    names: dict[str, Any] = {}
    exec("\n".join([*api.import_lines(estimator), f"model = {line}"]), names)
    made, given = (each.get_params(deep=False) for each in (names["model"], estimator))
    parts = {name for name, value in given.items() if isinstance(value, BaseEstimator)}
    assert {name: repr(made.pop(name)) for name in parts} == {name: repr(given.pop(name)) for name in parts}
    assert made == given
    assert type(names["model"]) is type(estimator)


@pytest.mark.slow
def test_a_search_on_threads_recommends_what_reached_the_target_first(result):
    """The best candidate reached the target sooner than all others; the estimator has its parameters."""
    best = result.best
    assert math.isfinite(best.seconds)
    assert best.seconds == min(trial.seconds for trial in result.table)
    assert result.target == pytest.approx(max(t.best_score for t in result.table) - result.margin)
    assert result.target > 0.8
    assert best.rung >= 1
    assert not hasattr(result.estimator, "coef_")
    assert {name: getattr(result.estimator, name) for name in best.candidate.parameters} == best.candidate.parameters
    assert result.estimator.alpha == 1e-3
    assert result.ranks == 2
    assert "accuracy" in result.answer
    assert result.calibration is None  # no time for it
    names: dict[str, Any] = {}
    exec(result.code, names)
    assert names["model"].get_params(deep=False) == result.estimator.get_params(deep=False)


@pytest.mark.parametrize("budget", [0.01, 0.6])
def test_the_budget_is_kept(rows, budget):
    """However short the budget, an answer comes: of what was measured, or that nothing was; then nothing changes."""
    untuned = SGDClassifier(alpha=0.01)
    begin = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = tune(untuned, *rows, budget=budget)
    assert found.seconds <= time.perf_counter() - begin
    assert found.n_measured == sum(math.isfinite(trial.best_score) for trial in found.table)
    if not found.n_measured:
        (warning,) = caught
        assert warning.filename == __file__
        assert "budget=" in str(warning.message)
        changed = {name for name, value in found.estimator.get_params().items() if value != getattr(untuned, name)}
        assert changed <= {"n_jobs"}
    assert budget > 0.01 or not found.n_measured
    assert found.line.startswith("SGDClassifier(")
    json.dumps(found.as_mapping(), allow_nan=False)


@pytest.mark.filterwarnings("ignore:tune. None of")
def test_slow_fits_get_fewer_epochs_and_fewer_rows(rows, monkeypatch):
    """Where an epoch is predicted to take long, fewer rows are used, and the result says so."""
    monkeypatch.setattr("dsgd.tuning.search.estimated_costs", lambda ranks, ways: model_of(1e-6, 1e-3))
    said: list[str] = []
    found = tune(SGDClassifier(n_jobs=2), *rows, budget=0.6, on_progress=said.append)
    assert found.n_all == 1500
    assert 200 <= found.n_rows < 1500
    assert any("rows are used" in line for line in said)
    assert "of 1,500 rows" in found.answer or not math.isfinite(found.best.seconds)


@pytest.mark.filterwarnings("ignore:tune. None of")
def test_a_busy_machine_is_not_measured(rows, monkeypatch, tmp_path):
    """Where measuring would take the budget it is broken off, and estimates take its place."""
    monkeypatch.setenv("DSGD_CACHE", str(tmp_path))
    monkeypatch.setattr("dsgd.tuning.search._LEAST_TO_MEASURE_S", 0.1)
    monkeypatch.setattr("dsgd.tuning.search._LONGEST_MEASURING", 0.0)
    said: list[str] = []
    found = tune(SGDClassifier(n_jobs=2), *rows, budget=0.5, on_progress=said.append)
    assert found.calibration is None
    assert any("estimates" in line for line in said)


@pytest.mark.filterwarnings("ignore:tune. None of")
def test_one_rank_tunes_its_steps(rows):
    """On a single rank only step sizes are searched, for regression too, where the score is R2."""
    X, y = rows
    found = tune(SGDRegressor(n_jobs=1), sp.csr_matrix(X), (y == "yes").astype(float), budget=0.5)
    assert found.ranks == 1
    assert found.metric == "r2"
    assert len({trial.candidate.sync for trial in found.table}) == 1
    assert len({trial.candidate.steps for trial in found.table}) > 1


# With kernels to compile first no candidate runs to an end.
@pytest.mark.filterwarnings("ignore:tune. None of:RuntimeWarning")
def test_a_known_cluster_is_not_measured_again(rows, tmp_path, monkeypatch):
    """If there is time, costs are measured for the given strategies and rows, and kept in the result."""
    from datetime import UTC, datetime

    asked: list[Any] = []

    def known(client: Any, **options: Any) -> SavedCosts:
        asked.append(options)
        model = estimated_costs(2, options["strategies"])
        return SavedCosts(model, tmp_path / "x.json", datetime.now(UTC))

    monkeypatch.setattr("dsgd.tuning.search.known_costs", known)
    monkeypatch.setattr("dsgd.tuning.search._LEAST_TO_MEASURE_S", 0.5)
    found = tune(SGDClassifier(n_jobs=2), *rows, budget=0.6)
    assert found.calibration is not None
    assert found.as_mapping()["calibration"]["reused"]
    assert asked[0]["layouts"] == ("dense",)
    assert asked[0]["ranks"] == 2


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"budget": 0.0}, InvalidParameterError, "budget"),
        ({"budget": math.inf}, InvalidParameterError, "budget"),
        ({"budget": math.nan}, InvalidParameterError, "budget"),
        ({"margin": -1.0}, InvalidParameterError, "margin"),
        ({"validation_fraction": 1.0}, InvalidParameterError, "validation_fraction"),
        ({"estimator": PlainSGDClassifier()}, InvalidParameterError, "estimator"),
        ({"estimator": SGDClassifier}, InvalidParameterError, "estimator"),
        ({"client": SimulatedCluster(2)}, InvalidParameterError, "real clock"),
        ({"strategies": ["nonsense"]}, InvalidParameterError, "nonsense"),
        ({"X": np.zeros((0, 3)), "y": np.zeros(0)}, InvalidDataError, "0 sample"),
        ({"X": np.full((9, 3), np.nan)}, InvalidDataError, "NaN"),
        ({"y": np.zeros(4)}, InvalidDataError, "rows"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(rows, options, error, match):
    """A bad number, a foreign estimator and rows that are none are refused before any work."""
    given_ = {"estimator": SGDClassifier(), "X": rows[0], "y": rows[1], **options}
    with pytest.raises(error, match=match):
        tune(**given_)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:tune. None of")
def test_the_command_prints_a_line_to_paste(rows, tmp_path: Path, capsys):
    """``dsgd tune`` searches on files, says how far it is, and prints what can be pasted."""
    path = tmp_path / "rows.npz"
    np.savez(path, X=rows[0], y=(rows[1] == "yes").astype(int))
    assert main(["tune", "--data", str(path), "--budget", "0.8", "--jobs", "2"]) == 0
    captured = capsys.readouterr()
    assert "from dsgd import SGDClassifier" in captured.out
    assert "rung 1" in captured.err
    assert main(["tune", "--data", str(path), "--budget", "0.3", "--jobs", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["budget"] == 0.3
    frame = (
        pytest.importorskip("pandas")
        .DataFrame(rows[0])
        .rename(columns=str)
        .assign(city=["Oslo", "Rome"] * (len(rows[1]) // 2), label=rows[1])
    )
    frame.to_parquet(tmp_path / "rows.parquet")
    table = ["tune", "--data", str(tmp_path / "rows.parquet"), "--budget", "0.8", "--jobs", "2"]
    assert main([*table, "--target", "label", "--quiet"]) == 0
    assert "encoder='auto'" in capsys.readouterr().out
    assert main([*table, "--target", "label", "--categorical", "hash"]) == 0
    printed = capsys.readouterr().out
    assert "from dsgd.preprocessing import ColumnEncoder" in printed
    assert "encoder=ColumnEncoder(categorical='hash')" in printed
    for wrong, said in (
        (table, "--target names the column"),
        (["tune", "--data", str(path), "--budget", "0"], "budget"),
        (["tune"], "--dataset"),
    ):
        assert main(wrong) == 2
        assert said in capsys.readouterr().err


client = module_client(2)


@pytest.mark.cluster
def test_a_search_on_worker_processes(client, rows):
    """Rows are placed once, candidates train on both workers, and nothing is left there."""
    load_kernels(rows, client=client)
    found = tune(SGDClassifier(alpha=1e-3), *rows, client, budget=3.0, strategies=["local"])
    assert found.ranks == 2
    assert found.estimator.client is client
    assert found.line.endswith("client=client)")
    lines = found.code.splitlines()
    assert lines[0] == "from dask.distributed import Client"
    assert "client = Client(n_workers=2, threads_per_worker=1)" in lines
    compile(found.code, "pasted", "exec")
    assert any(trial.curve for trial in found.table)
    wait_until(lambda: [key for keys in client.has_what().values() for key in keys])


@pytest.mark.cluster
def test_fewer_rows_of_blocks(client, rows):
    """Blocks on workers are thinned where they lie."""
    placed = place_rows(SGDClassifier(), client, *rows, n_ranks=None)
    few = placed.thinned(500, seed=0)
    assert few.n_rows == 500
    assert sum(len(y) for _, y, _ in client.gather(few.X)) == 500
    few.release()
    placed.release()


@pytest.mark.cluster
def test_a_cluster_that_has_gone(rows):
    """A closed client is named before anything is placed."""
    with start_cluster(1, processes=False) as cluster:
        client = Client(cluster, set_as_default=False)
        client.close()
        with pytest.raises(ClusterUnreachableError, match="closed"):
            tune(SGDClassifier(), *rows, client, budget=1.0)
