"""Gradients summed in buckets, beside the pass that makes them: the same bits as one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsgd import SGDClassifier
from dsgd.collectives import allreduce_cost
from dsgd.compress import QSGD, Half
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.runtime import run_on_threads
from dsgd.sync import MinibatchSGD
from dsgd.sync.minibatch import GradientBuckets


def _bucketed(rank: Any, vector: Any, n_bytes: int, overlap: bool, places: list[int], compressor: Any = None) -> Any:
    buckets = GradientBuckets(rank.group, n_bytes, overlap=overlap, compressor=compressor)
    try:
        found = []
        for k in range(3):
            mine = vector * (k + 1)
            buckets.begin(mine, 2, 1.0 / rank.size)
            for place in places:
                buckets.ready(place)
            buckets.finish()
            found.append(mine)
        return found, rank.ledger.totals() if hasattr(rank.ledger, "totals") else None
    finally:
        buckets.close()


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("n", [0, 1, 5, 1000])
def test_overlap_changes_no_bit(size: int, n: int) -> None:
    """Whatever order parts come in and however long buckets are, sums are those of buckets one after the other."""
    vectors = [np.random.default_rng(r).standard_normal(n).astype(np.float32) for r in range(size)]
    mean = sum(vector.astype(np.float64) for vector in vectors) / (2 * size)
    for n_bytes in (4, 300, 10**6):
        if n_bytes == 4 and n > 5:
            continue
        plain = run_on_threads(_bucketed, vectors, (n_bytes, False, [0])).value[0]
        for places in ([0], [n // 2, 0], list(range(n, -1, -max(1, n // 7)))):
            beside = run_on_threads(_bucketed, vectors, (n_bytes, True, places)).value[0]
            for a, b in zip(plain, beside, strict=True):
                assert a.tobytes() == b.tobytes()
        np.testing.assert_allclose(plain[0], mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(plain[2], 3 * mean, rtol=1e-5, atol=1e-6)


def test_training_in_buckets_is_training() -> None:
    """On two ranks a linear model is bit for bit that of whole gradients; messages are those of the buckets."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((240, 50))
    y = X[:, 0] > 0
    models = [
        SGDClassifier(max_iter=2, tol=None, random_state=0, n_jobs=2, sync=sync).fit(X, y)
        for sync in (
            MinibatchSGD(60), MinibatchSGD(60, bucket_bytes=96), MinibatchSGD(60, bucket_bytes=96, overlap=True),
        )
    ]  # fmt: skip
    assert len({model.coef_.tobytes() for model in models}) == 1
    # 51 numbers of 8 bytes in buckets of 96: four of 12 and one of 3, in the place of one.
    whole, apart, beside = (model.ledger_.totals()["messages"] for model in models)
    assert apart == beside
    assert apart - whole == 8 * 2 * 4 * allreduce_cost(0, 2, 12, 8).messages


@pytest.mark.parametrize("half", [Half(), Half("bfloat16")], ids=repr)
def test_halves_in_buckets_are_halves_of_the_whole(half: Half) -> None:
    """Cut anywhere, beside the pass or after it, gradients in half precision have the mean that they have whole."""
    vectors = [np.random.default_rng(r).standard_normal(700).astype(np.float32) for r in range(3)]
    whole, *parts = (
        run_on_threads(_bucketed, vectors, (n_bytes, overlap, [350, 0], half)).value[0]
        for n_bytes, overlap in ((10**6, False), (300, False), (300, True))
    )
    for found in parts:
        assert [a.tobytes() for a in found] == [a.tobytes() for a in whole]
    X = np.random.default_rng(0).standard_normal((120, 50))
    models = [
        SGDClassifier(max_iter=2, tol=None, random_state=0, n_jobs=2, sync=sync).fit(X, X[:, 0] > 0)
        for sync in (
            MinibatchSGD(60, compressor=half), MinibatchSGD(60, bucket_bytes=96, overlap=True, compressor=half),
        )
    ]  # fmt: skip
    assert len({model.coef_.tobytes() for model in models}) == 1


def test_buckets_that_cannot_be_are_refused() -> None:
    """No overlap without buckets, no compressor with them that looks at all entries."""
    with pytest.raises(InvalidParameterError, match="bucket_bytes"):
        MinibatchSGD(32, overlap=True)
    with pytest.raises(InvalidParameterError, match="bucket_bytes"):
        MinibatchSGD(32, bucket_bytes=0)
    with pytest.raises(IncompatiblePartsError, match="QSGD"):
        MinibatchSGD(32, bucket_bytes=64, compressor=QSGD())
