"""Compressed exchange, shared by the strategies that take a compressor.

Problem: where a model is long or the wire is slow, exchanging vectors costs more than the steps between exchanges.

Update, where gradients are exchanged: ``g <- C_1(g_1) + ... + C_P(g_P)``, each g_p weighted. Where models are, ranks
keep the model z that they had in common after the last synchronisation, and exchange what has been added to it::

    d_p = x_p - z;  z <- z + sum_p C_p(w_p d_p);  x_p <- z

with a memory of what a biased compressor leaves out or rounds away. It matters that d_p is compressed and not x_p: most
entries of a model would be lost for good, whereas those of d_p only arrive late.

A rank that is alone does what the compressor does, so that a model trained by one rank is what more of them would
approach. Only what loses nothing is left out there: with it training on one rank is plain SGD, bit for bit.

``"auto"`` loses nothing and works with any optimiser: it sends the entries that are not zero (`NonZero`); in rounds in
which whole vectors take fewer bytes, ranks sum those. An L2 penalty shrinks all weights by one factor, so that after a
round no difference is zero. The factor c_p is found by comparing a few weights, and ``x_p - c_p z`` is sent, which is
zero for every weight that no row of the round has touched. This saves most on wide sparse data. Training changes only
by the rounding of sums.

Cost per round: `dsgd.collectives.compressed_cost`; one vector of memory for z, and those of the compressor.

Source: Basu, Data, Karakus and Diggavi 2019 (Qsparse-local-SGD: compressed differences with memory); Renggli et al.
2019 (sparse sums that lose nothing).

Compressors are loaded where one is used: most fits have none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias, final

import numpy as np

from dsgd.collectives.group import Group
from dsgd.compress.base import AbstractCompressor, AbstractMemory
from dsgd.handover import ALIKE
from dsgd.kernels.bits import spread_nonzero
from dsgd.ledger import ENCODE
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractStrategy, NoState
from dsgd.sync.period import Taxonomy
from dsgd.types import FloatVector

#: What strategies accept: a compressor, ``"auto"`` for lossless compression, None for whole vectors.
Compressor: TypeAlias = AbstractCompressor[Any] | Literal["auto"] | None

# Weights that are compared to find by what factor all of them have shrunk.
_N_COMPARED: Final = 255


@dataclass
class CompressionState:
    """The state of a strategy that compresses."""

    # The model after the last synchronisation; empty where gradients are exchanged.
    reference: FloatVector = field(metadata=ALIKE)
    # The state of the compressor.
    memory: AbstractMemory


def acts_alone(strategy: Any) -> bool:
    """Return whether an exchange of a strategy changes the model of a rank that is alone."""
    compressor = strategy.compressor
    # Gossip compresses what neighbours get, and there are none.
    return strategy.talks == "together" and compressor not in (None, "auto") and not compressor.lossless


def _of_gradients(compressor: Compressor) -> AbstractCompressor[Any]:
    """Return the compressor that is meant where gradients are exchanged: feedback is the user's to ask for."""
    from dsgd.compress import NonZero

    return NonZero() if compressor is None or compressor == "auto" else compressor


def _of_differences(compressor: Compressor) -> AbstractCompressor[Any]:
    """Return the compressor that is meant where models are: of their differences nothing is left out for good."""
    return _with_feedback(_of_gradients(compressor))


def meant_compressor(strategy: AbstractStrategy[Any]) -> AbstractCompressor[Any] | None:
    """Return the compressor of what a strategy sums, which its parameter may leave open; None sends it whole."""
    if strategy.compressor is None:
        return None
    return (_of_differences if strategy.exchanges == "model" else _of_gradients)(strategy.compressor)


@lru_cache(maxsize=32)
def _with_feedback(compressor: AbstractCompressor[Any]) -> AbstractCompressor[Any]:
    from dsgd.compress import ErrorFeedback, Layerwise

    if isinstance(compressor, Layerwise):
        rules = tuple((pattern, each and _with_feedback(each)) for pattern, each in compressor.rules)
        return replace(compressor, rules=rules)
    return compressor if compressor.unbiased or compressor.remembers else ErrorFeedback(compressor)


def start_compression(
    strategy: Any, group: Group, params: FloatVector, *, keeps_model: bool
) -> NoState | CompressionState:
    """Return the state of a strategy that may compress."""
    if strategy.compressor is None:
        return NoState()
    from dsgd.collectives.means import load_kernels
    from dsgd.compress import NonZero

    compressor = (_of_differences if keeps_model else _of_gradients)(strategy.compressor)
    load_kernels(compressor, params.dtype)
    n = params.shape[0]
    if keeps_model:
        n -= group.n_whole
        if isinstance(compressor, NonZero):
            common_factor(params[:1], params[:1])
            n += 1
    memory = compressor.init(n, params.dtype, group.seed, group.rank, group.size)
    return CompressionState(params.copy() if keeps_model else params[:0].copy(), memory)


def gradient_mean(
    group: Group, gradient: FloatVector, weight: float, compressor: Compressor, state: NoState | CompressionState
) -> None:
    """Replace `gradient` by the mean over ranks of its compressed parts; `weighted_mean` without a compressor."""
    if isinstance(state, NoState):
        weighted_mean(group, gradient, weight)
        return
    meant = _of_gradients(compressor)
    if group.size == 1 and meant.lossless:
        weighted_mean(group, gradient, weight)
    else:
        from dsgd.collectives.means import compressed_mean

        compressed_mean(group, gradient, weight, meant, state.memory)


def delta_mean(
    group: Group, params: FloatVector, weight: float, compressor: Compressor, state: NoState | CompressionState
) -> None:
    """Replace the model by the last common one plus the mean of the compressed differences of all ranks from it."""
    if isinstance(state, NoState):
        weighted_mean(group, params, weight)
        return
    from dsgd.collectives.means import compressed_mean
    from dsgd.compress import NonZero

    meant, reference, ledger = _of_differences(compressor), state.reference, group.ledger
    if group.size == 1 and meant.lossless:
        # Not x = z + (x - z), which rounds: training on one rank is plain SGD.
        reference[:] = params
        return
    n = params.shape[0] - group.n_whole
    if group.n_whole:
        weighted_mean(group, params[n:], weight)
        reference[n:] = params[n:]
        params, reference = params[:n], reference[:n]
    start = ledger.clock() if ledger.timing else 0.0
    finds_factor = isinstance(meant, NonZero)
    delta = state.memory.scratch.take("delta", n + finds_factor, params.dtype)
    if finds_factor:
        factor = common_factor(params, reference)
        np.multiply(reference, factor, out=delta[:n])
        np.subtract(params, delta[:n], out=delta[:n])
        # What the factor takes away, not the factor: a sum of shares times one need not be one.
        delta[n] = factor - params.dtype.type(1)
    else:
        np.subtract(params, reference, out=delta)
    if ledger.timing:
        ledger.charge(ENCODE, ledger.clock() - start)
    compressed_mean(group, delta, weight, meant, state.memory)
    if finds_factor and delta[n] != 0.0:
        np.multiply(reference, delta[n], out=params)
        reference += params
    reference += delta[:n]
    params[:] = reference


class AbstractAveraging(AbstractStrategy[NoState | CompressionState]):
    """Replaces all models by their weighted mean, ``x_p <- sum_q v_q x_q``; when, is the method."""

    taxonomy = Taxonomy("decentralised", "synchronous", "model", "all-reduce")

    @final
    def init(self, group: Group, params: FloatVector, weight: float) -> NoState | CompressionState:
        """Return the model to start from and what the compressor remembers; without one, nothing."""
        return start_compression(self, group, params, keeps_model=True)

    @final
    def sync(self, group: Group, vector: FloatVector, weight: float, state: NoState | CompressionState) -> None:
        """Replace the model by the weighted mean of all models; see `AbstractStrategy.sync`."""
        delta_mean(group, vector, weight, self.compressor, state)


def common_factor(vector: FloatVector, reference: FloatVector) -> np.floating[Any]:
    """Return the factor c with ``vector[j] == c * reference[j]``, in their precision, for as many j as can be.

    It is found on a few entries that are not zero, and is one where they do not agree.

    Parameters
    ----------
    vector, reference : array, shape (n,)
        Of one dtype.
    """
    places = np.empty(_N_COMPARED, np.uint32)
    places = places[: spread_nonzero(reference, places)]
    kind = reference.dtype.type
    if not places.shape[0]:
        return kind(1)
    now, before = vector[places], reference[places]
    with np.errstate(all="ignore"):
        ratios, counts = np.unique(now.astype(np.float64) / before, return_counts=True)
        # Quotients of rounded products lie on either side of the factor.
        near = kind(ratios[np.argmax(counts)] if counts.max() > 1 else np.median(now.astype(np.float64) / before))
        candidates = [kind(1), near, np.nextafter(near, kind(-np.inf)), np.nextafter(near, kind(np.inf))]
        agree = [int(np.count_nonzero(before * c == now)) for c in candidates]
    best = int(np.argmax(agree))
    return candidates[best] if 2 * agree[best] > places.shape[0] else kind(1)
