"""Checks for parts from outside the package: good ones pass, and every law has a part that breaks it."""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dsgd import SGDClassifier
from dsgd.cli.options import parse_sync
from dsgd.collectives import Group
from dsgd.comm.topology import AbstractTopology, Complete, Exponential, Grid, RandomRegular, Ring, Star
from dsgd.compress import AbstractCompressor, AbstractMemory
from dsgd.errors import InvalidParameterError
from dsgd.sim import SimulatedCluster
from dsgd.sync import (
    ASGD,
    DPSGD,
    AbstractStrategy,
    DiLoCo,
    EveryRows,
    LocalSGD,
    MinibatchSGD,
    OneShotAveraging,
    RoundClock,
    resolve,
)
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import Exchange, NoState
from dsgd.testing import check_compressor, check_strategy, check_topology

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))
from beyond import Beyond, LastMean


@pytest.mark.parametrize(
    "strategy",
    [Beyond(8), LocalSGD(8), MinibatchSGD(12), DPSGD(8, Ring()), DiLoCo(8), OneShotAveraging(), ASGD(4)],
    ids=repr,
)
def test_strategies_pass(strategy: AbstractStrategy[Any]) -> None:
    """One from outside, and one of each kind of the package."""
    check_strategy(strategy)


@dataclass(frozen=True)
class Unequal(Beyond):
    """Leaves each rank its own model and says that they are equal."""

    def sync(self, group: Group, vector: np.ndarray, weight: float, state: Any) -> None:
        """Take the mean but for a part of the own model."""
        own = vector.copy()
        weighted_mean(group, vector, weight)
        vector += 0.1 * (own - vector)


@dataclass(frozen=True)
class Forgetful(Beyond):
    """Keeps what it remembers in itself, where no checkpoint finds it."""

    kept: ClassVar[dict[int, np.ndarray]] = {}

    def init(self, group: Group, params: np.ndarray, weight: float) -> Any:
        """Remember the first model, in the wrong place."""
        self.kept[group.rank] = params.copy()
        return NoState()

    def sync(self, group: Group, vector: np.ndarray, weight: float, state: Any) -> None:
        """Take the mean, and a part of the last step."""
        super().sync(group, vector, weight, LastMean(self.kept[group.rank]))


@dataclass(frozen=True)
class Scalar(Beyond):
    """Remembers a number that is no array."""

    def init(self, group: Group, params: np.ndarray, weight: float) -> Any:
        """Return a record that no checkpoint can keep."""
        return LastMean(3.0)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Random(Beyond):
    """Draws from an unseeded stream."""

    def sync(self, group: Group, vector: np.ndarray, weight: float, state: Any) -> None:
        """Take the mean, and noise that is equal on all ranks."""
        vector += 1e-3 * np.random.default_rng().standard_normal(vector.shape)
        weighted_mean(group, vector, weight)


@dataclass(frozen=True)
class Still(Beyond):
    """Never learns."""

    def sync(self, group: Group, vector: np.ndarray, weight: float, state: Any) -> None:
        """Go back."""
        vector[:] = 0.0


class NeverDue(EveryRows):
    """Rounds of eight rows, none of which ends with an exchange."""

    def is_due(self, clock: RoundClock) -> bool:
        """Return that it is not."""
        return False


@dataclass(frozen=True)
class Late(LocalSGD):
    """Has no exchange in training."""

    period = NeverDue(8)


@dataclass
class Mutable(AbstractStrategy[Any]):
    """Is no value."""

    exchanges: ClassVar[Exchange] = "model"
    period, init, sync, collect = Beyond.period, Beyond.init, Beyond.sync, Beyond.collect
    every: int = 8
    beyond: float = 0.2


@pytest.mark.parametrize(
    ("strategy", "law"),
    [
        (Unequal(8), "check_ranks_end_equal"),
        (Forgetful(8), "check_checkpoints_resume"),
        (Scalar(8), "check_state_is_arrays"),
        (Random(8), "check_runs_repeat"),
        (Still(8), "check_learns"),
        (Mutable(), "check_is_value"),
        (Late(), "check_says_what_it_does"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_strategies_that_break_a_law_are_told_which(strategy: Any, law: str) -> None:
    """The error names the law and the strategy."""
    with pytest.raises(AssertionError, match=f"{law}: .*{type(strategy).__name__}"):
        check_strategy(strategy)


@pytest.mark.parametrize("where", [{"n_jobs": 2}, {"n_jobs": 3}, {"client": SimulatedCluster(3)}], ids=str)
@pytest.mark.parametrize("tol", [None, 10.0], ids=["planned end", "early end"])
def test_training_without_a_last_exchange_ends_with_one(where: dict[str, Any], tol: float | None) -> None:
    """What a period leaves out is left out in kernels of many rounds, too, and a fit returns the mean of the ranks."""
    X = np.random.default_rng(0).standard_normal((60, 4))
    late, once = (
        SGDClassifier(sync=sync, max_iter=3, n_iter_no_change=1, tol=tol, learning_rate="constant", eta0=0.1,
                      random_state=0, **where).fit(X, X[:, 0] > 0)
        for sync in (Late(), OneShotAveraging())
    )  # fmt: skip
    np.testing.assert_allclose(late.coef_, once.coef_, rtol=1e-12)


@dataclass(frozen=True)
class Record(Beyond):
    """Remembers nothing, in what is no record that a checkpoint can keep."""

    kept: Any = None

    def init(self, group: Group, params: np.ndarray, weight: float) -> Any:
        """Return it."""
        return LastMean(self.kept) if isinstance(self.kept, np.ndarray) else self.kept

    def sync(self, group: Group, vector: np.ndarray, weight: float, state: Any) -> None:
        """Take the mean."""
        weighted_mean(group, vector, weight)


@dataclass(frozen=True)
class Parcels(Beyond):
    """Says what it exchanges in a word of its own."""

    exchanges: ClassVar[Any] = "parcels"


@dataclass(frozen=True)
class Shouting(Beyond):
    """Talks as nobody does."""

    talks: ClassVar[Any] = "loudly"


class Timeless(AbstractStrategy[NoState]):
    """Has no period."""

    init, sync = Record.init, Record.sync


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        (Record(8, {"mean": 1.0}), r"Record\.init\(\.\.\.\) must return a dataclass of arrays"),
        (Record(8), r"NoState\(\) remembers nothing\. Got None"),
        (Record(8, LastMean), "must return a dataclass"),
        (Record(8, np.array(3.0)), "mean of LastMean must be an array of numbers with one dimension"),
        (Record(8, np.array([None])), "mean of LastMean must be an array of numbers"),
        (Scalar(8), "mean of LastMean must be an array of numbers"),
        (Unequal(8), r"Unequal\(every=8\) leaves ranks with different models.*ends_equal = False"),
        (Parcels(8), r"Parcels\.exchanges must be one of 'model', 'gradient'\. Got 'parcels'"),
        (Shouting(8), r"Shouting\.talks must be one of 'together'"),
        (Timeless(), "a field `every`"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
@pytest.mark.parametrize("where", [{"n_jobs": 3}, {"client": SimulatedCluster(3)}], ids=["threads", "simulated"])
def test_a_fit_refuses_what_no_checkpoint_could_keep(strategy: Any, told: str, where: dict[str, Any]) -> None:
    """What is wrong with a strategy shows in its first fit, without checkpoints, by an error that says what to do."""
    X = np.random.default_rng(0).standard_normal((60, 4))
    with pytest.raises(InvalidParameterError, match=told):
        SGDClassifier(sync=strategy, max_iter=2, tol=None, random_state=0, **where).fit(X, X[:, 0] > 0)


def test_who_ends_equal_says_so_once() -> None:
    """A strategy from outside shows in its first epoch that ranks end equal: two messages a rank, and no more."""
    X = np.random.default_rng(0).standard_normal((60, 4))
    sent = {}
    for name, strategy in (("outside", Record(8, np.zeros(1))), ("ours", LocalSGD(8))):
        for epochs in (1, 4):
            model = SGDClassifier(sync=strategy, max_iter=epochs, tol=None, random_state=0, n_jobs=3)
            sent[name, epochs] = model.fit(X, X[:, 0] > 0).ledger_.totals()["control_messages"]
    assert sent["outside", 1] - sent["ours", 1] == sent["outside", 4] - sent["ours", 4] <= 2 * 3


@dataclass
class Count(AbstractMemory):
    """How many vectors came."""

    n: np.ndarray


@dataclass(frozen=True)
class Coarse(AbstractCompressor[Count]):
    """Rounds to whole numbers; with `wrong` in one way or another."""

    wrong: str = ""

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """Whether it says so."""
        return self.wrong == "biased"

    @property
    def lossless(self) -> bool:  # type: ignore[override]
        """Whether it says so."""
        return self.wrong == "loses"

    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> Count:
        """Count from zero."""
        return Count(np.zeros(1, dtype=np.int64))

    def encode(self, vector: Any, memory: Count) -> Any:
        """Return rounded numbers as float64."""
        payload = np.round(vector).astype(np.float64)
        if self.wrong == "writes":
            vector[:] = payload
        return payload.view(np.uint8)

    def decode(self, payload: Any, out: Any, factor: float) -> None:
        """Add them."""
        values = payload.view(np.float64)
        out[:] = (0.0 if self.wrong == "replaces" else out) + factor * values

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Eight bytes each."""
        return n * (itemsize if self.wrong == "miscounts" else 8)


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        ("loses", "check_loses_nothing"),
        ("biased", "check_is_unbiased"),
        ("writes", "check_vectors_stay"),
        ("replaces", "check_decoding_adds"),
        ("miscounts", "check_payloads"),
    ],
)
def test_compressors_that_break_a_law_are_told_which(wrong: str, law: str) -> None:
    """The error names the law; what breaks none passes."""
    check_compressor(Coarse())
    with pytest.raises(AssertionError, match=f"{law}: Coarse"):
        check_compressor(Coarse(wrong))


@pytest.mark.parametrize("topology", [Ring(), Grid(), Complete(), Star(), Exponential(), RandomRegular(3)], ids=repr)
def test_topologies_pass(topology: AbstractTopology) -> None:
    """Those of the package."""
    check_topology(topology)


@dataclass(frozen=True)
class Chain(AbstractTopology):
    """Ranks in a line, neighbours send to each other; the first one, if `wrong`, does not receive."""

    wrong: bool = False

    def out_peers(self, rank: int, size: int, round_number: int = 0) -> tuple[int, ...]:
        """The ranks beside it."""
        return tuple(peer for peer in (rank - 1, rank + 1) if 0 <= peer < size)

    def in_peers(self, rank: int, size: int, round_number: int = 0) -> tuple[int, ...]:
        """The same ones."""
        return () if self.wrong and rank == 0 else self.out_peers(rank, size)

    def period(self, size: int) -> int:
        """The graph stays."""
        return 1


def test_a_topology_that_breaks_a_law_is_told_which() -> None:
    """The error names the law and the rank; what breaks none passes."""
    check_topology(Chain())
    with pytest.raises(AssertionError, match=r"check_edges_match: Chain.*rank 0 has an edge one way"):
        check_topology(Chain(wrong=True))


def test_what_is_no_strategy_is_refused() -> None:
    """A number is none."""
    with pytest.raises(AssertionError, match="must be an instance of AbstractStrategy"):
        check_strategy(8)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["beyond:Beyond", "beyond-the-mean"])
def test_strategies_are_found_by_name(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By module and class, or by the entry point of an installed package."""
    point = importlib.metadata.EntryPoint("beyond-the-mean", "beyond:Beyond", "dsgd.strategies")
    found = {"dsgd.strategies": {point.name: point}}
    monkeypatch.setattr(sys.modules["dsgd.named"], "installed", lambda group: found.get(group, {}))
    assert resolve(text) == Beyond()
    assert parse_sync(text) == Beyond()
    assert parse_sync(f"{text}:every=8") == Beyond(8)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("beyond:Nothing", "no attribute 'Nothing'"),
        ("nowhere:Beyond", "No module"),
        ("beyond:LastMean", "not a strategy"),
    ],
)
def test_names_of_nothing_are_refused(text: str, why: str) -> None:
    """The error has the name, and why it cannot be had."""
    with pytest.raises(InvalidParameterError, match=f"{text}.*{why}"):
        resolve(text)
    with pytest.raises(InvalidParameterError, match=f"{text}.*{why}"):
        parse_sync(text)
