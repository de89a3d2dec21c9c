"""Layers traced from torch modules, and their measured times: the scaling analysis of a user's network."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dsgd.errors import InvalidDataError, InvalidParameterError  # noqa: E402
from dsgd.sim.scaling import conv_layer, linear_layer, predict_step  # noqa: E402
from dsgd.torch import measure_node, trace  # noqa: E402


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, groups=2), nn.Flatten(), nn.Linear(800, 10)
    )


def test_layers_of_a_module_are_those_of_its_description() -> None:
    """Convolutions, groups and matrices have the operations, parameters and activations that their shapes say."""
    found = trace(_cnn(), (1, 28, 28))
    assert [layer.kind for layer in found] == ["conv", "other", "other", "conv", "other", "linear"]
    assert found[0] == conv_layer("0", 1, 4, (5, 5), (28, 28), (24, 24))
    assert found[3] == conv_layer("3", 4, 8, (3, 3), (12, 12), (10, 10), groups=2)
    assert found[5] == linear_layer("5", 800, 10)
    assert (found[2].n_inputs, found[2].n_outputs) == (4 * 24 * 24, 4 * 12 * 12)


class _Shared(nn.Module):
    """One matrix twice, a parameter of its own, and attention, which uses its weights in one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.lstm = nn.LSTM(8, 4, batch_first=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return something of each."""
        inputs = self.twice(self.twice(inputs)) * self.scale
        inputs = self.attention(inputs, inputs, inputs)[0]
        return self.lstm(inputs)[0]


def test_every_parameter_counts_once() -> None:
    """Shared weights are in the first call; what the forward pass does not call by itself is a layer at the end."""
    module = _Shared()
    module.train()
    found = trace(module, (3, 8))
    assert sum(layer.n_params for layer in found) == sum(parameter.numel() for parameter in module.parameters())
    first, second = (layer for layer in found if layer.name == "twice")
    assert (first.n_params, second.n_params) == (72, 0)
    assert first.forward_flop == second.forward_flop == 2 * 64 * 3
    assert found[-1].name == "(unseen)"
    assert next(layer for layer in found if layer.name == "lstm").forward_flop == 2 * (8 + 4) * 16 * 3
    assert module.training


def test_what_cannot_be_traced_is_refused() -> None:
    """A sample of another shape, and none at all; the hooks are gone afterwards."""
    module = _cnn()
    with pytest.raises(InvalidDataError, match="cannot run Sequential"):
        trace(module, (3, 28, 28))
    with pytest.raises(InvalidParameterError, match="input_shape"):
        trace(module, ())
    assert not any(part._forward_hooks for part in module.modules())


def test_a_measured_node_predicts_from_its_own_times() -> None:
    """A step on one node takes the sum of the measured passes, and half the batch on each of two takes less."""
    module = _cnn()
    layers = trace(module, (1, 28, 28))
    node = measure_node(module, (1, 28, 28), rows=(2, 8), repeats=3, beside=1, step_s=0.25)
    assert set(node.measured) == {layer.name for layer in layers}
    alone = predict_step(layers, 1, 8, node, "10GbE")
    # Forward; gradients of weights where there are any; gradients of inputs but for the first layer's.
    passes = {layer.name: 1 + bool(layer.n_params) + (layer is not layers[0]) for layer in layers}
    expected = sum(n * node.pass_seconds(layer, 8) for layer in layers for n in [passes[layer.name]])
    assert alone.seconds == pytest.approx(0.25 + expected)
    assert predict_step(layers, 2, 8, node.slower(2.0), "10GbE").compute_s < 2 * alone.compute_s + 1e-9
