"""`dsgd.compare`: what is measured, on threads, workers and simulated ranks; what is claimed of it; what is refused."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from scipy.sparse import csr_matrix

import dsgd
from dsgd import SGDClassifier
from dsgd.compress import TopK
from dsgd.datasets import split_rows
from dsgd.errors import DsgdError, InvalidDataError, InvalidParameterError, MissingPackageError
from dsgd.named import installed
from dsgd.sim import SimulatedCluster
from dsgd.study.comparison import Comparison
from dsgd.study.comparison.result import curves_figure
from dsgd.study.comparison.runs import Problem
from dsgd.sync import SGP, LocalSGD
from gang_cluster import start_cluster
from web_page import check_page

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))
from beyond import Beyond

SIMULATED = SimulatedCluster(3, "10GbE", stragglers="exponential")
METHODS: dict[str, Any] = {
    "local": LocalSGD(20),
    "top-k": LocalSGD(20, compressor=TopK(0.3)),
    "gossip": "sgp:every=20",
    "beyond": "beyond:Beyond:every=20",
}
MODEL = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.05, alpha=1e-3)
#: What a run is the same in, wherever its ranks are.
ALIKE = ("strategy", "seed", "objective", "test_accuracy", "bytes_sent", "messages", "control_bytes_sent")


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Two classes that a line separates but for some noise."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 6))
    return X, np.where(X @ np.linspace(-1, 1, 6) + 0.3 * rng.standard_normal(400) > 0, "yes", "no")


@pytest.fixture(scope="module")
def found(rows: tuple[np.ndarray, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """A comparison on simulated ranks with unlike rows."""
    out = tmp_path_factory.mktemp("comparison")
    return dsgd.compare(
        METHODS, *rows, cluster=SIMULATED, seeds=(3, 5), partition="dirichlet:0.5", epochs=2, estimator=MODEL, out=out
    )


@pytest.mark.slow
def test_every_point_is_a_fit_of_its_own(found: Comparison, rows: tuple[np.ndarray, np.ndarray]) -> None:
    """Whole epochs equal what an estimator makes of the same blocks by hand, to the bit and the byte."""
    X, y = rows
    assert len(found.rows) == 2 * (1 + len(METHODS))
    for row in found.rows:
        assert [at["epoch"] for at in row["curve"]] == [0.125, 0.25, 0.5, 1, 2]
        # 300 rows are trained on; of each rank a part of the first epoch holds the smaller part.
        seen = [at["rows"] for at in row["curve"]]
        assert seen[-2:] == [300, 600]
        assert all(0 <= n - share * 300 <= 3 for n, share in zip(seen, (0.125, 0.25, 0.5), strict=False))
        for one, other in pairwise(row["curve"]):
            assert one["bytes_sent"] <= other["bytes_sent"]
            assert one["messages"] <= other["messages"]
        for name in ("bytes_sent", "control_bytes_sent", "messages", "objective", "test_accuracy"):
            assert row["curve"][-1][name] == row[name]
    problem = _problem(X, y)
    blocks = [(problem.X[part], problem.y[part]) for part in split_rows(problem.y, 3, "dirichlet:0.5", seed=5)]
    cluster = replace(SIMULATED, seed=5)
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.05, alpha=1e-3, tol=None, random_state=5)
    model.set_params(sync=Beyond(20), max_iter=2, client=cluster).fit(blocks)
    (row,) = [row for row in found.rows if (row["strategy"], row["seed"]) == ("beyond", 5)]
    assert row["test_accuracy"] == model.score(problem.X_test, problem.y_test)
    assert row["bytes_sent"] == model.ledger_.totals()["bytes_sent"]
    assert row["train_s"] == model.fit_report_["epochs"][-1]["seconds"]


def _problem(X: Any, y: Any) -> Any:
    from dsgd.study.comparison.runs import split_data

    return split_data(SGDClassifier(), X, y, 0.25, "shuffled", 3, name="data")


@pytest.mark.slow
def test_what_it_returns_can_be_read_and_passed_on(found: Comparison, tmp_path: Path) -> None:
    """A text, frames, a picture and one page, all of the same rows."""
    text = str(found)
    assert all(name in text for name in (*METHODS, "sequential", "Beside local", "3 simulated ranks, 10GbE"))
    assert found.answer in " ".join(text.split())
    assert "local, top-k, gossip, beyond on data" in repr(found)
    runs, curves = found.to_frame(), found.to_frame("curves")
    assert list(runs["strategy"]) == [row["strategy"] for row in found.rows]
    assert len(curves) == sum(len(row["curve"]) for row in found.rows)
    assert {"strategy", "seed", "rows", "seconds", "messages", "objective"} < set(curves)
    assert found.to_frame("search").empty
    found.plot(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    check_page(found.save(tmp_path / "page" / "comparison.html").read_text(encoding="utf-8"))


def test_frames_need_pandas_and_say_so(found: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pandas the error names it, and the rows that need none."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match=r"pip install pandas; or use the rows"):
        found.to_frame()


@pytest.mark.slow
def test_threads_and_workers_learn_what_simulated_ranks_learn(rows: tuple[np.ndarray, np.ndarray]) -> None:
    """Equal models, bytes and messages, and the same rows on each rank, wherever the ranks are."""
    options: dict[str, Any] = {"seeds": 1, "partition": "feature-skewed", "epochs": 1, "estimator": MODEL}
    methods = {"local": 20, "gossip": SGP(20)}
    with start_cluster(3, processes=False) as cluster, Client(cluster, set_as_default=False) as client:
        made = [
            dsgd.compare(methods, *rows, cluster=where, ranks=3, looks=[0.5], **options)
            for where in (SimulatedCluster(3), None, client)
        ]
    alike = [[{name: row[name] for name in ALIKE} for row in one.rows] for one in made]
    assert alike[0] == alike[1] == alike[2]
    assert [one.rows[0]["where"] for one in made] == ["3 simulated ranks, 1GbE", "3 threads", "3 worker processes"]


def test_what_was_run_once_is_not_run_again(
    rows: tuple[np.ndarray, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison that was interrupted goes on in its folder; other rows, rates or methods are other runs."""
    said: list[str] = []
    options: dict[str, Any] = {"cluster": SimulatedCluster(2), "seeds": 1, "epochs": 1, "looks": [], "out": tmp_path}

    def stop(text: str) -> None:
        said.append(text)
        if "gossip" in text:
            raise KeyboardInterrupt

    methods = ["local:20", "sgp:every=20"]
    with pytest.raises(KeyboardInterrupt):
        dsgd.compare({"a": "local:20", "gossip": "sgp:every=20"}, *rows, on_progress=stop, **options)
    assert said == ["1 of 3: sequential, seed 0", "2 of 3: a, seed 0", "3 of 3: gossip, seed 0"]
    whole = dsgd.compare({"a": "local:20", "gossip": "sgp:every=20"}, *rows, on_progress=said.append, **options)
    assert said[3:] == ["3 of 3: gossip, seed 0"]
    monkeypatch.setattr(Problem, "train", None)
    again = dsgd.compare({"a": "local:20", "gossip": "sgp:every=20"}, *rows, **options)
    assert again.rows == whole.rows
    for changed in ({"methods": methods}, {"X": rows[0] + 1e-9}, {"every": 10}, {"partition": "contiguous"}):
        asked = {"methods": {"a": "local:20"}, "X": rows[0], "y": rows[1], **options, **changed}
        with pytest.raises(TypeError, match="not callable"):
            dsgd.compare(**asked)


def test_a_search_gives_each_method_as_many_trials_and_reports_them(rows: tuple[np.ndarray, np.ndarray]) -> None:
    """Trials have a seed of their own, one of each method is taken, and that is what is run."""
    slow = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=1e-4, alpha=1e-3)
    options: dict[str, Any] = {"cluster": SimulatedCluster(2, "WAN"), "seeds": (0, 4), "epochs": 1, "looks": []}
    found = dsgd.compare(
        {"local": 40, "one-shot": "one-shot"}, csr_matrix(rows[0]), rows[1], estimator=slow, tune=5, **options
    )
    names = ("sequential", "local", "one-shot")
    tried = {name: [row for row in found.search if row["strategy"] == name] for name in names}
    assert [len(own) for own in tried.values()] == [5, 5, 5]
    assert {row["sync"] for row in tried["local"]} == {repr(LocalSGD(n)) for n in (10, 40, 160)}
    assert {row["seed"] for row in found.search} == {5}
    for name, own in tried.items():
        (best,) = [row for row in own if row["chosen"]]
        assert best["eta0"] > 1e-4
        runs = [row for row in found.rows if row["strategy"] == name]
        assert {(row["sync"], row["eta0"]) for row in runs} == {(best["sync"], best["eta0"])}
    page = found.page()
    assert [table.title for table in page.details][:1] == ["Methods"]
    assert page.details[-1].title == "Search for rates, periods and own parameters"
    assert found.to_frame("search")["chosen"].sum() == 3


def test_a_search_goes_over_own_parameters(rows: tuple[np.ndarray, np.ndarray]) -> None:
    """Values are tried from the method's own on, within as many trials as others have, and the best is run."""
    found = dsgd.compare(
        {"local": 20, "SlowMo": "slowmo:every=20,slow_momentum=0.0"}, *rows, cluster=SIMULATED, tune=7,
        tune_over={"SlowMo": {"slow_momentum": (0.0, 0.9)}}, estimator=MODEL, seeds=1, epochs=2, looks=[],
    )  # fmt: skip
    tried = [row for row in found.search if row["strategy"] == "SlowMo"]
    assert len(tried) == sum(row["strategy"] == "local" for row in found.search) == 7
    assert "slow_momentum=0.0" in tried[0]["sync"]
    assert sum("slow_momentum=0.9" in row["sync"] for row in tried) in range(1, 7)
    (taken,) = (row for row in tried if row["chosen"])
    assert "slow_momentum=0.9" in taken["sync"]
    (run,) = (row for row in found.rows if row["strategy"] == "SlowMo")
    assert run["sync"] == taken["sync"]


def test_the_same_period_is_given_to_all_that_have_one(rows: tuple[np.ndarray, np.ndarray]) -> None:
    """``every=`` replaces the period of each strategy, and leaves those alone that have none in rows."""
    found = dsgd.compare(
        ["local", "easgd:every=7", "one-shot", "minibatch:16"],
        *rows,
        cluster=SimulatedCluster(2),
        every=50,
        seeds=1,
        epochs=1,
        looks=[],
    )
    syncs = {row["strategy"]: row["sync"] for row in found.rows}
    assert "every=50" in syncs["local"]
    assert "every=50" in syncs["easgd:every=7"]
    assert syncs["one-shot"] == "OneShotAveraging()"
    assert "batch=16" in syncs["minibatch:16"]


def test_every_two_methods_can_be_compared(found: Comparison) -> None:
    """By default each pair is, else all with one, with the same figures; their objectives have an interval, too."""
    pairs = {tuple(row[:2]): tuple(row) for row in found.versus().rows}
    assert len(pairs) == len(METHODS) * (len(METHODS) - 1) // 2
    beside = found.versus("local")
    assert [tuple(row[:2]) for row in beside.rows] == [("local", name) for name in METHODS if name != "local"]
    assert all(tuple(row) == pairs[row[0], row[1]] for row in beside.rows)
    assert all("x" in row[beside.columns.index("objective")] for row in beside.rows)
    with pytest.raises(InvalidParameterError, match="one of local, top-k"):
        found.versus("nobody")


def test_methods_are_compared_at_equal_costs(found: Comparison) -> None:
    """Each at its last point within the budget, by default what the cheapest has spent at its end."""
    own = {name: [row for row in found.rows if row["strategy"] == name] for name in METHODS}
    ends = {name: max(row["bytes_sent"] for row in rows) for name, rows in own.items()}
    cheapest, dearest = (by(ends, key=lambda name: ends[name]) for by in (min, max))
    table = found.at_equal("bytes_sent", beside=dearest)
    assert [row[0] for row in table.rows] == list(METHODS)
    cells = {row[0]: row for row in table.rows}
    assert (cells[cheapest][1], cells[dearest][1] == "2") == ("2", False)
    assert cells[dearest][5:] == ("-", "-")
    for name, rows in own.items():
        last = [[at["objective"] for at in row["curve"] if at["bytes_sent"] <= ends[cheapest]][-1] for row in rows]
        assert cells[name][3] == f"{np.median(last):.4f}"
    planted = [
        {**row, "curve": [{**at, "objective": (0.2 if row["strategy"] == cheapest else 0.4) + row["seed"] / 1e4}
                          for at in row["curve"]]}
        for row in found.rows
    ]  # fmt: skip
    for beside, other, word in ((dearest, cheapest, "lower"), (cheapest, dearest, "higher")):
        rows_beside = Comparison(planted, [], 0.02).at_equal("bytes_sent", beside=beside).rows
        assert next(row[6] for row in rows_beside if row[0] == other) == word
    every = found.at_equal("seconds", 1e9, beside="gossip").rows
    assert [row[1] for row in every] == ["2"] * len(METHODS)
    assert {row[6] for row in found.at_equal("bytes_sent", 1.0).rows} == {"no point within"}
    with pytest.raises(InvalidParameterError, match="seconds, bytes_sent, and one of local"):
        found.at_equal("rounds")  # type: ignore[arg-type]


def test_curves_that_end_far_above_the_target_are_drawn(found: Comparison) -> None:
    """However low the target, each method is seen to its end."""
    ends = [cell.median("objective") for cell in found.cells.values()]
    low = replace(found, given_target=min(ends) / 20)
    for panel in curves_figure(low.gang, 0.0).panels:
        assert panel.y.high is not None
        assert panel.y.high > max(ends)


def test_a_table_is_one_of_a_paper(found: Comparison) -> None:
    """As LaTeX a table has its cells in order, and signs that mean something there are escaped."""
    table, end = found.table(), " \\\\"
    lines = [line.split(" & ") for line in table.to_latex().splitlines() if line.endswith(end)]
    assert [len(line) for line in lines] == [len(table.columns)] * (1 + len(table.rows))
    assert "%" not in table.to_latex().replace("\\%", "")


def test_what_learns_nothing_or_diverges_claims_nothing(rows: tuple[np.ndarray, np.ndarray]) -> None:
    """Neither is on the front nor named in the answer as best; a method that diverges does not end the others."""
    X, _ = rows
    y = np.arange(400) % 10 == 0
    found = dsgd.compare(
        {"local": 20, "wild": Wild(20)}, X, y, cluster=SimulatedCluster(2), seeds=2, epochs=1, looks=[], estimator=MODEL
    )
    assert found.cells["local"].is_trivial
    assert found.cells["wild"].n_diverged == 2
    assert found.gang.reached(1e9) == {}
    assert "No better than always predicting the commonest label: local." in found.answer
    cells = {row[0]: row for row in found.table().rows}
    assert "no claim" in cells["local"]
    assert "diverged" in cells["wild"]
    assert {"no claim"} < set(found.versus().rows[0])
    assert found.page().render()
    with pytest.raises(DsgdError, match=r"one rank diverges.*StandardScaler"):
        str(
            dsgd.compare(
                {"local": 20},
                X * 1e200,
                y,
                cluster=SimulatedCluster(2),
                seeds=1,
                epochs=1,
                looks=[],
                estimator=SGDClassifier(loss="squared_hinge", learning_rate="constant", eta0=1e9),
            )
        )


@dataclass(frozen=True)
class Wild(Beyond):
    """Leaves the range of numbers."""

    def sync(self, group: Any, vector: Any, weight: float, state: Any) -> None:
        """Go too far."""
        super().sync(group, vector, weight, state)
        vector[:] = np.inf


@dataclass(frozen=True)
class Broken(Beyond):
    """Fails at its first synchronisation."""

    def sync(self, group: Any, vector: Any, weight: float, state: Any) -> None:
        """Fail."""
        raise IndexError("no such neighbour")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"methods": {}}, "names no strategy"),
        ({"methods": "local"}, "a mapping of names to strategies"),
        ({"methods": ["local", "local"]}, "names a strategy twice"),
        ({"methods": {"sequential": 64}}, "which is the run of one rank"),
        ({"methods": {"mine": "telepathy"}}, "'mine': sync must be"),
        ({"methods": ["diloco:evry=5"]}, "DiLoCo has every, outer_rate"),
        ({"methods": {"hogwild": "hogwild"}}, "'hogwild' updates one model.*share no memory"),
        ({"methods": {"ok": 20, "broken": Broken(20)}}, "'broken' fails on 3 ranks, IndexError: no such neighbour"),
        ({"partition": "sorted"}, "choose one of contiguous"),
        ({"partition": "dirichlet"}, "takes a number above 0"),
        ({"seeds": []}, "each once"),
        ({"seeds": (1, 1)}, "each once"),
        ({"seeds": 0}, r"seeds=\.\.\.\) must be"),
        ({"epochs": 0}, r"epochs=\.\.\.\) must be"),
        ({"looks": [1.5]}, "parts of the first epoch"),
        ({"looks": [9]}, r"looks=\.\.\.\) must be"),
        ({"tune": -1}, r"tune=\.\.\.\) must be"),
        ({"tune_over": {"local": {"overlap": (False, True)}}}, "needs tune"),
        ({"tune": 2, "tune_over": {"far": {}}}, "'far' is none of the methods, local"),
        ({"tune": 2, "tune_over": {"local": {"every": (20, 40)}}}, "its period is searched in any case"),
        ({"tune": 2, "tune_over": {"local": {"momentum": ("zero",)}}}, "its own among them"),
        ({"tune": 2, "tune_over": {"local": {"momentum": ("keep", "lose")}}}, "lose"),
        ({"target": 0.0}, r"target=\.\.\.\) must be"),
        ({"every": 0}, r"every=\.\.\.\) must be"),
        ({"ranks": 2}, "leave ranks out"),
        ({"cluster": "here"}, "'workers', the address"),
        ({"cluster": 3}, "'workers', the address"),
        ({"cluster": SimulatedCluster(1)}, "range .2"),
        ({"estimator": SGDClassifier(loss="huber")}, "needs a loss out of hinge"),
        ({"estimator": SGDClassifier(early_stopping=True)}, "early_stopping=True has no place"),
        ({"estimator": "svm"}, "must be an SGDClassifier"),
        ({"test": 1.5}, r"test=\.\.\.\) must be"),
        ({"test": (np.zeros((3, 2)), np.zeros(3))}, "with 6 columns"),
        ({"y": np.zeros(400)}, "one class only"),
        ({"cluster": SimulatedCluster(200)}, "too few for 200 ranks"),
    ],
    ids=str,
)
def test_bad_input_is_refused_before_anything_is_measured(
    changed: dict[str, Any], told: str, rows: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    """The error says what is wrong and what can be given; no row is written."""
    asked: dict[str, Any] = {"methods": {"local": 20}, "X": rows[0], "y": rows[1], "cluster": SIMULATED, **changed}
    with pytest.raises((InvalidParameterError, InvalidDataError), match=told):
        dsgd.compare(**asked, out=tmp_path)
    assert not list(tmp_path.glob("*.jsonl"))


def test_a_strategy_of_another_package_is_compared_by_its_entry_point(
    rows: tuple[np.ndarray, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that is installed beside this one needs no change here: its short name is a method like any other."""
    (tmp_path / "elsewhere.py").write_text("from beyond import Beyond as Further\n", encoding="utf-8")
    metadata = tmp_path / "elsewhere-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text("[dsgd.strategies]\nfurther = elsewhere:Further\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    installed.cache_clear()
    try:
        found = dsgd.compare(["further:every=20"], *rows, cluster=SimulatedCluster(2), seeds=1, epochs=1, looks=[])
    finally:
        installed.cache_clear()
    assert found.rows[-1]["sync"] == "Beyond(every=20)"


@pytest.fixture(autouse=True)
def _path_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the path of modules as it was."""
    monkeypatch.setattr(sys, "path", [*sys.path])
