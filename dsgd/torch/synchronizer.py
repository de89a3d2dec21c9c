"""`Synchronizer`: a strategy for a training loop of your own.

It makes the parameters views of one flat vector (`dsgd.torch.flat`), gives all ranks those of rank 0, and then, called
after every step of the optimiser, does what the rank loop does between steps: the local term of the strategy, the
exchange when it is due, the end of an epoch. Where gradients are exchanged this happens just before the optimiser takes
its step, by a hook. With as many rows on every rank, in whole batches, the model is that of `TorchClassifier` on the
same rows.

Strategies count rows, a loop counts steps: a step counts as `batch_size` rows. A step may be skipped, by all ranks if
they exchange gradients, so that non-finite values enter neither a model nor the memory of a compressor; else by each
for itself. Before every exchange ranks send each other three numbers: whether they skip the step, and whether they have
finished. So different numbers of steps are an error and no wait.

Cost: that message, and what the strategy says; in the end one more message, of the running statistics.

Not offered are strategies with servers, and those in which ranks write to each other without waiting: they need the
rank loop, which `TorchClassifier` runs.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from dsgd.compress import AbstractCompressor
from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError
from dsgd.ledger import COMPUTE
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.adaptation import Adaptation
from dsgd.runtime.train.state import TrainState
from dsgd.sync import AbstractLocalTerm, AbstractStrategy, Cut, LocalSteps, RoundClock
from dsgd.sync.averaging import DelayedMean, beside_for, weighted_mean
from dsgd.sync.minibatch import buckets_for
from dsgd.torch import loop
from dsgd.torch.flat import FlatModule
from dsgd.torch.process_group import current_rank, finish_with
from dsgd.torch.rows import ModuleStatistics
from dsgd.types import FloatVector
from dsgd.validation import check_number

_NO_STEPS: Final = LocalSteps(0.0, 0.0, 0)
_ROUNDING: Final = 1e-12


class Synchronizer:
    """Synchronises the modules of all ranks while each runs a training loop of your own.

    Parameters
    ----------
    module : torch.nn.Module
        The module of this rank; it gets the parameters and buffers of rank 0.
    optimizer : torch.optim.Optimizer
        Steps on its parameters.
    sync : AbstractStrategy, int, str or None, default None
        When ranks exchange, and what; see `dsgd.sync`. None is synchronous SGD; an integer n averages models every
        n rows, which are steps if `batch_size` is one.
    compressor : AbstractCompressor, "auto" or None, default None
        How exchanged vectors are compressed.
    batch_size : int or None, default None
        Rows of a step of this rank, for strategies that count rows; None is one. With `dsgd.sync.MinibatchSGD` the
        batch of all ranks must be that of the strategy; None takes it to be.
    steps_per_epoch : int or None, default None
        Steps in an epoch; for strategies that count epochs, and for `dsgd.sync.AutoSync`, which finds its period by
        them. With it an epoch ends in an exchange, as everywhere.
    weight : float or None, default None
        Share of this rank in all means; None where all have equal shares. The shares of all ranks add up to one.
    rank : Rank or None, default None
        The rank; None is the one that `launch` runs here, or else that of this process under ``torchrun``, in the
        default process group of ``torch.distributed``.

    Attributes
    ----------
    flat : FlatModule
        The module with its flat vector and the places of its parameters.
    n_exchanges : int
        Exchanges so far.
    n_left_out : int
        Steps of all ranks that were left out together, where they exchange gradients.

    Raises
    ------
    IncompatiblePartsError
        The strategy needs the rank loop, or an epoch, or does not go with the optimiser or the batch; or the optimiser
        steps on tensors that the module does not have.
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
        batch_size: int | None = None,
        steps_per_epoch: int | None = None,
        weight: float | None = None,
        rank: Rank | None = None,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("steps_per_epoch", steps_per_epoch)):
            if value is not None:
                check_number(f"Synchronizer({name}=...)", value, low=1, integer=True)
        if weight is not None:
            check_number("Synchronizer(weight=...)", weight, low=0, high=1)
        self.rank = current_rank() if rank is None else rank
        self._group, self._ledger, self._optimizer = self.rank.group, self.rank.ledger, optimizer
        self._weight = 1.0 / self.rank.size if weight is None else weight
        self._batch = batch_size or 1
        strategy = loop.strategy_for(sync, compressor, batch_size=self._batch * self.rank.size)
        n_batch = None if batch_size is None else batch_size * self.rank.size
        loop.check_loop(strategy, loop.steps_of_loop(optimizer, self._batch), n_batch, steps_per_epoch)
        # Without epochs there are stretches, from one exchange to the next.
        self._has_epochs = steps_per_epoch is not None
        self._steps = steps_per_epoch or max(1, int(getattr(strategy.period, "n", 1)) // self._batch)
        if strategy.exchanges == "gradient" and not self._has_epochs:
            self._steps = 1
        loop.check_owned(module, optimizer)
        loop.check_ranks(self.rank, module, self._weight)
        self.flat = FlatModule(module, next(module.parameters()).device)
        buffers = ModuleStatistics(module)
        self.flat.to_host()
        self._ledger.begin_round("setup")
        self._group.broadcast(self.flat.params)
        loop.share_buffers(self._group, module, buffers)
        self._ledger.end_round()
        self.flat.to_device()
        buffers.to_device()
        self._strategy = loop.bound_to(strategy, self.flat)
        self._begin(loop.LoopState(module, optimizer, buffers, remembers=strategy.treats_memory))

    def _begin(self, state: loop.LoopState) -> None:
        """Make what changes while the loop runs, and hook it to the optimiser."""
        strategy, group, params = self._strategy, self._group, self.flat.params
        rows = [self._steps * self._batch] * self.rank.size
        n_rounds = strategy.period.rounds_per_epoch(rows) if self._has_epochs else 1
        self._state = state
        self._at = TrainState(params, state, Cut.whole(rows, n_rounds))
        self._at.strategy = strategy.init(group, params, self._weight)
        self.n_exchanges = self.n_left_out = 0
        self._place = 0  # steps of this epoch
        self._taken = _NO_STEPS
        self._has_moved = self._has_met = self._is_finished = False
        self._rates: list[Any] = []
        self._gradient: FloatVector = np.zeros_like(params)
        self._buckets = buckets_for(group, strategy)
        overlaps = strategy.overlap and strategy.exchanges == "model"
        # All ranks take as many steps, at the same rates: where ranks count alike, what their steps change is scaled.
        scale = self._weight * self.rank.size if strategy.weighs == "alike" else 1.0
        self._scale = scale if abs(scale - 1.0) > _ROUNDING else 1.0
        self._start = params.copy() if self._scale != 1.0 else params[:0]
        self._delayed = DelayedMean(group, params) if overlaps else None
        self._beside = beside_for(group, strategy)
        self._adaptation: Adaptation | None = None
        if strategy.adaptation is not None and self.rank.size > 1:
            self._adaptation = Adaptation(self.rank, strategy.adaptation, None, rows, loop.LoopSteps(), math.inf)
            self._adaptation.begin(self._at, loop.Stopwatch(self._ledger))
        self._hooks = [
            self._optimizer.register_step_pre_hook(self._before_step),
            self._optimizer.register_step_post_hook(self._after_step),
        ]
        finish_with(self.finish, self._close)
        self._since = self._ledger.clock()

    @property
    def sync_history(self) -> list[dict[str, Any]]:
        """The periods that `dsgd.sync.AutoSync` has chosen; see `dsgd.SGDClassifier`."""
        return [] if self._adaptation is None else self._adaptation.history(self._at)

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
        """Exchange if due after a step of the optimiser, taken or skipped.

        Parameters
        ----------
        loss : float, Tensor or None
            Mean loss of the batch; needed by `dsgd.sync.LeaderSGD`, of use to `dsgd.sync.AutoSync`, and ignored by all
            others.

        Raises
        ------
        AbortedError, GangTimeoutError
            Another rank has failed, or does not come.
        InvalidDataError
            Another rank has ended after fewer steps.
        InvalidParameterError
            The module has other parameters to train than when this was made; or this has finished.
        """
        self.rank.check()
        if self._is_finished:
            raise InvalidParameterError("Synchronizer.step() after finish(), for good: make another Synchronizer.")
        strategy, state = self._strategy, self._state
        self.rank.worked(rows=self._batch, entries=self._batch * self.flat.n_params, params=self.flat.n_params)
        if strategy.exchanges == "gradient":
            # Others may be waiting for the gradient of a rank whose optimiser was not called.
            if not self._has_met:
                self._exchange_gradients(leaves_out=True)
            self._has_met = False
            return
        value = self._loss(loss)
        rate_sum = state.count(self._batch, value)
        self._place, self._has_moved = self._place + 1, True
        ended = self._rounds_ended()
        term = strategy.local_term
        if term is not None:
            so_far = self._taken
            n_rows = so_far.n_rows + self._batch
            self._taken = LocalSteps(so_far.rate_sum + rate_sum, so_far.loss_sum + value * self._batch, n_rows)
            if ended or term.stretch is not None:
                self._correct(term)
        if ended:
            self._end_rounds(ended)

    def finish(self) -> None:
        """Bring the ranks together for good: they all have the model that training returns, and its statistics.

        `launch` calls it when the function returns; call it yourself where the model is looked at before, and at the
        end of a script that ``torchrun`` starts.
        """
        if self._is_finished:
            return
        self._is_finished = True
        for hook in self._hooks:
            hook.remove()
        at, strategy, weight = self._at, self._strategy, self._weight
        self.flat.to_host()
        if self._delayed is not None:
            self._delayed.finish(self.flat.params)
        if self._beside is not None:
            self._beside.finish()
        self._close()
        self._ledger.begin_round("collect")
        _, has_moved = loop.agree(self._group, ends=True, moved=self._has_moved or self._delayed is not None)
        self._ledger.end_round()
        if strategy.local_term is not None:
            self._correct(strategy.local_term)
        if has_moved and strategy.exchanges == "model":
            self._exchange_models(ends_epoch=True, decides=False)
        self._ledger.begin_round("collect")
        if not strategy.ends_equal:
            strategy.collect(self._group, self.flat.params, weight, at.strategy)
        running = self._state.buffers.running()
        if running is not None:
            weighted_mean(self._group, running, weight)
        self._ledger.end_round()
        self.flat.to_device()
        self._state.buffers.to_device()

    def _close(self) -> None:
        """Let the thread of exchanges end."""
        for beside in (self._delayed, self._beside):
            if beside is not None:
                beside.close()

    # -- models --------------------------------------------------------------------------------------------------

    def _correct(self, term: AbstractLocalTerm[Any]) -> None:
        """Apply a local term for the steps since the last time."""
        if self.rank.size > 1 and self._taken.n_rows:
            self.flat.to_host()
            term.correct(self.flat.params, self._taken, self._at.strategy)
            self.flat.to_device()
        self._taken = _NO_STEPS

    def _rounds_ended(self) -> range:
        """Return the numbers of the rounds that end with this step; a step may be longer than a round."""
        at, rounds = self._at, self._at.cut.rounds
        begin = at.cut.starts[self.rank.number]
        left, done = self._steps * self._batch - begin, self._place * self._batch - begin
        # The most rounds m with left m // rounds <= done.
        return range(at.round, min(rounds, ((done + 1) * rounds - 1) // left))

    def _end_rounds(self, numbers: range) -> None:
        """End rounds, and the epoch if it ends with them."""
        at, period, rounds = self._at, self._strategy.period, self._at.cut.rounds
        ends_epoch = numbers.stop == rounds
        decides = self._adaptation is not None and at.ahead <= len(numbers)
        if any(period.is_due(RoundClock(at.epoch, number, rounds, is_last=False)) for number in numbers):
            self._exchange_models(ends_epoch=ends_epoch and self._has_epochs, decides=decides)
        at.ahead, at.round = at.ahead - len(numbers), numbers.stop
        if self._adaptation is not None:
            if decides:
                self._adaptation.decide(at)
            self._adaptation.note(at)
        if ends_epoch:
            self._place, at.epoch, at.round = 0, at.epoch + 1, 0
            self._state.start_epoch()
            if self._adaptation is not None:
                self._adaptation.cut_epoch(at)

    def _exchange_models(self, *, ends_epoch: bool, decides: bool) -> None:
        at, strategy = self._at, self._strategy
        self.flat.check_parts(views=True)
        self.n_exchanges += 1
        self.flat.to_host()
        self._begin_exchange()
        if self._delayed is not None:
            self._delayed.finish(self.flat.params)
        if self._beside is not None:
            self._beside.finish()
        if not self._is_finished:
            loop.agree(self._group)
        if self._delayed is not None and not ends_epoch:
            self._delayed.hold(self.flat.params)
            self._delayed.start(self._weight)
        else:
            if decides and self._adaptation is not None:
                self._adaptation.observe(at)
            if self._scale != 1.0:
                # What the steps since the last exchange have changed.
                params = self.flat.params
                params -= self._start
                params *= params.dtype.type(self._scale)
                params += self._start
            strategy.sync(self._group, self.flat.params, self._weight, at.strategy)
            strategy.carry_over(self._group, self._state.memory(), self._weight, at.strategy)
            if self._scale != 1.0:
                self._start[:] = self.flat.params
            if self._beside is not None and not self._is_finished:
                self._beside.start(self._weight, at.strategy)
        self._has_moved = False
        self._end_exchange()
        self.flat.to_device()
        self._state.buffers.to_device()

    # -- gradients -----------------------------------------------------------------------------------------------

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Bring home the gradient of all ranks, where they exchange it; a hook of the optimiser."""
        self._state.before_step()
        strategy = self._strategy
        if strategy.exchanges != "gradient":
            return
        if any(value is not None for value in (*args[1:], *kwargs.values())):
            raise IncompatiblePartsError(
                f"sync={strategy!r} exchanges gradients before a step, and {type(optimizer).__name__}.step(closure) "
                "makes them inside it. Call backward() first and step() without a closure, or exchange models, as with "
                "LocalSGD."
            )
        factor = strategy.rate_factor(self._state.t / self._steps)
        if factor != 1.0:
            self._rates = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * factor
        self._exchange_gradients(leaves_out=loop.has_overflowed(optimizer))
        self._has_met = True

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Take note of a step; a hook of the optimiser."""
        self._state.after_step()
        for group, rate in zip(optimizer.param_groups, self._rates, strict=False):
            group["lr"] = rate
        self._rates = []

    def _exchange_gradients(self, *, leaves_out: bool) -> None:
        """Replace the gradient of this rank by the mean of all, or by none if a rank leaves the step out."""
        self.flat.check_parts(views=False)
        self._begin_exchange()
        leaves_out, _ = loop.agree(self._group, leaves_out=leaves_out)
        if leaves_out:
            self.n_left_out += 1
            # Optimisers pass over what has no gradient.
            self.flat.drop_gradient()
        else:
            self.n_exchanges += 1
            gradient = self._gradient
            self.flat.gather_gradient(gradient)
            self._unscale(gradient)
            if self._buckets is None:
                self._strategy.sync(self._group, gradient, self._weight, self._at.strategy)
            else:
                self._buckets.begin(gradient, 1, self._weight)
                self._buckets.finish()
            self.flat.bind_gradient(gradient)
        self._end_exchange()
        self._state.count(self._batch, 0.0)

    def _unscale(self, gradient: FloatVector) -> None:
        """Divide by the scale of the loss, where `GradScaler` has left that to a fused optimiser."""
        scale = getattr(self._optimizer, "grad_scale", None)
        if scale is not None:
            gradient /= gradient.dtype.type(float(scale))
            self._optimizer.grad_scale = None  # GradScaler deletes it after the step

    # -- what all exchanges share --------------------------------------------------------------------------------

    def _begin_exchange(self) -> None:
        self._ledger.begin_round("sync")
        self._ledger.charge(COMPUTE, self._ledger.clock() - self._since)

    def _end_exchange(self) -> None:
        self._ledger.end_round()
        self._since = self._ledger.clock()

    def _loss(self, loss: Any) -> float:
        """Return the loss of a step as a number, where the strategy asks for it: a device has to wait for that."""
        strategy = self._strategy
        if not strategy.needs_loss and strategy.adaptation is None:
            return 0.0
        if loss is not None:
            return float(loss.detach()) if isinstance(loss, torch.Tensor) else float(loss)
        if strategy.needs_loss:
            raise InvalidParameterError(f"{strategy!r} needs the loss of every step: call step(loss).")
        return math.nan
