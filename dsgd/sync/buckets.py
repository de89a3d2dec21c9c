"""Sums of a gradient in buckets, while the backward pass still computes.

Problem: a backward pass brings the gradient of the last layer long before that of the first, and a sum of whole
gradients waits for all of it.

Method: the vector is cut into buckets from its end, where the last layers are, to its front. As soon as the gradient is
final from the start of a bucket on, a separate thread sums the bucket while the pass continues. Buckets have fixed
places and are summed in order, so that all ranks sum the same entries in the same order. Whether a sum runs during the
pass or after it changes no bit.

A compressor that takes entries one by one (`Half`) sees each bucket by itself, and its mean is that of the whole.

Cost per round: one all-reduce for each bucket, `dsgd.collectives.allreduce_cost`, or with a compressor
`dsgd.collectives.compressed_cost`. The same bytes as one of the whole, and a message's latency more for each bucket, of
which what runs beside the pass costs nothing.

Source: Das et al. 2016, section 3; Li et al. 2020 (buckets in reverse order).
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from dsgd.collectives.group import Group
from dsgd.compress.base import AbstractCompressor, AbstractMemory
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractStrategy
from dsgd.sync.minibatch import MinibatchSGD
from dsgd.types import FloatVector


class GradientBuckets:
    """Turns the sum of a rank's gradients into the mean over all ranks; used in the order begin, ready ..., finish.

    Between `begin` and `finish` nothing else may use the group.
    """

    def __init__(
        self, group: Group, n_bytes: int, *, overlap: bool, compressor: AbstractCompressor[Any] | None = None
    ) -> None:
        self._group, self._n_bytes, self._compressor = group, n_bytes, compressor
        self._memory: AbstractMemory | None = None
        self._thread = group.transport.helper("dsgd-buckets") if overlap else None
        self._running: list[Future[None]] = []
        self._vector: FloatVector | None = None
        self._end = 0

    def begin(self, vector: FloatVector, n_rows: int, weight: float) -> None:
        """Begin with a gradient that is not there yet.

        - `vector`, shape (n_params,): where it will be, summed over rows; in the end it is the mean over ranks.
        """
        self._vector, self._end = vector, len(vector)
        if self._compressor is not None and self._memory is None:
            group = self._group
            # It remembers nothing: this is where it works.
            self._memory = self._compressor.init(len(vector), vector.dtype, group.seed, group.rank, group.size)
        self._n_rows, self._weight = max(1, n_rows), weight
        self._running.clear()

    def ready(self, start: int) -> None:
        """Take note that the vector is final from `start` on; called with ever smaller places, 0 in the end."""
        assert self._vector is not None  # begin comes first
        length = max(1, self._n_bytes // self._vector.itemsize)
        while self._thread is not None and self._end and max(0, self._end - length) >= start:
            low = max(0, self._end - length)
            self._running.append(self._thread.submit(self._mean, self._vector[low : self._end]))
            self._end = low
        if self._thread is None and start == 0:
            while self._end:
                low = max(0, self._end - length)
                self._mean(self._vector[low : self._end])
                self._end = low

    def finish(self) -> None:
        """Wait for all buckets."""
        self.ready(0)
        for future in self._running:
            future.result()
        self._running.clear()

    def close(self) -> None:
        """Let the thread end, after the sum that it may be in."""
        if self._thread is not None:
            self._thread.shutdown()

    def _mean(self, part: FloatVector) -> None:
        part /= self._n_rows
        if self._compressor is None:
            weighted_mean(self._group, part, self._weight)
        else:
            from dsgd.collectives.compressed import compressed_mean  # most gradients are summed whole

            compressed_mean(self._group, part, self._weight, self._compressor, self._memory)


def buckets_for(group: Group, strategy: AbstractStrategy[Any]) -> GradientBuckets | None:
    """Return the buckets in which a strategy sums gradients; None if it has none, or on a single rank."""
    if not isinstance(strategy, MinibatchSGD) or strategy.bucket_bytes is None or group.size == 1:
        return None
    compressor = strategy.compressor
    assert compressor != "auto"  # refused with buckets
    return GradientBuckets(group, strategy.bucket_bytes, overlap=strategy.overlap, compressor=compressor)
