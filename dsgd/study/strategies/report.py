"""The report of a study of strategies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dsgd.errors import DsgdError
from dsgd.report import origin_doubts, ran
from dsgd.study.page import Page, Picture, check_extras
from dsgd.study.rows import Row
from dsgd.study.strategies.grid import StrategyStudy, looks
from dsgd.study.strategies.summary import (
    StrategyGang,
    check_strategy_claims,
    data_table,
    strategy_table,
    strategy_verdict,
    summarise_strategies,
)

__all__ = ["strategy_doubts", "strategy_page", "write_strategy_report"]

_CURVES: Final = (
    "Training objective of the model that training returns after so many epochs, one panel per family; the others are "
    "pale behind. Medians over seeds. Where a curve ends earlier, its epochs cost less. Curves that begin higher are "
    "cut off."
)
_FRONT: Final = (
    "Every strategy that reaches the target, at what that took. Along the line lie those that no other beats in both; "
    "their names are bold."
)


def write_strategy_report(study: StrategyStudy, rows: Sequence[Row], out: str | os.PathLike[str]) -> Path:
    """Write ``report.html`` and ``figures/*.png`` from the rows of a study.

    Parameters
    ----------
    study : StrategyStudy
        What was asked for.
    rows : sequence of dict
        Its finished runs.
    out : str or path-like
        The folder.

    Returns
    -------
    pathlib.Path
        The report.

    Raises
    ------
    DsgdError
        There are no rows, or matplotlib or jinja2 is not installed.
    """
    check_extras()
    if not rows:
        raise DsgdError("the study has no finished run yet, so there is nothing to report: run it first")
    gangs = summarise_strategies(rows)
    pictures = [picture for gang in gangs for picture in _pictures(gang, study, alone=len(gangs) == 1)]
    return strategy_page(study, rows).write("strategies.html", pictures, rows, Path(out))


def _pictures(gang: StrategyGang, study: StrategyStudy, *, alone: bool) -> list[Picture]:
    from dsgd.study.strategies import plots

    excess, tail = study.target_excess, "" if alone else f"-{gang.dataset}-{gang.ranks}"
    seconds = [plots.draw_curves(gang, "seconds", excess=excess, dark=dark) for dark in (False, True)]
    sent = [plots.draw_curves(gang, "bytes_sent", excess=excess, dark=dark) for dark in (False, True)]
    front = [plots.draw_front(gang, excess=excess, dark=dark) for dark in (False, True)]
    return [
        Picture(f"pareto{tail}", f"Bytes and seconds to the target: {gang.name}", _FRONT, *front),
        Picture(f"loss_seconds{tail}", f"Objective against seconds: {gang.name}", _CURVES, *seconds),
        Picture(f"loss_bytes{tail}", f"Objective against bytes: {gang.name}", _CURVES, *sent),
    ]


def strategy_page(study: StrategyStudy, rows: Sequence[Row]) -> Page:
    """Return what the report says.

    Parameters
    ----------
    study : StrategyStudy
        What was asked for.
    rows : sequence of dict
        Its finished runs.
    """
    gangs, excess = summarise_strategies(rows), study.target_excess
    where = (
        "worker processes" if study.network is None else f"simulated, {study.network}, stragglers {study.stragglers}"
    )
    return Page(
        verdict=strategy_verdict(gangs, excess=excess),
        facts=[
            ("Command", rows[-1]["command"]),
            ("Ranks", f"{', '.join(map(str, sorted(set(study.ranks))))}; {where}; seeds {_join(study.seeds)}"),
            (
                "Model",
                f"{study.loss} loss, alpha {study.alpha:g}, {study.schedule} schedule, eta0 {study.eta0:g}, "
                f"{study.dtype}, {study.partition} partition; looked at after {_join(looks(study.epochs))} epochs",
            ),
            *ran(rows),
        ],
        data=data_table(rows),
        claims=check_strategy_claims(gangs, excess=excess),
        results=[strategy_table(gang, excess=excess) for gang in gangs],
        more=[],
        doubts=strategy_doubts(study, rows),
    )


def strategy_doubts(study: StrategyStudy, rows: Sequence[Row]) -> list[str]:
    """Return what makes figures of a study hard to compare.

    Parameters
    ----------
    study : StrategyStudy
        What was asked for.
    rows : sequence of dict
        Rows of one study.
    """
    found = origin_doubts(rows)
    if len({row["schedule"] for row in rows}) > 1:
        found.append(
            f"Strategies that talk by post have a constant rate of {study.eta0:g}, the others the {study.schedule} "
            "schedule: between the two kinds curves differ by their rates first."
        )
    if study.network is not None:
        return found
    cores, load = rows[-1]["machine"]["cores"], max(row["load_at_start"] or 0.0 for row in rows)
    if rows[-1]["cluster"] == "local" and max(row["ranks"] for row in rows) > cores:
        found.append(f"There are {cores} cores: gangs of more ranks take turns, and their times are longer for it.")
    if load > 0.75 * cores:
        found.append(
            f"The machine was busy with other work when the study began (load {load:.1f} on {cores} cores): times are "
            "too long and vary."
        )
    return found


def _join(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
