"""What strategies declare of themselves is what simulated gangs of them do.

A spy stands in the way of every message of a gang and of every exchange of its ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from dsgd import SGDRegressor, compress
from dsgd.comm.frames import OP_ALLGATHER
from dsgd.sim import SimulatedCluster, SlowRank
from dsgd.sim.cluster import Fabric, SimTransport
from dsgd.sync import (
    ADPSGD,
    STRATEGIES,
    AnytimeSGD,
    AsyncADMM,
    AutoSync,
    BackupWorkers,
    EagerDiLoCo,
    Hogwild,
    MinibatchSGD,
    OverlapSGP,
    PostLocalSGD,
    StaleSynchronous,
    StreamingDiLoCo,
    Taxonomy,
)
from dsgd.sync.adaptive import FixedPeriod
from dsgd.sync.averaging import AbstractBeside
from members import having

P, EVERY, ROUNDS = 5, 4, 24
SLOW = 0
FAR = 1e6  # entries of the first model; steps are many orders of magnitude smaller

SPECIAL: dict[str, Any] = {
    "auto": AutoSync(rule=FixedPeriod(EVERY)),
    "post-local": PostLocalSGD(EVERY, EVERY),
    "minibatch": MinibatchSGD(EVERY * P),
    "anytime": AnytimeSGD(seconds=1e3),
    # With workers in reserve ranks are dropped in the place of being waited for.
    "backup-workers": BackupWorkers(EVERY, backups=0),
}
ONCE = ("epoch", "one-shot", "hogwild")


def strategy_of(name: str) -> Any:
    """Return a strategy that exchanges after every four rows, where it has a period."""
    return SPECIAL.get(name) or (STRATEGIES[name]() if name in ONCE else STRATEGIES[name](EVERY))


class Spy:
    """What ranks have done: when their exchanges ended, and the messages of exchanges."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, int]] = []
        self.messages: list[tuple[int, int, np.ndarray]] = []
        self._inside = threading.local()

    def between(self) -> int:
        """Return how many exchanges any rank has ended between two of the slow one, at most."""
        since, most = [0] * P, 0
        for _, rank in sorted(self.ends):
            since = [0] * P if rank == SLOW else [n + (k == rank) for k, n in enumerate(since)]
            most = max(most, *since)
        return most

    @contextmanager
    def watching(self, kind: type[Any]) -> Iterator[None]:
        """Watch gangs of a strategy on simulated ranks, message by message."""
        sync, send, make = kind.sync, Fabric.send, SimTransport.__init__
        exchange = getattr(kind, "beside", None)
        spy = self

        def synced(strategy: Any, group: Any, *args: Any) -> None:
            spy._inside.now = True
            sync(strategy, group, *args)
            spy._inside.now = False
            spy.ends.append((group.ledger.clock(), group.rank))

        def beside(strategy: Any, *args: Any) -> None:
            was, spy._inside.now = getattr(spy._inside, "now", False), True
            exchange(strategy, *args)
            spy._inside.now = was

        def sent(fabric: Any, source: int, to: int, array: Any, op: int, at: float) -> Any:
            if source >= P or getattr(spy._inside, "now", False):
                spy.messages.append((source, to, np.array(array) if op != OP_ALLGATHER else np.empty(0)))
            return send(fabric, source, to, array, op, at)

        def made(transport: Any, *args: Any) -> None:
            make(transport, *args)
            transport.offload = None  # or sums would be played without messages

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, "sync", synced)
            if issubclass(kind, AbstractBeside):
                patch.setattr(kind, "beside", beside)
            patch.setattr(Fabric, "send", sent)
            patch.setattr(SimTransport, "__init__", made)
            yield


def watch(strategy: Any) -> Spy:
    """Train on ranks of which one is a thousand times as slow, far from the minimum and at tiny rates."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((P * EVERY * ROUNDS, 3)), rng.standard_normal(P * EVERY * ROUNDS)
    cluster = SimulatedCluster(P, "10GbE", stragglers=SlowRank(SLOW, 1e3))
    model = SGDRegressor(
        loss="huber",
        epsilon=0.01,
        penalty=None,
        learning_rate="constant",
        eta0=1e-9,
        max_iter=1,
        tol=None,
        sync=strategy,
        client=cluster,
        random_state=0,
    )
    spy = Spy()
    with spy.watching(type(strategy)):
        model.fit(X, y, coef_init=np.full(3, FAR), intercept_init=np.full(1, FAR))
    return spy


@pytest.fixture(scope="module")
def watched() -> dict[str, Spy]:
    """What every strategy did."""
    return {name: watch(strategy_of(name)) for name in STRATEGIES}


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_says_what_it_is(name: str) -> None:
    """Every strategy of the package has a place in the taxonomy, which is that of what the rank loop knows of it."""
    kind = STRATEGIES[name]
    place = kind.taxonomy
    assert isinstance(place, Taxonomy)
    assert (place.sends == "gradient") == (kind.exchanges == "gradient")
    assert (place.pattern == "server") == (kind.n_servers > 0)
    assert (place.pattern in ("gossip", "pairs")) == (kind.talks != "together" and not kind.n_servers)
    # Ranks with models of their own bring them together; with one model there is nothing to bring together.
    if kind.exchanges == "gradient":
        assert place.optimisation == "centralised"


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in ONCE])
def test_ranks_wait_as_their_strategy_says(name: str, watched: dict[str, Spy]) -> None:
    """Between two rounds of a slow rank others have few if synchronous, the bound if bounded, else a whole epoch."""
    strategy, rounds = strategy_of(name), watched[name].between()
    scheduling = strategy.taxonomy.scheduling
    if scheduling == "synchronous":
        # On a graph a rank waits for its neighbours, and for others over them.
        hops = P // 2 if strategy.taxonomy.pattern == "gossip" else 1
        assert rounds <= 1 + hops
    elif scheduling == "bounded":
        bound = {
            AsyncADMM: lambda s: s.delay + 1,
            StaleSynchronous: lambda s: s.slack + 1,
            OverlapSGP: lambda s: (s.delay + 1) * (P // 2),
            StreamingDiLoCo: lambda s: 2,
            EagerDiLoCo: lambda s: 2,
        }
        # Exchanges beside steps are waited for too, a round later: what is old is the model, and ranks stay together.
        assert isinstance(strategy, AbstractBeside) or rounds > 2
        assert rounds <= bound[type(strategy)](strategy) < ROUNDS // 2
    else:
        assert rounds > ROUNDS // 2


@pytest.mark.parametrize("name", STRATEGIES)
def test_messages_go_where_the_strategy_says(name: str, watched: dict[str, Spy]) -> None:
    """Messages of an exchange are between a worker and the server, neighbours, pairs, or reach every rank."""
    strategy, pattern = strategy_of(name), STRATEGIES[name].taxonomy.pattern
    edges = {(source, to) for source, to, _ in watched[name].messages}
    if pattern == "shared memory":
        assert not edges
    elif pattern == "server":
        assert edges == {(worker, P) for worker in range(P)} | {(P, worker) for worker in range(P)}
    elif pattern == "gossip":
        graph = strategy.topology
        near = {(rank, to) for k in range(graph.period(P)) for rank in range(P) for to in graph.out_peers(rank, P, k)}
        assert edges == near
    elif pattern == "pairs":
        assert {source % 2 == to % 2 for source, to in edges} == {False}
    else:
        reached = {0}
        for _ in range(P):
            reached |= {to for source, to in edges if source in reached}
        assert reached == set(range(P))


@pytest.mark.parametrize("name", [name for name in STRATEGIES if STRATEGIES[name].taxonomy.sends != "nothing"])
def test_vectors_are_what_the_strategy_says(name: str, watched: dict[str, Spy]) -> None:
    """Far from zero and at tiny rates, models on the wire are long, and gradients and changes are short."""
    place = STRATEGIES[name].taxonomy
    found = []
    for source, _, array in watched[name].messages:
        # A server answers with its model, whatever it is sent. What is gathered are numbers beside the vectors.
        if source < P and array.nbytes > 8:
            # The three numbers before the vector of a message to a server are short, or words.
            numbers = array.view(np.float64) if array.dtype == np.uint8 else array
            found.append(float(np.abs(numbers[3:] if place.pattern == "server" else numbers).max()))
    long = np.array(found) > 1e-2 * FAR
    assert long.all() if place.sends == "model" else not long.any()


SERVED = {strategy for strategy in STRATEGIES.values() if strategy.n_servers}
#: No exchange has a twin where ranks do not all meet, or when the clock says so; who meets in pairs is chance.
EXEMPT = {"twin": {*SERVED, ADPSGD, AnytimeSGD, Hogwild}, "sent": {ADPSGD}, "settles": set(), "training": set()}


@pytest.mark.parametrize("field", EXEMPT)
def test_every_strategy_has_a_member_that_says(field: str) -> None:
    """No strategy of the package is left out of a law that applies to it."""
    missing = set(STRATEGIES.values()) - EXEMPT[field] - {type(member.strategy) for member in having(field)}
    assert not missing, f"tests/members.py needs {field}= for {', '.join(s.__name__ for s in missing)}"


def test_every_compressor_has_a_twin() -> None:
    """No compressor of the package is left out of whole trainings."""
    used = " ".join(map(repr, having("training")))
    for name, value in vars(compress).items():
        if isinstance(value, type) and issubclass(value, compress.AbstractCompressor):
            assert name == "AbstractCompressor" or f"{name}(" in used
