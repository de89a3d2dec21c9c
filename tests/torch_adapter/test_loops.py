"""Users' own loops: with a `Synchronizer` they train what the rank loop trains, and no rank waits for ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - what comes below needs torch

from dsgd.collectives import Group  # noqa: E402
from dsgd.comm.frames import AbortFlag  # noqa: E402
from dsgd.comm.topology import Complete  # noqa: E402
from dsgd.comm.wires import inproc  # noqa: E402
from dsgd.compress import DGC, DeMo, ErrorFeedback, Half, RandomK  # noqa: E402
from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError  # noqa: E402
from dsgd.local import Momentum  # noqa: E402
from dsgd.runtime.rank import Rank  # noqa: E402
from dsgd.sync import (  # noqa: E402
    DPSGD,
    SCAFFOLD,
    SGP,
    AbstractStrategy,
    AnytimeSGD,
    AutoSync,
    EpochAveraging,
    Hogwild,
    LeaderSGD,
    LocalSGD,
    MinibatchSGD,
    OverlapSGP,
    SlowMo,
)
from dsgd.sync.adaptive import AdaComm, BudgetedPeriod  # noqa: E402
from dsgd.torch import Synchronizer  # noqa: E402
from dsgd.torch.parts import build_module  # noqa: E402
from gangs import raise_first, run_ranks  # noqa: E402
from laws.gang import close, shards_of, with_mailboxes  # noqa: E402
from laws.torch_oracle import Torch, network  # noqa: E402
from members import FAMILY  # noqa: E402

SIZE, ROWS, BATCH = 4, 32, 4
Programs = Sequence[Callable[[Rank], Any]]


def on_threads(programs: Programs, timeout_s: float = 20.0) -> list[Any]:
    """Run each program on a rank of its own, and return what they return."""
    transports = with_mailboxes(inproc.connect(len(programs), timeout_s=timeout_s))
    try:
        ranks = [Rank(Group(transport), AbortFlag()) for transport in transports]
        return raise_first(run_ranks([partial(p, r) for p, r in zip(programs, ranks, strict=True)]))
    finally:
        close(transports)


def rows_of(shard: Any) -> Any:
    """Return the rows of a shard in the order of their visits."""
    return torch.from_numpy(np.asarray(shard.packed(0, shard.n_rows).values))


def loop(
    rank: Rank,
    shard: Any,
    strategy: Any,
    optimizer: Callable[[Any], torch.optim.Optimizer],
    *,
    n_epochs: int = 2,
    batch: int = BATCH,
    steps_per_epoch: int | None = ROWS // BATCH,
    batch_size: int | None = BATCH,
) -> Synchronizer:
    """Train by a plain loop of torch."""
    X, y = rows_of(shard), torch.from_numpy((np.asarray(shard.targets) > 0).astype(float))
    module = build_module(network, {})
    made = optimizer(module.parameters())
    sync = Synchronizer(module, made, sync=strategy, batch_size=batch_size, steps_per_epoch=steps_per_epoch, rank=rank)
    criterion = nn.BCEWithLogitsLoss()
    for _ in range(n_epochs):
        for start in range(0, len(X), batch):
            made.zero_grad()
            loss = criterion(module(X[start : start + batch]).ravel(), y[start : start + batch])
            loss.backward()
            made.step()
            sync.step(loss)
    sync.finish()
    return sync


def plain(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    """Return SGD as the rank loop of the laws has it."""
    return torch.optim.SGD(parameters, lr=0.1, weight_decay=0.01, **options)


MEETING = [m.strategy for m in FAMILY if m.strategy.talks != "by mailbox"]
OTHERS: list[AbstractStrategy[Any]] = [
    LocalSGD(8, overlap=True),
    LocalSGD(4, momentum="zero"),
    MinibatchSGD(16, bucket_bytes=64),
    MinibatchSGD(16, bucket_bytes=64, compressor=Half()),
    MinibatchSGD(16, base_batch=4),
    MinibatchSGD(16, base_batch=4, warmup=1.5),
    LeaderSGD(8, proximal=0.2, global_proximal=0.1, returns="leader"),
    LeaderSGD(8, n_groups=2, proximal=0.2, global_proximal=0.1, stretch=4),
]


@pytest.mark.parametrize("strategy", [*MEETING, *OTHERS], ids=repr)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_loop_trains_what_the_rank_loop_trains(strategy: Any, momentum: float) -> None:
    """With as many rows on every rank, in whole batches, a plain loop of torch ends in the model of the rank loop."""
    is_plain = isinstance(strategy, SCAFFOLD) or isinstance(strategy.compressor, (DGC, DeMo))
    if (momentum and is_plain) or (not momentum and strategy.momentum != "keep"):
        pytest.skip("these are refused together, by the loop as well; see below")
    rule = Momentum(momentum, batch=None if strategy.exchanges == "gradient" else BATCH)
    expected = Torch().train("threads", [ROWS] * SIZE, strategy, rule)[0].params
    programs = [
        partial(loop, shard=shard, strategy=strategy, optimizer=partial(plain, momentum=momentum))
        for shard in shards_of([ROWS] * SIZE)
    ]
    found = [sync.flat.params for sync in on_threads(programs)]
    assert len({params.tobytes() for params in found}) == 1
    np.testing.assert_allclose(found[0], expected, rtol=1e-11, atol=1e-12)


def test_finish_averages_what_has_moved_and_nothing_else() -> None:
    """After the last exchange finish changes no bit; with steps since then it is the mean of models trained alone."""
    shards = shards_of([ROWS] * 2)
    ended = [partial(loop, shard=shard, strategy=SlowMo(8, 0.9), optimizer=plain) for shard in shards]
    once, apart = [], []
    for steps in (ROWS, 10 * ROWS):
        programs = [
            partial(loop, shard=shard, strategy=LocalSGD(steps), optimizer=plain, steps_per_epoch=None, n_epochs=3)
            for shard in shards
        ]
        once.append(on_threads(programs))
    assert [sync.n_exchanges for sync in on_threads(ended)] == [8, 8]
    assert [sync.n_exchanges for sync in once[0]] == [3, 3]
    assert [sync.n_exchanges for sync in once[1]] == [1, 1]
    for shard in shards:
        apart += on_threads(
            [partial(loop, shard=shard, strategy=LocalSGD(), optimizer=plain, steps_per_epoch=None, n_epochs=3)]
        )
    mean = np.mean([sync.flat.params for sync in apart], axis=0)
    np.testing.assert_allclose(once[1][0].flat.params, mean, rtol=1e-12)


@pytest.mark.parametrize(
    "strategy",
    [None, LocalSGD(1), DPSGD(1, Complete()), SGP(1, Complete()), SlowMo(1, 0.0)],
    ids=repr,
)
def test_shares_weigh_gradients_and_models_alike(strategy: Any) -> None:
    """Ranks with unlike shares, an exchange after every step: all end at the minimum of the weighted loss."""
    shares, goals = (0.75, 0.25), (1.0, -3.0)

    def program(rank: Rank) -> float:
        module = nn.Linear(1, 1, bias=False).double()
        made = torch.optim.SGD(module.parameters(), lr=0.1)
        sync = Synchronizer(module, made, sync=strategy, weight=shares[rank.number], rank=rank)
        for _ in range(200):
            made.zero_grad()
            (module(torch.ones(1, 1, dtype=torch.float64)) - goals[rank.number]).square().sum().backward()
            made.step()
            sync.step()
        sync.finish()
        return float(sync.flat.params[0])

    found = on_threads([program, program])
    assert found[0] == found[1]
    assert found[0] == pytest.approx(0.75 * 1.0 + 0.25 * -3.0, abs=1e-6)


# ---- steps that are left out


class Skipping:
    """A loop on rows of one rank in which some steps are left out, as by a scaler of gradients."""

    def __init__(self, strategy: Any, optimizer: Callable[[Any], torch.optim.Optimizer], skips: Any, *, tells: bool):
        self.strategy, self.optimizer, self.skips, self.tells = strategy, optimizer, skips, tells

    def __call__(self, rank: Rank, shard: Any, n_steps: int = 12) -> Any:
        """Return the parameters at the end."""
        X = rows_of(shard)
        y = torch.from_numpy((np.asarray(shard.targets) > 0).astype(float))
        module = build_module(network, {})
        made = self.optimizer(module.parameters())
        sync = Synchronizer(module, made, sync=self.strategy, batch_size=BATCH, steps_per_epoch=4, rank=rank)
        for k in range(n_steps):
            batch = slice(BATCH * k % ROWS, BATCH * k % ROWS + BATCH)
            made.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(module(X[batch]).ravel(), y[batch])
            loss.backward()
            is_left_out = k in self.skips.get(rank.number, ())
            if not is_left_out:
                made.step()
            if self.tells or not is_left_out:
                sync.step(loss)
        sync.finish()
        return sync.flat.params.copy()


def skipping(strategy: Any, optimizer: Any, skips: Any, *, tells: bool = True, size: int = 2) -> list[np.ndarray]:
    """Run such a loop on some ranks."""
    program = Skipping(strategy, optimizer, skips, tells=tells)
    return on_threads([partial(program, shard=shard) for shard in shards_of([ROWS] * size)], timeout_s=20.0)


@pytest.mark.parametrize("strategy", [None, *MEETING, *OTHERS], ids=repr)
def test_ranks_that_leave_steps_out_keep_nobody_waiting(strategy: Any) -> None:
    """One rank leaves out its first step and two more, whatever the strategy: all end, with one model."""
    if isinstance(strategy, MinibatchSGD):
        strategy = replace(strategy, batch=2 * BATCH)
    has_own = isinstance(getattr(strategy, "compressor", None), (DGC, DeMo))
    momentum = 0.0 if isinstance(strategy, SCAFFOLD) or has_own else 0.9
    found = skipping(strategy, partial(plain, momentum=momentum), {0: (0, 5, 6)})
    assert len({params.tobytes() for params in found}) == 1
    assert np.isfinite(found[0]).all()


@pytest.mark.parametrize("compressor", [None, ErrorFeedback(RandomK(0.5)), DGC(0.3)], ids=repr)
def test_gradients_are_left_out_by_all_ranks_together(compressor: Any) -> None:
    """A step that one rank leaves out is taken by none, and is not in what momentum or a compressor remembers."""
    momentum = 0.0 if isinstance(compressor, DGC) else 0.9
    sync, optimizer = MinibatchSGD(2 * BATCH, compressor=compressor), partial(plain, momentum=momentum)
    one = skipping(sync, optimizer, {0: (0, 5, 6)})
    both = skipping(sync, optimizer, {0: (0, 5, 6), 1: (0, 5, 6)})
    other = skipping(sync, optimizer, {0: (0, 5), 1: (6,)})
    assert one[0].tobytes() == both[0].tobytes() == other[0].tobytes()


@pytest.mark.parametrize("sync", [None, LocalSGD(8)], ids=repr)
def test_ranks_that_take_different_numbers_of_steps_are_told(sync: Any) -> None:
    """If a rank skips `step` as well, the others do not wait: all of them raise an error that explains it."""
    with pytest.raises(InvalidDataError, match="the same number of steps"):
        skipping(sync, plain, {0: (3, 4)}, tells=False)


# Not fused SGD with momentum: after a skipped first step its momentum is uninitialised memory (torch 2.13).
# Fused Adam has a memory, but its steps are as long whatever the scale is; plain fused SGD shows a scale.
SCALED: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "plain": partial(torch.optim.SGD, momentum=0.9),
    "fused": partial(torch.optim.SGD, fused=True),
    "fused Adam": partial(torch.optim.Adam, fused=True),
}


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("sync", [None, LocalSGD(8), LocalSGD(8, momentum="average")], ids=repr)
def test_scalers_of_gradients_skip_as_torch_does(sync: Any, kind: str) -> None:
    """A rank whose scaled gradients overflow leaves steps out until its scale fits; then all train, to one model."""
    if kind == "fused" and sync is not None and sync.momentum != "keep":
        pytest.skip("there is no momentum to average")
    scales, n_taken = {}, {}

    def program(rank: Rank, shard: Any) -> np.ndarray:
        X = rows_of(shard).float() * (1.0 if rank.number else 1e3)
        y = torch.from_numpy((np.asarray(shard.targets) > 0).astype(np.float32))
        module = build_module(partial(nn.Linear, 5, 1), {})
        made = SCALED[kind](module.parameters(), lr=1e-6)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
        synchronizer = Synchronizer(module, made, sync=sync, batch_size=BATCH, rank=rank)
        before = synchronizer.flat.params.copy()
        for _ in range(16):
            made.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(module(X).ravel(), y)
            scaler.scale(loss).backward()
            scaler.step(made)
            scaler.update()
            synchronizer.step(loss)
        synchronizer.finish()
        scales[rank.number] = scaler.get_scale()
        n_taken[rank.number] = synchronizer.n_left_out
        change = synchronizer.flat.params - before
        assert 0.0 < np.abs(change).max() < 0.1  # not along a gradient that is still scaled
        return synchronizer.flat.params.copy()

    found = on_threads([partial(program, shard=shard) for shard in shards_of([ROWS] * 2)])
    assert found[0].tobytes() == found[1].tobytes()
    assert scales[0] < scales[1]
    if sync is None:
        assert n_taken[0] == n_taken[1] > 0


# ---- what a loop asks of a strategy, and a strategy of a loop


def test_rates_are_those_of_the_steps() -> None:
    """The rate that a scheduler changes between a step and its exchange is not the rate of that step."""

    def program(rank: Rank, shard: Any, early: bool) -> np.ndarray:
        X, y = rows_of(shard), torch.from_numpy(np.asarray(shard.targets))
        module = build_module(network, {})
        made = plain(module.parameters())
        scheduler = torch.optim.lr_scheduler.ExponentialLR(made, 0.5)
        sync = Synchronizer(module, made, sync=SCAFFOLD(2), rank=rank)
        for k in range(8):
            made.zero_grad()
            (module(X[k : k + 1]).ravel() - y[k : k + 1]).square().mean().backward()
            made.step()
            if early:
                scheduler.step()
            sync.step()
            if not early:
                scheduler.step()
        sync.finish()
        return sync.flat.params.copy()

    models = []
    for early in (False, True):
        programs = [partial(program, shard=shard, early=early) for shard in shards_of([ROWS] * 2)]
        models.append(on_threads(programs)[0].tobytes())
    assert models[0] == models[1]


def test_the_rate_of_a_large_batch_is_given_back() -> None:
    """The factor of `MinibatchSGD(base_batch=...)` holds inside a step; the rate of the loop stays what it was."""

    def program(rank: Rank) -> tuple[float, float]:
        module = nn.Linear(1, 1, bias=False)
        made = torch.optim.SGD(module.parameters(), lr=0.25)
        sync = Synchronizer(module, made, sync=MinibatchSGD(32, base_batch=8), rank=rank)
        before = float(module.weight.detach())
        module(torch.ones(1, 1)).sum().backward()
        made.step()
        sync.step()
        return before - float(module.weight.detach()), made.param_groups[0]["lr"]

    [(change, rate)] = on_threads([program])
    assert change == pytest.approx(0.25 * 4, rel=1e-6)
    assert rate == 0.25


@pytest.mark.parametrize(
    ("options", "momentum", "message"),
    [
        ({"sync": "scaffold"}, 0.9, "takes other steps"),
        ({"compressor": DGC(0.1)}, 0.9, "optimizer without momentum"),
        ({"sync": LocalSGD(8, momentum="average")}, 0.0, "has none"),
        ({"sync": MinibatchSGD(32), "batch_size": 10}, 0.0, r"batch=32 rows.*MinibatchSGD\(20"),
        ({"sync": MinibatchSGD(32, base_batch=8, warmup=5)}, 0.0, "warmup.*steps_per_epoch"),
        ({"sync": MinibatchSGD(32, bucket_bytes=64, overlap=True)}, 0.0, "overlap=True"),
        ({"sync": "auto"}, 0.0, "steps_per_epoch"),
        ({"sync": EpochAveraging()}, 0.0, "steps_per_epoch"),
        ({"sync": AutoSync(rule=BudgetedPeriod()), "steps_per_epoch": 9}, 0.0, "another rule"),
        ({"sync": AutoSync(rule=AdaComm()), "steps_per_epoch": 9}, 0.0, r"call step\(loss\)"),
        ({"sync": LeaderSGD()}, 0.0, r"call step\(loss\)"),
        ({"sync": Hogwild()}, 0.0, "one model"),
        ({"sync": AnytimeSGD()}, 0.0, "how long ranks train"),
        ({"sync": OverlapSGP()}, 0.0, "do not wait"),
        ({"sync": "asgd"}, 0.0, "do not wait"),
        ({"weight": 0.7}, 0.0, "add up to 1.4"),
        ({"weight": 1.5}, 0.0, r"weight=\.\.\."),
        ({"batch_size": 0}, 0.0, "batch_size"),
        ({"steps_per_epoch": 0}, 0.0, "steps_per_epoch"),
    ],
    ids=str,
)
def test_what_a_loop_cannot_heed_is_refused_by_name(options: Any, momentum: float, message: str) -> None:
    """No parameter is accepted and ignored: what a loop cannot do with a strategy is said before the first exchange."""

    def program(rank: Rank) -> None:
        module = nn.Linear(2, 1)
        made = torch.optim.SGD(module.parameters(), lr=0.1, momentum=momentum)
        Synchronizer(module, made, rank=rank, **options).step()

    with pytest.raises((IncompatiblePartsError, InvalidParameterError), match=message):
        on_threads([program, program])


def test_a_closure_is_refused_where_gradients_are_exchanged() -> None:
    """A step that makes its gradient inside would take its own and no mean; with models it may do so."""

    def program(rank: Rank, sync: Any) -> None:
        module = nn.Linear(2, 1)
        made = torch.optim.SGD(module.parameters(), lr=0.1)
        synchronizer = Synchronizer(module, made, sync=sync, rank=rank)

        def closure() -> Any:
            made.zero_grad()
            loss = module(torch.ones(1, 2)).sum()
            loss.backward()
            return loss

        made.step(closure)
        synchronizer.step()
        synchronizer.finish()

    on_threads([partial(program, sync=LocalSGD(1))] * 2)
    with pytest.raises(IncompatiblePartsError, match="without a closure"):
        on_threads([partial(program, sync=None)] * 2)


def test_momentum_of_a_group_of_parameters_is_momentum() -> None:
    """A group of parameters with momentum makes steps that are no plain ones, and such a strategy is refused."""
    from dsgd.torch import TorchClassifier

    X, y = np.random.default_rng(0).standard_normal((20, 5)), np.arange(20) % 2
    groups = [("0.*", {"momentum": 0.9})]
    with pytest.raises(IncompatiblePartsError, match="takes other steps"):
        TorchClassifier(network, criterion=nn.BCEWithLogitsLoss, sync="scaffold", optimizer__param_groups=groups).fit(
            X, y
        )


# -- modules that change, or hold what is no parameter ---------------------------------------------------------------


def small(rank: Rank) -> nn.Sequential:
    """Return a module with a frozen part, which each rank begins otherwise."""
    torch.manual_seed(rank.number)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    module[0].requires_grad_(False)
    return module


def step(module: nn.Module, optimizer: torch.optim.Optimizer, sync: Synchronizer) -> None:
    """Take a step on rows of this rank."""
    X = torch.full((2, 3), 1.0 + sync.rank.number, dtype=next(module.parameters()).dtype)
    optimizer.zero_grad()
    module(X).pow(2).mean().backward()
    optimizer.step()
    sync.step()


def test_parameters_and_buffers_of_all_dtypes_are_those_of_rank_0() -> None:
    """Masks of bools, and numbers of 16 bits, that numpy or the wires have no name for, are given to all ranks too."""
    dtypes = (torch.bool, torch.bfloat16, torch.float16, torch.int16, torch.complex64, torch.float64)

    def program(rank: Rank) -> list[Any]:
        module = small(rank)
        nn.init.constant_(module[2].weight, rank.number)
        for number, dtype in enumerate(dtypes):
            module.register_buffer(f"b{number}", torch.full((2, 3), rank.number, dtype=dtype))
        module.register_buffer("one", torch.tensor(rank.number, dtype=torch.bfloat16))
        Synchronizer(module, torch.optim.SGD(module.parameters(), lr=0.1), sync=2, rank=rank).finish()
        return [tensor.clone() for tensor in (module[2].weight.detach(), *module.buffers())]

    first, second = on_threads([program] * 2)
    for one, other in zip(first, second, strict=True):
        assert one.dtype == other.dtype
        assert not one.any()
        assert not other.any()


@pytest.mark.parametrize("sync", [None, 1])
@pytest.mark.parametrize("change", ["unfreeze", "assign", "double", "finish"])
def test_what_ranks_would_train_apart_is_refused(sync: Any, change: str) -> None:
    """Parameters that are none of those which ranks began with, and steps after the end, are errors on all ranks."""

    def program(rank: Rank) -> None:
        module = small(rank)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        made = Synchronizer(module, optimizer, sync=sync, rank=rank)
        step(module, optimizer, made)
        if change == "unfreeze":
            module.requires_grad_(True)
        elif change == "assign":
            module.load_state_dict({k: v.clone() for k, v in module.state_dict().items()}, assign=True)
        elif change == "double":
            module.double()
        else:
            made.finish()
        message = "after finish" if change == "finish" else "of Sequential requires a gradient and did not before"
        with pytest.raises(InvalidParameterError, match=message):
            step(module, optimizer, made)

    on_threads([program] * 2)


def test_an_optimizer_of_other_tensors_is_refused() -> None:
    """What the module does not have is not brought together, so that no rank may train it."""

    def program(rank: Rank) -> None:
        module, other = small(rank), nn.Parameter(torch.ones(1))
        with pytest.raises(IncompatiblePartsError, match="1 of the 3 tensors that the optimizer steps on"):
            Synchronizer(module, torch.optim.SGD([*module.parameters(), other], lr=0.1), rank=rank)

    on_threads([program] * 2)


def test_what_is_frozen_later_stays_and_sparse_gradients_are_averaged() -> None:
    """Momentum and decay move no parameter that was frozen while ranks exchange gradients; a bag of words learns."""

    def program(rank: Rank) -> tuple[Any, Any]:
        module = small(rank).requires_grad_(True)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        sync = Synchronizer(module, optimizer, rank=rank)
        step(module, optimizer, sync)
        module[0].requires_grad_(False)
        before = module[0].weight.clone()
        step(module, optimizer, sync)
        assert torch.equal(module[0].weight, before)
        bag = nn.EmbeddingBag(4, 2, sparse=True)
        optimizer = torch.optim.SGD(bag.parameters(), lr=1.0)
        sync = Synchronizer(bag, optimizer, rank=rank)
        before = bag.weight.detach().clone()
        bag(torch.tensor([[rank.number]])).sum().backward()
        optimizer.step()
        sync.step()
        return before, bag.weight.detach()

    for before, after in on_threads([program] * 2):
        np.testing.assert_allclose(before - after, [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0], [0.0, 0.0]], atol=1e-6)
