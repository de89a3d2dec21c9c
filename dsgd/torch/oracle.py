"""A torch module as the rank loop sees it: rows, steps and a flat vector.

The loop is that of linear models (`dsgd.runtime.train`); it knows `dsgd.local.AbstractLocalOptimizer` and nothing of
torch. Here a local step is a forward and a backward pass over a minibatch and a step of a torch optimiser; where ranks
exchange gradients, the loop asks for the gradient of a batch and, after the exchange, for a step along the mean. The
model that strategies mix is the memory of the parameters themselves (`dsgd.torch.flat`).

A range of rows is cut into as few minibatches of even size as `batch` allows, as `dsgd.local` does.
"""

from __future__ import annotations

import contextlib
import copy
import fnmatch
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.kernels import sgd as places
from dsgd.local import AbstractLocalOptimizer, AbstractState, Evaluation, Steps, is_finite, new_counters, split
from dsgd.torch.fingerprint import check_same, fingerprint
from dsgd.torch.flat import FlatModule
from dsgd.torch.memory import OptimizerMemory
from dsgd.torch.passes import LossScale, Passes
from dsgd.torch.rows import TensorRows
from dsgd.torch.statistics import BatchNormPolicy, ModuleStatistics
from dsgd.torch.streaming import streamed_gradient
from dsgd.types import AnyArray, FloatVector

__all__ = ["DEFAULT_BATCH", "ModuleOptimizer", "ModuleState", "build_module", "predictions"]

#: Rows of a local batch where nobody says.
DEFAULT_BATCH: Final = 128
# Rows that a module looks at together where no gradient is asked for.
_EVALUATED: Final = 512
# torch has one stream of random numbers per process: whoever needs numbers that repeat must have it alone.
_RANDOM: Final = threading.Lock()


@dataclass
class ModuleState(AbstractState):
    """What changes while a module trains, beside its parameters.

    Parameters
    ----------
    counters : array of float64, shape (COUNTERS,)
        See `AbstractState`; t counts minibatches.
    flat : FlatModule
        The module of this rank.
    criterion : torch.nn.Module
        The loss.
    optimizer : torch.optim.Optimizer
        Takes the steps.
    remembered : OptimizerMemory
        What it remembers.
    buffers : ModuleStatistics
        What the module has beside its parameters.
    draws : bool
        Whether the module draws random numbers (dropout).
    loss_scale : LossScale or None
        The scale of the loss, where gradients may overflow.
    rates : list of float
        The rates of the steps of the last call; 0 for one that was skipped.
    order : tuple of (int, array or None)
        An epoch, and the order in which it walks the rows.
    """

    counters: FloatVector
    flat: FlatModule
    criterion: nn.Module
    optimizer: torch.optim.Optimizer
    remembered: OptimizerMemory
    buffers: ModuleStatistics
    draws: bool
    loss_scale: LossScale | None = None
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


@dataclass(frozen=True)
class ModuleOptimizer(AbstractLocalOptimizer[TensorRows, ModuleState]):
    """Steps of a torch optimiser on a torch module.

    Parameters
    ----------
    module : type, callable or torch.nn.Module
        Makes the module from `module_options`, or is one, to be copied.
    module_options : mapping
        Keyword arguments.
    buffers : mapping of str to array
        Everything in the state of the module that is not trained; equal on all ranks at the start.
    identity : mapping
        `fingerprint` of the module of the client.
    criterion : type, callable or torch.nn.Module
        The loss of (output, target), the mean over rows.
    criterion_options : mapping
        Keyword arguments.
    optimizer : type or callable
        Makes a torch optimiser from parameters and `optimizer_options`.
    optimizer_options : mapping
        Keyword arguments, ``lr`` among them. ``param_groups`` is a list of (pattern, options): parameters whose name
        matches get options of their own.
    batch : int or None, default None
        Rows of a local step; None is 128.
    batch_norm : {"average", "local", "recompute"}, default "average"
        What becomes of running statistics, see `dsgd.torch.statistics`.
    device : str, default "cpu"
        Where the module is; ``"cuda"`` gives each rank of a host a device of its own.
    is_classification : bool, default True
        Whether targets are classes, which is how a model is scored.
    passes : Passes
        Precision, accumulation and clipping.

    Raises
    ------
    InvalidParameterError
        The criterion does not return a mean.
    VersionMismatchError
        Raised by `init` where the module is not that of the client.
    """

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
    passes: Passes = field(default_factory=Passes)

    @property
    def steps(self) -> Steps:
        """A step per minibatch."""
        # Of the optimisers of torch only plain SGD has no memory.
        momentum = self.optimizer_options.get("momentum", 0.0)
        is_sgd = isinstance(self.optimizer, type) and issubclass(self.optimizer, torch.optim.SGD)
        is_plain = is_sgd and momentum == 0.0
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
        """One: a row has one loss, however many outputs the module has."""
        return 1

    def init(self, rows: TensorRows) -> ModuleState:
        """Return a module of this rank, its optimiser and its criterion."""
        module = build_module(self.module, self.module_options)
        check_same(fingerprint(module), dict(self.identity), type(module).__name__)
        state = module.state_dict()
        state |= {name: torch.from_numpy(np.array(values)) for name, values in self.buffers.items()}
        module.load_state_dict(state)
        flat = FlatModule(module, self._device(rows))
        optimizer = self._make_optimizer(module)
        for group in optimizer.param_groups:
            group["dsgd_lr"] = group["lr"]
        return ModuleState(
            new_counters(),
            flat,
            self._make_criterion().to(flat.device),
            optimizer,
            OptimizerMemory(optimizer, module, self._make_optimizer),
            ModuleStatistics(module, flat.device),
            draws=any(_draws(part) for part in module.modules()),
            loss_scale=self.passes.new_scale() if self.passes.may_overflow else None,
        )

    def bind(self, params: FloatVector, rows: TensorRows, state: ModuleState) -> Callable[[int, int], None]:
        """Return what takes a step per minibatch of the rows start..stop; see `AbstractLocalOptimizer.bind`."""

        def walk(start: int, stop: int) -> None:
            state.rates.clear()
            if stop <= start:
                return
            _take_up(state, params)
            n_batches = -(-(stop - start) // (self.batch or DEFAULT_BATCH))
            order = _order(rows, state)
            for k in range(n_batches):
                low, high = split(stop - start, n_batches, k)
                state.flat.drop_gradient()
                self._backward(rows, order, start + low, start + high, state, 1.0)
                if _unscale(state):
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
        _take_up(state, params)
        state.flat.drop_gradient()
        streams = state.on_gradient is not None and state.flat.device.type == "cpu"
        self._backward(rows, _order(rows, state), start, stop, state, float(stop - start), out if streams else None)
        if not streams:
            state.flat.gather_gradient(out)
            if state.scale != 1.0:
                out /= state.scale

    def step(self, params: FloatVector, mean_gradient: FloatVector, n_rows: int, state: ModuleState) -> None:
        """Take one step along a mean gradient; see `AbstractLocalOptimizer.step`."""
        if n_rows <= 0:
            return
        state.rates.clear()
        if state.loss_scale is not None and not _take_in(state, is_finite=is_finite(mean_gradient)):
            return
        state.flat.bind(params)
        state.flat.bind_gradient(mean_gradient)
        self._step(state)
        state.flat.to_host()

    def rate_sum(self, t_start: float, state: ModuleState) -> float:
        """Return the sum of the rates of the steps of the last call."""
        return float(sum(state.rates))

    def evaluate(self, params: FloatVector, rows: TensorRows, state: ModuleState) -> Evaluation:
        """Return loss, accuracy and squared errors on some rows."""
        _take_up(state, params)
        found = np.zeros(7)
        for output, target in predictions(state.flat.module, rows, state.flat.device):
            loss = float(state.criterion(output, _fitting(target, output)))
            found += _scores(output, target, loss, is_classification=self.is_classification)
        return Evaluation.from_vector(found)

    def settle(self, params: FloatVector, rows: TensorRows, state: ModuleState, *, is_last: bool) -> FloatVector | None:
        """Return the running statistics where they are averaged now."""
        is_due = self.batch_norm == "average" or (self.batch_norm == "recompute" and is_last)
        if not state.buffers.layers or not is_due:
            return None
        if self.batch_norm == "recompute":
            _take_up(state, params)
            _recompute(state, rows)
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
            with _repeatable(rows.seed, state):
                output = _output(module(inputs))
            loss = state.criterion(output, _fitting(targets, output))
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

    def _make_criterion(self) -> nn.Module:
        given = self.criterion
        criterion: nn.Module = copy.deepcopy(given) if isinstance(given, nn.Module) else given(**self.criterion_options)
        if getattr(criterion, "reduction", "mean") != "mean":
            raise InvalidParameterError(
                f"criterion={criterion!r} must return the mean over rows: reduction='mean'. Ranks weight means by rows."
            )
        return criterion

    def _make_optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        options = dict(self.optimizer_options)
        patterns: Sequence[tuple[str, Mapping[str, Any]]] = options.pop("param_groups", ())
        groups: list[dict[str, Any]] = [{"params": [], **own} for _, own in patterns]
        rest: list[nn.Parameter] = []
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                chosen = [k for k, (pattern, _) in enumerate(patterns) if fnmatch.fnmatch(name, pattern)]
                (groups[chosen[0]]["params"] if chosen else rest).append(parameter)
        filled = [group for group in [*groups, {"params": rest}] if group["params"]]
        made: torch.optim.Optimizer = self.optimizer(filled, **options)
        return made

    def _device(self, rows: object) -> torch.device:
        device = torch.device(self.device)
        if device.type == "cuda" and device.index is None:
            place = rows.place if isinstance(rows, TensorRows) else 0
            device = torch.device("cuda", place % max(1, torch.cuda.device_count()))
        return device


def _unscale(state: ModuleState) -> bool:
    """Divide ``.grad`` by the scale of the loss; return whether a step may be taken along it."""
    if state.loss_scale is None:
        return True
    gradients = [parameter.grad for parameter in state.flat.parameters if parameter.grad is not None]
    for gradient in gradients:
        gradient.div_(state.scale)
    return _take_in(state, is_finite=all(bool(torch.isfinite(gradient).all()) for gradient in gradients))


def _take_in(state: ModuleState, *, is_finite: bool) -> bool:
    """Tell the scale of the loss of a step; return whether it is to be taken. One that is skipped counts as a step."""
    assert state.loss_scale is not None  # without one, what is not finite is an error
    state.loss_scale.update(is_finite=is_finite)
    if not is_finite:
        state.rates.append(0.0)
        state.t += 1.0
    return is_finite


def build_module(module: Any, options: Mapping[str, Any], seed: int = 0) -> nn.Module:
    """Return a module of one's own.

    Parameters
    ----------
    module : type, callable or torch.nn.Module
        Makes it from `options`, or is copied.
    options : mapping
        Keyword arguments.
    seed : int, default 0
        What its first parameters are drawn with; the stream of torch itself stays where it is.
    """
    if isinstance(module, nn.Module):
        if options:
            raise InvalidParameterError(
                f"module={type(module).__name__} is made already; it takes no module__ options."
            )
        return copy.deepcopy(module)
    with _RANDOM, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = module(**options)
    if not isinstance(made, nn.Module):
        raise InvalidParameterError(f"module={module!r} must make a torch.nn.Module. It made a {type(made).__name__}.")
    return made


def predictions(module: nn.Module, rows: TensorRows, device: torch.device) -> Iterator[tuple[Any, Any]]:
    """Yield (output, target) of batch after batch, the module as it is when it predicts."""
    module.eval()
    with torch.no_grad():
        for start in range(0, rows.n_rows, _EVALUATED):
            inputs, targets = rows.batch(None, start, min(start + _EVALUATED, rows.n_rows))
            yield _output(module(inputs.to(device))), targets.to(device)


def _order(rows: TensorRows, state: ModuleState) -> AnyArray | None:
    if state.order[0] != state.epoch:
        state.order = state.epoch, rows.order(state.epoch)
    return state.order[1]


def _take_up(state: ModuleState, params: FloatVector) -> None:
    """Let the module have the parameters, and the statistics, that the host has."""
    state.flat.bind(params)
    state.flat.to_device()
    state.buffers.to_device()


def _output(made: Any) -> Any:
    return made[0] if isinstance(made, tuple) else made


def _fitting(target: Any, output: Any) -> Any:
    """Return targets in the shape of outputs, where both have one number per row."""
    if target.is_floating_point() and target.shape != output.shape and target.numel() == output.numel():
        return target.reshape(output.shape)
    return target


def _scores(output: Any, target: Any, loss: float, *, is_classification: bool) -> FloatVector:
    n = len(target)
    if is_classification:
        found = output.argmax(dim=1) if output.ndim > 1 and output.shape[1] > 1 else output.reshape(-1) > 0
        right = float((found == target.reshape(-1)).sum())
        return np.array([loss * n, n, n, right, 0.0, 0.0, 0.0])
    truth, error = target.double(), _fitting(target, output).double() - output.double()
    sums = [float(values.sum()) for values in (error.square(), truth, truth.square())]
    return np.array([loss * n, n, n, 0.0, *sums])


@contextlib.contextmanager
def _repeatable(seed: int, state: ModuleState) -> Iterator[None]:
    """Let a module draw the numbers of this step of this rank, and leave the stream of torch where it was."""
    if not state.draws:
        yield
        return
    with _RANDOM, torch.random.fork_rng(devices=[]):
        torch.manual_seed((seed * 1_000_003 + int(state.t)) % 2**63)
        yield


def _draws(part: nn.Module) -> bool:
    rate = getattr(part, "dropout", 0.0)
    return isinstance(part, (nn.modules.dropout._DropoutNd, nn.RReLU)) or (isinstance(rate, float) and rate > 0.0)


def _recompute(state: ModuleState, rows: TensorRows) -> None:
    """Replace running statistics by those of one pass over the rows; batches count alike."""
    layers = state.buffers.layers
    momenta = [layer.momentum for layer in layers]
    state.flat.module.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
        layer.train()
    with torch.no_grad():
        n_batches = -(-rows.n_rows // _EVALUATED)
        for k in range(n_batches):
            inputs, _ = rows.batch(None, *split(rows.n_rows, n_batches, k))
            state.flat.module(inputs.to(state.flat.device))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
