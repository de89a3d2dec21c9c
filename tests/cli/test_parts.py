"""Texts of the command line that name parts: strategies, and their parameters."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dsgd.cli.options import parse_sync
from dsgd.comm.topology import Star
from dsgd.compress import QSGD, TopK
from dsgd.errors import InvalidParameterError
from dsgd.sync import SGP, AnytimeSGD, ChocoSGD, DiLoCo, LocalSGD, MinibatchSGD


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("256", 256),
        ("epoch", "epoch"),
        ("one-shot", "one-shot"),
        ("overlap-sgp", "overlap-sgp"),
        ("minibatch:64", MinibatchSGD(batch=64)),
        ("anytime:0.5", AnytimeSGD(seconds=0.5)),
        ("diloco:every=512,outer_rate=0.7", DiLoCo(every=512, outer_rate=0.7)),
        ("dsgd.sync:DiLoCo:every=512", DiLoCo(every=512)),
        ("local:64,compressor=topk:density=0.1", LocalSGD(64, compressor=TopK(0.1))),
        ("sgp:topology=star:2", SGP(topology=Star(2))),
        ("minibatch:base_batch=none,compressor=auto,overlap=no", MinibatchSGD(compressor="auto")),
        ("choco:compressor=(qsgd:levels=3,bucket=64)", ChocoSGD(compressor=QSGD(3, 64))),
    ],
)
def test_sync_is_read(text: str, expected: Any) -> None:
    """Every way to write --sync names its strategy."""
    assert parse_sync(text) == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "often"])
def test_wrong_sync_names_the_choices(text: str) -> None:
    """A --sync that means nothing is refused with the ways to write it."""
    with pytest.raises(
        InvalidParameterError, match=r"a number of samples \(256\), one of local, epoch, one-shot.*minibatch:64"
    ):
        parse_sync(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("minibatch:", r"MinibatchSGD has batch, base_batch"),
        ("minibatch:0", r"MinibatchSGD\(batch=...\) must be"),
        ("minibatch:x", r"MinibatchSGD\(batch=...\) must be a whole number\. Got 'x'"),
        ("anytime:", r"AnytimeSGD has seconds"),
        ("anytime:0", r"AnytimeSGD\(seconds=...\) must be"),
        ("anytime:x", r"AnytimeSGD\(seconds=...\) must be a number"),
        ("diloco:evry=512", r"'evry' is no parameter. DiLoCo has every, outer_rate, outer_momentum, compressor"),
        ("diloco:every=1,every=2", "'every' is given twice"),
        ("local:8,16", "'16' is no parameter: write NAME=VALUE"),
        ("one-shot:3", "OneShotAveraging takes no parameters"),
        ("leader:returns=best", r"LeaderSGD\(returns=...\) must be mean or leader"),
        ("local:compressor=zip", r"must be a compressor \(topk, .*or auto or none\. Got 'zip'"),
        ("sgp:topology=moebius", r"must be a topology \(bipartite, "),
        ("sgp:topology=grid:wraps=8", r"Grid\(wraps=...\) must be true or false"),
        ("dsgd.sync:LocalSGD:evry=8", r"'evry' is no parameter. LocalSGD has every"),
    ],
)
def test_wrong_parameters_are_named(text: str, told: str) -> None:
    """A parameter that cannot be is named, and beside it stand those that there are, or what it must be."""
    with pytest.raises(InvalidParameterError, match=f"^--sync '{re.escape(text)}': .*{told}"):
        parse_sync(text)
