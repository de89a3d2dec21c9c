"""The scaling analysis: balance equations, placements, and the seconds of a step."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgd.collectives import Link, allreduce_seconds, choose_algorithm
from dsgd.errors import InvalidParameterError
from dsgd.sim.scaling import (
    INTERCONNECTS,
    MODELS,
    NODES,
    Layer,
    Node,
    conv_layer,
    flop_per_byte,
    linear_layer,
    node_balance,
    other_layer,
    place_layer,
    place_layers,
    predict_step,
    scaling_limit,
    shared_bytes,
    speedup_curve,
)

NODE = Node("unit", flop_per_s=1e9, memory_bytes_per_s=1e12)
LINK = Link(latency_s=1e-5, byte_s=1e-9, added_byte_s=1e-10)
FREE = Link(byte_s=0.0)


@pytest.mark.parametrize(
    ("name", "n_params", "forward_gflop"),
    [("VGG-A", 132_863_336, 15.22), ("OverFeat-FAST", 145_920_872, 5.60), ("ASR DNN", 45_122_648, 0.0902)],
)
def test_presets_have_the_published_sizes(name: str, n_params: int, forward_gflop: float) -> None:
    """Parameters are those of the published networks, and operations twice their multiplications."""
    layers = MODELS[name]
    assert sum(layer.n_params for layer in layers) == n_params
    assert sum(layer.forward_flop for layer in layers) / 1e9 == pytest.approx(forward_gflop, rel=1e-2)


@given(
    maps=st.tuples(st.integers(1, 64), st.integers(1, 64)),
    kernel=st.integers(1, 7),
    size=st.integers(1, 64),
    rows=st.integers(1, 512),
    overlap=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_the_ratio_of_a_convolution_depends_on_its_output_alone(
    maps: tuple[int, int], kernel: int, size: int, rows: int, overlap: float
) -> None:
    """R is 6 ow oh MB / (s (2 - ov)), whatever the kernel and the channels are."""
    layer = conv_layer("c", *maps, (kernel, kernel), (size, size), (size, size), bias=False)
    expected = 6 * size * size * rows / (4 * (2 - overlap))
    assert flop_per_byte(layer, rows, overlap=overlap) == pytest.approx(expected)


def test_the_limit_is_where_the_ratio_meets_the_balance() -> None:
    """On as many nodes as the limit says, the convolutions do as many operations per byte as the machine needs."""
    layer, balance = (
        conv_layer("c", 16, 32, (3, 3), (20, 20), (20, 20)),
        node_balance(NODE, INTERCONNECTS["10GbE"].between),
    )
    limit = scaling_limit([layer, linear_layer("f", 100, 10)], 256, balance)
    assert flop_per_byte(layer, 256 / limit) == pytest.approx(balance)
    assert balance == pytest.approx(1e9 * 8e-10)
    assert math.isinf(scaling_limit([linear_layer("f", 100, 10)], 256, balance))


def test_groups_of_a_large_layer_on_many_nodes() -> None:
    """64 nodes, 256 samples, 4,096 outputs: one group and two send equally little, data parallel 16 times as much."""
    layer = linear_layer("f", 4096, 4096, bias=False)
    volume = {groups: shared_bytes(layer, 64, groups, 256) for groups in (1, 2, 4, 64)}
    assert volume[1] == pytest.approx(volume[2])
    assert volume[64] == pytest.approx(16 * volume[1])
    # Ties go to the smaller groups.
    assert place_layer(layer, 64, 256).groups == 2


@given(
    n_inputs=st.integers(1, 3000), n_outputs=st.integers(1, 3000), nodes=st.integers(1, 48), batch=st.integers(48, 2048)
)
def test_no_way_of_sharing_sends_less_than_the_chosen_one(
    n_inputs: int, n_outputs: int, nodes: int, batch: int
) -> None:
    """The chosen number of groups divides the nodes, and every other divisor sends at least as much."""
    layer = linear_layer("f", n_inputs, n_outputs)
    found = place_layer(layer, nodes, batch)
    divisors = [groups for groups in range(1, nodes + 1) if nodes % groups == 0]
    assert found.groups in divisors
    assert found.n_bytes <= min(shared_bytes(layer, nodes, groups, batch) for groups in divisors)


@given(n_outputs=st.integers(2, 4000), batch=st.integers(2, 4000))
def test_model_beats_data_parallel_where_the_equation_says_so(n_outputs: int, batch: int) -> None:
    """A fully connected layer without overlap sends less in parts where it has more outputs than there are samples."""
    layer = linear_layer("f", 100, n_outputs, bias=False)
    data, model = shared_bytes(layer, 4, 4, batch), shared_bytes(layer, 4, 1, batch)
    assert (model < data) == (n_outputs > batch)


def test_convolutions_go_by_samples_and_large_layers_by_weights() -> None:
    """The early layers of VGG-A are data parallel on 64 nodes, its first fully connected one is not."""
    placed = {place.layer.name: place.sharing for place in place_layers(MODELS["VGG-A"], 64, 256)}
    assert placed["conv1_1"] == placed["conv3_2"] == "data"
    assert placed["fc6"] == "model"
    assert placed["pool1"] == "data"
    forced = place_layers(MODELS["VGG-A"], 64, 256, sharing="model")
    assert {place.sharing for place in forced if place.layer.n_params} == {"model"}


def test_one_node_only_computes() -> None:
    """The operations of all passes over its rate, but for the gradient of what the first layer reads."""
    layers = [linear_layer("a", 100, 200, bias=False), linear_layer("b", 200, 10, bias=False)]
    step = predict_step(layers, 1, 32, NODE, LINK)
    expected = 32 * (2 * layers[0].forward_flop + 3 * layers[1].forward_flop) / 1e9
    assert step.seconds == step.compute_s == pytest.approx(expected)
    assert step.n_bytes == step.wire_s == 0.0


def test_without_overlap_a_step_is_work_and_one_sum() -> None:
    """Data parallel: what a node computes, then an all-reduce of all gradients."""
    layers = [linear_layer("a", 100, 200), linear_layer("b", 200, 10)]
    step = predict_step(layers, 4, 32, NODE, LINK, sharing="data", overlaps=False)
    n_bytes = 4 * sum(layer.n_params for layer in layers)
    sum_s = allreduce_seconds(choose_algorithm(n_bytes, 4, LINK), n_bytes, 4, LINK)
    assert step.exposed_s == pytest.approx(sum_s)
    assert step.n_bytes == pytest.approx(2 * 3 / 4 * n_bytes)


def test_overlap_hides_all_sums_but_the_last() -> None:
    """With slow layers and a fast wire only the sum of the first layer is waited for."""
    layers = [linear_layer(name, 400, 400, bias=False) for name in "abc"]
    step = predict_step(layers, 4, 400, NODE, LINK, sharing="data")
    n_bytes = 4 * 400 * 400
    last_s = allreduce_seconds(choose_algorithm(n_bytes, 4, LINK), n_bytes, 4, LINK)
    assert step.exposed_s == pytest.approx(last_s)
    sums = [span for span in step.spans if span.what == "sum"]
    assert [span.layers for span in sums] == ["c", "b", "a"]
    assert all(before.end_s <= after.begin_s for before, after in pairwise(sums))


@given(
    widths=st.lists(st.integers(1, 600), min_size=2, max_size=6),
    nodes=st.sampled_from([2, 3, 4, 8, 12]),
    bucket_bytes=st.sampled_from([0.0, 1e4, 1e6]),
    sharing=st.sampled_from(["hybrid", "data", "model"]),
)
def test_a_step_lies_between_its_parts(widths: list[int], nodes: int, bucket_bytes: float, sharing: str) -> None:
    """At least the work and at least the wire, at most both, and never slower for overlap with one bucket."""
    layers = [linear_layer(str(k), a, b) for k, (a, b) in enumerate(pairwise(widths))]
    step = predict_step(layers, nodes, 64, NODE, LINK, sharing=sharing, bucket_bytes=bucket_bytes)  # type: ignore[arg-type]
    slack = 1e-9 * step.seconds
    assert max(step.compute_s, step.wire_s) - slack <= step.seconds <= step.compute_s + step.wire_s + slack
    apart = predict_step(layers, nodes, 64, NODE, LINK, sharing=sharing, overlaps=False)  # type: ignore[arg-type]
    whole = predict_step(layers, nodes, 64, NODE, LINK, sharing=sharing, bucket_bytes=1e12)  # type: ignore[arg-type]
    assert whole.seconds <= apart.seconds + slack


def test_a_free_wire_scales_perfectly() -> None:
    """Where messages cost nothing, and layers only compute, N nodes are N times as fast, however layers are shared."""
    layers = [linear_layer(name, 512, 512, bias=False) for name in "abcd"]
    curve = speedup_curve(layers, [1, 2, 4, 8], 64, NODE, FREE)
    assert [point.speedup for point in curve] == pytest.approx([1, 2, 4, 8], rel=1e-2)
    assert curve[3].efficiency == pytest.approx(1.0, rel=1e-2)


def test_hybrid_scales_where_data_parallel_does_not() -> None:
    """VGG-A on 64 nodes: sharing the top layers by weights is what makes it scale."""
    settings = MODELS["VGG-A"], [64], 256, NODES["2x Xeon E5-2698v3"], INTERCONNECTS["Aries"]
    by_samples, mixed = (speedup_curve(*settings, sharing=sharing)[0].speedup for sharing in ("data", "hybrid"))
    assert by_samples < 40 < 53 < mixed < 64


def test_memory_limits_a_layer_with_few_samples() -> None:
    """A large matrix times one row takes what reading it takes."""
    node, layer = Node("n", 1e12, 1e10), linear_layer("f", 1000, 1000, bias=False)
    assert node.pass_seconds(layer, 1) == pytest.approx(4 * (1e6 + 2000) / 1e10)
    assert node.pass_seconds(layer, 10_000) == pytest.approx(2e6 * 10_000 / 1e12)
    assert node.slower(2).pass_seconds(layer, 1) == pytest.approx(2 * node.pass_seconds(layer, 1))
    pool = other_layer("p", 4000, 1000)
    assert node.pass_seconds(pool, 2) == pytest.approx(4 * 2 * 5000 / 1e10)


def test_what_cannot_be_analysed_is_refused() -> None:
    """Groups that do not divide, more nodes than samples, overlap outside its range, machines that stand still."""
    layer = linear_layer("f", 10, 10)
    with pytest.raises(InvalidParameterError, match="divide the nodes"):
        shared_bytes(layer, 6, 4, 12)
    with pytest.raises(InvalidParameterError, match="lie in 1 to the batch"):
        predict_step([layer], 8, 4, NODE, LINK)
    with pytest.raises(InvalidParameterError, match="at least one layer"):
        predict_step([], 1, 4, NODE, LINK)
    with pytest.raises(InvalidParameterError, match="overlap"):
        flop_per_byte(layer, 1, overlap=1.5)
    with pytest.raises(InvalidParameterError, match="flop_per_s"):
        Node("n", 0.0, 1.0)
    with pytest.raises(InvalidParameterError, match="conv_efficiency"):
        Node("n", 1.0, 1.0, conv_efficiency=2.0)
    with pytest.raises(InvalidParameterError, match="n_params"):
        Layer("l", "linear", -1, 0.0, 1, 1)
    with pytest.raises(InvalidParameterError, match="network"):
        predict_step([layer], 2, 4, NODE, "carrier pigeon")
