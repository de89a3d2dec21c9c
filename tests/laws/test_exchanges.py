"""What every exchange does: equals its twin and keeps what it must keep."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.collectives import Group
from dsgd.comm.topology import Complete, Exponential, Grid, Ring, Star
from dsgd.compress import TopK
from dsgd.errors import IncompatiblePartsError
from dsgd.sync import DPSGD, EASGD, SCAFFOLD, SGP, AbstractLocalTerm, ChocoSGD, DiLoCo, LeaderSGD, OverlapSGP, SlowMo
from dsgd.sync.compression import acts_alone
from dsgd.sync.leaders import take_score
from gangs import run_gang
from laws.gang import exchange
from members import FAMILY, MEMBERS, Member, having
from nested_gangs import run_nested
from reference import strategies as twins

SIZES = [1, 2, 3, 4, 7, 8, 16]
sizes = st.sampled_from(SIZES)


def stay(k: int, rank: int, model: np.ndarray) -> np.ndarray:
    """Move nowhere."""
    return model


class Walk:
    """Moves that can be drawn again: local steps of a rank in a round."""

    def __init__(self, size: int, n: int, n_rounds: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.first = rng.standard_normal(n)
        self.steps = rng.standard_normal((n_rounds, size, n))
        self.weights = rng.integers(1, 9, size) * 1.0
        self.weights /= self.weights.sum()
        self.losses = np.argsort(rng.random((n_rounds, size)), axis=1) * 1.0

    def __call__(self, k: int, rank: int, model: np.ndarray) -> np.ndarray:
        """Return the model after the steps of a round."""
        return model + self.steps[k, rank]

    def loss(self, k: int, rank: int) -> float:
        """Return the mean loss of a rank in a round."""
        return float(self.losses[k, rank])


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("member", FAMILY, ids=repr)
def test_every_strategy_equals_its_twin(member: Member, size: int) -> None:
    """Five exchanges of ranks with different rows give the models of the plain-numpy twin, and the same in the end."""
    walk = Walk(size, 9, 5)
    before, found, _, _ = exchange(member.strategy, walk.first, walk.weights, 5, walk, walk.loss)
    twin = member.twin(member.strategy, walk.first, walk.weights)
    models = np.tile(walk.first, (size, 1))
    for k in range(5):
        if not isinstance(member.strategy, AbstractLocalTerm):
            np.testing.assert_allclose(before[k], models + walk.steps[k], rtol=1e-11, atol=1e-11)
        models = twin.sync(before[k], rates=np.full(size, 0.5), losses=walk.losses[k])
    np.testing.assert_allclose(before[5], models, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(found, twin.collect(models), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("size", [2, 3, 7])
def test_controls_are_those_of_the_twin(size: int) -> None:
    """What SCAFFOLD corrects local steps by is the mean gradient of a rank and that of all ranks, as in its twin."""
    walk = Walk(size, 9, 5)
    strategy = SCAFFOLD(8, rate=0.9)
    before, _, _, states = exchange(strategy, walk.first, walk.weights, 5, walk, walk.loss)
    twin = twins.Control(strategy, walk.first, walk.weights)
    for k in range(5):
        twin.sync(before[k], rates=np.full(size, 0.5))
    for state, own in zip(states, twin.own, strict=True):
        np.testing.assert_allclose(state.own, own, rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(state.common, twin.c, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "strategy", [SlowMo(8, 0.0, 0.5, compressor=TopK(0.1)), DiLoCo(8, 0.5, 0.0, compressor=TopK(0.1))]
)
def test_outer_steps_compress_changes_since_the_last_one(strategy: Any) -> None:
    """With room for one entry of ten a change of one arrives whole, wherever the outer step before has led."""
    walk = lambda k, rank, model: model + 10.0**-k * (np.arange(10) == k)  # noqa: E731
    before, _, _, _ = exchange(strategy, np.zeros(10), np.full(3, 1 / 3), 4, walk, lambda k, rank: 0.0)
    np.testing.assert_allclose(before[4], [[*(0.5 * 10.0**-k for k in range(4)), *[0.0] * 6]] * 3, rtol=1e-12)


def test_every_strategy_is_a_value() -> None:
    """Strategies compare by what they say, hash, pickle and cannot be changed."""
    for strategy in (member.strategy for member in MEMBERS):
        again = pickle.loads(pickle.dumps(strategy))
        assert again == strategy
        assert hash(again) == hash(strategy)
        with pytest.raises(AttributeError):
            strategy.every = 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("member", [m for m in FAMILY if not acts_alone(m.strategy)], ids=repr)
def test_a_rank_that_is_alone_keeps_its_model(member: Member, dtype: Any) -> None:
    """On one rank every strategy is plain SGD, bit for bit, NaN and signed zeros included, and sends nothing."""
    vector = np.array([np.nan, -0.0, 1e-40, np.inf, 3.0], dtype=dtype)
    before, _, totals, _ = exchange(_without_term(member.strategy), vector, np.ones(1), 1, stay, lambda k, rank: 0.0)
    assert before[1].astype(dtype).tobytes() == vector.tobytes()
    assert totals[0][0]["messages"] == totals[0][0]["bytes_sent"] == 0


def _without_term(strategy: Any) -> Any:
    # The rank loop applies no local term on one rank.
    class Bare:
        ends_equal = True

        def __getattr__(self, name: str) -> Any:
            return getattr(strategy, name)

    return Bare()


@pytest.mark.parametrize("member", [m for m in FAMILY if m.strategy.ends_equal], ids=repr)
@settings(max_examples=8)
@given(size=sizes, n=st.integers(1, 40), seed=st.integers(0, 99))
def test_models_are_equal_where_they_should_be(member: Member, size: int, n: int, seed: int) -> None:
    """After an exchange all ranks have the same model to the bit, if the strategy says so."""
    walk = Walk(size, n, 2, seed)
    before, _, _, _ = exchange(member.strategy, walk.first, walk.weights, 2, walk, walk.loss)
    assert len({row.tobytes() for row in before[2]}) == 1


@settings(max_examples=15)
@given(size=sizes, n=st.integers(1, 40), seed=st.integers(0, 99), beta=st.floats(0, 1))
def test_springs_keep_the_sum(size: int, n: int, seed: int, beta: float) -> None:
    """Without local steps the models and the centre keep their sum, and at beta = 1 the centre is the mean."""
    walk = Walk(size, n, 2, seed)
    spread = lambda k, rank, model: walk(0, rank, model) if k == 0 else model  # noqa: E731
    before, _, _, states = exchange(EASGD(8, beta=beta), walk.first, walk.weights, 2, spread, walk.loss)
    np.testing.assert_allclose(
        before[0].sum(axis=0) + walk.first, before[2].sum(axis=0) + states[0].centre, rtol=1e-10, atol=1e-10
    )
    before, _, _, states = exchange(EASGD(8, beta=1.0), walk.first, walk.weights, 1, spread, walk.loss)
    if size > 1:
        np.testing.assert_allclose(states[0].centre, before[0].mean(axis=0), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("topology", [Exponential(), Exponential(2), Star(), Ring(), Complete()], ids=repr)
@settings(max_examples=10)
@given(size=sizes, n=st.integers(1, 40), seed=st.integers(0, 99), k=st.integers(1, 6))
def test_push_sum_keeps_mass_and_weight(topology: Any, size: int, n: int, seed: int, k: int) -> None:
    """The masses keep their sum and the weights theirs, the number of ranks; what is returned is the mean."""
    walk = Walk(size, n, 1, seed)
    spread = lambda r, rank, model: walk(0, rank, model) if r == 0 else model  # noqa: E731
    before, found, _, states = exchange(SGP(8, topology), walk.first, walk.weights, k, spread, walk.loss)
    weights = np.array([state.weight[0] for state in states])
    np.testing.assert_allclose(weights.sum(), size, rtol=1e-12)
    np.testing.assert_allclose(weights @ before[k], before[0].sum(axis=0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found, before[0].mean(axis=0), rtol=1e-9, atol=1e-9)


GRAPHS = [Ring(), Star(), Grid(), Exponential(), Exponential(2), Complete()]
GOSSIP = [
    *(DPSGD(8, graph) for graph in GRAPHS if graph.symmetric),
    *(ChocoSGD(8, topology=graph) for graph in GRAPHS if graph.symmetric),
    *(SGP(8, graph) for graph in GRAPHS),
    *(OverlapSGP(8, delay, graph) for delay in (1, 3, 7) for graph in GRAPHS),
]


@pytest.mark.parametrize("size", [2, 5, 6])
@pytest.mark.parametrize("strategy", GOSSIP, ids=repr)
def test_gossip_moves_by_the_mean_of_the_steps(strategy: Any, size: int) -> None:
    """On any graph training returns the first model plus the mean over ranks of all steps, of few rounds too."""
    for n_rounds in (2, 9):
        walk = Walk(size, 7, n_rounds)
        _, found, _, _ = exchange(strategy, walk.first, walk.weights, n_rounds, walk, walk.loss)
        np.testing.assert_allclose(found, walk.first + walk.steps.mean(axis=1).sum(axis=0), rtol=1e-9, atol=1e-9)


@settings(max_examples=15)
@given(size=sizes, n=st.integers(1, 40), seed=st.integers(0, 99), pull=st.floats(0, 1))
def test_the_leader_stays(size: int, n: int, seed: int, pull: float) -> None:
    """The rank with the lowest loss is not moved; with a pull of one all others are where it is, not at the mean."""
    walk = Walk(size, n, 1, seed)
    best = int(np.argmin(walk.losses[0]))
    before, _, _, _ = exchange(LeaderSGD(8, global_pull=pull), walk.first, walk.weights, 1, walk, walk.loss)
    np.testing.assert_allclose(before[1][best], before[0][best], rtol=1e-12, atol=1e-12)
    strategy = LeaderSGD(8, global_pull=1.0, returns="leader")
    before, found, _, _ = exchange(strategy, walk.first, walk.weights, 1, walk, walk.loss)
    assert all(row.tobytes() == before[0][best].tobytes() for row in before[1])
    assert found.tobytes() == before[0][best].tobytes()


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_rank_without_a_loss_does_not_lead(wrong: float) -> None:
    """A rank whose loss is no number, and one that has no rows, follow those that have a loss."""
    walk = Walk(4, 7, 1)
    strategy = LeaderSGD(8, global_pull=1.0, returns="leader")
    before, found, _, _ = exchange(
        strategy, walk.first, walk.weights, 1, walk, lambda k, rank: [wrong, 3.0, 2.0, 4.0][rank]
    )
    assert found.tobytes() == before[0][2].tobytes()
    assert take_score(np.zeros(2)) == np.inf


def test_groups_of_leaders_are_refused_before_work_starts() -> None:
    """Ranks that cannot communicate in groups raise before their first step."""
    with pytest.raises(IncompatiblePartsError, match="threads of several processes"):
        run_nested([2, 2], lambda group: LeaderSGD(8, n_groups=2).init(group, np.zeros(3), 0.25))


def test_a_leader_may_be_gone() -> None:
    """Ranks that resume the state of a larger gang have one model, and return it, whoever led that gang."""

    def program(group: Group) -> list[float]:
        strategy, model = LeaderSGD(8, returns="leader"), np.arange(3.0)
        state = strategy.init(group, model, 0.5)
        state.leader[0] = 5
        strategy.collect(group, model, 0.5, state)
        return model.tolist()

    assert run_gang("inproc", 2, program) == [[0.0, 1.0, 2.0]] * 2


@pytest.mark.parametrize("member", having("alone"), ids=repr)
@pytest.mark.parametrize("size", [2, 5])
def test_ranks_alone_are_a_limit_case(member: Member, size: int) -> None:
    """With a pull of zero, or a graph without edges, every rank goes its own way, to the bit."""
    walk = Walk(size, 9, 4)
    before, _, _, _ = exchange(member.alone, walk.first, walk.weights, 4, walk, walk.loss)
    models = np.tile(walk.first, (size, 1))
    for k in range(4):
        models = models + walk.steps[k]
    assert before[4].tobytes() == models.tobytes()
