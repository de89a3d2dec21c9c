"""Compressors tensor by tensor: what each does by itself, on vectors, over ranks and in the training of modules."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from compressors import vector_of
from dsgd import Gang
from dsgd.collectives import Group, compressed_cost, compressed_mean
from dsgd.compress import QSGD, ErrorFeedback, GTopK, Half, Layerwise, NonZero, PowerSGD, TopK
from gangs import run_gang

SHAPES = {
    "conv.weight": (6, 2, 3, 3), "conv.bias": (6,), "first.weight": (30, 40), "first.bias": (30,),
    "second.weight": (25, 30), "second.bias": (25,), "out.weight": (4, 25), "out.bias": (4,),
}  # fmt: skip
LENGTH = sum(int(np.prod(shape)) for shape in SHAPES.values())
BY_LAYER = Layerwise(
    {"conv.weight": ErrorFeedback(TopK(0.2)), "out.*": None, "*.weight": ErrorFeedback(PowerSGD(3))}
).bound(SHAPES)
MIXED = Layerwise({"conv.*": GTopK(0.2), "first.*": QSGD(), "second.*": NonZero(), "out.weight": Half()}).bound(SHAPES)


def test_each_tensor_travels_by_its_own_rule() -> None:
    """The first pattern that matches decides; a matrix has the rows of its weight, and what gains nothing is whole."""
    found = dict(zip(SHAPES, (repr(part.compressor) for part in BY_LAYER.parts(LENGTH)), strict=True))
    assert found["conv.weight"] == "ErrorFeedback(compressor=TopK(density=0.2, exact=True), decay=1.0)"
    assert found["first.weight"] == "ErrorFeedback(compressor=PowerSGD(rank=3, n_rows=30), decay=1.0)"
    assert found["second.weight"] == "ErrorFeedback(compressor=PowerSGD(rank=3, n_rows=25), decay=1.0)"
    assert {found[name] for name in ("conv.bias", "first.bias", "out.weight", "out.bias")} == {"Identity()"}
    # 3 * (8 + 9) numbers are no fewer than 8 * 9, of which rank 3 makes 51; of 4 * 9 they are more.
    small = Layerwise({"*": ErrorFeedback(PowerSGD(3))}).bound({"a": (8, 9), "b": (4, 9), "c": (5,)})
    assert [type(part.compressor).__name__ for part in small.parts(113)] == ["ErrorFeedback", "Identity", "Identity"]


@pytest.mark.parametrize("compressor", [BY_LAYER, MIXED], ids=["factors", "mixed"])
def test_a_payload_is_those_of_the_tensors(compressor: Layerwise) -> None:
    """Every tensor arrives as its own compressor leaves it, over several vectors; lengths that vary are in it."""
    memory = compressor.init(LENGTH, np.float32, 5)
    parts = compressor.parts(LENGTH)
    own = [part.compressor.init(part.place.stop - part.place.start, np.float32, 5 + k) for k, part in enumerate(parts)]
    for number in range(3):
        vector = vector_of(LENGTH, number, np.float32)
        out, expected = np.zeros_like(vector), np.zeros_like(vector)
        compressor.decode(compressor.encode(vector, memory).copy(), out, 1.0)
        for part, kept in zip(parts, own, strict=True):
            part.compressor.decode(part.compressor.encode(vector[part.place], kept), expected[part.place], 1.0)
        np.testing.assert_array_equal(out, expected)


def means(group: Group, compressor: Any, dtype: Any) -> tuple[np.ndarray, Any, int]:
    """Return what a rank holds after two rounds, what it keeps, and the bytes of a round."""
    memory = compressor.init(LENGTH, dtype, 3, group.rank, group.size)
    rounds = []
    for number in range(2):
        group.ledger.begin_round("sync")
        before = group.ledger.records().totals["bytes_sent"]
        vector = vector_of(LENGTH, 10 * group.rank + number, dtype)
        compressed_mean(group, vector, 1.0 / group.size, compressor, memory)
        group.ledger.end_round()
        rounds.append(vector)
        sent = int(group.ledger.records().totals["bytes_sent"] - before)
    return np.stack(rounds), memory, sent


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("compressor", [BY_LAYER, MIXED], ids=["factors", "mixed"])
def test_a_mean_is_those_of_the_tensors(compressor: Layerwise, size: int) -> None:
    """All ranks hold the same bits; each tensor has the mean of its compressor alone, at the formula's bytes."""
    found = run_gang("inproc", size, partial(means, compressor=compressor, dtype=np.float64))
    for rank, (rounds, _, sent) in enumerate(found):
        assert rounds.tobytes() == found[0][0].tobytes()
        cost = compressed_cost(rank, size, LENGTH, 8, compressor)
        assert cost is None or cost.n_bytes == sent

    def alone(group: Group, number: int) -> np.ndarray:
        part = compressor.parts(LENGTH)[number]
        memory = part.compressor.init(part.place.stop - part.place.start, np.float64, 3 + number, group.rank, size)
        for turn in range(2):
            vector = vector_of(LENGTH, 10 * group.rank + turn)[part.place].copy()
            compressed_mean(group, vector, 1.0 / size, part.compressor, memory)
        return vector

    for number, part in enumerate(compressor.parts(LENGTH)):
        expected = run_gang("inproc", size, partial(alone, number=number))[0]
        np.testing.assert_allclose(found[0][0][1][part.place], expected, rtol=1e-9, atol=1e-9)


# ---- modules


@pytest.mark.slow
def test_modules_train_layer_by_layer(tmp_path: Any) -> None:
    """The tensors are those of the module; a fit repeats, resumes from a checkpoint bit for bit, and sends less."""
    torch = pytest.importorskip("torch")
    from dsgd.sync import LocalSGD, MinibatchSGD
    from dsgd.torch import TorchClassifier

    X = np.random.default_rng(0).standard_normal((200, 20)).astype(np.float32)
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    rules = Layerwise({"0.weight": ErrorFeedback(PowerSGD(2)), "2.weight": ErrorFeedback(TopK(0.5))})

    def fit(sync: Any, **options: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.Tanh(), torch.nn.Linear(40, 2))
        options = {"max_epochs": 12, "lr": 0.1, "optimizer__momentum": 0.9, "random_state": 0, "n_jobs": 2, **options}
        return TorchClassifier(module, sync=sync, **options).fit(X, y)

    def weights(fitted: Any) -> bytes:
        return b"".join(parameter.detach().numpy().tobytes() for parameter in fitted.module_.parameters())

    for plain, by_layer, batch in (
        (MinibatchSGD(20), MinibatchSGD(20, compressor=rules), None),
        (LocalSGD(20), LocalSGD(20, compressor=rules), 10),
    ):
        whole, small = fit(plain, batch_size=batch), fit(by_layer, batch_size=batch)
        assert small.score(X, y) > 0.8
        sent, all_sent = (model.ledger_.totals()["bytes_sent"] for model in (small, whole))
        assert sent < 0.6 * all_sent
        assert weights(fit(by_layer, batch_size=batch)) == weights(small)
        folder = tmp_path / type(by_layer).__name__
        fit(by_layer, batch_size=batch, max_epochs=5, client=Gang(checkpoint=str(folder)))
        assert weights(fit(by_layer, batch_size=batch, client=Gang(resume_from=str(folder)))) == weights(small)


def test_patterns_that_match_nothing_are_named() -> None:
    """A misspelt layer is found before training, with the names that there are; so it is in a loop of your own."""
    torch = pytest.importorskip("torch")
    from dsgd.errors import InvalidParameterError
    from dsgd.runtime import run_on_threads
    from dsgd.sync import MinibatchSGD
    from dsgd.torch import Synchronizer, TorchClassifier

    rules = Layerwise({"conv*": ErrorFeedback(TopK(0.5)), "*": None})
    X, y = np.ones((8, 3), np.float32), np.arange(8) % 2
    with pytest.raises(InvalidParameterError, match=r"'conv\*'. There are weight, bias"):
        TorchClassifier(torch.nn.Linear(3, 2), sync=MinibatchSGD(4, compressor=rules)).fit(X, y)

    def loop(rank: Any, shard: Any) -> None:
        module = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        Synchronizer(module, optimizer, compressor=rules, rank=rank)

    with pytest.raises(InvalidParameterError, match=r"'conv\*'"):
        run_on_threads(loop, [None])
