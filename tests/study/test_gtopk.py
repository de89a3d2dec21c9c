"""The study of gTop-k: the published example, where its ranges hold, courses of training, what is lost."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsgd.errors import InvalidParameterError
from dsgd.study import gtopk_cost as cost
from dsgd.study import run_study
from dsgd.study.gtopk import STUDY, InventedText, check_convergence, extended, summarise_courses


def test_the_model_gives_the_times_of_a_worked_example() -> None:
    """25 million parameters on 32 ranks with 1 GbE: 1771, 58, 22 and 11 ms, of which 27 are latency of the ring."""
    step = cost.scaling(cost.NetModel("example", 25_000_000), 32, 0.1)
    latency_ms = 62 * 0.436
    assert 1e3 * step.dense_s == pytest.approx(1743.75 + latency_ms, rel=1e-4)
    assert 1e3 * step.topk_s == pytest.approx(5 * 0.436 + 31 * 25_000 * 72e-6, rel=1e-4)
    assert 1e3 * step.tree_s == pytest.approx(22.36, rel=1e-3)
    assert step.packed_s < 0.8 * 11.18e-3  # of a butterfly whose places are not packed


def test_the_published_ranges_hold_for_a_large_model_and_not_for_a_small_one() -> None:
    """Both hold for ResNet-50; for ResNet-20 gTop-k by a tree is slower than Top-k, whatever a step takes."""
    seconds = (0.0026, 0.0202, 0.2624, 0.0458, 0.1152)  # at 3 Tflop/s
    steps = [cost.scaling(model, 32, one) for model, one in zip(cost.MODELS, seconds, strict=True)]
    claims = cost.check_gtopk_claims(steps, 32)
    said = {
        name: [one.verdict for one in claims if one.dataset.startswith(name)] for name in ("ResNet-50", "ResNet-20")
    }
    assert said["ResNet-50"] == ["holds", "holds"]
    assert said["ResNet-20"][1] == "fails"
    assert "No compute time" in claims[1].note
    assert all("every run" in claim.note for claim in claims)
    fast = cost.check_gtopk_claims([cost.scaling(cost.MODELS[1], 32, 6e-5)], 32)
    assert [claim.verdict for claim in fast] == ["exceeds", "exceeds"]
    by_name = {step.model.name.split(",")[0]: step for step in steps}
    assert 2.7 <= by_name["ResNet-50"].over_dense <= 12
    assert 1.1 <= by_name["ResNet-50"].over_topk <= 1.7
    small = by_name["ResNet-20"]
    assert small.over_topk < 1
    assert cost.compute_range(small.topk_s, small.tree_s, 1.1, 1.7) is None


def test_a_range_of_compute_times_ends_where_the_gain_does() -> None:
    """At both ends of what is returned the gain is that of the claim."""
    step = cost.scaling(cost.MODELS[2], 32, 0.26)
    found = cost.compute_range(step.dense_s, step.tree_s, 2.7, 12.0)
    assert found is not None
    for compute_s, gain in zip(found, (12.0, 2.7), strict=True):
        assert (compute_s + step.dense_s) / (compute_s + step.tree_s) == pytest.approx(gain)


def timed(name: str, seconds: list[float]) -> dict[str, Any]:
    """Return a row of a timed network."""
    return {"key": name, "model": name, "strategy": "compute", "ranks": None, "seconds": seconds, "cluster": "other"}


def test_measured_times_enter_the_efficiency_in_closed_form() -> None:
    """Efficiency is c / (c + sum), of the median; the interval of a gain is that of the gains of all repetitions."""
    rows = [timed("VGG-16, CIFAR-10", [0.2, 0.1, 0.4])]
    [step] = cost.measured_steps(rows, 16)
    m, k = 14_728_266, 14_729
    dense = 30 * 0.436e-3 + 2 * 15 / 16 * 4 * m * 9e-9
    tree = 2 * 4 * (0.436e-3 + 8 * k * 9e-9)
    assert step.efficiency(step.dense_s) == pytest.approx(0.2 / (0.2 + dense))
    assert step.efficiency(step.tree_s) == pytest.approx(0.2 / (0.2 + tree))
    gains = [(seconds + dense) / (seconds + tree) for seconds in (0.2, 0.1, 0.4)]
    claim = cost.check_gtopk_claims([step], 16, rows)[0]
    assert claim.interval is not None
    assert claim.interval[0] == pytest.approx(np.mean(gains))
    assert claim.interval[1] < min(gains)
    assert "every run" not in claim.note


def test_a_batch_lies_on_the_line_through_two_others() -> None:
    """A fixed part and a part for each row; noise that makes the larger batch faster adds nothing for a row."""
    assert extended((2, 3.0), (6, 5.0), 64) == pytest.approx(2.0 + 0.5 * 64)
    assert extended((2, 3.0), (6, 2.9), 64) == 3.0


def test_published_speeds_give_the_published_ranges_and_what_the_cost_of_messages_leaves_out() -> None:
    """Of all networks the gains on 32 ranks span both ranges, and sums took longer than their messages cost."""
    gains = [speeds.efficiency("gtopk", 32) / speeds.efficiency("dense", 32) for speeds in cost.SPEEDS.values()]
    assert min(gains) == pytest.approx(2.74, abs=0.01)
    assert max(gains) == pytest.approx(12.79, abs=0.01)
    steps = cost.published_steps(32)
    assert [step.model.name for step in steps] == [model.name for model in cost.MODELS[:4]]
    for step in steps:
        speeds = cost.SPEEDS[step.model.name]
        assert speeds.batch is not None
        assert speeds.parts_s is not None
        # The batch is that for which the parts of a step agree with its speed.
        assert speeds.batch / sum(speeds.parts_s) == pytest.approx(
            speeds.efficiency("gtopk", 32) * speeds.alone, rel=0.1
        )
        took = speeds.beside_s("gtopk", 32)
        assert took is not None
        assert took > 4 * step.tree_s
    assert len(cost.parts_table(steps).rows) == 4
    curves = [list(own) for own in zip(*(cost.published_steps(size) for size in cost.SIZES), strict=True)]
    table = cost.efficiency_table(curves, cost.SIZES)
    assert len(table.rows) == 16
    cells = table.rows[-1]
    assert cells[3] == f"{1.234 / 173.469:.1%}"
    assert cells[4] == f"{steps[3].efficiency(steps[3].dense_s):.1%}"


def test_put_back_loses_more_on_more_ranks() -> None:
    """Nothing on two ranks, and the conserving form never loses anything."""
    shares = [cost.lost_share(size, n_draws=2) for size in (2, 4, 16)]
    assert [put_back for put_back, _ in shares] == sorted(put_back for put_back, _ in shares)
    assert shares[0][0] == pytest.approx(0.0, abs=1e-12)
    assert shares[2][0] > 0.02
    assert max(conserving for _, conserving in shares) < 1e-12


def test_an_invented_text_has_the_entropy_of_its_words() -> None:
    """Words come by Zipf's law, a space ends each, and the entropy of a character is that of a word over its length."""
    text = InventedText(n_words=4, seed=3)
    words, shares = text.words(), text.frequencies()
    np.testing.assert_allclose(shares, np.array([12, 6, 4, 3]) / 25)
    X, y = text.draw(40_000, 5, seed=0)
    assert X.shape == (40_000, 5)
    np.testing.assert_array_equal(X[5], y[:5])
    spaces = np.flatnonzero(y == 0)
    found = [tuple(y[low + 1 : high]) for low, high in pairwise(spaces)]
    for word, share in zip(words, shares, strict=True):
        assert np.mean([one == tuple(word) for one in found]) == pytest.approx(share, abs=0.02)
    length = sum(share * (len(word) + 1) for word, share in zip(words, shares, strict=True))
    assert text.entropy() == pytest.approx(-sum(shares * np.log(shares)) / length)
    assert not np.array_equal(X, text.draw(40_000, 5, seed=1)[0])


def course(name: str, seed: int, accuracy: float) -> dict[str, Any]:
    """Return a row of a course."""
    return {
        "model": "lstm", "dataset": "d", "ranks": 4, "strategy": name, "seed": seed, "test_accuracy": accuracy,
        "test_loss": 0.5, "majority_accuracy": 0.2, "rows": 800, "batch": 32, "epochs": 3, "n_params": 9, "curve": [],
    }  # fmt: skip


@pytest.mark.parametrize(("below", "verdict"), [(0.0, "holds"), (0.001, "holds"), (0.02, "fails")])
def test_convergence_is_judged_by_the_paired_difference(below: float, verdict: str) -> None:
    """Half a point below dense sums still counts; seeds that move both ways alike do not widen the interval."""
    rows = [course("dense", seed, 0.8 + 0.05 * seed) for seed in range(3)]
    rows += [course("gtop-k", seed, 0.8 + 0.05 * seed - below) for seed in range(3)]
    [claim] = check_convergence(summarise_courses(rows))
    assert claim.verdict == verdict
    assert claim.interval is not None
    assert claim.interval[0] == pytest.approx(-below)
    assert check_convergence(summarise_courses(rows[:3])) == []


def test_networks_have_the_sizes_of_the_publication() -> None:
    """Each of the five has as many parameters as the cost of its messages is computed with."""
    torch = pytest.importorskip("torch")
    from dsgd.study.networks import BUILDERS

    for model in cost.MODELS:
        with torch.device("meta"):
            network = BUILDERS[model.name][0]()
        assert sum(parameter.numel() for parameter in network.parameters()) == model.n_params


@pytest.mark.slow
def test_courses_are_trained_timed_and_resumed(tmp_path: Path) -> None:
    """At density one gTop-k without a warm-up is dense training; rows that are there are not made again."""
    pytest.importorskip("torch")
    small = STUDY.replace(
        tasks=("lstm",),
        ways=("gtop-k", "top-k"),
        rows=256,
        test_rows=100,
        epochs=2,
        seeds=(0,),
        density=1.0,
        warm_up=(),
        networks=("ResNet-20, CIFAR-10",),
        repeats=1,
    )
    first = list(run_study(small, tmp_path))
    assert len(first) == small.count() == 4
    assert [run.row for run in run_study(small, tmp_path)] == [run.row for run in first]
    passes, dense, *sparse = (run.row for run in first)
    assert passes["n_params"] == cost.MODELS[0].n_params
    assert len(passes["seconds"]) == 1
    assert passes["seconds"][0] > 0
    assert [point["epoch"] for point in dense["curve"]] == [1, 2]
    assert dense["least_loss"] < dense["test_loss"]
    for row in sparse:
        assert row["test_loss"] == pytest.approx(dense["test_loss"], rel=1e-5)
    # After an epoch with one entry in four, one in a thousand is far less.
    few = small.replace(ways=("gtop-k",), density=0.001, warm_up=cost.WARM_UP[:1], networks=())
    *_, last = run_study(few, tmp_path)
    assert 0 < last.row["bytes_sent"] < 0.35 * dense["bytes_sent"]


def test_what_cannot_be_modelled_is_refused() -> None:
    """Ranks that are no power of two, and a rank that computes nothing."""
    with pytest.raises(InvalidParameterError, match="power of two"):
        cost.scaling(cost.MODELS[0], 12, 3.0)
    with pytest.raises(InvalidParameterError, match="compute_s"):
        cost.scaling(cost.MODELS[0], 8, 0.0)
