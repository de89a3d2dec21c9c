"""The members of the golden trajectories: every strategy and every compressor, with its twin in plain numpy.

``make golden`` writes what the twins do into ``tests/golden``; ``test_golden.py`` holds the package against it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dsgd.comm.topology import Ring, Star
from dsgd.compress import (
    DGC,
    QSGD,
    AdaComp,
    AdaptiveThreshold,
    DeMo,
    ErrorFeedback,
    GTopK,
    Half,
    Identity,
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
from dsgd.compress.randomk import stream_of
from dsgd.kernels.quantize import strata
from dsgd.sync import (
    ADMM,
    ADPSGD,
    ASGD,
    DPSGD,
    EASGD,
    SCAFFOLD,
    SGP,
    AbstractStrategy,
    AnytimeSGD,
    AsyncADMM,
    AsyncEASGD,
    AsyncLeaderSGD,
    AutoSync,
    BackupWorkers,
    ChocoSGD,
    DecoupledDiLoCo,
    DelayCompensatedASGD,
    DiLoCo,
    Downpour,
    EagerDiLoCo,
    EpochAveraging,
    FedProx,
    Hogwild,
    LeaderSGD,
    LocalSGD,
    MinibatchSGD,
    OneShotAveraging,
    OverlapSGP,
    PostLocalSGD,
    SlowMo,
    StalenessAware,
    StaleSynchronous,
    StreamingDiLoCo,
)
from dsgd.sync.adaptive import FixedPeriod
from reference import async_trajectories as async_twins
from reference import compressed_sums as sums
from reference import compression
from reference import strategies as rules
from reference import trajectories as twins

FOLDER = Path(__file__).parent / "golden"
N = twins.N_FEATURES + 1


class Member(NamedTuple):
    """A strategy and what makes its twin."""

    name: str
    strategy: AbstractStrategy[Any]
    twin: Callable[[], Any]


def top(k: int) -> Callable[..., np.ndarray]:
    """Return what sends the k largest entries."""
    return lambda vector, rank, number: compression.top(vector, k)


def drawn(vector: np.ndarray, rank: int, number: int) -> np.ndarray:
    """Return the entries that all ranks draw, two of them."""
    key, _ = stream_of(0).draw().tolist()
    places = np.empty(2, np.uint32)
    strata(np.array([(key + number * 0xD1342543DE82EF95) % 2**64], dtype=np.uint64), len(vector), places)
    return np.where(np.isin(np.arange(len(vector)), places), vector, 0.0)


def numbers(rank: int, number: int) -> np.ndarray:
    """Return where a rank draws the random numbers of its vectors."""
    return np.array([int(stream_of(0, rank).key[0]), number], dtype=object)


def half(vector: np.ndarray, rank: int, number: int) -> np.ndarray:
    """Return a vector rounded to binary16, by way of single precision."""
    return vector.astype(np.float32).astype(np.float16).astype(float)


def ternary(vector: np.ndarray, rank: int, number: int) -> np.ndarray:
    """Return a vector of minus one, zero and one times its largest magnitude."""
    scale = float(np.abs(vector).max())
    return scale * compression.ternary(vector, scale, numbers(rank, number))


def brain(vector: np.ndarray, rank: int, number: int) -> np.ndarray:
    """Return a vector rounded to bfloat16, by way of single precision."""
    return compression.brain_float(vector.astype(np.float32))


def averaging(name: str, strategy: Any, rule: Callable[..., Any], kind: Callable[..., Any] = twins.Averaging) -> Member:
    """Return a member of local steps and a rule of `reference.strategies`."""
    return Member(name, strategy, lambda: kind(partial(rule, strategy)))


def served(name: str, strategy: Any, method: str, **options: Any) -> Member:
    """Return a member whose workers send gradients to a server."""
    return Member(name, strategy, lambda: async_twins.Served(method, **options))


def on_models(compressor: Any, total: Callable[[], Any], name: str) -> Member:
    """Return a member that compresses differences of models."""
    return Member(f"models-{name}", LocalSGD(8, compressor=compressor), lambda: twins.Compressed(total()))


def on_gradients(compressor: Any, total: Callable[[], Any], name: str) -> Member:
    """Return a member that compresses gradients."""
    return Member(f"gradients-{name}", MinibatchSGD(24, compressor=compressor), lambda: twins.Gradients(total()))


def outer(rate: float, beta: float, nesterov: bool) -> Callable[[], Any]:
    """Return what makes the twin of an outer step on whole vectors."""
    return lambda: twins.Outer(sums.Sum(), rate, beta, nesterov)


def right() -> np.ndarray:
    """Return the row factors that PowerSGD begins with, as they are drawn."""
    memory = PowerSGD(1).init(N, np.float64, 0)
    return memory.right.reshape(1, -1)


FEEDBACK = sums.Feedback
#: The order in which the simulator lets threads begin, in each epoch: none of them gives way while it walks its rows.
_USUAL = (0, 1, 2, 3)
TURNS = [*[_USUAL] * 5, (0, 1, 2), (1, 2, 0), (1, 2, 0), (3, 0, 1, 2), *[_USUAL] * 3]
QUORUM = DecoupledDiLoCo(4, None, 0.8, 0.4)
LEADERS = AsyncLeaderSGD(4, 0.3, n_groups=2, global_pull=0.4, global_every=3)
STRATEGIES = [
    averaging("local-sgd", LocalSGD(8), rules.Mean),
    averaging("auto", AutoSync(rule=FixedPeriod(8)), rules.Mean),
    averaging("epoch", EpochAveraging(), rules.Mean),
    averaging("anytime", AnytimeSGD(1e9), rules.Mean, twins.Anytime),
    averaging("one-shot", OneShotAveraging(), rules.Mean, twins.Apart),
    Member(
        "post-local",
        PostLocalSGD(8, 4, 2),
        lambda: twins.Averaging(partial(rules.Mean, None), lambda epoch: 2 if epoch < 3 else 1),
    ),
    Member("minibatch", MinibatchSGD(24), lambda: twins.Gradients(sums.Sum())),
    Member("slowmo", SlowMo(8, 0.4, 0.8), outer(0.8, 0.4, False)),
    Member("diloco", DiLoCo(8, 0.7, 0.5), outer(0.7, 0.5, True)),
    averaging("eager-diloco", EagerDiLoCo(8, 0.7, 0.5), rules.Eager),
    averaging("streaming-diloco", StreamingDiLoCo(8, 2, 1, 0.3, 0.7, 0.5), rules.Streaming),
    averaging("easgd", EASGD(8, 0.7), rules.Elastic),
    averaging("leader", LeaderSGD(8, global_pull=0.3), rules.Leader),
    averaging("leaders", LeaderSGD(8, 2, 0.4, 0.3, 2), rules.Leader),
    averaging("dpsgd", DPSGD(8), rules.Gossip),
    averaging("dpsgd-star", DPSGD(8, Star()), rules.Gossip),
    averaging("sgp", SGP(8), rules.PushSum),
    averaging("sgp-star", SGP(8, Star()), rules.PushSum),
    averaging("overlap-sgp", OverlapSGP(8), rules.LatePushSum),
    averaging("overlap-sgp-late", OverlapSGP(8, 3, Ring()), rules.LatePushSum),
    averaging("choco", ChocoSGD(8, TopK(0.3), 0.4, Ring()), rules.Choco),
    averaging("scaffold", SCAFFOLD(8, 0.9, 1), rules.Control, twins.Controlled),
    Member("fedprox", FedProx(8, 0.3, 1), lambda: twins.Proximal(partial(rules.Mean, None), 0.3)),
    Member("admm", ADMM(8, 0.3, 1), lambda: twins.Priced(partial(rules.Consensus, None), 0.3)),
    served("asgd", ASGD(4), "asgd"),
    served("staleness-aware", StalenessAware(4, usual=1.0), "aware", arrivals=1, usual=1.0),
    served("softsync", StalenessAware(4, 3), "aware", arrivals=3, usual=lambda size: max(1.0, size / 3)),
    served("dc-asgd", DelayCompensatedASGD(4, 0.3), "compensated", strength=0.3, decay=None),
    served("dc-asgd-a", DelayCompensatedASGD(4, 0.5, 0.9), "compensated", strength=0.5, decay=0.9),
    served("stale-synchronous", StaleSynchronous(4, 0), "stale", slack=0),
    served("backup-workers", BackupWorkers(4), "backup", wanted=lambda size: size - 1),
    Member("downpour", Downpour(4), async_twins.Downpour),
    Member("async-easgd", AsyncEASGD(4, 0.8), lambda: async_twins.AsyncElastic(0.8)),
    Member("async-admm", AsyncADMM(4, 0.3, 1), lambda: async_twins.AsyncConsensus(0.3)),
    Member("async-leader", AsyncLeaderSGD(4, 0.3), lambda: async_twins.AsyncLeader(0.3)),
    Member("decoupled-diloco", QUORUM, lambda: async_twins.Decoupled(QUORUM)),
    Member("async-leaders", LEADERS, lambda: async_twins.AsyncLeaders(LEADERS)),
    Member("adpsgd", ADPSGD(3), async_twins.Pairs),
    Member("hogwild", Hogwild(), lambda: async_twins.Serial(TURNS)),
]
COMPRESSORS = [
    *(
        make(compressor, total, name)
        for make in (on_models, on_gradients)
        for name, compressor, total in [
            ("auto", "auto", sums.Sum),
            ("identity", Identity(), sums.Sum),
            ("nonzero", NonZero(), sums.Sum),
            ("topk", ErrorFeedback(TopK(0.3)), lambda: FEEDBACK(top(2))),
            ("topk-decay", ErrorFeedback(TopK(0.3), 0.9), lambda: FEEDBACK(top(2), 0.9)),
            ("randomk", ErrorFeedback(RandomK(0.3)), lambda: FEEDBACK(drawn)),
            ("sign", ErrorFeedback(Sign()), lambda: FEEDBACK(lambda v, r, k: compression.signed(v))),
            ("onebit", ErrorFeedback(OneBit(4)), lambda: FEEDBACK(lambda v, r, k: compression.one_bit(v, 4))),
            (
                "threshold",
                ErrorFeedback(Threshold(0.05)),
                lambda: FEEDBACK(lambda v, r, k: compression.threshold(v, 0.05)),
            ),
            (
                "adaptive-threshold",
                ErrorFeedback(AdaptiveThreshold(0.3)),
                lambda: FEEDBACK(lambda v, r, k: compression.adaptive_threshold(v, 0.3)),
            ),
            ("powersgd", ErrorFeedback(PowerSGD(1)), lambda: sums.LowRank(right())),
            ("half", ErrorFeedback(Half()), lambda: sums.Halved(half)),
            ("bfloat16", ErrorFeedback(Half("bfloat16")), lambda: sums.Halved(brain)),
            ("gtopk", GTopK(0.3), lambda: sums.Merged(2, "conserving", "butterfly")),
            ("gtopk-tree", GTopK(0.3, "put-back", "tree"), lambda: sums.Merged(2, "put-back", "tree")),
            ("adacomp", AdaComp(3), lambda: sums.Adaptive(3)),
            ("qsgd", QSGD(3, 4), lambda: sums.Unbiased(lambda v, r, k: compression.qsgd(v, 3, 4, numbers(r, k)))),
            ("terngrad", TernGrad(), lambda: sums.Unbiased(ternary)),
            ("layerwise", Layerwise({"*": ErrorFeedback(TopK(0.3))}), lambda: FEEDBACK(top(2))),
        ]
    ),
    on_models(TopK(0.3), lambda: FEEDBACK(top(2)), "topk-bare"),
    on_models(Half(), lambda: sums.Halved(half), "half-bare"),
    on_gradients(DGC(0.3, 0.8), lambda: sums.Deep(DGC(0.3, 0.8)), "dgc"),
    on_gradients(
        DGC(0.3, 0.8, nesterov=True, clip=0.9, warm_up=(0.5,), warm_up_rounds=3),
        lambda: sums.Deep(DGC(0.3, 0.8, nesterov=True, clip=0.9, warm_up=(0.5,), warm_up_rounds=3)),
        "dgc-nesterov",
    ),
    on_gradients(DeMo(1, 4, 0.9, None), lambda: sums.Decoupled(DeMo(1, 4, 0.9, None)), "demo"),
    on_gradients(DeMo(2, 4, 0.9, 0.5), lambda: sums.Decoupled(DeMo(2, 4, 0.9, 0.5)), "demo-signs"),
    on_gradients(MajorityVote(0.9, 0.5), lambda: sums.Vote(0.9, 0.5), "majority-vote"),
]
MEMBERS = STRATEGIES + COMPRESSORS


def text_of(member: Member) -> str:
    """Return what the file of a member says: the models of its twin, one line for each epoch."""
    after, returned = twins.trajectory(member.twin())
    lines = ",\n".join(f"  {_numbers(_once(models))}" for models in after)
    name = json.dumps(type(member.strategy).__name__)
    return f'{{"strategy": {name},\n "models": [\n{lines}],\n "returned": {_numbers(returned)}}}\n'


def _once(models: np.ndarray) -> np.ndarray:
    """Return one row where all ranks have the same model."""
    return models[:1] if np.ptp(models, axis=0).max() < 1e-12 else models


def _numbers(array: Any) -> str:
    return json.dumps(np.vectorize(lambda value: float(f"{value:.12g}"))(array).tolist())


def write(members: Iterable[Member] = MEMBERS) -> None:
    """Write the files of all members, and remove those of no member."""
    FOLDER.mkdir(exist_ok=True)
    names = {f"{member.name}.json" for member in members}
    for file in FOLDER.glob("*.json"):
        if file.name not in names:
            file.unlink()
    for member in members:
        (FOLDER / f"{member.name}.json").write_text(text_of(member))


if __name__ == "__main__":
    write()
