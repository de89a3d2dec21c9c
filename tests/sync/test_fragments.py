"""Streaming DiLoCo: what it is with one fragment, how many hide behind steps, and that its threads change nothing."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest

from dsgd.compress import Half, TopK
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.runtime.train import rounds
from dsgd.sim import NETWORKS, Compute, Link, SimulatedCluster, predict
from dsgd.sync import DiLoCo, EagerDiLoCo, StreamingDiLoCo, resolve, streaming_for
from laws.gang import shards_of, train_on

N, P, ROW_S, ADDED_S = 200_000, 8, 2e-6, 1.5e-10


def seconds(network: str, strategy: StreamingDiLoCo | DiLoCo) -> float:
    """Return the predicted seconds of ten periods, in which steps take as long as rows, over those of the steps."""
    cluster = SimulatedCluster(
        P, network, compute=Compute(call_s=0.0, row_s=ROW_S, entry_s=0.0, param_s=0.0, added_byte_s=ADDED_S)
    )
    rounds = 10 * getattr(strategy, "fragments", 1)
    rows = int(strategy.every or 0)
    found = predict(cluster, n_params=N, rows=rows, entries=0, rounds=rounds, sync=strategy)
    return found.seconds / (rounds * rows * ROW_S)


@pytest.mark.parametrize("network", ["1GbE", "10GbE", "100GbE"])
@pytest.mark.parametrize("slack", [None, 1.5, 3.0])
def test_as_many_fragments_hide_as_can(network: str, slack: float | None) -> None:
    """What is chosen takes no longer than its steps; more fragments, or all at once in the same period, do."""
    between = NETWORKS[network].between
    link = Link(latency_s=between.alpha_s, byte_s=between.byte_s, added_byte_s=ADDED_S)
    shortest = streaming_for(N, P, link, ROW_S)
    period = None if slack is None else int(slack * shortest.every * shortest.fragments)
    chosen = streaming_for(N, P, link, ROW_S, period=period)
    whole = chosen.every * chosen.fragments
    assert chosen.fragments >= 4
    assert seconds(network, chosen) < 1.02
    assert seconds(network, DiLoCo(whole)) > 1.2
    if chosen.fragments < 64:
        more = replace(chosen, fragments=4 * chosen.fragments, every=max(1, chosen.every // 4))
        assert seconds(network, more) > seconds(network, chosen)


def test_fragments_follow_the_latency() -> None:
    """A tenfold latency takes fewer fragments, none at all as many as may be, and a short period the whole model."""
    counts = [
        streaming_for(N, P, Link(latency_s=alpha, byte_s=1e-9), ROW_S, period=4096).fragments
        for alpha in (0.0, 1e-4, 1e-3)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 64 > counts[1] > counts[2] >= 1
    assert streaming_for(N, P, Link(latency_s=1e-3, byte_s=1e-9), ROW_S, period=2) == StreamingDiLoCo(2, 1, 1)
    assert streaming_for(2, P, Link(byte_s=1e-9), ROW_S).fragments <= 2


@pytest.mark.parametrize(
    "wrong", [{"n_params": 0}, {"size": 1}, {"row_s": 0.0}, {"period": 0}, {"itemsize": 0}], ids=lambda w: next(iter(w))
)
def test_numbers_are_checked(wrong: dict[str, float]) -> None:
    """What cannot be is refused by its name."""
    options = {"n_params": N, "size": P, "link": Link(latency_s=1e-4, byte_s=1e-9), "row_s": ROW_S, **wrong}
    with pytest.raises(InvalidParameterError, match=next(iter(wrong))):
        streaming_for(**options)  # type: ignore[arg-type]


SHARDS = shards_of([40, 25, 33], d=7)


@pytest.mark.parametrize(
    "strategy", [EagerDiLoCo(8), *(StreamingDiLoCo(8, 3, delay, compressor=TopK(0.3)) for delay in (1, 2))], ids=repr
)
def test_threads_change_no_bit(strategy):
    """Sums beside the steps of a round give the model of sums for which all ranks wait."""
    beside = train_on("threads", SHARDS, strategy)[0].params
    with mock.patch.object(rounds, "beside_for", return_value=None):
        waiting = train_on("threads", SHARDS, strategy)[0].params
    assert beside.tobytes() == waiting.tobytes()


def test_more_fragments_than_parameters_are_those():
    """A fragment has one parameter at least."""
    found = train_on("threads", SHARDS, StreamingDiLoCo(8, 50, 0))[0].params
    fewer = train_on("threads", SHARDS, StreamingDiLoCo(8, len(found), 0))[0].params
    assert found.tobytes() == fewer.tobytes()


def test_parameters_are_checked():
    """What cannot be is refused, and texts name the strategy."""
    with pytest.raises(IncompatiblePartsError, match="trains nothing"):
        StreamingDiLoCo(8, 2, 2, 0.0)
    assert resolve("streaming-diloco:every=64,fragments=2,compressor=fp16") == StreamingDiLoCo(64, 2, compressor=Half())
