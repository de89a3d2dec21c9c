"""Compressors: nothing is lost but what is meant to be, as many bits as promised, the same as in plain numpy."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compressors import COMPRESSORS, CONSERVING, FAMILY, Compressor, vector_of
from dsgd.compress import (
    DGC,
    QSGD,
    AdaComp,
    AdaptiveThreshold,
    DeMo,
    ErrorFeedback,
    GTopK,
    Half,
    Layerwise,
    MajorityVote,
    NonZero,
    OneBit,
    PowerSGD,
    RandomK,
    Sign,
    TernGrad,
    Threshold,
    TopK,
)
from dsgd.compress.base import Scratch
from dsgd.compress.sparse import decode_sparse, encode_sparse, largest, n_entries
from dsgd.errors import IncompatiblePartsError, InvalidParameterError, ProtocolError
from dsgd.kernels import bits
from dsgd.testing import check_compressor
from reference import compression as reference

vectors = st.tuples(st.integers(0, 300), st.integers(0, 2**31), st.sampled_from([np.float32, np.float64])).map(
    lambda drawn: vector_of(*drawn)
)


def sent(compressor: Compressor, vector: np.ndarray, memory: Any) -> np.ndarray:
    """Return what arrives of a vector."""
    payload = compressor.encode(vector, memory)
    assert payload.dtype == np.uint8
    out = np.zeros_like(vector)
    compressor.decode(payload.copy(), out, 1.0)
    return out


@pytest.mark.parametrize(("compressor", "n_bits"), FAMILY, ids=repr)
def test_a_payload_has_the_bits_that_its_formula_says(compressor: Compressor, n_bits: int | None) -> None:
    """The formula agrees with a count by hand; that payloads agree with the formula is a law of all compressors."""
    assert compressor.payload_bytes(1000, 4) == (None if n_bits is None else n_bits // 8)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
def test_every_compressor_keeps_the_laws(compressor: Compressor) -> None:
    """It is a value, its memory is arrays that can resume anywhere, payloads have their bytes, and training ends."""
    check_compressor(compressor)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_what_is_not_finite_is_not_hidden(compressor: Compressor, bad: float) -> None:
    """An infinity or a NaN arrives as something that is not finite; signs alone cannot carry it."""
    vector = vector_of(100, 3, np.float32)
    vector[42] = bad
    with np.errstate(all="ignore"):
        out = sent(compressor, vector, compressor.init(100, np.float32, 0))
    if isinstance(compressor, MajorityVote):
        assert np.isfinite(out).all()
    elif not isinstance(compressor, RandomK):
        assert not np.isfinite(out).all()


@settings(max_examples=60)
@given(vector=vectors, compressor=st.sampled_from(CONSERVING))
def test_what_is_not_sent_is_kept(vector: np.ndarray, compressor: Compressor) -> None:
    """Over several vectors, what arrived and what is in memory add up to what came in."""
    memory = compressor.init(vector.shape[0], vector.dtype, 1)
    total = np.zeros(vector.shape[0])
    for factor in (1.0, -0.5, 0.25):
        total += sent(compressor, (factor * vector).astype(vector.dtype), memory)
    rounding = 16 * np.finfo(vector.dtype).eps * max(1.0, np.abs(vector).max(initial=0.0))
    np.testing.assert_allclose(total + memory.residual, 0.75 * vector.astype(float), rtol=0, atol=rounding)


@settings(max_examples=80)
@given(vector=vectors, density=st.sampled_from([0.001, 0.05, 0.2, 0.3, 1.0]), planted=st.booleans())
def test_the_largest_entries_are_found_exactly(vector: np.ndarray, density: float, planted: bool) -> None:
    """The k largest magnitudes, the lower of two equal ones, NaN and infinity above all; in ascending places."""
    if planted and vector.shape[0] > 2:
        vector[1], vector[-1] = -np.inf, np.nan
    # Long enough for a sample to say something, and with many ties.
    vector = np.tile(vector, 40)
    k = n_entries(vector.shape[0], density)
    places = largest(vector, k, k, 0, Scratch())
    magnitudes = np.where(np.isnan(vector), np.inf, np.abs(vector))
    expected = np.lexsort((np.arange(vector.shape[0]), -magnitudes, ~np.isnan(vector)))[:k]
    np.testing.assert_array_equal(places, np.sort(expected))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_misleading_sample_costs_time_only(dtype: Any) -> None:
    """Vectors that defeat the sampled bound, too few or too many above it, are selected from exactly."""
    rng = np.random.default_rng(0)
    spike = np.zeros(100_000, dtype)
    spike[rng.choice(100_000, 50, replace=False)] = rng.standard_normal(50)
    for vector in (spike, np.ones(100_000, dtype), np.arange(100_000, dtype=dtype) // 1000):
        for k in (1, 100, 20_000):
            places = largest(vector, k, k, 0, Scratch())
            np.testing.assert_array_equal(np.sort(np.argsort(-np.abs(vector), kind="stable")[:k]), places)


def test_a_sampled_threshold_lets_a_few_more_through() -> None:
    """Between k and 1.3 k entries arrive, and none is smaller than one that does not."""
    vector = np.random.default_rng(1).standard_normal(50_000)
    out = sent(TopK(0.02, exact=False), vector, TopK().init(50_000, np.float64, 0))
    assert 1000 <= np.count_nonzero(out) <= 1300
    assert np.abs(vector[out != 0]).min() > np.abs(vector[out == 0]).max()


@settings(max_examples=100)
@given(st.data())
def test_places_survive_packing(data: st.DataObject) -> None:
    """Any set of places below any n comes back, with its values."""
    n = data.draw(st.integers(1, 5000))
    k = data.draw(st.integers(0, min(n, 300)))
    places = np.sort(np.random.default_rng(n + k).choice(n, k, replace=False)).astype(np.uint32)
    values = vector_of(k, k)
    found, back = decode_sparse(encode_sparse(places, values, n, Scratch()), n, np.float64)
    np.testing.assert_array_equal(found, places)
    np.testing.assert_array_equal(back, values)


@settings(max_examples=100)
@given(width=st.integers(1, 32), n=st.integers(0, 200), seed=st.integers(0, 1000))
def test_codes_survive_packing(width: int, n: int, seed: int) -> None:
    """Codes of any width come back from as many bits as they need."""
    codes = np.random.default_rng(seed).integers(0, 2**width, n).astype(np.uint32)
    words = np.full(-(-n * width // 64), 2**64 - 1, np.uint64)
    bits.pack_codes(codes, width, words)
    back = np.empty(n, np.uint32)
    bits.unpack_codes(words, width, back)
    np.testing.assert_array_equal(back, codes)
    text = "".join(format(code, f"0{width}b")[::-1] for code in codes)
    assert sum(int(word) << (64 * j) for j, word in enumerate(words)) == int(text[::-1] or "0", 2)


#: With payloads that name places.
SPARSE = [TopK(0.1), NonZero(), AdaComp(), Threshold(), AdaptiveThreshold()]


@settings(max_examples=60)
@given(data=st.binary(max_size=80), n=st.integers(0, 40), compressor=st.sampled_from(SPARSE))
def test_payloads_are_not_believed(data: bytes, n: int, compressor: Compressor) -> None:
    """Whatever bytes arrive, they are entries of the vector or a ProtocolError; nothing is written elsewhere."""
    out = np.zeros(n + 2)
    with contextlib.suppress(ProtocolError):
        compressor.decode(np.frombuffer(bytearray(data), np.uint8), out[1 : n + 1], 1.0)
    assert out[0] == out[-1] == 0.0


@pytest.mark.parametrize("compressor", SPARSE, ids=repr)
def test_a_payload_without_entries_is_whole_or_refused(compressor: Compressor) -> None:
    """Eight bytes that claim no entries are a payload where nothing else is due, and a ProtocolError elsewhere."""
    out, payload = np.zeros(5), np.zeros(8, np.uint8)
    if not isinstance(compressor, (TopK, NonZero)):  # whose scales are missing
        with pytest.raises(ProtocolError, match="payload"):
            compressor.decode(payload, out, 1.0)
    else:
        compressor.decode(payload, out, 1.0)
    assert not out.any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_compressor_equals_its_twin(dtype: Any) -> None:
    """What arrives is what the plain-numpy twin computes, fed the same random numbers."""
    n, vector = 300, vector_of(300, 11, dtype)
    tolerance = {"rtol": 1e-5 if dtype == np.float32 else 1e-12, "atol": 0}

    def check(compressor: Compressor, expected: np.ndarray) -> None:
        got = sent(compressor, vector, compressor.init(n, dtype, 5, 2))
        np.testing.assert_allclose(got, expected, **tolerance)

    stream = QSGD().init(n, dtype, 5, 2).draw()
    check(TopK(0.05), reference.top(vector, 15))
    check(GTopK(0.05), reference.top(vector, 15))
    check(QSGD(3, 40), reference.qsgd(vector, 3, 40, stream))
    scale = float(np.abs(vector).max())
    check(TernGrad(), scale * reference.ternary(vector, scale, stream))
    limit = float(vector.std(dtype=np.float64))
    check(TernGrad(clip=1.0), limit * reference.ternary(np.clip(vector, -limit, limit), limit, stream))
    check(OneBit(40), reference.one_bit(vector, 40))
    check(Sign(), reference.signed(vector))
    check(Threshold(0.3), reference.threshold(vector, 0.3))
    check(AdaptiveThreshold(0.07), reference.adaptive_threshold(vector, 0.07))
    single = vector.astype(np.float32)
    check(Half(), single.astype(np.float16).astype(dtype))
    check(Half("bfloat16"), reference.brain_float(single).astype(dtype))


def test_halves_are_those_of_numpy_for_every_kind_of_number() -> None:
    """All halves and the floats between them: subnormal, largest, overflow, ties, infinite, NaN, both signs."""
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    exact = halves[~np.isnan(halves)].astype(np.float32)
    finite = np.sort(exact[np.isfinite(exact)])
    between = (finite[1:].astype(float) + finite[:-1]) / 2
    vector = np.concatenate([exact, between, np.nextafter(between, 0), [65519.0, 65520.0, 1e6, 1e-8, np.nan]])
    vector = vector.astype(np.float32)
    with np.errstate(over="ignore"):
        expected = vector.astype(np.float16)
    got = sent(Half(), vector, Half().init(vector.shape[0], np.float32, 0))
    np.testing.assert_array_equal(got, expected.astype(np.float32))


def test_adacomp_equals_its_twin_and_sends_from_every_bin() -> None:
    """Three vectors in a row, and no bin with anything in it stays silent."""
    compressor = AdaComp(25)
    memory, residual = compressor.init(300, np.float64, 0), np.zeros(300)
    for seed in range(3):
        vector = vector_of(300, seed)
        residual += vector
        expected = reference.adacomp(residual, vector, 25)
        got = sent(compressor, vector, memory)
        np.testing.assert_allclose(got, expected, rtol=1e-12)
        assert all(np.any(got[part]) for part in reference.buckets(300, 25))
        residual -= expected
        np.testing.assert_allclose(memory.residual, residual, atol=1e-9)


@settings(max_examples=60)
@given(vector=vectors, density=st.sampled_from([0.01, 0.1, 0.3, 1.0]))
def test_adaptive_thresholds_send_their_share_of_either_sign(vector: np.ndarray, density: float) -> None:
    """Of positive and of negative entries as many are sent as the share says, and all that are tied, as their means."""
    arrived = sent(AdaptiveThreshold(density), vector, AdaptiveThreshold().init(len(vector), vector.dtype, 0))
    for sign in (1.0, -1.0):
        side, found = sign * vector > 0, sign * arrived > 0
        assert found.sum() >= n_entries(int(side.sum()), density)
        if found.any():
            last = (sign * vector)[found].min()
            assert np.sum(sign * vector > last) < n_entries(int(side.sum()), density)
            assert set(np.flatnonzero(found)) == set(np.flatnonzero(sign * vector >= last))
            np.testing.assert_allclose(arrived[found], vector[found].astype(float).mean(), rtol=1e-6)


@pytest.mark.parametrize("compressor", [Threshold(0.3), AdaptiveThreshold(0.07)], ids=repr)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_places_and_signs_take_the_bytes_that_their_number_says(compressor: Compressor, dtype: Any) -> None:
    """A count, two numbers, a bit for each sign, and places as a code of ascending numbers has them."""
    vector = vector_of(300, 11, dtype)
    payload = compressor.encode(vector, compressor.init(300, dtype, 0))
    k = np.count_nonzero(sent(compressor, vector, compressor.init(300, dtype, 0)))
    low = int(np.log2(300 / k))
    words = [64, 16 * vector.itemsize, k, k * low, k + (299 >> low) + 1]
    assert 0 < k < 300
    assert payload.nbytes == 8 * sum(-(-n_bits // 64) for n_bits in words)


@pytest.mark.parametrize(
    "compressor",
    [
        DGC(0.05, momentum=0.8),
        DGC(0.05, nesterov=True, clip=3.0),
        DGC(0.02, masking=False, warm_up=(0.5, 0.1), warm_up_rounds=2),
    ],
    ids=repr,
)
def test_dgc_equals_its_twin(compressor: DGC) -> None:
    """Momentum, look-ahead, masking, clipping and warm-up, over six vectors."""
    memory, twin = compressor.init(200, np.float64, 0, 0, 4), reference.DGC(compressor, 200, 4)
    for seed in range(6):
        vector = np.random.default_rng(seed).standard_normal(200)
        np.testing.assert_allclose(sent(compressor, vector, memory), twin(vector), rtol=1e-12)
    np.testing.assert_allclose(memory.velocity, twin.velocity, rtol=1e-12)


@pytest.mark.parametrize("n", [5, 64, 200])
@pytest.mark.parametrize("compressor", [DeMo(3, 16, 0.9), DeMo(1, 64, 0.999), DeMo(100, 7, 0.5)], ids=repr)
def test_demo_equals_its_twin(compressor: DeMo, n: int) -> None:
    """The strongest cosines of the momentum, also of a last chunk that is shorter, over six vectors."""
    memory, twin = compressor.init(n, np.float64, 0), reference.DeMo(compressor, n)
    for seed in range(6):
        vector = np.random.default_rng(seed).standard_normal(n)
        np.testing.assert_allclose(sent(compressor, vector, memory), twin(vector), rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(memory.momentum, twin.momentum, rtol=1e-10, atol=1e-12)


@settings(max_examples=40)
@given(vector=vectors, k=st.integers(1, 9), chunk=st.integers(1, 9), decay=st.sampled_from([0.0, 0.9, 1.0]))
def test_what_demo_sends_and_keeps_is_the_momentum(vector: np.ndarray, k: int, chunk: int, decay: float) -> None:
    """What is sent and what stays are the decayed momentum plus the vector; with all waves nothing stays."""
    compressor = DeMo(k, chunk, decay)
    memory = compressor.init(vector.shape[0], vector.dtype, 1)
    rounding = 64 * np.finfo(vector.dtype).eps * max(1.0, np.abs(vector).max(initial=0.0))
    for factor in (1.0, -0.5, 0.25):
        part = (factor * vector).astype(vector.dtype)
        momentum = decay * memory.momentum.astype(float) + part
        out = sent(compressor, part, memory)
        np.testing.assert_allclose(out + memory.momentum, momentum, rtol=0, atol=rounding)
        # Cosines are orthonormal: what stays is at a right angle to what is sent, and no longer than it all was.
        assert np.linalg.norm(memory.momentum) <= np.linalg.norm(momentum) + rounding * len(vector)
        if k >= chunk:
            np.testing.assert_allclose(memory.momentum, 0.0, rtol=0, atol=rounding)


def test_powersgd_finds_the_best_matrix_of_its_rank() -> None:
    """On one matrix again and again the error becomes that of the truncated SVD; at full rank it is zero."""
    rng = np.random.default_rng(3)
    matrix = rng.standard_normal((20, 3)) @ np.diag([5.0, 3.0, 2.0]) @ rng.standard_normal((3, 25))
    matrix += 0.01 * rng.standard_normal((20, 25))
    for rank in (1, 2, 20):
        compressor = PowerSGD(rank, n_rows=20)
        memory = compressor.init(500, np.float64, 0)
        for _ in range(40):
            out = sent(compressor, matrix.reshape(-1), memory)
        best = np.linalg.svd(matrix, compute_uv=False)[rank:]
        np.testing.assert_allclose(np.linalg.norm(out - matrix.reshape(-1)), np.linalg.norm(best), atol=1e-6)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: DGC(warm_up=(2.0,)), "warm_up"),
        (lambda: GTopK(warm_up=(0.0,)), "warm_up"),
        (lambda: ErrorFeedback("topk"), "compressor"),  # type: ignore[arg-type]
        (lambda: Layerwise({}), "rules"),
        (lambda: Layerwise({"*": "topk"}), "rules"),
        (lambda: Layerwise({"conv*": GTopK()}).bound({"out.weight": (2, 3)}), "no tensor matches 'conv"),
        (lambda: Layerwise({"*": None}).bound({"out.weight": (2, 3)}).init(7, np.float32, 0), "6 entries"),
    ],
)
def test_parameters_are_checked(make: Any, text: str) -> None:
    """What cannot be is refused when it is written, by name."""
    with pytest.raises(InvalidParameterError, match=text):
        make()


@pytest.mark.parametrize("inner", [TopK(), PowerSGD(), Layerwise({"*": None})], ids=repr)
def test_layers_refuse_what_loses(inner: Compressor) -> None:
    """A compressor without a memory of what it leaves out, and layers in layers, are refused by name."""
    with pytest.raises(IncompatiblePartsError, match=f"Layerwise cannot hold {type(inner).__name__}"):
        Layerwise({"*": inner})


@pytest.mark.parametrize(
    "inner", [GTopK(), DGC(), DeMo(), AdaComp(), QSGD(), TernGrad(), ErrorFeedback(TopK())], ids=repr
)
def test_feedback_refuses_what_needs_none(inner: Compressor) -> None:
    """A second memory, or one for noise that may be longer than the vector, is refused; both are named."""
    with pytest.raises(IncompatiblePartsError, match=f"ErrorFeedback cannot wrap {type(inner).__name__}"):
        ErrorFeedback(inner)
