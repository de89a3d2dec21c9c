"""Streaming and eager DiLoCo: that what runs beside the steps changes nothing, and what cannot be."""

from __future__ import annotations

from unittest import mock

import pytest

from dsgd.compress import Half, TopK
from dsgd.errors import IncompatiblePartsError
from dsgd.runtime.train import rounds
from dsgd.sync import EagerDiLoCo, StreamingDiLoCo, resolve
from laws.gang import shards_of, train_on

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
