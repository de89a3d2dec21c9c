"""A strategy beside a training loop of one's own.

Problem: whoever has a training loop in torch wants to keep it, and run it on many workers.

`Synchronizer` makes the parameters views of one flat vector (`dsgd.torch.flat`), gives all ranks those of rank 0, and
then, called after every step of the optimiser, lets the strategy do its exchange when it is due. Where gradients are
exchanged this happens just before the optimiser takes its step, by a hook.

The strategies count rows, a loop counts steps: a step counts as `batch_size` rows, one by default, so that
``LocalSGD(16)`` averages every sixteen steps.

Not offered are strategies with servers, and those in which ranks write to each other without waiting: they need the
rank loop, which `TorchClassifier` runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from dsgd.compress import AbstractCompressor
from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError, VersionMismatchError
from dsgd.local import split
from dsgd.runtime.rank import Rank
from dsgd.sync import AbstractLocalTerm, AbstractStrategy, LeaderSGD, LocalSteps, RoundClock, carry_over
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.period import EveryBatch, EveryRows
from dsgd.torch.current import current_rank, finish_with
from dsgd.torch.fingerprint import fingerprint
from dsgd.torch.flat import FlatModule, FlatTensors
from dsgd.torch.statistics import ModuleStatistics
from dsgd.torch.strategies import bound_to, strategy_for
from dsgd.types import AnyArray, FloatVector
from dsgd.validation import check_number

__all__ = ["Synchronizer"]


class Synchronizer:
    """Keeps the modules of all ranks together while each runs a loop of its own.

    Parameters
    ----------
    module : torch.nn.Module
        The module of this rank; it gets the parameters and buffers of rank 0.
    optimizer : torch.optim.Optimizer
        Steps on its parameters.
    sync : AbstractStrategy, int, str or None, default None
        When ranks talk and what they say; see `dsgd.sync`. None is synchronous SGD; an integer n averages models every
        n rows, which are steps if `batch_size` is one.
    compressor : AbstractCompressor, "auto" or None, default None
        How what is exchanged travels.
    batch_size : int, default 1
        Rows of a step, for strategies that count rows.
    steps_per_epoch : int or None, default None
        Steps in an epoch; only for strategies that count epochs.
    weight : float or None, default None
        Share of this rank in all means; None where all have equal shares. The shares of all ranks add up to one.
    rank : Rank or None, default None
        The rank; None is the one that `launch` runs here.

    Attributes
    ----------
    flat : FlatModule
        The module with its flat vector and the places of its parameters.
    n_exchanges : int
        Exchanges so far.

    Raises
    ------
    IncompatiblePartsError
        The strategy needs the rank loop, or an epoch.
    VersionMismatchError
        The ranks have different modules.
    InvalidParameterError
        A value is out of range, or there is no rank.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sync: AbstractStrategy[Any] | int | str | None = None,
        compressor: AbstractCompressor[Any] | str | None = None,
        batch_size: int = 1,
        steps_per_epoch: int | None = None,
        weight: float | None = None,
        rank: Rank | None = None,
    ) -> None:
        check_number("Synchronizer(batch_size=...)", batch_size, low=1, integer=True)
        if steps_per_epoch is not None:
            check_number("Synchronizer(steps_per_epoch=...)", steps_per_epoch, low=1, integer=True)
        self.rank = current_rank() if rank is None else rank
        self._group, self._optimizer = self.rank.group, optimizer
        self._strategy = strategy_for(sync, compressor, batch_size=batch_size * self.rank.size)
        self._weight = 1.0 / self.rank.size if weight is None else weight
        self._steps, rounds = self._plan(batch_size, steps_per_epoch)
        # After how many steps of an epoch which round ends.
        self._ends = {split(self._steps, rounds, k)[1]: k for k in range(rounds)}
        self._check_modules(module)
        self.flat = FlatModule(module, next(module.parameters()).device)
        self._buffers = ModuleStatistics(module, self.flat.device)
        self.flat.to_host()
        with self._round("setup"):
            for vector in (self.flat.params, *self._buffers.vectors().values()):
                self._group.broadcast(vector)
        self.flat.to_device()
        self._buffers.to_device()
        self._strategy = bound_to(self._strategy, self.flat)
        self._state = self._strategy.init(self._group, self.flat.params, self._weight)
        self._n_steps = self.n_exchanges = 0
        self._is_finished = False
        self._gradient: FloatVector = np.zeros_like(self.flat.params)
        self._hook = None
        if self._strategy.exchanges == "gradient":
            self._hook = optimizer.register_step_pre_hook(self._before_step)
        finish_with(self.finish)

    def rows(self, *arrays: Any) -> Any:
        """Return the rows of this rank: as many on every rank, so that all take as many steps.

        Parameters
        ----------
        *arrays : array or Tensor, shape (n, ...)
            All rows, in the same order on every rank. Those that are left over are dropped.

        Returns
        -------
        array or tuple of arrays
            Views of consecutive rows.
        """
        n, k = len(arrays[0]) // self.rank.size, self.rank.number
        if not n:
            raise InvalidDataError(f"Synchronizer.rows: {len(arrays[0])} rows are too few for {self.rank.size} ranks.")
        parts = tuple(array[n * k : n * (k + 1)] for array in arrays)
        return parts if len(parts) > 1 else parts[0]

    def step(self, loss: Any = None) -> None:
        """Do what is due after a step of the optimiser.

        Parameters
        ----------
        loss : float, Tensor or None
            Mean loss of the batch; needed by `dsgd.sync.LeaderSGD`, and ignored by most.

        Raises
        ------
        AbortedError, GangTimeoutError
            Another rank has failed, or does not come.
        """
        self.rank.check()
        strategy, number = self._strategy, self._n_steps
        self._n_steps += 1
        if strategy.exchanges == "gradient":
            return
        if isinstance(strategy, LeaderSGD) and loss is None:
            raise InvalidParameterError(f"{strategy!r} is led by the rank with the lowest loss: call step(loss).")
        if isinstance(strategy, AbstractLocalTerm) and self.rank.size > 1:
            self.flat.to_host()
            rate = float(self._optimizer.param_groups[0]["lr"])
            value = float(loss.detach()) if isinstance(loss, torch.Tensor) else float(loss or 0.0)
            strategy.correct(self.flat.params, LocalSteps(rate, value, 1), self._state)
            self.flat.to_device()
        epoch, place = divmod(number, self._steps)
        if place + 1 in self._ends:
            clock = RoundClock(epoch, self._ends[place + 1], len(self._ends), is_last=False)
            if strategy.period.is_due(clock):
                self._exchange()

    def finish(self) -> None:
        """Bring the ranks together for good: they all have the model that training returns, and its statistics.

        `launch` calls it when the function returns; call it yourself where the model is looked at before.
        """
        if self._is_finished:
            return
        self._is_finished = True
        if self._hook is not None:
            self._hook.remove()
        self.flat.to_host()
        with self._round("collect"):
            if self._strategy.exchanges == "model" and self._strategy.ends_equal:
                self._strategy.sync(self._group, self.flat.params, self._weight, self._state)
            elif not self._strategy.ends_equal:
                self._strategy.collect(self._group, self.flat.params, self._weight, self._state)
            running = self._buffers.running()
            if running is not None:
                weighted_mean(self._group, running, self._weight)
        self.flat.to_device()
        self._buffers.to_device()

    def _exchange(self) -> None:
        strategy = self._strategy
        self.n_exchanges += 1
        self.flat.to_host()
        with self._round("sync"):
            strategy.sync(self._group, self.flat.params, self._weight, self._state)
            if strategy.momentum != "keep":
                memory = _memory(self._optimizer)
                carry_over(strategy.momentum, self._group, (flat.host for flat in memory), self._weight)
                for flat in memory:
                    flat.to_device()
        self.flat.to_device()

    def _before_step(self, optimizer: object, args: object, kwargs: object) -> None:
        """Replace the gradient of this rank by the mean of all; a hook of the optimiser."""
        self.n_exchanges += 1
        self.flat.gather_gradient(self._gradient)
        with self._round("sync"):
            self._strategy.sync(self._group, self._gradient, self._weight, self._state)
        self.flat.bind_gradient(self._gradient)

    def _plan(self, batch_size: int, steps_per_epoch: int | None) -> tuple[int, int]:
        """Return the steps and the rounds of an epoch; without epochs, of a stretch from one exchange to the next."""
        strategy, period = self._strategy, self._strategy.period
        if strategy.n_servers or strategy.talks == "by post" or strategy.overlap:
            raise IncompatiblePartsError(
                f"sync={strategy!r} has ranks that do not wait for each other, which needs the rank loop of "
                "dsgd.torch.TorchClassifier. Use a strategy in which ranks meet, such as LocalSGD or EASGD."
            )
        if steps_per_epoch is not None:
            rounds = period.rounds_per_epoch([steps_per_epoch * batch_size] * self.rank.size)
            return steps_per_epoch, min(rounds, steps_per_epoch)
        if isinstance(period, EveryBatch):
            return 1, 1
        if isinstance(period, EveryRows):
            return max(1, int(period.n) // batch_size), 1
        raise IncompatiblePartsError(f"sync={strategy!r} counts epochs: pass Synchronizer(steps_per_epoch=...).")

    def _check_modules(self, module: nn.Module) -> None:
        ours = fingerprint(module)
        digest = np.frombuffer(bytes.fromhex(ours["parameters"] + ours["code"]), dtype=np.int64)
        with self._round("setup"):
            digests: AnyArray = self._group.allgather(digest)
        for number, theirs in enumerate(digests):
            if (theirs != digests[0]).any():
                what = "parameters" if theirs[0] != digests[0][0] else "code"
                raise VersionMismatchError(
                    f"the {type(module).__name__} of rank {number} is not that of rank 0: its {what} differ. Bring the "
                    "same version of the file to all workers."
                )

    def _round(self, op: str) -> _Round:
        return _Round(self.rank, op)


class _Round:
    """A round of the ledger, as a block."""

    def __init__(self, rank: Rank, op: str) -> None:
        self._ledger, self._op = rank.ledger, op

    def __enter__(self) -> None:
        self._ledger.begin_round(self._op)

    def __exit__(self, *error: object) -> None:
        self._ledger.end_round()


def _memory(optimizer: torch.optim.Optimizer) -> list[FlatTensors]:
    """Return what an optimiser remembers by now, as vectors; its tensors become views of them."""
    kinds: dict[Any, list[torch.Tensor]] = {}
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                kinds.setdefault((name, value.dtype, value.device), []).append(value)
    return [FlatTensors(tensors, dtype, device) for (_, dtype, device), tensors in kinds.items()]
