"""Checks for strategies, compressors and topologies of your own: the laws that those of the package satisfy.

::

    from dsgd.testing import check_strategy

    def test_mine():
        check_strategy(MyStrategy(every=8))

Each check raises `AssertionError` and says which law is broken and how it shows. The lists of checks are there as well,
for a test of its own each. For use in tests: nothing here runs while a model is trained.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final, get_args

import numpy as np

from dsgd.comm.topology import AbstractTopology, mixing_matrix
from dsgd.compress import AbstractCompressor, AbstractMemory, ErrorFeedback
from dsgd.errors import DsgdError, InvalidParameterError
from dsgd.estimators import SGDClassifier
from dsgd.local import SGD, Momentum, Objective, make_shard
from dsgd.local.objective import n_params
from dsgd.runtime.deployment import Gang
from dsgd.runtime.rank import Rank
from dsgd.runtime.threads import run_on_threads
from dsgd.runtime.train import TrainData, TrainJob, train
from dsgd.runtime.train.serving import mail_for
from dsgd.sim import SimulatedCluster
from dsgd.sync import AbstractStrategy, LocalSGD, MinibatchSGD, check_combination
from dsgd.sync.base import Exchange, Talk
from dsgd.sync.period import Once, RoundClock, Weighing
from dsgd.types import AnyArray, FloatVector

__all__ = [
    "check_compressor",
    "check_strategy",
    "check_topology",
    "compressor_checks",
    "strategy_checks",
    "topology_checks",
]

#: A law: takes the part, raises `AssertionError`.
Check = Callable[[Any], None]


def require(holds: bool, law: str) -> None:
    """Raise `AssertionError` with the law that is broken, also where Python runs without assertions."""
    if not holds:
        raise AssertionError(law)


def check_is_value(part: Any) -> None:
    """The part is a frozen dataclass: it compares, hashes and pickles by its parameters."""
    params = getattr(type(part), "__dataclass_params__", None)
    require(
        is_dataclass(part) and params is not None and params.frozen,
        "it must be a frozen dataclass of its parameters: what changes during training lives in the record of `init`",
    )
    again = pickle.loads(pickle.dumps(part))
    require(again == part and hash(again) == hash(part), "its pickle must be equal to it: workers get it by pickle")


def run_checks(part: Any, kind: type, checks_of: Callable[[Any], list[Check]]) -> None:
    """Run the checks of a part one after the other; an error names the check and the part."""
    require(isinstance(part, kind), f"{part!r} must be an instance of {kind.__name__}")
    for check in checks_of(part):
        try:
            check(part)
        except (AssertionError, InvalidParameterError) as error:  # some laws are those of every fit
            raise AssertionError(f"{check.__name__}: {part!r}: {error}") from error


def fields_of(record: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a record holds, and the records within it, by name."""
    for field in fields(record):
        value = getattr(record, field.name)
        for part in value if isinstance(value, tuple) else (value,):
            if is_dataclass(part):
                yield from ((f"{field.name}.{name}", inner) for name, inner in fields_of(part))
            else:
                yield field.name, part


_SIZES: Final = (1, 2, 3, 4, 5, 6, 8, 12, 17)


def check_topology(topology: AbstractTopology) -> None:
    """Raise unless a topology satisfies the laws of all topologies of the package.

    Sizes that it refuses by an error of the package are left out, if it takes some.

    Parameters
    ----------
    topology : AbstractTopology
        Any.

    Raises
    ------
    AssertionError
        Names the law, and how it was broken.
    """
    run_checks(topology, AbstractTopology, topology_checks)


def topology_checks(topology: AbstractTopology) -> list[Check]:
    """Return the checks that apply to a topology; each takes the topology and raises `AssertionError`."""
    return [check_is_value, check_edges_match, check_mixing_keeps_the_mean]


def check_edges_match(topology: AbstractTopology) -> None:
    """Every send has a receiver, no rank sends to itself or twice, and the graph repeats after its period."""
    for size, period in _sizes(topology):
        for k in range(period):
            _check_round(topology, size, k)
        first, again = ([topology.out_peers(rank, size, k) for rank in range(size)] for k in (0, period))
        require(first == again, f"of {size} ranks the graph does not repeat after its period of {period} rounds")


def _check_round(topology: AbstractTopology, size: int, k: int) -> None:
    sent = [topology.out_peers(rank, size, k) for rank in range(size)]
    got = [topology.in_peers(rank, size, k) for rank in range(size)]
    for rank, peers in enumerate(sent):
        where = f"of {size} ranks in round {k}, rank {rank}"
        is_list_of_others = len(set(peers)) == len(peers) and set(peers) <= set(range(size)) - {rank}
        require(is_list_of_others, f"{where} sends to {peers}: that must be other ranks, each of them once")
        missing = [peer for peer in peers if rank not in got[peer]]
        require(not missing, f"{where} sends to {missing}, which do not receive from it")
        silent = [peer for peer in got[rank] if rank not in sent[peer]]
        require(not silent, f"{where} receives from {silent}, which do not send to it")
        goes_both_ways = set(peers) == set(got[rank])
        require(goes_both_ways or not topology.symmetric, f"{where} has an edge one way, and says symmetric=True")


def check_mixing_keeps_the_mean(topology: AbstractTopology) -> None:
    """The weights of what a rank sends add up to one; on a symmetric graph, so do those of what it receives."""
    for size, period in _sizes(topology):
        for k in range(period):
            matrix, where = mixing_matrix(topology, size, k), f"of {size} ranks in round {k}"
            require(bool((matrix >= 0.0).all()), f"{where} a weight is negative")
            require(np.allclose(matrix.sum(axis=0), 1.0), f"{where} the mean of all models does not stay")
            takes = not topology.symmetric or np.allclose(matrix.sum(axis=1), 1.0)
            require(bool(takes), f"{where} equal models do not stay equal")


def _sizes(topology: AbstractTopology) -> list[tuple[int, int]]:
    """Return the sizes that it takes, each with its period."""
    found = []
    for size in _SIZES:
        try:
            period = topology.period(size)
            topology.out_peers(0, size, 0)
        except DsgdError:
            continue
        require(period >= 1, f"of {size} ranks its period is {period}")
        found.append((size, period))
    require(bool(found), f"it takes none of {_SIZES} ranks")
    return found


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
        threads, simulated = (
            _fitted(strategy, n_jobs=3),
            _fitted(strategy, client=SimulatedCluster(3, "10GbE")),
        )
        require(bool(np.isfinite(threads).all()), f"the model of {strategy!r} is not finite")
        require(
            np.array_equal(threads, simulated), f"with {strategy!r} simulated ranks end in another model than threads"
        )
        n_trained += 1
    require(n_trained > 0, "it goes neither with gradients (MinibatchSGD) nor with models (LocalSGD)")


def _fitted(strategy: Any, **where: Any) -> AnyArray:
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


_D: Final = 5
#: Rows of the ranks: uneven, and one without any.
_ROWS: Final = (40, 0, 53)
_REACHES: Final = 0.8


def check_strategy(strategy: AbstractStrategy[Any]) -> None:
    """Raise unless a strategy satisfies the laws of all strategies of the package.

    Which ones: `strategy_checks`. It takes a second or two, and no worker processes are started.

    Parameters
    ----------
    strategy : AbstractStrategy
        With a period of some ten rows, if it has one: the problems have a hundred.

    Raises
    ------
    AssertionError
        Names the law, and how it was broken.
    """
    run_checks(strategy, AbstractStrategy, strategy_checks)


def strategy_checks(strategy: AbstractStrategy[Any]) -> list[Check]:
    """Return the checks that apply to a strategy; each takes the strategy and raises `AssertionError`.

    If the clock decides what is exchanged with whom (``talks="by mailbox"``, periods found from measured time), no two
    runs are equal, so checks that compare the bits of two runs are skipped.
    """
    checks: list[Check] = [check_is_value, check_says_what_it_does]
    if not strategy.n_servers:  # a server serves until training ends
        checks.append(check_state_is_arrays)
    checks += [check_ranks_end_equal, check_learns, check_goes_on_with_other_ranks]
    if not _is_by_clock(strategy):
        checks += [check_runs_repeat, check_simulated_ranks_are_threads]
        # What is averaged once, at the end of training, is another model wherever training ends.
        if not isinstance(strategy.period, Once):
            checks += [check_checkpoints_resume, check_partial_fit_goes_on]
    return checks


def check_says_what_it_does(strategy: AbstractStrategy[Any]) -> None:
    """What it declares of itself is among the choices there are."""
    for name, choices in (("exchanges", Exchange), ("talks", Talk), ("weighs", Weighing)):
        value = getattr(strategy, name, None)
        require(value in get_args(choices), f"{name} must be one of {get_args(choices)}, got {value!r}")
    rounds = strategy.period.rounds_per_epoch(list(_ROWS))
    require(isinstance(rounds, int) and rounds >= 1, f"its period must have 1 or more rounds per epoch, got {rounds!r}")
    last = RoundClock(0, rounds - 1, rounds, is_last=False)
    require(
        isinstance(strategy.period, Once) or strategy.period.is_due(last),
        f"its period has no exchange at the end of an epoch (is_due({last}) is False): what is looked at and kept "
        "there would be the model of one rank",
    )


def check_state_is_arrays(strategy: AbstractStrategy[Any]) -> None:
    """What it remembers is a record of arrays of one dimension or more, which a checkpoint can keep."""

    def program(rank: Rank, data: Any, *args: Any) -> Any:
        return strategy.init(rank.group, np.zeros(_D + 1), 0.5)

    job = _job(strategy, 1)
    record = run_on_threads(program, [None, None], (job,), mail=mail_for(job)).value
    require(is_dataclass(record), f"`init` must return a dataclass, got a {type(record).__name__}")
    for name, value in fields_of(record):
        is_kept = isinstance(value, np.ndarray) and value.ndim >= 1 and value.dtype != object
        require(is_kept, f"{name} must be an array of numbers with at least one dimension: it goes into checkpoints")


def check_learns(strategy: AbstractStrategy[Any]) -> None:
    """Four epochs on three ranks separate two classes."""
    X, y = _problem(300)
    score = _estimator(strategy, n_jobs=3, max_iter=4).fit(X, y).score(X, y)
    require(score > _REACHES, f"four epochs on separable rows reach an accuracy of {score:.3f}, not {_REACHES}")


def check_ranks_end_equal(strategy: AbstractStrategy[Any]) -> None:
    """Uneven ranks, one of them without rows, all end with the same model, to the bit, and it is finite."""
    models = _trained(strategy, simulated=False)
    require(all(np.isfinite(model).all() for model in models), "the model is not finite")
    require(
        len({model.tobytes() for model in models}) == 1,
        "ranks end with different models: `sync` must leave the same bits on all ranks, or say ends_equal=False and "
        "let `collect` do so",
    )


def check_runs_repeat(strategy: AbstractStrategy[Any]) -> None:
    """Two runs end in the same bits."""
    first, second = (_trained(strategy, simulated=False)[0] for _ in range(2))
    require(first.tobytes() == second.tobytes(), "two runs of the same training differ")


def check_simulated_ranks_are_threads(strategy: AbstractStrategy[Any]) -> None:
    """Ranks on the virtual clock of a simulated cluster end in the bits of ranks that are threads."""
    threads, simulated = (_trained(strategy, simulated=way)[0] for way in (False, True))
    require(threads.tobytes() == simulated.tobytes(), "simulated ranks end in another model than threads")


def check_checkpoints_resume(strategy: AbstractStrategy[Any]) -> None:
    """Training that stops and resumes ends in the bits of training in one go."""
    X, y = _problem(120)
    with tempfile.TemporaryDirectory() as folder:
        _estimator(strategy, n_jobs=3, max_iter=2, client=Gang(checkpoint=folder)).fit(X, y)
        resumed = _estimator(strategy, n_jobs=3, max_iter=4, client=Gang(resume_from=folder)).fit(X, y)
    whole = _estimator(strategy, n_jobs=3, max_iter=4).fit(X, y)
    require(
        _model(resumed) == _model(whole),
        "training that stops and resumes ends in another model: everything that changes must be in the record "
        "that `init` returns",
    )


def check_goes_on_with_other_ranks(strategy: AbstractStrategy[Any]) -> None:
    """Two ranks resume from the checkpoint of three."""
    X, y = _problem(120)
    with tempfile.TemporaryDirectory() as folder:
        _estimator(strategy, n_jobs=3, max_iter=2, client=Gang(checkpoint=folder)).fit(X, y)
        fewer = _estimator(strategy, n_jobs=2, max_iter=4, client=Gang(resume_from=folder)).fit(X, y)
    score = fewer.score(X, y)
    require(
        score > _REACHES,
        f"two ranks that resume from the checkpoint of three reach an accuracy of {score:.3f}, not {_REACHES}: say of "
        "every array of the record what becomes of it (dsgd.handover)",
    )


def check_partial_fit_goes_on(strategy: AbstractStrategy[Any]) -> None:
    """Calls of ``partial_fit`` end in the bits of one fit, as what the strategy remembers goes from call to call."""
    X, y = _problem(120)
    whole = _estimator(strategy, n_jobs=3, max_iter=3).fit(X, y)
    calls = _estimator(strategy, n_jobs=3, max_iter=3)
    for _ in range(3):
        calls.partial_fit(X, y, classes=[0, 1])
    require(_model(calls) == _model(whole), "calls of partial_fit end in another model than one fit of as many epochs")


def _is_by_clock(strategy: AbstractStrategy[Any]) -> bool:
    is_timed = strategy.seconds is not None or strategy.adaptation is not None
    return is_timed or strategy.shares_memory or strategy.talks == "by mailbox"


def _problem(n_rows: int) -> tuple[AnyArray, AnyArray]:
    """Return rows and classes that a line separates but for some noise."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, _D))
    return X, (X @ np.linspace(-1.0, 1.0, _D) + 0.3 * rng.standard_normal(n_rows) > 0.0).astype(np.int64)


def _rule(strategy: AbstractStrategy[Any]) -> Momentum | None:
    """Return a rule with a memory, where the strategy says what becomes of it."""
    return Momentum(0.9, batch=4) if strategy.treats_memory else None


def _estimator(strategy: AbstractStrategy[Any], **options: Any) -> Any:
    settings: dict[str, Any] = {"learning_rate": "constant", "eta0": 0.02, "loss": "log_loss", "shuffle": False}
    return SGDClassifier(sync=strategy, optimizer=_rule(strategy), random_state=0, tol=None, **settings, **options)


def _model(fitted: Any) -> bytes:
    return bytes(fitted.coef_.tobytes() + fitted.intercept_.tobytes())


def _job(strategy: AbstractStrategy[Any], epochs: int) -> TrainJob:
    sgd = SGD(Objective("log_loss", "l2", 0.01), schedule="constant", eta0=0.1, rule=_rule(strategy))
    return TrainJob(sgd, strategy, np.zeros(n_params(_D, 1)), max_iter=epochs, tol=None, n_iter_no_change=5)


def _trained(strategy: AbstractStrategy[Any], *, simulated: bool, rows: Sequence[int] = _ROWS) -> list[FloatVector]:
    """Return the model that each rank ends with, after two epochs over uneven shards."""
    X, y = _problem(sum(rows))
    shard = make_shard(X, np.where(y > 0, 1.0, -1.0), shuffle=False)
    ends = np.cumsum([0, *rows]).tolist()
    data = [TrainData(shard.rows(start, stop)) for start, stop in pairwise(ends)]
    models: dict[int, FloatVector] = {}

    def program(rank: Rank, data: Any, *args: Any) -> Any:
        result = train(rank, data, *args)
        models[rank.number] = result.params
        return result

    job = _job(strategy, 2)
    run = SimulatedCluster(len(rows), "10GbE").run if simulated else run_on_threads
    run(program, data, (job,), mail=mail_for(job))
    return [models[number] for number in range(len(rows))]
