"""Minibatch SGD, and the sums of its gradients in buckets."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

from dsgd.collectives.group import Group
from dsgd.compress.base import AbstractCompressor, AbstractMemory
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractStrategy, NoState
from dsgd.sync.compression import CompressionState, Compressor, gradient_mean, start_compression
from dsgd.sync.period import EveryBatch, GrowingBatch, Taxonomy
from dsgd.types import FloatVector
from dsgd.validation import number


@dataclass(frozen=True)
class MinibatchSGD(AbstractStrategy[NoState | CompressionState]):
    """Take one step per batch, with the gradient of the whole batch.

    Problem: local models drift apart; here there is only one model at any time, at the price of a message per step.

    Update: with B rows over all ranks in a batch and B_p of them on rank p, ``g <- sum_p (B_p / B) g_p`` where ``g_p``
    is the mean gradient of rank p's rows; then every rank takes the same step with ``g``.

    The rate may grow with the batch: kappa times that of a batch of `base_batch` rows, with kappa = batch / base_batch,
    after a warm-up in which the factor grows from 1 to kappa in a straight line, step by step. For linear models
    ``rates="pooled"`` finds the factor that compensates for steps of B rows when rates fall more slowly than 1 / t:
    ``B^(1 - p)`` at rates c / t^p, which is B at constant ones, as far as rows of that length allow.

    Where rates fall like 1 / t, as they do by default, the model at the end of an epoch is the mean over its last half
    (`dsgd.local.sgd`): steps are few, and after as many rows longer than those of single rows. ``suffix=0.0``
    leaves the last one.

    A batch may grow in the place of a rate that falls: where others divide the rate by a factor, the batch is
    multiplied by it (`growth`). What noise there is in a step depends on the rate over the batch, so that the loss
    falls as fast in epochs, with ever fewer steps and messages.

    Gradients may be summed in buckets, alongside the pass that makes them; see `dsgd.sync.minibatch.GradientBuckets`.
    Cost per round: one all-reduce of the gradient, `dsgd.collectives.allreduce_cost`; ``ceil(rows / batch)`` rounds per
    epoch.

    Source: Dekel, Gilad-Bachrach, Shamir and Xiao 2012; scaling and warm-up: Goyal et al. 2017, sections 2.1 and 2.2;
    growing batches: Smith, Kindermans, Ying and Le 2018.

    Parameters
    ----------
    batch : int, default 32
        Rows of a batch, over all ranks together.
    base_batch : int or None, default None
        The batch that the learning rate is meant for; None is `batch` itself, a factor of one.
    warmup : float, default 0
        Epochs until the rate has its whole factor. The source takes 5.
    growth : float, default 1.0
        What the batch is multiplied by after every `growth_every` epochs, in the place of a rate that is divided by it:
        use it with ``learning_rate="constant"``. One leaves the batch as it is.
    growth_every : int, default 1
        Epochs from one batch to the next.
    max_batch : int or None, default None
        The batch does not grow beyond it; None is all rows.
    compressor : AbstractCompressor, "auto" or None, default None
        How gradients are encoded. A biased compressor must be wrapped in `ErrorFeedback` or have its own memory;
        ``"auto"`` sends the entries that are not zero and loses nothing. See `dsgd.sync.compression`.
    bucket_bytes : int or None, default None
        Gradients are summed in buckets of so many bytes, those of the last layers first; None sums them whole. Of the
        compressors, those go with it that take entries one by one: `Half`.
    overlap : bool, default False
        Whether buckets are summed while the gradients of earlier layers are computed. Use it for neural networks on a
        slow wire. It changes no bit.
    suffix : float, default 0.5
        If rates fall like 1 / t, the model at the end of an epoch is the mean over this share of its steps, the last
        ones; 0 takes the last model, as in the source. Of linear models.
    rates : {"own", "pooled"}, default "own"
        ``"own"``: the rate of a step is that of the schedule, times the factor above. ``"pooled"``: rates of plain
        steps of linear models are raised so that an epoch gets as far as one of steps by row; it replaces `base_batch`.

    Raises
    ------
    IncompatiblePartsError
        The compressor leaves out what never comes, or chooses among entries that are summed in buckets.
    InvalidParameterError
        `batch`, `base_batch` or `bucket_bytes` is not a positive integer, `warmup` is negative or has no factor to grow
        to, `growth` is below one or meets what raises the rate, `overlap` has no buckets, `suffix` is not in [0, 1],
        there are no such rates, or they are pooled with a `base_batch`.
    """

    batch: int = number(32, low=1)
    base_batch: int | None = number(None, low=1)
    warmup: float = number(0.0, low=0)
    compressor: Compressor = None
    bucket_bytes: int | None = number(None, low=1)
    overlap: bool = False
    suffix: float = number(0.5, low=0.0, high=1.0)
    rates: Literal["own", "pooled"] = "own"
    growth: float = number(1.0, low=1)
    growth_every: int = number(1, low=1)
    max_batch: int | None = number(None, low="batch")
    exchanges = "gradient"
    taxonomy = Taxonomy("centralised", "synchronous", "gradient", "all-reduce")

    def __post_init__(self) -> None:
        """Refuse a batch that is not a positive number of rows."""
        super().__post_init__()
        if self.warmup > 0 and self.base_batch is None:
            raise InvalidParameterError(
                f"MinibatchSGD(warmup=...) needs a factor to grow to: pass base_batch too. Got {self.warmup!r}."
            )
        if self.bucket_bytes and self.compressor is not None and not getattr(self.compressor, "entrywise", False):
            raise IncompatiblePartsError(
                f"MinibatchSGD(bucket_bytes=...) cannot be combined with compressor={self.compressor!r}, which "
                "selects among all entries of a gradient. Leave out one of them, or use Half()."
            )
        if self.overlap and self.bucket_bytes is None:
            raise InvalidParameterError(
                "MinibatchSGD(overlap=True) sums buckets during the backward pass: pass bucket_bytes too, such as "
                "2**20."
            )
        if self.rates == "pooled" and self.base_batch is not None:
            raise InvalidParameterError(
                "MinibatchSGD(rates='pooled') finds the factor of the rate that base_batch gives: pass one of them. "
                f"Got base_batch={self.base_batch!r}."
            )
        if self.growth != 1.0 and (self.base_batch is not None or self.rates == "pooled"):
            raise InvalidParameterError(
                "MinibatchSGD(growth=...) lets the batch grow in the place of the rate, which base_batch and "
                f"rates='pooled' raise with the batch: pass one of them. Got growth={self.growth!r}."
            )
        if self.growth == 1.0 and self.max_batch is not None:
            raise InvalidParameterError(
                f"MinibatchSGD(max_batch=...) bounds a batch that grows: pass growth too. Got {self.max_batch!r}."
            )

    @property
    def period(self) -> EveryBatch | GrowingBatch:
        """After every batch."""
        if self.growth == 1.0:
            return EveryBatch(self.batch)
        return GrowingBatch(self.batch, self.growth, self.growth_every, self.max_batch)

    def lag(self, n_ranks: int, power: float) -> float:
        """Return how many times less far steps of batches get than steps by row; see `AbstractStrategy.lag`."""
        return float(self.batch ** (1.0 - power))

    def rate_factor(self, progress: float) -> float:
        """Return the factor of the learning rate of a step that ends `progress` epochs after the first began."""
        kappa = self.batch / (self.base_batch or self.batch)
        return 1.0 + (kappa - 1.0) * (min(1.0, progress / self.warmup) if self.warmup > 0.0 else 1.0)

    def init(self, group: Group, params: FloatVector, weight: float) -> NoState | CompressionState:
        """Return what the compressor remembers; without one, nothing."""
        return start_compression(self, group, params, keeps_model=False)

    def sync(self, group: Group, vector: FloatVector, weight: float, state: NoState | CompressionState) -> None:
        """Replace the gradient by the weighted mean of all gradients; see `AbstractStrategy.sync`."""
        gradient_mean(group, vector, weight, self.compressor, state)


class GradientBuckets:
    """Turns the sum of a rank's gradients into the mean over all ranks; used in the order begin, ready ..., finish.

    A backward pass brings the gradient of the last layer long before that of the first. So the vector is cut into
    buckets from its end to its front, and as soon as the gradient is final from the start of a bucket on, a separate
    thread sums the bucket while the pass continues. Buckets have fixed places and are summed in order: whether a sum
    runs during the pass or after it changes no bit. A compressor that takes entries one by one (`Half`) sees each
    bucket by itself. Cost per round: the bytes of one sum of the whole, and a message's latency more for each bucket,
    of which what runs alongside the pass costs nothing. Between `begin` and `finish` nothing else may use the group.

    Source: Das et al. 2016, section 3; Li et al. 2020 (buckets in reverse order).
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
        """Begin with a gradient that will be in `vector`, summed over rows; in the end it is the mean over ranks."""
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
            from dsgd.collectives.means import compressed_mean  # most gradients are summed whole

            compressed_mean(self._group, part, self._weight, self._compressor, self._memory)


def buckets_for(group: Group, strategy: AbstractStrategy[Any]) -> GradientBuckets | None:
    """Return the buckets in which a strategy sums gradients; None if it has none, or on a single rank."""
    if not isinstance(strategy, MinibatchSGD) or strategy.bucket_bytes is None or group.size == 1:
        return None
    compressor = strategy.compressor
    assert compressor != "auto"  # refused with buckets
    return GradientBuckets(group, strategy.bucket_bytes, overlap=strategy.overlap, compressor=compressor)
