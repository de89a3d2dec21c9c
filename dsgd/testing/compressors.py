"""The laws of a compressor, on short vectors of many magnitudes."""

from __future__ import annotations

import pickle
from dataclasses import is_dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from dsgd.compress import AbstractCompressor, AbstractMemory, ErrorFeedback
from dsgd.errors import DsgdError
from dsgd.estimators import SGDClassifier
from dsgd.local import SGD, Objective
from dsgd.sim import SimulatedCluster
from dsgd.sync import LocalSGD, MinibatchSGD, check_combination
from dsgd.testing.laws import Check, check_is_value, fields_of, require, run_checks
from dsgd.types import AnyArray, FloatVector

_LENGTHS: Final = (0, 1, 2, 63, 64, 65, 1000)
_DTYPES: Final = (np.float32, np.float64)
#: Draws of an unbiased compressor, and standard errors that their mean may be off.
_DRAWS, _ERRORS = 400, 6.0
_STEPS: Final = SGD(Objective("log_loss", "l2", 0.01)).steps


def check_compressor(compressor: AbstractCompressor[Any]) -> None:
    """Raise unless a compressor satisfies the laws of all compressors of the package.

    Which ones: `compressor_checks`. It takes about a second.

    Parameters
    ----------
    compressor : AbstractCompressor
        Any.

    Raises
    ------
    AssertionError
        Names the law, and how it was broken.
    """
    run_checks(compressor, AbstractCompressor, compressor_checks)


def compressor_checks(compressor: AbstractCompressor[Any]) -> list[Check]:
    """Return the checks that apply to a compressor; each takes the compressor and raises `AssertionError`."""
    checks: list[Check] = [check_is_value, check_memory_is_arrays, check_payloads]
    checks += [check_vectors_stay, check_decoding_adds]
    if compressor.lossless:
        checks.append(check_loses_nothing)
    if compressor.unbiased and not compressor.remembers and not hasattr(compressor, "clip"):
        checks.append(check_is_unbiased)
    if not compressor.remembers:
        checks.append(check_feedback_conserves)
    return [*checks, check_trains]


def check_memory_is_arrays(compressor: AbstractCompressor[Any]) -> None:
    """Its memory is a record of arrays that pickles, and a copy continues as the original does."""
    memory = compressor.init(100, np.float32, 3, 1, 4)
    require(isinstance(memory, AbstractMemory) and is_dataclass(memory), "`init` must return an AbstractMemory")
    for _, array in fields_of(memory):
        is_kept = isinstance(array, np.ndarray) and array.ndim >= 1 and array.dtype != object
        require(is_kept, "every field of its memory must be an array of numbers with at least one dimension")
    _sent(compressor, _vector(100, 1, np.float32), memory)
    again = pickle.loads(pickle.dumps(memory))
    first, second = (_sent(compressor, _vector(100, 2, np.float32), kept) for kept in (memory, again))
    pairs = zip(fields_of(memory), fields_of(again), strict=True)
    is_same = np.array_equal(first, second) and all(np.array_equal(one, other) for (_, one), (_, other) in pairs)
    require(is_same, "a pickled memory encodes the next vector differently from the memory itself")


def check_payloads(compressor: AbstractCompressor[Any]) -> None:
    """Payloads are whole words, as many bytes as `payload_bytes` says, for any length and precision."""
    for n in _LENGTHS:
        for dtype in _DTYPES:
            payload = compressor.encode(_vector(n, n, dtype), compressor.init(n, dtype, 0))
            require(payload.dtype == np.uint8 and payload.shape[0] % 8 == 0, f"the payload of {n} is no whole words")
            known = compressor.payload_bytes(n, np.dtype(dtype).itemsize)
            require(
                known is None or known == payload.shape[0],
                f"payload_bytes({n}, {np.dtype(dtype).itemsize}) is {known}, and the payload has {payload.shape[0]}",
            )


def check_vectors_stay(compressor: AbstractCompressor[Any]) -> None:
    """Encoding does not change the vector."""
    for dtype in _DTYPES:
        vector = _vector(100, 5, dtype)
        kept = vector.copy()
        compressor.encode(vector, compressor.init(100, dtype, 0))
        require(np.array_equal(vector, kept), "`encode` changes the vector that it is given")


def check_decoding_adds(compressor: AbstractCompressor[Any]) -> None:
    """Decoding adds a multiple of the vector to the output."""
    for dtype in _DTYPES:
        payload = compressor.encode(_vector(100, 7, dtype), compressor.init(100, dtype, 0)).copy()
        once, more = np.zeros_like(_vector(100, 7, dtype)), np.full_like(_vector(100, 7, dtype), 3.0)
        compressor.decode(payload, once, 1.0)
        compressor.decode(payload, more, -2.0)
        require(
            np.allclose(more, 3.0 - 2.0 * once, rtol=1e-5, atol=1e-5 * float(np.abs(once).max())),
            "decode(payload, out, factor) must add factor times the vector to `out`",
        )


def check_loses_nothing(compressor: AbstractCompressor[Any]) -> None:
    """What says that it is lossless returns the vector itself."""
    for dtype in _DTYPES:
        vector = _vector(257, 3, dtype)
        found = _sent(compressor, vector, compressor.init(257, dtype, 0))
        require(np.array_equal(found, vector), "it says lossless=True, but the decoded vector is not the original")


def check_is_unbiased(compressor: AbstractCompressor[Any]) -> None:
    """What says that it is unbiased returns the vector on average over its random numbers."""
    vector = np.random.default_rng(9).standard_normal(40)
    memory = compressor.init(40, np.float64, 1)
    found = np.stack([_sent(compressor, vector, memory) for _ in range(_DRAWS)])
    spread = found.std(axis=0)
    # An entry that is rarely rounded up may never have been; then it is off by little, but by no spread of its own.
    error = np.maximum(spread, spread.mean()) / np.sqrt(_DRAWS) + 1e-9
    off = float((np.abs(found.mean(axis=0) - vector) / error).max())
    require(off < _ERRORS, f"it says unbiased=True, and the mean of {_DRAWS} draws is off by {off:.1f} standard errors")


def check_feedback_conserves(compressor: AbstractCompressor[Any]) -> None:
    """Wrapped in `dsgd.compress.ErrorFeedback`, the payloads and the memory add up to the vectors."""
    try:
        feedback = ErrorFeedback(compressor)
    except DsgdError:
        return  # it refuses the combination, and says why
    memory: Any = feedback.init(100, np.float64, 0)
    came, went = np.zeros(100), np.zeros(100)
    for seed in range(20):
        vector = _vector(100, seed, np.float64)
        came += vector
        went += _sent(feedback, vector, memory)
    require(
        np.allclose(came, went + memory.residual, rtol=1e-8, atol=1e-8 * np.abs(came).max()),
        "wrapped in ErrorFeedback, its payloads and its memory do not add up to the vectors",
    )


def check_trains(compressor: AbstractCompressor[Any]) -> None:
    """Training with it reaches a finite model, the same one on threads and on simulated ranks."""
    n_trained = 0
    for make in (partial(MinibatchSGD, 12), partial(LocalSGD, 8)):
        try:
            strategy: Any = make(compressor=compressor)
            check_combination(strategy, _STEPS)
        except DsgdError:
            continue  # it goes with the other one
        threads, simulated = _trained(strategy, n_jobs=3), _trained(strategy, client=SimulatedCluster(3, "10GbE"))
        require(bool(np.isfinite(threads).all()), f"the model of {strategy!r} is not finite")
        require(
            np.array_equal(threads, simulated), f"with {strategy!r} simulated ranks end in another model than threads"
        )
        n_trained += 1
    require(n_trained > 0, "it goes neither with gradients (MinibatchSGD) nor with models (LocalSGD)")


def _trained(strategy: Any, **where: Any) -> AnyArray:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 30))
    settings: dict[str, Any] = {"learning_rate": "constant", "eta0": 0.01, "loss": "log_loss", "tol": None}
    model = SGDClassifier(sync=strategy, shuffle=False, random_state=0, max_iter=3, **settings, **where)
    model.fit(X, X[:, 0] > 0.0)
    return np.append(model.coef_, model.intercept_)


def _vector(n: int, seed: int, dtype: Any) -> FloatVector:
    """Return numbers of many magnitudes, zeros among them."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(n) * 10.0 ** rng.integers(-3, 3, n)
    values[rng.random(n) < 0.2] = 0.0
    vector: FloatVector = values.astype(dtype)
    return vector


def _sent(compressor: AbstractCompressor[Any], vector: FloatVector, memory: Any) -> FloatVector:
    """Return what arrives of a vector."""
    out: FloatVector = np.zeros_like(vector)
    compressor.decode(compressor.encode(vector, memory).copy(), out, 1.0)
    return out
