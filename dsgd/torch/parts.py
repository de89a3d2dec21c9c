"""The parts that a module is trained with - criterion, optimiser, gradients - and the layers that it is made of.

Fingerprint: workers import the module by themselves. A worker with an older file would train another model, whose
vector may even have the same length: the means would be meaningless, without any error. So names and shapes of
parameters and the code of the module's classes are compared. The code is that of the interpreter: comments and line
numbers do not count, and between different versions of Python it is not compared.

Accumulation: a batch of n rows goes through the module in parts of at most `rows`; gradients of their mean losses,
weighted by their share of the rows, add up to that of the batch. It costs nothing but shorter matrix products, and the
memory is that of one part. (A batch normalisation sees the parts, not the batch.)

Clipping: the mean gradient g of a step becomes ``g min(1, clip / |g|)``. Where ranks exchange gradients that is the
mean over all ranks, and so the same on all of them.

Half precision: weights stay float32, passes run under autocast, and the loss is multiplied by a scale S, a power of two
that changes no bit. If any gradient of any rank is not finite, no rank takes the step and S is halved; after 2,000
steps in a row S is doubled. bfloat16 has the exponent of float32: there S is 1, and such a gradient is an error. Ranks
must skip together, or their models drift apart for good: those that exchange gradients first add up their flags (one
number a step); those that exchange models skip their own local steps.

LARS: one rate is too long for some layers and too short for others, whose ratios of weights to gradients differ by
orders of magnitude. For every tensor w with gradient g, rate eta and weight decay wd::

    lambda = trust |w| / (|g| + wd |w|)       1 where a norm is zero, and for biases and scales of normalisations
    u <- mu u + eta lambda (g + wd w)
    w <- w - u

Norms are taken in float32 or wider. With wd = 0 a step does not depend on the length of a gradient. It costs two norms
a tensor, and the velocity, one vector of the length of the model. There is `dsgd.local.LARS` for linear models.

Source: Pascanu, Mikolov and Bengio 2013 (clipping); Micikevicius et al. 2018, section 3 (weights in float32, scaled
loss), the schedule of S being that of torch's ``GradScaler``; You, Gitman and Ginsburg 2017, algorithm 1 (LARS).

**The layers of a module, found by one forward pass: what each computes, stores and passes on, and what it takes here.**

A layer is a module without children, in the order in which the forward pass calls them. What a module does with its
children's weights by itself (fused attention, say) is not seen. Such parameters form a separate last layer, so that the
bytes of a step are complete.
"""

from __future__ import annotations

import copy
import fnmatch
import hashlib
import math
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import torch
from torch import nn

from dsgd.errors import InvalidDataError, InvalidParameterError, VersionMismatchError
from dsgd.sim.scaling import Layer, Node, other_layer
from dsgd.types import FloatVector
from dsgd.validation import Checked, number

_STREAM: Final = threading.Lock()


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """Have torch draw numbers that follow from a seed, on the CPU and on GPUs; other threads wait for their turn."""
    # The seed is for all devices, so the streams of all are kept; that asks nothing of a device itself.
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with _STREAM, torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def draws(module: nn.Module) -> bool:
    """Return whether a module draws random numbers while it trains (dropout)."""
    for part in module.modules():
        rate = getattr(part, "dropout", 0.0)
        if isinstance(part, (nn.modules.dropout._DropoutNd, nn.RReLU)) or (isinstance(rate, float) and rate > 0.0):
            return True
    return False


def fingerprint(module: nn.Module) -> dict[str, str]:
    """Return what two copies of a module have in common if they are the same."""
    shapes = [(name, tuple(p.shape), str(p.dtype), p.requires_grad) for name, p in module.named_parameters()]
    shapes += [(name, tuple(b.shape), str(b.dtype), False) for name, b in module.named_buffers()]
    classes = {type(part) for part in module.modules()}
    code = hashlib.sha256()
    for cls in sorted(classes, key=lambda cls: cls.__qualname__):
        if not cls.__module__.startswith("torch."):
            code.update(cls.__qualname__.encode())
            for piece in _pieces(cls):
                code.update(piece)
    return {
        "parameters": hashlib.sha256(repr(shapes).encode()).hexdigest()[:16],
        "code": code.hexdigest()[:16],
        "python": ".".join(map(str, sys.version_info[:2])),
    }


def check_same(ours: dict[str, str], theirs: dict[str, str], name: str) -> None:
    """Raise if two fingerprints are of different modules."""
    if ours["parameters"] != theirs["parameters"]:
        what = "the names, shapes or dtypes of its parameters are others"
    elif ours["python"] == theirs["python"] and ours["code"] != theirs["code"]:
        what = "the code of its classes is another"
    else:
        return
    raise VersionMismatchError(
        f"{name} on {platform.node()} is not that of the client: {what}. Bring the same version of the file to all "
        "workers, or define the module in the script itself, which then sends it."
    )


def _pieces(cls: type) -> Iterator[bytes]:
    for name, value in sorted(vars(cls).items()):
        function: Any = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if isinstance(function, property):
            function = function.fget
        if isinstance(function, FunctionType):
            yield name.encode()
            yield from _of_code(function.__code__)


def _of_code(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_code(constant)
        elif isinstance(constant, frozenset):
            # Its order is another in every process.
            yield repr(sorted(map(repr, constant))).encode()
        elif not isinstance(constant, str):
            yield repr(constant).encode()


def build_module(module: Any, options: Mapping[str, Any], seed: int = 0) -> nn.Module:
    """Make a module, or copy one that is made already."""
    if isinstance(module, nn.Module):
        if options:
            raise InvalidParameterError(
                f"module={type(module).__name__} is made already; it takes no module__ options."
            )
        return copy.deepcopy(module)
    with repeatable(seed):
        made = module(**options)
    if not isinstance(made, nn.Module):
        raise InvalidParameterError(f"module={module!r} must make a torch.nn.Module. It made a {type(made).__name__}.")
    return made


def build_criterion(given: Any, options: Mapping[str, Any]) -> nn.Module:
    """Make a criterion, or copy one that is made already."""
    criterion: nn.Module = copy.deepcopy(given) if isinstance(given, nn.Module) else given(**options)
    if getattr(criterion, "reduction", "mean") != "mean":
        raise InvalidParameterError(
            f"criterion={criterion!r} must return the mean over rows: reduction='mean'. Ranks weight means by rows."
        )
    return criterion


def check_weighable(criterion: nn.Module) -> None:
    """Raise unless the mean of a criterion is the mean of a loss for each row, which can be weighted."""
    if not hasattr(criterion, "reduction"):
        raise InvalidParameterError(
            f"sample_weight needs a criterion that returns a loss for each row with reduction='none', and "
            f"criterion={criterion!r} has no `reduction`."
        )
    by_class = isinstance(criterion, (nn.CrossEntropyLoss, nn.NLLLoss))
    if by_class and (criterion.weight is not None or criterion.ignore_index >= 0):
        raise InvalidParameterError(
            f"sample_weight does not go with criterion={criterion!r}: with `weight` or `ignore_index` it divides by "
            "the weight of a batch. Put the weights of classes into sample_weight, and zero for rows to be ignored."
        )


def build_optimizer(make: Any, options: Mapping[str, Any], module: nn.Module) -> torch.optim.Optimizer:
    """Make an optimiser for the trainable parameters of a module."""
    options = dict(options)
    patterns: Sequence[tuple[str, Mapping[str, Any]]] = options.pop("param_groups", ())
    groups: list[dict[str, Any]] = [{"params": [], **own} for _, own in patterns]
    rest: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            chosen = [k for k, (pattern, _) in enumerate(patterns) if fnmatch.fnmatch(name, pattern)]
            (groups[chosen[0]]["params"] if chosen else rest).append(parameter)
    filled = [group for group in [*groups, {"params": rest}] if group["params"]]
    made: torch.optim.Optimizer = make(filled, **options)
    return made


def is_plain_sgd(make: object, groups: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a step changes the model by its rate times the gradient: in torch, only SGD without momentum."""
    kind = make if isinstance(make, type) else type(make)
    return issubclass(kind, torch.optim.SGD) and not any(group.get("momentum", 0.0) for group in groups)


#: What the passes compute in.
Precision: TypeAlias = Literal["float32", "bfloat16", "float16"]
_DTYPES: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_GROWTH_INTERVAL: Final = 2000

# Places in the vector that is kept with the rest of the state.
_SCALE, _CLEAN, _SKIPPED = range(3)


@dataclass(frozen=True)
class Passes(Checked):
    """How gradients are computed, for `TorchClassifier` and `TorchRegressor`.

    Parameters
    ----------
    precision : {"float32", "bfloat16", "float16"}, default "float32"
        What forward and backward passes compute in, where autocast of torch says that it is safe.
    rows : int or None, default None
        Rows that go through the module together; more are accumulated. None is the whole batch.
    clip : float or None, default None
        Longest gradient of a step.
    scale : float, default 65536
        S before the first step, with float16 alone.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    precision: Precision = "float32"
    rows: int | None = number(None, low=1)
    clip: float | None = number(None, low=0, open_low=True)
    scale: float = number(2.0**16, low=1)

    @property
    def may_overflow(self) -> bool:
        """Whether gradients may be too long for their numbers."""
        return self.precision == "float16"

    def autocast(self, device: torch.device) -> torch.autocast:
        """Return the context in which a forward pass runs."""
        # What autocast keeps of casts is one store for all threads of a process, which each empties when it is done: of
        # ranks that are threads, one might find the weights of another.
        return torch.autocast(
            device.type,
            dtype=_DTYPES.get(self.precision, torch.float32),
            enabled=self.precision != "float32",
            cache_enabled=False,
        )

    def new_scale(self) -> LossScale:
        """Return the scale of the loss before the first step."""
        return LossScale(np.array([self.scale if self.may_overflow else 1.0, 0.0, 0.0]))


@dataclass(frozen=True)
class LossScale:
    """The scale of the loss; `vector` has it, the steps taken in a row and the steps skipped."""

    vector: FloatVector

    @property
    def value(self) -> float:
        """S."""
        return float(self.vector[_SCALE])

    @property
    def n_skipped(self) -> int:
        """Steps that were skipped so far."""
        return int(self.vector[_SKIPPED])

    def update(self, *, is_finite: bool) -> None:
        """Take in whether the gradients of a step were finite."""
        if not is_finite:
            self.vector[_SCALE] = max(1.0, self.vector[_SCALE] / 2.0)
            self.vector[_CLEAN] = 0.0
            self.vector[_SKIPPED] += 1.0
            return
        self.vector[_CLEAN] += 1.0
        if self.vector[_CLEAN] >= _GROWTH_INTERVAL:
            self.vector[_SCALE] *= 2.0
            self.vector[_CLEAN] = 0.0


class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling, as an optimiser of torch.

    Parameters
    ----------
    params : iterable of Tensor or of dict
        What to train; groups may have options of their own.
    lr : float
        eta, the rate.
    momentum : float, default 0.9
        mu, in [0, 1).
    weight_decay : float, default 0
        wd; not applied to tensors with one dimension.
    trust : float, default 1e-3
        The share.

    Raises
    ------
    InvalidParameterError
        A value is out of range.

    Examples
    --------
    >>> from torch import nn
    >>> from dsgd.torch import LARS
    >>> LARS(nn.Linear(2, 2).parameters(), lr=1.0).defaults["trust"]
    0.001
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
    ) -> None:
        for name, value, fits in (
            ("lr", lr, lr >= 0.0),
            ("momentum", momentum, 0.0 <= momentum < 1.0),
            ("weight_decay", weight_decay, weight_decay >= 0.0),
            ("trust", trust, trust > 0.0),
        ):
            if not fits:
                raise InvalidParameterError(f"LARS({name}=...) is out of range. Got {value!r}.")
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step along ``.grad``; see `torch.optim.Optimizer.step`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_on(parameter, parameter.grad, group)
        return loss

    def _step_on(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        rate, change = group["lr"], gradient
        # Biases and scales are left alone: their lengths say nothing of how far a step may go.
        if parameter.ndim > 1:
            decay = group["weight_decay"]
            wide = torch.promote_types(parameter.dtype, torch.float32)
            weight_norm, gradient_norm = (
                float(torch.linalg.vector_norm(tensor, dtype=wide)) for tensor in (parameter, gradient)
            )
            if decay:
                change = gradient.add(parameter, alpha=decay)
            if weight_norm > 0.0 and gradient_norm > 0.0:
                rate *= group["trust"] * weight_norm / (gradient_norm + decay * weight_norm)
        if not group["momentum"]:
            parameter.sub_(change, alpha=rate)
            return
        state = self.state[parameter]
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(parameter)
        velocity = state["velocity"]
        velocity.mul_(group["momentum"]).add_(change, alpha=rate)
        parameter.sub_(velocity)


#: The layer of what the forward pass does not call by itself.
UNSEEN = "(unseen)"
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def trace(module: nn.Module, input_shape: Sequence[int]) -> tuple[Layer, ...]:
    """Return the layers of a module, for the scaling analysis.

    Parameters
    ----------
    module : torch.nn.Module
        The module. It is run once, without gradients, in evaluation mode.
    input_shape : sequence of int
        Shape of a sample, without the batch.

    Returns
    -------
    tuple of Layer
        In the order of the forward pass. A module that is called twice is two layers; its parameters count once.

    Raises
    ------
    InvalidParameterError
        `input_shape` is empty or has a size that is not positive.
    InvalidDataError
        The module cannot be run on such a sample.

    Examples
    --------
    >>> from torch import nn
    >>> from dsgd.torch import trace
    >>> [layer.forward_flop for layer in trace(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), [4])]
    [64.0, 8.0]
    """
    layers: list[Layer] = []
    seen: set[int] = set()
    for name, part, given, result in calls_of(module, input_shape):
        own = [parameter for parameter in part.parameters() if id(parameter) not in seen]
        seen.update(map(id, own))
        layers.append(_layer(name, part, sum(parameter.numel() for parameter in own), given, result))
    unseen = sum(parameter.numel() for parameter in module.parameters() if id(parameter) not in seen)
    return (*layers, other_layer(UNSEEN, 0, 0, unseen)) if unseen else tuple(layers)


def calls_of(module: nn.Module, input_shape: Sequence[int]) -> list[tuple[str, nn.Module, torch.Tensor, torch.Tensor]]:
    """Return name, module, input and output of every call of a module without children, for a batch of one sample."""
    shape = tuple(input_shape)
    if not shape or min(shape) < 1:
        raise InvalidParameterError(f"trace(input_shape=...) must be positive sizes. Got {shape}.")
    calls: list[tuple[str, nn.Module, torch.Tensor, torch.Tensor]] = []
    parameter = next(module.parameters(), torch.empty(0))
    was_training, hooks = module.training, []

    def note(name: str) -> Any:
        def hook(part: nn.Module, given: tuple[Any, ...], result: Any) -> None:
            first = result[0] if isinstance(result, tuple) else result
            if given and isinstance(given[0], torch.Tensor) and isinstance(first, torch.Tensor):
                calls.append((name, part, given[0], first))

        return hook

    for name, part in module.named_modules():
        if not any(True for _ in part.children()):
            hooks.append(part.register_forward_hook(note(name or type(part).__name__)))
    try:
        module.eval()
        with torch.no_grad():
            module(torch.zeros(1, *shape, dtype=parameter.dtype, device=parameter.device))
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise InvalidDataError(
            f"trace(...) cannot run {type(module).__name__} on a sample of {shape}: {error}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
        module.train(was_training)
    return calls


def _layer(name: str, part: nn.Module, n_params: int, given: torch.Tensor, result: torch.Tensor) -> Layer:
    n_inputs, n_outputs = given.numel(), result.numel()
    weight = getattr(part, "weight", None)
    if isinstance(part, _CONVOLUTIONS) and isinstance(weight, torch.Tensor):
        return Layer(name, "conv", n_params, 2.0 * weight.numel() * math.prod(result.shape[2:]), n_inputs, n_outputs)
    if isinstance(part, _TRANSPOSED) and isinstance(weight, torch.Tensor):
        return Layer(name, "conv", n_params, 2.0 * weight.numel() * math.prod(given.shape[2:]), n_inputs, n_outputs)
    if isinstance(part, nn.Linear):
        return Layer(
            name, "linear", n_params, 2.0 * part.weight.numel() * n_inputs / part.in_features, n_inputs, n_outputs
        )
    if isinstance(part, nn.RNNBase):
        steps = n_inputs / part.input_size
        n_weights = sum(parameter.numel() for parameter in part.parameters() if parameter.ndim > 1)
        return Layer(name, "linear", n_params, 2.0 * n_weights * steps, n_inputs, n_outputs)
    return other_layer(name, n_inputs, n_outputs, n_params)


# Nominal rates of layers that were not measured; those that were do not use them.
_FLOP_PER_S, _MEMORY_BYTES_PER_S = 1e10, 5e9


def measure_node(
    module: nn.Module,
    input_shape: Sequence[int],
    *,
    rows: tuple[int, int] = (16, 96),
    repeats: int = 20,
    beside: int = 0,
    step_s: float = 0.0,
) -> Node:
    """Return a node that knows what the layers of a module take here, forward and backward.

    Every layer is run by itself on random inputs of two lengths, and the line through both times is taken for all.

    Parameters
    ----------
    module : torch.nn.Module
        The module; its parameters are only read.
    input_shape : sequence of int
        Shape of a sample, without the batch.
    rows : tuple of int
        The two lengths of a batch.
    repeats : int, default 20
        How often each is timed; the median counts.
    beside : int, default 0
        How many threads do the same meanwhile, for the time that layers take where other ranks compute too.
    step_s : float, default 0
        Seconds of a step beside its layers, passed on to the node.

    Returns
    -------
    Node
        With times for all layers that `dsgd.torch.parts` finds.
    """
    calls = calls_of(module, input_shape)
    stop = threading.Event()
    others = [threading.Thread(target=_keep_busy, args=(calls, max(rows), stop), daemon=True) for _ in range(beside)]
    for thread in others:
        thread.start()
    try:
        found = {}
        for number, (name, part, given, _) in enumerate(calls):
            few, many = (_pass_seconds(part, given, n, repeats, is_first=number == 0) for n in rows)
            row_s = max(0.0, (many - few) / (rows[1] - rows[0]))
            found[name] = (max(0.0, few - rows[0] * row_s), row_s)
    finally:
        stop.set()
        for thread in others:
            thread.join()
    return Node("this machine", _FLOP_PER_S, _MEMORY_BYTES_PER_S, step_s=step_s, measured=found, source="measured")


def _pass_seconds(part: nn.Module, given: torch.Tensor, rows: int, repeats: int, *, is_first: bool) -> float:
    """Return the mean seconds of a pass over a layer, of which a step has two or three."""
    parameters = [parameter for parameter in part.parameters() if parameter.requires_grad]
    n_passes = 1 + bool(parameters) + (not is_first)
    seconds = []
    for _ in range(repeats):
        inputs = torch.rand(rows, *given.shape[1:], dtype=given.dtype, device=given.device)
        inputs.requires_grad_(not is_first)
        begin = time.perf_counter()
        result = part(inputs)
        result = result[0] if isinstance(result, tuple) else result
        wanted = parameters + [inputs] * (not is_first)
        if wanted:
            torch.autograd.grad(result, wanted, torch.ones_like(result), allow_unused=True)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds) / n_passes


def _keep_busy(
    calls: Sequence[tuple[str, nn.Module, torch.Tensor, torch.Tensor]], rows: int, stop: threading.Event
) -> None:
    while not stop.is_set():
        for k, (_, part, given, _result) in enumerate(calls):
            _pass_seconds(part, given, rows, 1, is_first=k == 0)
