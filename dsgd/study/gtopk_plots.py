"""The figures of the study of gTop-k."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, PercentFormatter, StrMethodFormatter

from dsgd.study.drawing import picture, series, share_legend
from dsgd.study.gtopk import Scaling
from dsgd.study.theme import DARK, LIGHT, rc_params

__all__ = ["draw_efficiency", "draw_mass"]


def draw_efficiency(curves: Sequence[Sequence[Scaling]], sizes: Sequence[int], *, dark: bool = False) -> bytes:
    """Return efficiency against ranks as PNG, one panel per model.

    Parameters
    ----------
    curves : sequence of sequences of Scaling
        For each model, one for each number of ranks.
    sizes : sequence of int
        The numbers of ranks.
    dark : bool, default False
        Draw on a dark ground.
    """
    with mpl.rc_context(rc_params(DARK if dark else LIGHT)):
        figure = Figure(figsize=(2.9 * len(curves), 3.3), layout="constrained")
        axes: Any = figure.subplots(1, len(curves), squeeze=False, sharey=True)
        for axis, steps in zip(axes[0], curves, strict=True):
            for number, (label, field) in enumerate(
                [("dense ring", "dense_s"), ("Top-k", "topk_s"), ("gTop-k, tree", "tree_s"), ("packed", "packed_s")]
            ):
                shares = [step.efficiency(getattr(step, field)) for step in steps]
                axis.plot(sizes, shares, **series(number, label))
            axis.set_title(f"{steps[0].model.name}\n{1e3 * steps[0].compute_s:.0f} ms a step")
            _rank_axis(axis, sizes)
            axis.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes[0, 0].set_ylabel("scaling efficiency")
        share_legend(figure, axes)
        return picture(figure)


def draw_mass(sizes: Sequence[int], shares: Sequence[tuple[float, float]], *, dark: bool = False) -> bytes:
    """Return the lost share of the chosen mass against ranks as PNG.

    Parameters
    ----------
    sizes : sequence of int
        The numbers of ranks.
    shares : sequence of tuple of float
        Put-back and conserving, for each.
    dark : bool, default False
        Draw on a dark ground.
    """
    with mpl.rc_context(rc_params(DARK if dark else LIGHT)):
        figure = Figure(figsize=(5.2, 3.4), layout="constrained")
        axis = figure.subplots()
        for number, label in enumerate(("put-back, as published", "conserving")):
            axis.plot(sizes, [share[number] for share in shares], **series(number, label))
        _rank_axis(axis, sizes)
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
        axis.set_ylabel("chosen mass lost in one sum")
        axis.legend()
        return picture(figure)


def _rank_axis(axis: mpl.axes.Axes, sizes: Sequence[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(list(sizes)))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("ranks")
