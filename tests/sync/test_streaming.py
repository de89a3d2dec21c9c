"""Streaming DiLoCo: what it is with one fragment, what it sends, and that its threads change nothing."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from dsgd import SGDClassifier
from dsgd.collectives import allreduce_cost, compressed_cost
from dsgd.compress import Half, TopK
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.runtime.train import rounds
from dsgd.sim import Compute, SimulatedCluster
from dsgd.sync import DiLoCo, StreamingDiLoCo, resolve
from laws.gang import exchange, shards_of, train_on

SHARDS = shards_of([40, 25, 33], d=7)


@pytest.mark.parametrize("compressor", [None, TopK(0.3), Half()], ids=repr)
@pytest.mark.parametrize("kind", ["threads", "tcp"])
def test_one_fragment_is_diloco(kind, compressor):
    """With one fragment that is taken up at once the model is that of DiLoCo, to the bit."""
    streaming = StreamingDiLoCo(8, 1, 0, 0.0, 0.6, 0.4, compressor)
    ours, theirs = (train_on(kind, SHARDS, s)[0].params for s in (streaming, DiLoCo(8, 0.6, 0.4, compressor)))
    assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("delay", [1, 2])
def test_threads_change_no_bit(delay):
    """Sums beside the steps of a round give the model of sums for which all ranks wait."""
    strategy = StreamingDiLoCo(8, 3, delay, compressor=TopK(0.3))
    beside = train_on("threads", SHARDS, strategy)[0].params
    with mock.patch.object(rounds, "beside_for", return_value=None):
        waiting = train_on("threads", SHARDS, strategy)[0].params
    assert beside.tobytes() == waiting.tobytes()


@pytest.mark.parametrize("compressor", [None, Half()], ids=repr)
@pytest.mark.parametrize("fragments", [1, 2, 5])
def test_a_period_sends_one_model_in_so_many_exchanges(fragments, compressor):
    """In as many rounds as fragments the bytes of one model are sent, an equal part in each of them."""
    n, size = 12_800, 4  # whole words on every rank
    strategy = StreamingDiLoCo(8, fragments, 0, compressor=compressor)
    stay = lambda k, rank, model: model  # noqa: E731
    _, _, totals, _ = exchange(strategy, np.zeros(n), np.full(size, 1 / size), fragments, stay, lambda k, r: 0.0)
    whole = allreduce_cost(0, size, n, 8) if compressor is None else compressed_cost(0, size, n, 8, compressor)
    sent = np.diff([0, *(each["bytes_sent"] for each in totals[0])])
    messages = totals[0][-1]["messages"]
    assert whole is not None
    assert sent.sum() - 40 * messages == whole.n_bytes - 40 * whole.messages
    assert np.ptp(sent) == 0
    assert sent.max() - 40 * messages // fragments == (whole.n_bytes - 40 * whole.messages) // fragments


def test_ranks_do_not_wait_for_sums_that_are_short():
    """On simulated ranks whose steps take longer than a sum, a delay hides all sums but that in the end."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 5))
    options = {"max_iter": 3, "tol": None, "random_state": 0}
    cluster = SimulatedCluster(4, "1GbE", compute=Compute(row_s=1e-3))
    seconds = []
    for delay in (0, 1):
        clf = SGDClassifier(sync=StreamingDiLoCo(10, 2, delay), client=cluster, **options).fit(X, X[:, 0] > 0)
        seconds.append(clf.ledger_.elapsed_s)
    assert seconds[1] < seconds[0]


def test_more_fragments_than_parameters_are_those():
    """A fragment has one parameter at least."""
    found = train_on("threads", SHARDS, StreamingDiLoCo(8, 50, 0))[0].params
    fewer = train_on("threads", SHARDS, StreamingDiLoCo(8, len(found), 0))[0].params
    assert found.tobytes() == fewer.tobytes()


def test_parameters_are_checked():
    """What cannot be is refused, and texts name the strategy."""
    with pytest.raises(IncompatiblePartsError, match="trains nothing"):
        StreamingDiLoCo(8, 2, 2, 0.0)
    for wrong in ({"fragments": 0}, {"delay": 5}, {"mixing": 1.0}, {"outer_rate": 0.0}):
        with pytest.raises(InvalidParameterError, match=next(iter(wrong))):
            StreamingDiLoCo(**wrong)
    assert resolve("streaming-diloco:every=64,fragments=2,compressor=fp16") == StreamingDiLoCo(64, 2, compressor=Half())
