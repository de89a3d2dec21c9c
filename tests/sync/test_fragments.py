"""Streaming and eager DiLoCo: that what runs beside the steps changes nothing, and what cannot be."""

from __future__ import annotations

from unittest import mock

import pytest

from dsgd.compress import TopK
from dsgd.runtime.train import rounds
from dsgd.sync import EagerDiLoCo, StreamingDiLoCo
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
