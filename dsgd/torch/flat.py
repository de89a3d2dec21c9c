"""The parameters of a module, and the state of its optimiser, as views of flat vectors.

Problem: everything that ranks say to each other is one flat vector, and a module has dozens of tensors. To copy them
back and forth costs a pass over the model on either side of every message.

Layout: the trainable parameters in the order of ``named_parameters()``, each in C order, without gaps; a parameter that
occurs twice is there once. `slices` gives the place of each by its name, for what works layer by layer. On the CPU the
vector is memory that numpy and torch both see: a module that is bound to it reads and writes the very array that the
collectives send. On another device the vector of the module lives there, and pinned memory of the host stands between
the two.

An optimiser makes its memory at its first step, one tensor per parameter and name (``momentum_buffer``, ``exp_avg``,
``step``, ...). Here the tensors of one name become views of one vector, so that the momentum policy of a strategy,
snapshots and checkpoints find plain arrays. Which there will be is found out by a step of a copy.

Cost: nothing on the CPU; on another device one copy of the model each way whenever the host has to see it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.types import AnyArray, FloatVector


def is_of_host(device: torch.device) -> bool:
    """Return whether numpy sees the memory of a device."""
    return bool(device.type == "cpu")


class FlatTensors:
    """Tensors of one dtype that are views of one vector."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = list(tensors)
        dtype, device = self.tensors[0].dtype, self.tensors[0].device
        n = sum(tensor.numel() for tensor in self.tensors)
        self._on_device = torch.empty(n, dtype=dtype, device=device)
        self.is_shared = is_of_host(device)
        pinned = not self.is_shared and torch.cuda.is_available()
        self._on_host = self._on_device if self.is_shared else torch.empty(n, dtype=dtype, pin_memory=pinned)
        #: The vector as numpy sees it, shape (n,).
        self.host: AnyArray = self._on_host.numpy()
        for tensor, view in zip(self.tensors, self.views(self._on_device), strict=True):
            view.copy_(tensor.detach())
            tensor.data = view
        self.to_host()

    def views(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Return the parts of a vector in the shapes of the tensors."""
        ends = np.cumsum([0, *(tensor.numel() for tensor in self.tensors)]).tolist()
        # Not torch.split, whose parts must not be written to.
        return [vector[ends[k] : ends[k + 1]].view(tensor.shape) for k, tensor in enumerate(self.tensors)]

    def share(self, vector: AnyArray) -> None:
        """Make the tensors views of a vector of the host, or of one that `to_host` and `to_device` copy."""
        if self.is_shared:
            self._on_device = self._on_host = torch.from_numpy(vector)
            for tensor, view in zip(self.tensors, self.views(self._on_device), strict=True):
                tensor.data = view
        self.host = vector

    @property
    def dtype(self) -> torch.dtype:
        """That of the vector."""
        return self._on_device.dtype

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies in the vector."""
        return bool(tensor.untyped_storage().data_ptr() == self._on_device.untyped_storage().data_ptr())

    def to_device(self) -> None:
        """Give the tensors what the host has written."""
        if not self.is_shared:
            staging = self._on_host.numpy()
            if staging is not self.host:
                staging[:] = self.host
            self._on_device.copy_(self._on_host, non_blocking=True)

    def to_host(self) -> None:
        """Let the host see what the tensors are."""
        if not self.is_shared:
            self._on_host.copy_(self._on_device)
            staging = self._on_host.numpy()
            if staging is not self.host:
                self.host[:] = staging


class NamedTensors:
    """Tensors by name, those of each name in one vector; the host looks at them now and then."""

    def __init__(self, tensors: Mapping[str, Sequence[torch.Tensor]]) -> None:
        self._flat = {name: FlatTensors(found) for name, found in tensors.items()}
        self._may_differ = False

    def vectors(self) -> dict[str, AnyArray]:
        """Return the vectors by name, to be read or written in place by the host, until `to_device`."""
        if not self._may_differ:  # else what the host has written since is newer: the tensors wait for it
            for flat in self._flat.values():
                flat.to_host()
        self._may_differ = True
        return {name: flat.host for name, flat in self._flat.items()}

    def to_device(self) -> bool:
        """Give the tensors what the host may have written; return whether it may have."""
        if not self._may_differ:
            return False
        self._may_differ = False
        for flat in self._flat.values():
            flat.to_device()
        return True


class FlatModule:
    """A module whose trainable parameters are views of one vector, and their gradients of another.

    Parameters
    ----------
    module : torch.nn.Module
        Its parameters become views; it works as before.
    device : torch.device or str, default "cpu"
        The device to move it to.

    Attributes
    ----------
    names : tuple of str
        The parameters, in their order in the vector.
    shapes : mapping of str to tuple
        Their shapes.
    slices : mapping of str to slice
        Their places.

    Raises
    ------
    InvalidParameterError
        The module has nothing to train, parameters of several dtypes, or of one that is no float32 or float64.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.module = module.to(self.device)
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.names = tuple(name for name, _ in named)
        self.parameters = [p for _, p in named]
        _check_dtypes(module, named)
        ends = np.cumsum([0, *(p.numel() for p in self.parameters)]).tolist()
        self.shapes = MappingProxyType({name: tuple(p.shape) for name, p in named})
        self.slices = MappingProxyType(
            {name: slice(ends[k], ends[k + 1]) for k, name in enumerate(self.names)},
        )
        self._params = FlatTensors(self.parameters)
        self._gradient: FlatTensors | None = None

    @property
    def is_shared(self) -> bool:
        """Whether the module and numpy see the same memory."""
        return self._params.is_shared

    @property
    def n_params(self) -> int:
        """Length of the vector."""
        return int(self._params.host.shape[0])

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64."""
        return np.dtype(self._params.host.dtype)

    @property
    def params(self) -> FloatVector:
        """The vector, shape (n_params,): the memory of the parameters, on the CPU."""
        return self._params.host

    def bind(self, params: FloatVector) -> None:
        """Set the parameters to a vector; does nothing if they are views of that vector.

        Parameters
        ----------
        params : array, shape (n_params,)
            C-contiguous, of the dtype of the module. On the CPU the module shares its memory from now on.

        Raises
        ------
        InvalidDataError
            It is of another length or dtype.
        """
        if params is self._params.host:
            return
        self._check(params)
        self._params.share(params)

    def bind_gradient(self, gradient: FloatVector) -> None:
        """Let ``.grad`` of the parameters be views of a vector, with the values that it has; see `bind`."""
        self._hold_gradient(gradient).to_device()
        for parameter, grad in zip(self.parameters, self._hold_gradient(gradient).tensors, strict=True):
            # One that was frozen since stays where it is, whatever an optimiser would do with a gradient of zeros.
            parameter.grad = grad if parameter.requires_grad else None

    def gradient_views(self, out: FloatVector) -> list[torch.Tensor]:
        """Return the parts of a vector of the host, shape (n_params,), in the shapes of the parameters; on the CPU."""
        return self._hold_gradient(out).tensors

    def gather_gradient(self, out: FloatVector) -> None:
        """Write ``.grad`` of all parameters into a vector of the host, shape (n_params,); what has none is zero."""
        flat = self._hold_gradient(out)
        with torch.no_grad():
            for parameter, grad in zip(self.parameters, flat.tensors, strict=True):
                if parameter.grad is None:
                    grad.zero_()
                elif parameter.grad is not grad:
                    grad.copy_(parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad)
        flat.to_host()

    def check_parts(self, *, views: bool) -> None:
        """Raise if the module has another parameter to train than the vector has.

        Parameters
        ----------
        views : bool
            Whether parameters must still be views of the vector.

        Raises
        ------
        InvalidParameterError
            Names the parameter.
        """
        known, dtype = set(map(id, self.parameters)), self._params.dtype
        for name, parameter in self.module.named_parameters():
            is_ours = id(parameter) in known and (self._params.holds(parameter) if views else parameter.dtype == dtype)
            if parameter.requires_grad and not is_ours:
                raise InvalidParameterError(
                    f"the parameter {name!r} of {type(self.module).__name__} requires a gradient and did not before, "
                    "or is another tensor now, so that ranks would train it apart. Unfreeze parameters, convert and "
                    "move the module, and load_state_dict(assign=True), before the Synchronizer is made."
                )

    def drop_gradient(self) -> None:
        """Let the parameters have no ``.grad``: the next backward pass makes it, and adds to nothing."""
        for parameter in self.parameters:
            parameter.grad = None

    def to_device(self) -> None:
        """Give the module what the host has written into the parameters."""
        self._params.to_device()

    def to_host(self) -> None:
        """Copy the parameters of the module to the host."""
        self._params.to_host()

    def _hold_gradient(self, gradient: FloatVector) -> FlatTensors:
        if self._gradient is None:
            self._gradient = FlatTensors([torch.empty_like(p) for p in self.parameters])
        if gradient is not self._gradient.host:
            self._check(gradient)
            self._gradient.share(gradient)
        return self._gradient

    def view(self, vector: FloatVector, name: str) -> AnyArray:
        """Return the part of a vector that belongs to one parameter, in its shape."""
        part: AnyArray = vector[self.slices[name]].reshape(self.shapes[name])
        return part

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the state of the module as tensors of their own, on the CPU."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.module.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take up the state of a module, in place: the vector has the new values, and is the same memory."""
        self.module.load_state_dict(state)
        self.to_host()

    def _check(self, vector: AnyArray) -> None:
        n, dtype = self.n_params, self.dtype
        if vector.shape != (n,) or vector.dtype != dtype or not vector.flags.c_contiguous:
            raise InvalidDataError(
                f"{type(self.module).__name__} has {n} parameters of {dtype}. Got an array of shape {vector.shape} and "
                f"{vector.dtype}."
            )


def _check_dtypes(module: nn.Module, named: Iterable[tuple[str, torch.Tensor]]) -> None:
    name, dtypes = type(module).__name__, {p.dtype for _, p in named}
    if not dtypes:
        raise InvalidParameterError(f"{name} has no parameter that requires a gradient: there is nothing to train.")
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float64}:
        raise InvalidParameterError(
            f"the parameters of {name} must all be float32, or all float64; they are "
            f"{', '.join(sorted(map(str, dtypes)))}. Convert the module with .float()."
        )


class OptimizerMemory(NamedTensors):
    """The memory of an optimiser that has not taken a step yet."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, module: nn.Module, make: Callable[[nn.Module], torch.optim.Optimizer]
    ) -> None:
        self._optimizer = optimizer
        ours = _parameters(optimizer)
        probe = make(copy.deepcopy(module))
        theirs = _parameters(probe)
        for parameter in theirs:
            parameter.grad = torch.zeros_like(parameter)
        try:
            probe.step()
        except TypeError as error:
            raise InvalidParameterError(
                f"optimizer={type(optimizer).__name__} cannot take a step from a gradient alone ({error}). Use one "
                "that needs no closure."
            ) from error
        found: dict[str, list[tuple[torch.Tensor, str, torch.Tensor]]] = {}
        for mine, parameter in zip(ours, theirs, strict=True):
            for key, value in probe.state[parameter].items():
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    # Some are there before the first step, with values of their own.
                    value = optimizer.state[mine].get(key, torch.zeros_like(value))
                    name = f"{key}.{str(value.dtype).removeprefix('torch.')}.{value.device.type}"
                    found.setdefault(name, []).append((mine, key, value))
        super().__init__({name: [value for *_, value in entries] for name, entries in found.items()})
        self._places = {name: [(owner, key) for owner, key, _ in entries] for name, entries in found.items()}
        self._is_bound = False

    def before_step(self) -> None:
        """Take up what the host may have written; before the first step, only if there is something."""
        if self.to_device() and not self._is_bound and any(flat.host.any() for flat in self._flat.values()):
            self._bind()

    def after_step(self) -> None:
        """Move what the first step has made into the vectors."""
        if not self._is_bound:
            for name, flat in self._flat.items():
                for (owner, key), view in zip(self._places[name], flat.tensors, strict=True):
                    made = self._optimizer.state[owner].get(key)
                    if made is not None and made is not view:
                        view.copy_(made)
            self._bind()

    def _bind(self) -> None:
        self._is_bound = True
        for name, flat in self._flat.items():
            for (owner, key), view in zip(self._places[name], flat.tensors, strict=True):
                self._optimizer.state[owner][key] = view


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
