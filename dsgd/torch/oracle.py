"""A torch module behind the interface of the rank loop, with its state, its outputs and its gradients.

The loop is that of linear models (`dsgd.runtime.train`); it knows `dsgd.local.AbstractLocalOptimizer` and nothing of
torch. Here a local step is a forward and a backward pass over a minibatch and a step of a torch optimiser; where ranks
exchange gradients, the loop asks for the gradient of a batch and, after the exchange, for a step along the mean. The
model that strategies mix is the memory of the parameters themselves (`dsgd.torch.flat`). A range of rows is cut into as
few minibatches of even size as `batch` allows, as `dsgd.local` does.

The flat vector holds the parameters in the order of the module, which is about that of the forward pass. So their
gradients are computed from the end of the vector to its front, and the progress is reported to the code that sums
buckets during the pass (`dsgd.sync.minibatch`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.kernels import state as places
from dsgd.local import AbstractLocalOptimizer, AbstractState
from dsgd.local.base import Evaluation, Steps, new_counters
from dsgd.local.sgd import is_finite
from dsgd.local.shard import split
from dsgd.torch import parts
from dsgd.torch.flat import FlatModule, OptimizerMemory
from dsgd.torch.parts import draws, repeatable
from dsgd.torch.rows import ROWS_PER_LOOK, BatchNormPolicy, ModuleStatistics, TensorRows
from dsgd.types import AnyArray, FloatVector


@dataclass
class ModuleState(AbstractState):
    """What changes while a module trains, beside its parameters."""

    counters: FloatVector
    flat: FlatModule
    criterion: nn.Module
    optimizer: torch.optim.Optimizer
    remembered: OptimizerMemory
    buffers: ModuleStatistics
    draws: bool
    loss_scale: parts.LossScale | None = None
    rates: list[float] = field(default_factory=list)
    order: tuple[int, AnyArray | None] = (-1, None)

    @property
    def averaged(self) -> None:
        """None: the iterates are not averaged."""
        return None

    def memory(self) -> dict[str, FloatVector]:
        """Return what the optimiser remembers."""
        return self.remembered.vectors()

    def vectors(self) -> dict[str, AnyArray]:
        """Return the scale of the loss, where there is one."""
        return {} if self.loss_scale is None else {"loss_scale": self.loss_scale.vector}

    @property
    def scale(self) -> float:
        """What losses are multiplied by, and gradients divided."""
        return 1.0 if self.loss_scale is None else self.loss_scale.value

    def statistics(self) -> dict[str, AnyArray]:
        """Return the buffers of the module."""
        return self.buffers.vectors()

    def take_up(self, params: FloatVector) -> None:
        """Let the module have the parameters, and the statistics, that the host has."""
        self.flat.bind(params)
        self.flat.to_device()
        self.buffers.to_device()

    def order_of(self, rows: TensorRows) -> AnyArray | None:
        """Return the order in which this epoch walks the rows; it is made once."""
        if self.order[0] != self.epoch:
            self.order = self.epoch, rows.order(self.epoch)
        return self.order[1]

    def repeatable(self, seed: int) -> AbstractContextManager[None]:
        """Return the context in which the module draws the numbers of this step of this rank."""
        return repeatable((seed * 1_000_003 + int(self.t)) % 2**63) if self.draws else nullcontext()

    def unscale(self) -> bool:
        """Divide ``.grad`` by the scale of the loss; return whether a step may be taken along it."""
        if self.loss_scale is None:
            return True
        gradients = [parameter.grad for parameter in self.flat.parameters if parameter.grad is not None]
        for gradient in gradients:
            gradient.div_(self.scale)
        return self.may_step(is_finite=all(bool(torch.isfinite(gradient).all()) for gradient in gradients))

    def may_step(self, *, is_finite: bool) -> bool:
        """Tell the scale of the loss of a gradient; return whether to step along it. A step left out counts as one."""
        if self.loss_scale is None:
            return True  # without a scale, what is not finite is an error
        self.loss_scale.update(is_finite=is_finite)
        if not is_finite:
            self.rates.append(0.0)
            self.t += 1.0
        return is_finite


@contextmanager
def streamed_gradient(flat: FlatModule, out: FloatVector, scale: float, ready: Callable[[int], None]) -> Iterator[None]:
    """Write gradients into a vector as the backward pass inside makes them."""
    views, starts = flat.gradient_views(out), [flat.slices[name].start for name in flat.names]
    is_there = [False] * len(views)
    first = len(views)

    def hook(number: int) -> Callable[[torch.Tensor], None]:
        def arrived(parameter: torch.Tensor) -> None:
            nonlocal first
            assert parameter.grad is not None  # it has just been accumulated
            _write(views[number], parameter.grad, scale)
            is_there[number] = True
            before = first
            # Inside a layer, and between branches, gradients come in any order.
            while first and is_there[first - 1]:
                first -= 1
            if first < before:
                ready(starts[first])

        return arrived

    handles = [p.register_post_accumulate_grad_hook(hook(k)) for k, p in enumerate(flat.parameters)]
    try:
        yield
        for view, parameter, known in zip(views, flat.parameters, is_there, strict=True):
            if not known:
                _write(view, parameter.grad, scale)
    finally:
        for handle in handles:
            handle.remove()


def _write(view: torch.Tensor, gradient: torch.Tensor | None, scale: float) -> None:
    with torch.no_grad():
        if gradient is None:
            view.zero_()
            return
        view.copy_(gradient)
        if scale != 1.0:
            view.div_(scale)


def predictions(module: nn.Module, rows: TensorRows, device: torch.device) -> Iterator[tuple[Any, Any]]:
    """Yield (output, target) of batch after batch, the module as it is when it predicts."""
    module.eval()
    with torch.no_grad():
        for start in range(0, rows.n_rows, ROWS_PER_LOOK):
            inputs, targets = rows.batch(None, start, min(start + ROWS_PER_LOOK, rows.n_rows))
            yield first_output(module(inputs.to(device))), targets.to(device)


def first_output(made: Any) -> Any:
    """Return the output of a module; of several, the first."""
    return made[0] if isinstance(made, tuple) else made


def in_shape_of(output: Any, target: Any) -> Any:
    """Return targets in the shape of outputs, where both have one number per row."""
    if target.is_floating_point() and target.shape != output.shape and target.numel() == output.numel():
        return target.reshape(output.shape)
    return target


def mean_loss(criterion: nn.Module, output: Any, target: Any, weights: Any) -> Any:
    """Return the mean over rows of their losses, each times its weight."""
    target = in_shape_of(output, target)
    if weights is None:
        return criterion(output, target)
    losses: Any = criterion
    losses.reduction = "none"
    try:
        found = criterion(output, target)
    finally:
        losses.reduction = "mean"
    if found.ndim == 0 or len(found) != len(weights):
        raise InvalidParameterError(
            f"sample_weight: criterion={criterion!r} returns shape {tuple(found.shape)} for {len(weights)} rows with "
            "reduction='none', not a loss for each row."
        )
    return (found.reshape(len(weights), -1).mean(dim=1) * weights.to(found.device)).mean()


def score_sums(output: Any, target: Any, loss: float, weights: Any = None, *, is_classification: bool) -> FloatVector:
    """Return what a batch adds to an `Evaluation`, given the mean of its weighted losses; shape (7,)."""
    n, shares = len(target), None if weights is None else weights.to(output.device).double()

    def summed(values: Any) -> float:
        return float(values.sum() if shares is None else (values.reshape(n, -1).sum(dim=1) * shares).sum())

    total = n if shares is None else float(shares.sum())
    if is_classification:
        found = output.argmax(dim=1) if output.ndim > 1 and output.shape[1] > 1 else output.reshape(-1) > 0
        return np.array([loss * n, total, total, summed(found == target.reshape(-1)), 0.0, 0.0, 0.0])
    truth, error = target.double(), in_shape_of(output, target).double() - output.double()
    return np.array([loss * n, total, total, 0.0, *map(summed, (error.square(), truth, truth.square()))])


#: Rows of a local batch where nobody says.
DEFAULT_BATCH: Final = 128


@dataclass(frozen=True)
class ModuleOptimizer(AbstractLocalOptimizer[TensorRows, ModuleState]):
    """Steps of a torch optimiser on a torch module."""

    module: Any
    module_options: Mapping[str, Any]
    buffers: Mapping[str, AnyArray]
    identity: Mapping[str, str]
    criterion: Any
    criterion_options: Mapping[str, Any]
    optimizer: Any
    optimizer_options: Mapping[str, Any]
    batch: int | None = None
    batch_norm: BatchNormPolicy = "average"
    device: str = "cpu"
    is_classification: bool = True
    passes: parts.Passes = field(default_factory=parts.Passes)

    @property
    def steps(self) -> Steps:
        """A step per minibatch."""
        groups = [self.optimizer_options, *(own for _, own in self.optimizer_options.get("param_groups", ()))]
        is_plain = parts.is_plain_sgd(self.optimizer, groups)
        options = ", ".join(f"{name}={value!r}" for name, value in self.optimizer_options.items())
        name = f"optimizer={getattr(self.optimizer, '__name__', repr(self.optimizer))}({options})"
        return Steps(
            name if self.batch is None else f"batch_size={self.batch} with {name}",
            rows=self.batch or DEFAULT_BATCH,
            by_row=False,
            rows_given=self.batch is not None,
            remembers=not is_plain,
            is_plain=is_plain,
            may_overflow=self.passes.may_overflow,
        )

    @property
    def n_outputs(self) -> int:
        """One: a row goes through the module once, however many outputs that has."""
        return 1

    @property
    def n_losses(self) -> int:
        """One, however many outputs the module has."""
        return 1

    def init(self, rows: TensorRows) -> ModuleState:
        """Return a module of this rank, its optimiser and its criterion."""
        module = parts.build_module(self.module, self.module_options)
        parts.check_same(parts.fingerprint(module), dict(self.identity), type(module).__name__)
        state = module.state_dict()
        state |= {name: torch.from_numpy(np.array(values)) for name, values in self.buffers.items()}
        module.load_state_dict(state)
        flat = FlatModule(module, self._device(rows))
        make_optimizer = partial(parts.build_optimizer, self.optimizer, self.optimizer_options)
        optimizer = make_optimizer(module)
        for group in optimizer.param_groups:
            group["dsgd_lr"] = group["lr"]
        return ModuleState(
            new_counters(self.n_losses),
            flat,
            parts.build_criterion(self.criterion, self.criterion_options).to(flat.device),
            optimizer,
            OptimizerMemory(optimizer, module, make_optimizer),
            ModuleStatistics(module),
            draws=draws(module),
            loss_scale=self.passes.new_scale() if self.passes.may_overflow else None,
        )

    def arrange(self, rows: TensorRows, state: ModuleState) -> None:
        """Make the order in which the present epoch walks the rows."""
        state.order = state.epoch, rows.order(state.epoch)

    def bind(self, params: FloatVector, rows: TensorRows, state: ModuleState) -> Callable[[int, int], None]:
        """Return what takes a step per minibatch of the rows start..stop; see `AbstractLocalOptimizer.bind`."""

        def walk(start: int, stop: int) -> None:
            state.rates.clear()
            if stop <= start:
                return
            state.take_up(params)
            n_batches = -(-(stop - start) // (self.batch or DEFAULT_BATCH))
            order = state.order_of(rows)
            for k in range(n_batches):
                low, high = split(stop - start, n_batches, k)
                state.flat.drop_gradient()
                self._backward(rows, order, start + low, start + high, state, 1.0)
                if state.unscale():
                    self._step(state)
            state.flat.to_host()

        return walk

    def gradient(
        self, params: FloatVector, rows: TensorRows, start: int, stop: int, out: FloatVector, state: ModuleState
    ) -> None:
        """Write into `out` the sum over rows start..stop of their gradients; see `AbstractLocalOptimizer.gradient`."""
        if stop <= start:
            out.fill(0.0)
            return
        state.take_up(params)
        state.flat.drop_gradient()
        streams = state.on_gradient is not None and state.flat.is_shared
        self._backward(rows, state.order_of(rows), start, stop, state, float(stop - start), out if streams else None)
        if not streams:
            state.flat.gather_gradient(out)
            if state.scale != 1.0:
                out /= state.scale

    def step(self, params: FloatVector, mean_gradient: FloatVector, n_rows: int, state: ModuleState) -> None:
        """Take one step along a mean gradient; see `AbstractLocalOptimizer.step`."""
        if n_rows <= 0:
            return
        state.rates.clear()
        if state.loss_scale is not None and not state.may_step(is_finite=is_finite(mean_gradient)):
            return
        state.flat.bind(params)
        state.flat.bind_gradient(mean_gradient)
        self._step(state)
        state.flat.to_host()

    def rate_sum(self, t_start: float, state: ModuleState) -> float:
        """Return the sum of the rates of the steps of the last call."""
        return float(sum(state.rates))

    def planned_rates(self, starts: FloatVector, counts: FloatVector) -> FloatVector:
        """Return the numbers of steps: all have one rate."""
        return np.array(counts, dtype=np.float64)

    def evaluate(self, params: FloatVector, rows: TensorRows, state: ModuleState) -> Evaluation:
        """Return loss, accuracy and squared errors on some rows."""
        state.take_up(params)
        found = np.zeros(7)
        for number, (output, target) in enumerate(predictions(state.flat.module, rows, state.flat.device)):
            start = number * ROWS_PER_LOOK
            weights = rows.weights_of(None, start, start + len(target))
            loss = float(mean_loss(state.criterion, output, target, weights))
            found += score_sums(output, target, loss, weights, is_classification=self.is_classification)
        return Evaluation.from_vector(found)

    def objective_sums(self, params: FloatVector, rows: TensorRows, state: ModuleState) -> FloatVector:
        """Return the sum of the losses of this epoch, shape (1,); weight decay is the optimiser's own affair."""
        return np.array([state.loss_sum])

    def settle(self, params: FloatVector, rows: TensorRows, state: ModuleState, *, is_last: bool) -> FloatVector | None:
        """Return the running statistics where they are averaged now."""
        is_due = self.batch_norm == "average" or (self.batch_norm == "recompute" and is_last)
        if not state.buffers.layers or not is_due:
            return None
        if self.batch_norm == "recompute":
            state.take_up(params)
            state.buffers.recompute(state.flat.module, rows, state.flat.device)
        return state.buffers.running()

    def _backward(
        self,
        rows: TensorRows,
        order: AnyArray | None,
        start: int,
        stop: int,
        state: ModuleState,
        factor: float,
        out: FloatVector | None = None,
    ) -> None:
        """Add `factor` times the gradient of the mean loss of some rows to ``.grad``, scaled; to `out` as it comes."""
        n_rows = stop - start
        n_parts = -(-n_rows // (self.passes.rows or n_rows))
        for k in range(n_parts):
            low, high = split(n_rows, n_parts, k)
            share = factor * state.scale * (high - low) / n_rows
            # Only when the last part adds to it is a gradient final.
            is_streamed = out is not None and state.on_gradient is not None and k == n_parts - 1
            with (
                streamed_gradient(state.flat, out, state.scale, state.on_gradient)  # type: ignore[arg-type]
                if is_streamed
                else contextlib.nullcontext()
            ):
                self._pass(rows, order, start + low, start + high, state, share)

    def _pass(
        self, rows: TensorRows, order: AnyArray | None, start: int, stop: int, state: ModuleState, factor: float
    ) -> None:
        """Add `factor` times the gradient of the mean loss of some rows that go through the module together."""
        inputs, targets = (part.to(state.flat.device) for part in rows.batch(order, start, stop))
        module = state.flat.module
        module.train()
        with self.passes.autocast(state.flat.device):
            with state.repeatable(rows.seed):
                output = first_output(module(inputs))
            loss = mean_loss(state.criterion, output, targets, rows.weights_of(order, start, stop))
        value = float(loss.detach())
        is_finite_loss = bool(np.isfinite(value))
        # With a scale above one it may have been the scale; the step is left out, and the next scale is smaller.
        if not is_finite_loss and state.scale == 1.0:
            raise InvalidDataError(
                f"the loss of rows {start} to {stop} is {value} in epoch {state.epoch}: training has diverged, or the "
                "rows hold values that are not finite. A smaller lr might help; so might scaling the inputs."
            )
        (loss * factor if factor != 1.0 else loss).backward()
        state.loss_sum += value * (stop - start) if is_finite_loss else 0.0
        state.counters[places.N_SEEN] += stop - start

    def _step(self, state: ModuleState) -> None:
        state.remembered.before_step()
        for group in state.optimizer.param_groups:
            group["lr"] = group["dsgd_lr"] * state.rate_factor
        state.rates.append(float(state.optimizer.param_groups[0]["lr"]))
        if self.passes.clip is not None:
            torch.nn.utils.clip_grad_norm_(state.flat.parameters, self.passes.clip)
        state.optimizer.step()
        state.remembered.after_step()
        state.t += 1.0

    def _device(self, rows: object) -> torch.device:
        device = torch.device(self.device)
        if device.type == "cuda" and device.index is None:
            place = rows.place if isinstance(rows, TensorRows) else 0
            device = torch.device("cuda", place % max(1, torch.cuda.device_count()))
        return device
