"""The study of gTop-k: the published example, where its ranges hold, what is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsgd.cli import app
from dsgd.errors import InvalidParameterError
from dsgd.study.gtopk import MODELS, NetModel, check_gtopk_claims, compute_range, lost_share, scaling
from web_page import check_page


def test_the_model_gives_the_times_of_a_worked_example() -> None:
    """25 million parameters on 32 ranks with 1 GbE: 1771, 58, 22 and 11 ms, of which 27 are latency of the ring."""
    step = scaling(NetModel("example", 25_000_000, 1.0), 32, 3.0)
    latency_ms = 62 * 0.436
    assert 1e3 * step.dense_s == pytest.approx(1743.75 + latency_ms, rel=1e-4)
    assert 1e3 * step.topk_s == pytest.approx(5 * 0.436 + 31 * 25_000 * 72e-6, rel=1e-4)
    assert 1e3 * step.tree_s == pytest.approx(22.36, rel=1e-3)
    assert 1e3 * step.butterfly_s == pytest.approx(11.18, rel=1e-3)
    assert step.packed_s < 0.8 * step.butterfly_s


def test_the_published_ranges_hold_for_a_large_model_and_not_for_a_small_one() -> None:
    """Both hold for ResNet-50; for ResNet-20 gTop-k by a tree is slower than Top-k, whatever a step takes."""
    claims = check_gtopk_claims([scaling(model, 32, 3.0) for model in MODELS], 32)
    said = {
        name: [one.verdict for one in claims if one.dataset.startswith(name)] for name in ("ResNet-50", "ResNet-20")
    }
    assert said["ResNet-50"] == ["holds", "holds"]
    assert said["ResNet-20"][1] == "fails"
    assert "no compute time" in claims[1].note
    assert all("every run" in claim.note for claim in claims)
    fast = check_gtopk_claims([scaling(MODELS[1], 32, 1000.0)], 32)
    assert [claim.verdict for claim in fast] == ["exceeds", "exceeds"]
    steps = {model.name.split(",")[0]: scaling(model, 32, 3.0) for model in MODELS}
    assert 2.7 <= steps["ResNet-50"].over_dense <= 12
    assert 1.1 <= steps["ResNet-50"].over_topk <= 1.7
    small = steps["ResNet-20"]
    assert small.over_topk < 1
    assert compute_range(small.topk_s, small.tree_s, 1.1, 1.7) is None


def test_a_range_of_compute_times_ends_where_the_gain_does() -> None:
    """At both ends of what is returned the gain is that of the claim."""
    step = scaling(MODELS[2], 32, 3.0)
    found = compute_range(step.dense_s, step.tree_s, 2.7, 12.0)
    assert found is not None
    for compute_s, gain in zip(found, (12.0, 2.7), strict=True):
        assert (compute_s + step.dense_s) / (compute_s + step.tree_s) == pytest.approx(gain)


def test_put_back_loses_more_on_more_ranks() -> None:
    """Nothing on two ranks, and the conserving form never loses anything."""
    shares = [lost_share(size, n_draws=2) for size in (2, 4, 16)]
    assert [put_back for put_back, _ in shares] == sorted(put_back for put_back, _ in shares)
    assert shares[0][0] == pytest.approx(0.0, abs=1e-12)
    assert shares[2][0] > 0.02
    assert max(conserving for _, conserving in shares) < 1e-12


def test_the_command_writes_numbers_and_figures(tmp_path: Path) -> None:
    """``dsgd study gtopk`` leaves a file of numbers, a page and two pictures, and says where claims do not hold."""
    done = CliRunner().invoke(app, ["study", "gtopk", "--out", str(tmp_path), "--ranks", "8"])
    assert done.exit_code == 0, done.output
    assert "put-back" in done.output
    facts = json.loads((tmp_path / "gtopk.json").read_text())
    assert len(facts["steps"]) == len(MODELS)
    assert "Claims" in done.output
    check_page((tmp_path / "report.html").read_text(encoding="utf-8"))
    for name in ("efficiency.png", "mass.png"):
        assert (tmp_path / "figures" / name).read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_modelled_is_refused() -> None:
    """Ranks that are no power of two, and a rank that computes nothing."""
    with pytest.raises(InvalidParameterError, match="power of two"):
        scaling(MODELS[0], 12, 3.0)
    with pytest.raises(InvalidParameterError, match="tflops"):
        scaling(MODELS[0], 8, 0.0)
