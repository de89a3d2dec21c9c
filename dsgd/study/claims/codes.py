"""Claims that follow from counting bytes, bits and links: the same in every run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from dsgd.collectives.algorithms.packing import DGX_1V, best_rate, pack_trees, ring_rate
from dsgd.compress import DGC, QSGD, AdaComp, ErrorFeedback, GTopK, MajorityVote, OneBit, PowerSGD, TernGrad, TopK
from dsgd.compress.base import AbstractCompressor
from dsgd.report import Claim
from dsgd.sim import Compute, SimulatedCluster, predict
from dsgd.sim.scaling import MODELS
from dsgd.study.parts import PartOfBox, best_part, measure_parts
from dsgd.study.published import STATEMENTS, Measure, across, exact, statements
from dsgd.sync import DPSGD, SGP, BackupWorkers, LocalSGD, MinibatchSGD
from dsgd.types import FloatVector

_N: Final = 2**20
_GRADIENT: Final = "1,048,576 normal numbers in float32"
#: Rows and columns of the layers of ResNet-18 for CIFAR-10, convolutions as output channels times all else, and how
#: many numbers it has beside them (batch normalisation and the last bias).
_RESNET_18: Final = (
    (64, 27), *[(64, 576)] * 4, (128, 576), *[(128, 1152)] * 3, (128, 64), (256, 1152), *[(256, 2304)] * 3, (256, 128),
    (512, 2304), *[(512, 4608)] * 3, (512, 256), (10, 512),
)  # fmt: skip
_RESNET_18_BESIDE: Final = 9_610
_RESNET_50: Final = 25_557_032
_RESNET_20: Final = 272_474
#: Operations a second that a V100 is taken to reach, three fifths of its peak in float32, and images of its batch.
_V100_FLOP_S: Final = 0.6 * 15.7e12
_IMAGES: Final = 32
#: GB/s that PCIe is taken to reach.
_PCIE: Final = (5, 8, 10, 12)


def _gradients(n: int, count: int) -> list[FloatVector]:
    """Return vectors such as gradients of one model on different rows: what they have in common, and noise."""
    rng = np.random.default_rng(0)
    common = rng.standard_normal(n)
    return [(common + rng.standard_normal(n)).astype(np.float32) for _ in range(count)]


def _encoded_bytes(compressor: AbstractCompressor[Any], vectors: Sequence[FloatVector]) -> int:
    """Return the bytes of the payload of the last of several vectors."""
    memory = compressor.init(vectors[0].shape[0], np.float32, seed=0)
    for vector in vectors:
        payload = compressor.encode(vector, memory)
    return int(payload.nbytes)


def _bits() -> list[Claim]:
    vectors = _gradients(_N, 1)
    ratios = {density: 4 * _N / _encoded_bytes(DGC(density), vectors) for density in (0.001, 1.0)}
    ternary, onebit = (8 * _encoded_bytes(one, vectors) / _N for one in (TernGrad(), OneBit()))
    many = _gradients(_N // 8, 12)
    adaptive = 4 * many[0].shape[0] / _encoded_bytes(AdaComp(), many)
    plain = "32 bits: float32"
    return [
        STATEMENTS["dgc/ratio"].judged(
            _GRADIENT, exact(ratios[0.001]), "A thousandth of the entries; places are packed.", baseline="1x: float32"
        ),
        STATEMENTS["terngrad/bits"].judged(_GRADIENT, exact(ternary), "Forty entries in a word.", baseline=plain),
        STATEMENTS["onebit/bits"].judged(_GRADIENT, exact(onebit), "Buckets of 512 entries.", baseline=plain),
        STATEMENTS["adacomp/ratio"].judged(
            "131,072 normal numbers in float32, the twelfth vector",
            exact(adaptive),
            "Bins of 500 entries; how many are sent depends on the gradients, and these are of no network.",
            baseline="1x: float32",
        ),
    ]


def _variance() -> list[Claim]:
    n, draws, shares = 512, 400, []
    vector = _gradients(n, 1)[0]
    square = float(vector @ vector)
    for levels in (1, 7, 127):
        compressor = QSGD(levels, n)
        memory = compressor.init(n, np.float32, seed=0)
        errors = []
        for _ in range(draws):
            decoded = np.zeros_like(vector)
            compressor.decode(compressor.encode(vector, memory), decoded, 1.0)
            errors.append(float(np.sum((decoded - vector) ** 2)))
        bound = min(n / levels**2, math.sqrt(n) / levels) * square
        shares.append(float(np.mean(errors)) / bound)
    note = f"At 1, 7 and 127 levels: {', '.join(f'{share:.3f}' for share in shares)}; {draws} draws of one seed."
    return [
        STATEMENTS["qsgd/variance"].judged(
            "512 normal numbers", exact(max(shares)), note, baseline="0: nothing rounded"
        )
    ]


def _low_rank() -> list[Claim]:
    whole = sum(rows * columns for rows, columns in _RESNET_18) + _RESNET_18_BESIDE
    sent = sum(PowerSGD(2, rows).payload_bytes(rows * columns, 4) for rows, columns in _RESNET_18)
    found = exact(4 * whole / (sent + 4 * _RESNET_18_BESIDE))
    note = f"{whole:,} parameters; vectors are sent as they are."
    return [STATEMENTS["powersgd/ratio"].judged("ResNet-18", found, note, baseline="1x: the gradient")]


def _sums() -> list[Claim]:

    def sent(sync: Any, ranks: int, n: int = _N, **more: Any) -> float:
        found = predict(SimulatedCluster(ranks, "1GbE"), n_params=n, rows=1, entries=1, rounds=1, sync=sync, **more)
        return found.n_bytes / ranks

    growth = {
        name: sent(MinibatchSGD(compressor=one), 32) / sent(MinibatchSGD(compressor=one), 4)
        for name, one in (("gTop-k", GTopK(0.001)), ("Top-k", ErrorFeedback(TopK(0.001))))
    }
    bits = 8 * sent(MinibatchSGD(compressor=MajorityVote()), 32) / _N
    ring, doubling = (
        sent(LocalSGD(1), 32, algorithm=name) / (2 * 31 / 32 * 8 * _N) for name in ("ring", "recursive_doubling")
    )
    return [
        STATEMENTS["gtopk/growth"].judged(
            "1,048,576 parameters, 32 ranks over 4", exact(growth["gTop-k"]), "By a butterfly.",
            baseline=f"{growth['Top-k']:.2f}x: Top-k",
        ),
        STATEMENTS["signsgd/bits"].judged(
            "1,048,576 parameters, 32 ranks", exact(bits), "Votes are counted in parts, one for each rank.",
            baseline=f"{2 * 31 / 32 * 64:.0f} bits: ring of float64",
        ),
        STATEMENTS["ring/bytes"].judged(
            "1,048,576 parameters, 32 ranks", exact(ring), "Sent bytes of all ranks, headers included.",
            baseline=f"{doubling:.2f}x: recursive doubling",
        ),
    ]  # fmt: skip


def _trees() -> list[Claim]:
    packing = pack_trees(DGX_1V)
    note = f"{len(packing.trees)} trees carry {packing.rate:g} links; the least cut allows {best_rate(DGX_1V):g}."
    rings = f"{ring_rate(DGX_1V):g}: rings"
    return [STATEMENTS["blink/trees"].judged("links of a DGX-1V, 8 GPUs", exact(packing.rate), note, baseline=rings)]


def _curve(statement: str, data: str, curve: Mapping[str, float], note: str, baseline: str) -> Claim:
    """Return a claim that rests on an assumption: figures over its range, and the verdict of all of them."""
    form, whole = STATEMENTS[statement].form, across([exact(value) for value in curve.values()], 0)
    shown = "; ".join(f"{at}: {form(value)}" for at, value in curve.items())
    return STATEMENTS[statement].judged(data, whole, f"{note} {shown}.", baseline=baseline)


def _parts() -> list[Claim]:
    parts = measure_parts()

    def best_at(rate: float) -> PartOfBox:
        # Of sums of 512 MiB it is the rate that counts, so that a ring through PCIe takes as many times longer.
        slower = [one if one.n_rings else replace(one, rings_s=one.rings_s * 10.0 / rate) for one in parts]
        return best_part(slower)

    best = {f"{rate} GB/s": best_at(rate) for rate in _PCIE}
    note = (
        "Sums of 512 MiB in all connected parts of both boxes, simulated with links that carry at once. Where no ring "
        "of direct links is left, rings go through PCIe, which nobody shares; its rate is assumed, and decides."
    )
    times = {at: one.ratio for at, one in best.items()}
    claims = [_curve("blink/rings", "parts of a DGX-1P and a DGX-1V", times, note, "1x: rings")]
    # How much shorter a step of a network is with packed trees than with rings in the best part.
    for network in ("VGG-A", "OverFeat-FAST"):
        layers = MODELS[network]
        compute_s = _IMAGES * sum(layer.step_flop for layer in layers) / _V100_FLOP_S
        n_sums = 4 * sum(layer.n_params for layer in layers) / parts[0].n_bytes
        saved = {
            at: 1.0 - (compute_s + n_sums * one.trees_s) / (compute_s + n_sums * one.rings_s)
            for at, one in best.items()
        }
        note = (
            f"A step of {_IMAGES} images in the best part, {1e3 * compute_s:.0f} ms of it computing, at 60 % of 15.7 "
            "Tflop/s (assumed)."
        )
        claims.append(_curve("blink/time", f"{network}, part of a DGX-1", saved, note, "0 %: rings"))
    return claims


def _steps() -> list[Claim]:

    def seconds(sync: Any, network: str, n: int, compute_s: float, ranks: int = 32) -> float:
        core = Compute(0.0, compute_s / 32, 0.0, 0.0, 0.0)
        cluster = SimulatedCluster(ranks, network, core)
        return predict(cluster, n_params=n, rows=32, entries=0, rounds=64, itemsize=4, sync=sync).seconds / 64

    def gains(other: Any, ours: Any, network: str, n: int, usual_s: float) -> dict[str, float]:
        computing = [pace * usual_s for pace in (0.5, 1.0, 2.0)]
        return {f"{s:g} s": seconds(other, network, n, s) / seconds(ours, network, n, s) for s in computing}

    return [
        _curve(
            "sgp/time", "ResNet-50, 32 simulated ranks, 10GbE",
            gains(MinibatchSGD(1024), SGP(32), "10GbE", _RESNET_50, 0.2),
            "By how long a step computes (assumed). The published all-reduce is far slower than what the wire allows, "
            "ours is not.", "1x: all-reduce",
        ),
        _curve(
            "dpsgd/time", "ResNet-20, 32 simulated ranks, 1GbE",
            gains(BackupWorkers(32, 0), DPSGD(32), "1GbE", _RESNET_20, 0.02),
            "By how long a step computes (assumed). One server carries the gradients of all ranks.", "1x: a server",
        ),
    ]  # fmt: skip


def _measure(name: str, keys: Sequence[str], what: str, count: Callable[[], list[Claim]]) -> Measure:
    """Return the measure that counts, the same in every run: it has no rows, and is done at once."""
    return Measure(name, statements(*keys), what, lambda out, say: count())


#: The measures of this module.
MEASURES: Final = (
    _measure(
        "bits", ("dgc/ratio", "terngrad/bits", "onebit/bits", "adacomp/ratio"),
        "Normal numbers are encoded, and the bytes of the payload counted.", _bits,
    ),
    _measure(
        "variance", ("qsgd/variance",),
        "A vector is rounded 400 times with 1, 7 and 127 levels; the worst mean squared error over its bound.",
        _variance,
    ),
    _measure(
        "low-rank", ("powersgd/ratio",), "The bytes of both factors of every layer, and of vectors as they are.",
        _low_rank,
    ),
    _measure(
        "sums", ("gtopk/growth", "signsgd/bits", "ring/bytes"),
        "The bytes that ranks send for one sum, as the ledger counts them.", _sums,
    ),
    _measure("trees", ("blink/trees",), "Spanning trees are packed into the link graph of a DGX-1V.", _trees),
    _measure(
        "parts", ("blink/rings", "blink/time"),
        "Simulated sums over packed trees and round rings in all connected parts of a DGX-1P and a DGX-1V.", _parts,
    ),
    _measure(
        "steps", ("sgp/time", "dpsgd/time"),
        "The time of a step on simulated networks, from the cost of messages.", _steps,
    ),
)  # fmt: skip
