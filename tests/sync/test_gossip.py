"""Gossip: a round is one multiplication with the mixing matrix; a fit by gradients of all rows is its recursion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from dsgd import Gang, SGDClassifier, SGDRegressor
from dsgd.collectives import Cost, Group, gossip_cost, neighbour_mean, push_sum
from dsgd.comm.topology import Complete, Grid, RandomRegular, Ring, mixing_matrix
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.kernel_approximation import RandomFeatures
from dsgd.local import GradientDescent, Momentum
from dsgd.sim import SimulatedCluster
from dsgd.sync import DPSGD, SCAFFOLD, FedProx, Hogwild, LocalSGD, MinibatchSGD
from gangs import run_gang, spent
from reference.decentralised import after, decentralised
from topologies import TOPOLOGIES


def scatter_of(size: int, n: int, dtype: Any = np.float64) -> np.ndarray:
    """Return a vector per rank."""
    return np.random.default_rng((size, n)).standard_normal((size, n)).astype(dtype)


def mixed(kind: str, topology: Any, start: np.ndarray, rounds: int, *, push: bool = False) -> np.ndarray:
    """Return what every rank has after some rounds."""

    def program(group: Group) -> np.ndarray:
        mine = start[group.rank].copy()
        scratch = np.empty((2, *mine.shape), dtype=mine.dtype)
        for number in range(rounds):
            (push_sum if push else neighbour_mean)(group, mine, topology, number, scratch)
        return mine

    return np.stack(run_gang(kind, len(start), program))


@settings(max_examples=40)
@given(name=st.sampled_from(sorted(TOPOLOGIES)), size=st.integers(1, 16), n=st.sampled_from([0, 1, 7, 300]))
def test_a_round_multiplies_with_the_mixing_matrix(name: str, size: int, n: int) -> None:
    """Rounds of neighbour means are products of mixing matrices, and the sum over ranks stays."""
    topology, start = TOPOLOGIES[name], scatter_of(size, n)
    expected = start
    for number in range(3):
        expected = mixing_matrix(topology, size, number) @ expected
    result = mixed("inproc", topology, start, 3)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(result.sum(axis=0), start.sum(axis=0), rtol=0, atol=1e-13)


@settings(max_examples=25)
@given(name=st.sampled_from(sorted(TOPOLOGIES)), size=st.integers(1, 9), number=st.integers(0, 5))
def test_gossip_costs_what_the_closed_form_says(name: str, size: int, number: int) -> None:
    """Bytes and messages of a round are those of the peers alone."""
    topology = TOPOLOGIES[name]

    def program(group: Group) -> Cost:
        group.ledger.begin_round("sync")
        neighbour_mean(group, np.ones(11), topology, number, np.empty((2, 11)))
        return spent(group)

    for rank, cost in enumerate(run_gang("inproc", size, program)):
        assert cost == gossip_cost(topology, rank, size, 11, 8, number)


def test_gossip_is_refused_where_ranks_cannot_reach_each_other() -> None:
    """Threads of several processes exchange through the first of each; the error names the graph and what to do."""

    def program(group: Group) -> None:
        with pytest.raises(InvalidParameterError, match="scratch"):
            neighbour_mean(group, np.ones(3), Ring(), 0, np.empty((2, 4)))
        group.transport.processes = (0, 0, 1, 1)
        with pytest.raises(IncompatiblePartsError, match=r"Ring\(\).*one thread each"):
            neighbour_mean(group, np.ones(3), Ring(), 0, np.empty((2, 3)))

    run_gang("inproc", 4, program)


ETA, STEPS, WHOLE = 0.8, 25, 10**9
FEATURES = RandomFeatures(40, gamma=0.5, random_state=3)
FIT: dict[str, Any] = {
    "penalty": None, "fit_intercept": False, "learning_rate": "constant", "eta0": ETA, "max_iter": STEPS, "tol": None,
    "optimizer": GradientDescent(),
}  # fmt: skip


def blocks_of(ranks: int, rows: int = 30) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the rows and values of each agent."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ranks, rows, 2))
    return [(one, np.sin(2.0 * one[:, 0]) + 0.3 * rng.standard_normal(rows)) for one in X]


def made(blocks: list[Any]) -> list[Any]:
    """Return the same with the features of rows in their place."""
    maps = clone(FEATURES).fit(blocks[0][0])
    return [(maps.transform(X), y) for X, y in blocks]


@pytest.mark.parametrize("topology", [Ring(), Grid(), RandomRegular(3), Complete()], ids=repr)
def test_every_agent_has_the_model_of_the_paper(topology: Any) -> None:
    """On any graph each of nine agents ends with the model of the recursion, and the fit with their mean."""
    blocks = blocks_of(9)
    model = SGDRegressor(**FIT, features=FEATURES, sync=DPSGD(WHOLE, topology, keep_models=True)).fit(blocks)
    expected = decentralised(made(blocks), mixing_matrix(topology, 9), ETA, STEPS)
    np.testing.assert_allclose(model.rank_coef_, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.coef_, expected.mean(axis=0), rtol=1e-9, atol=1e-12)
    assert model.rank_intercept_.tolist() == [[0.0]] * 9
    spread = np.linalg.norm(model.rank_coef_ - model.coef_, axis=1)
    assert spread.max() < 1e-12 if isinstance(topology, Complete) else spread.min() > 1e-4


def test_neighbours_of_all_are_one_machine() -> None:
    """On the complete graph every agent is gradient descent on all rows, whose model has a closed form."""
    blocks = blocks_of(4)
    agents = SGDRegressor(**FIT, features=FEATURES, sync=DPSGD(WHOLE, Complete(), keep_models=True)).fit(blocks)
    X, y = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    alone = SGDRegressor(**FIT, features=FEATURES).fit(X, y)
    exchanged = SGDRegressor(**FIT, features=FEATURES, sync=MinibatchSGD(WHOLE)).fit(blocks)
    closed = after(clone(FEATURES).fit_transform(X), y, ETA, STEPS)
    for found in (*agents.rank_coef_, agents.coef_, alone.coef_, exchanged.coef_):
        np.testing.assert_allclose(found, closed, rtol=1e-9, atol=1e-11)


def test_a_round_is_one_step_though_its_gradient_comes_in_parts(monkeypatch: Any) -> None:
    """Where a round takes several calls there is one step; simulated ranks and rows on disk give the same bits."""
    import dsgd.runtime.train.visits as visits

    monkeypatch.setattr(visits, "entries_per_call", lambda n_params: 600)
    blocks = blocks_of(3)
    fit = {**FIT, "max_iter": 1, "features": FEATURES, "sync": DPSGD(WHOLE, keep_models=True), "shuffle": False}
    whole = SGDRegressor(**fit).fit(blocks)
    starts = np.array([ETA * F.T @ y / len(y) for F, y in made(blocks)])
    np.testing.assert_allclose(whole.rank_coef_, mixing_matrix(Ring(), 3) @ starts, rtol=1e-9)
    assert whole.t_ == 2.0
    simulated = SGDRegressor(**fit, client=SimulatedCluster(3, "10GbE")).fit(blocks)
    assert simulated.rank_coef_.tobytes() == whole.rank_coef_.tobytes()
    X, y = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    fit["n_jobs"] = 3
    kept, on_disk = (SGDRegressor(**fit, client=Gang(out_of_core=given)).fit(X, y) for given in (False, True))
    assert on_disk.rank_coef_.tobytes() == kept.rank_coef_.tobytes()


def test_steps_of_rounds_need_no_features() -> None:
    """A step a round is a plain minibatch of its rows, on columns as well, and strategies with local terms take it."""
    X, y = blocks_of(1, 240)[0]
    fit = {**FIT, "shuffle": False, "n_jobs": 2, "sync": LocalSGD(40)}
    step = SGDRegressor(**fit).fit(X, y)
    batch = SGDRegressor(**{**fit, "optimizer": Momentum(0.0, batch=40)}).fit(X, y)
    np.testing.assert_allclose(step.coef_, batch.coef_, rtol=1e-12)
    signs = np.where(X[:, 0] > 0.0, 1, -1)
    for sync in (FedProx(40, mu=0.1), SCAFFOLD(40)):
        fitted = SGDClassifier(**{**fit, "sync": sync}, loss="log_loss").fit(X, signs)
        assert fitted.score(X, signs) > 0.9


def test_what_does_not_go_together_is_refused() -> None:
    """Threads that share a model have no rounds, and models are kept or not."""
    X, y = blocks_of(1)[0]
    with pytest.raises(IncompatiblePartsError, match=r"Hogwild(.|\n)*GradientDescent"):
        SGDRegressor(**FIT, sync=Hogwild(), n_jobs=2).fit(X, y)
    plain = SGDRegressor(**FIT, sync=DPSGD(WHOLE, keep_models=True), n_jobs=2).fit(X, y)
    assert not hasattr(plain.set_params(sync=DPSGD(WHOLE)).fit(X, y), "rank_coef_")
