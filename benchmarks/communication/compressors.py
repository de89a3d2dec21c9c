"""Encode and decode of every compressor in GB/s of the vector, beside a memcpy and torch's equivalents.

Every method works on the same normal vector, is timed `repeats` times, interleaved, and the best is kept; one thread.

- encode: ``encode`` into a payload (a compressor with a memory updates it too); decode: ``decode`` of that payload into
  a vector. GB/s are bytes of the vector, not of the payload, so that all rows compare.
- select: the exact k largest magnitudes of 25 million float32, beside ``numpy.argpartition`` of ``numpy.abs`` and
  torch's ``topk`` of ``abs``, as places in any order.
- pack: signs and 4-bit codes into bits and back, beside ``numpy.packbits`` and ``numpy.unpackbits``.

``--auto`` times nothing: it trains on reuters-money-fx and prints the bytes that a round takes without a compressor and
with ``"auto"``, all ranks together, and the test accuracies.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from benchmarks.common.measuring import Options, Rows, in_turns, table
from dsgd import SGDClassifier, compress
from dsgd.compress.base import Scratch
from dsgd.compress.sparse import as_bits, largest
from dsgd.datasets import load
from dsgd.kernels import bits
from dsgd.sync import EpochAveraging, LocalSGD, MinibatchSGD

PAGE = "compression"
QUICK_S = 30
QUICK = "shorter vectors, one repeat"
ONE_THREAD = True
REPEATS = (2, 1)

COMPRESSORS = [
    compress.Identity(),
    compress.Half(),
    compress.Half("bfloat16"),
    compress.TopK(0.001),
    compress.TopK(0.01),
    compress.TopK(0.01, exact=False),
    compress.ErrorFeedback(compress.TopK(0.01)),
    compress.RandomK(0.01),
    compress.GTopK(0.001),
    compress.DGC(0.001),
    compress.AdaComp(),
    compress.Threshold(2.5758),  # a hundredth of normal numbers
    compress.AdaptiveThreshold(0.01),
    compress.NonZero(),
    compress.QSGD(7),
    compress.QSGD(127),
    compress.TernGrad(),
    compress.OneBit(),
    compress.Sign(),
    compress.MajorityVote(),
    compress.PowerSGD(2),
]


def best(work: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the shortest time of each, taken in turns; the first turn compiles."""
    found = in_turns(work, repeats, warm_up=1)
    return {name: min(each.seconds for each in taken) for name, taken in found.items()}


def compressors(n: int, repeats: int, rows: Rows) -> None:
    """Time encode and decode of every compressor."""
    vector = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    out, tensor = np.zeros_like(vector), torch.from_numpy(vector)
    work: dict[str, Callable[[], Any]] = {"memcpy": lambda: np.copyto(out, vector)}
    sizes: dict[str, int] = {}
    for compressor in COMPRESSORS:
        memory = compressor.init(n, np.float32, 0)
        payload = compressor.encode(vector, memory).copy()
        sizes[repr(compressor)] = payload.nbytes
        work[f"{compressor!r} encode"] = lambda c=compressor, m=memory: c.encode(vector, m)
        work[f"{compressor!r} decode"] = lambda c=compressor, p=payload: c.decode(p, out, 1.0)
    halves = {name: tensor.to(kind) for name, kind in (("float16", torch.float16), ("bfloat16", torch.bfloat16))}
    for name, half in halves.items():
        work[f"torch {name} encode"] = lambda half=half: tensor.to(half.dtype)
        work[f"torch {name} decode"] = lambda half=half: half.to(torch.float32)
    chosen = torch.topk(tensor.abs(), n // 100, sorted=False).indices
    values, whole = tensor[chosen], torch.zeros(n)
    work["torch topk 0.01 encode"] = lambda: tensor[torch.topk(tensor.abs(), n // 100, sorted=False).indices]
    work["torch topk 0.01 decode"] = lambda: whole.index_add_(0, chosen, values)
    times = best(work, repeats)
    gb = vector.nbytes / 1e9
    heads = ("compressor", "encode:.2f", "decode:.2f", "bits/entry:.3f")
    with table(f"{n:,} float32; GB/s of the vector", *heads) as line:
        line("memcpy", gb / times["memcpy"], None, None)
        rows.add(method="memcpy", n=n, seconds=times["memcpy"], gb_per_s=gb / times["memcpy"])
        for name in [key.removesuffix(" encode") for key in work if key.endswith(" encode")]:
            speeds = [gb / times[f"{name} {step}"] for step in ("encode", "decode")]
            line(name, *speeds, 8 * sizes[name] / n if name in sizes else None)
            rows.add(method=name, n=n, encode_gb_per_s=speeds[0], decode_gb_per_s=speeds[1], bytes=sizes.get(name))


def selection(n: int, repeats: int, rows: Rows) -> None:
    """Time the exact selection of the largest magnitudes."""
    normal = np.random.default_rng(1).standard_normal(n).astype(np.float32)
    sparse = np.where(np.random.default_rng(2).random(n, np.float32) < 0.05, normal, np.float32(0))
    heads = ("vector", "density", "dsgd:.1f", "numpy:.1f", "torch:.1f", "times faster:.1f")
    with table(f"the k largest magnitudes of {n:,} float32, ms", *heads) as line:
        for (label, vector), density in product((("normal", normal), ("95 % zeros", sparse)), (0.001, 0.01, 0.1)):
            tensor, scratch, k = torch.from_numpy(vector), Scratch(), int(density * n)
            work: dict[str, Callable[[], Any]] = {
                "dsgd": lambda v=vector, k=k, s=scratch: largest(v, k, k, 0, s),
                "numpy": lambda v=vector, k=k: np.argpartition(np.abs(v), n - k)[n - k :],
                "torch": lambda t=tensor, k=k: torch.topk(t.abs(), k, sorted=False).indices,
            }
            times = best(work, repeats)
            gain = min(times["numpy"], times["torch"]) / times["dsgd"]
            line(label, density, *(1e3 * seconds for seconds in times.values()), gain)
            taken = {f"{name}_s": seconds for name, seconds in times.items()}
            rows.add(method="select", data=label, density=density, n=n, gain=gain, **taken)


def packing(n: int, repeats: int, rows: Rows) -> None:
    """Time bits in and out."""
    vector = np.random.default_rng(3).standard_normal(n).astype(np.float32)
    words, out = np.empty(-(-n // 64), np.uint64), np.zeros_like(vector)
    codes, back = np.random.default_rng(4).integers(0, 16, n).astype(np.uint8), np.empty(n, np.uint8)
    nibbles = np.empty(-(-n // 16), np.uint64)
    bits.pack_codes(codes, 4, nibbles)
    negative = np.packbits(vector < 0)
    work: dict[str, Callable[[], Any]] = {
        "signs into bits": lambda: bits.pack_signs(as_bits(vector), words),
        "bits into signs": lambda: bits.add_signs(words, out, 1.0, -1.0),
        "4-bit codes into words": lambda: bits.pack_codes(codes, 4, nibbles),
        "words into 4-bit codes": lambda: bits.unpack_codes(nibbles, 4, back),
        "numpy.packbits of vector < 0": lambda: np.packbits(vector < 0),
        "numpy.unpackbits, to +-1": lambda: np.subtract(1.0, 2.0 * np.unpackbits(negative), out=out, dtype=np.float32),
    }
    with table(f"{n:,} entries, GB/s of float32 vector", "work", "GB/s:.2f") as line:
        for name, seconds in best(work, repeats).items():
            speed = vector.nbytes / seconds / 1e9
            line(name, speed)
            rows.add(method=name, n=n, seconds=seconds, gb_per_s=speed)


def auto(rows: Rows) -> None:
    """Count what wide sparse rows cost, whole and by what they touch."""
    train, test = (load("reuters-money-fx", split=part, download=False) for part in ("train", "test"))
    X, X_test = train.X.astype(np.float32), test.X.astype(np.float32)
    cases: list[tuple[Any, int]] = [(LocalSGD(64), 2), (LocalSGD(64), 4), (LocalSGD(512), 2)]
    cases += [(MinibatchSGD(64), 2), (MinibatchSGD(64), 4), (EpochAveraging(), 2)]
    title = f"{X.shape[0]:,} rows of {X.nnz / X.shape[0]:.0f} entries in {X.shape[1]:,} columns; bytes a round"
    heads = ("strategy", "ranks", "whole:,.0f", "auto:,.0f", "less by:.1f", "accuracy:.4f", "of auto:.4f")
    with table(title, *heads) as line:
        for strategy, ranks in cases:
            sent, scores = [], []
            for compressor in (None, "auto"):
                sync = replace(strategy, compressor=compressor)
                model = SGDClassifier(alpha=1e-5, max_iter=3, tol=None, random_state=0, sync=sync, n_jobs=ranks)
                totals = model.fit(X, train.y).ledger_.totals()
                sent.append(totals["bytes_sent"] / totals["rounds"])
                scores.append(model.score(X_test, test.y))
            period = {"LocalSGD": "every", "MinibatchSGD": "batch"}.get(type(strategy).__name__)
            name = f"{type(strategy).__name__}({f'{period}={getattr(strategy, period)}' if period else ''})"
            line(name, ranks, *sent, sent[0] / sent[1], *scores)
            rows.add(method=name, ranks=ranks, whole_bytes=sent[0], auto_bytes=sent[1], scores=scores)


OPTIONS = {
    "--n": {"type": int, "default": 4_000_000, "help": "entries of the vector that is compressed"},
    "--select": {"type": int, "default": 25_000_000, "help": "entries to select from"},
    "--auto": {"action": "store_true", "help": "count bytes of training on wide sparse rows"},
}


def run(options: Options, rows: Rows) -> None:
    if options.quick:
        options.n, options.select = 400_000, 2_500_000
    torch.set_num_threads(1)
    if options.auto:
        warnings.simplefilter("ignore", ConvergenceWarning)
        auto(rows)
        return
    compressors(options.n, options.repeats, rows)
    packing(options.n, options.repeats, rows)
    selection(options.select, options.repeats, rows)
