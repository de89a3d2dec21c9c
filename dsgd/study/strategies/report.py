"""The report of the study of strategies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dsgd.report import Page, byte_text, seconds_text
from dsgd.study.comparison.training import looks
from dsgd.study.frame.report import data_table, doubts, facts, joined, where
from dsgd.study.frame.rows import Row, check_rows
from dsgd.study.published import citations, sources_of
from dsgd.study.strategies.grid import StrategyStudy
from dsgd.study.strategies.plots import strategy_figures
from dsgd.study.strategies.summary import (
    StrategyGang,
    check_strategy_claims,
    strategy_table,
    strategy_verdict,
    summarise_strategies,
)

__all__ = ["strategy_page"]

_COMMONEST: Final = "commonest label: test accuracy of always predicting it."


def strategy_page(study: StrategyStudy, rows: Sequence[Row]) -> Page:
    """Return the report of a study from its finished runs.

    Raises
    ------
    DsgdError
        There are no rows.
    """
    check_rows(rows)
    gangs, excess = summarise_strategies(rows), study.target_excess
    ranks = where(study.network) + (f", stragglers {study.stragglers}" if study.network else "")
    tails = ["" if len(gangs) == 1 else f"-{gang.dataset}-{gang.ranks}" for gang in gangs]
    return Page(
        title="How should ranks talk?",
        answer=strategy_verdict(gangs, excess=excess),
        ran=facts(
            rows,
            ("Ranks", f"{joined(sorted(set(study.ranks)))}; {ranks}; seeds {joined(study.seeds)}"),
            (
                "Model",
                f"{study.loss} loss, alpha {study.alpha:g}, {study.schedule} schedule, eta0 {study.eta0:g}, "
                f"{study.dtype}, {study.partition} partition; looked at after {joined(looks(study.epochs))} epochs",
            ),
        ),
        highlights=_highlights(gangs[0], excess) if len(gangs) == 1 else (),
        doubts=_doubts(study, rows),
        data=[data_table(rows, "features", "non-zero", "commonest label", note=_COMMONEST)],
        claims=check_strategy_claims(gangs, excess=excess),
        source=(
            "The claims are those of this library; the methods and their sources are listed in its documentation. "
            "Seconds of simulated ranks are those of a model of the network and of a core; models, objectives and "
            "bytes are real."
        ),
        figures=[
            figure
            for gang, tail in zip(gangs, tails, strict=True)
            for figure in strategy_figures(gang, excess=excess, tail=tail)
        ],
        tables=[strategy_table(gang, excess=excess) for gang in gangs],
        rows=rows,
        citations=citations(sources_of(row["sync"] for row in rows)),
    )


def _highlights(gang: StrategyGang, excess: float) -> list[tuple[str, str]]:
    reached = gang.reached(excess)
    found = [(f"{len(reached)} of {len(gang.cells)}", "strategies reach the target")]
    if reached:
        soonest = min(reached, key=lambda name: reached[name]["seconds"])
        fewest = min(reached, key=lambda name: reached[name]["bytes_sent"])
        found.append((seconds_text(reached[soonest]["seconds"]), f"to the target, soonest: {soonest}"))
        found.append((byte_text(reached[fewest]["bytes_sent"]), f"to the target, fewest: {fewest}"))
    return found


def _doubts(study: StrategyStudy, rows: Sequence[Row]) -> list[str]:
    if len({row["schedule"] for row in rows}) == 1:
        return doubts(rows, asked=study.count())
    own = (
        f"Asynchronous strategies have a constant rate of {study.eta0:g}, the others the {study.schedule} "
        "schedule: between the two kinds curves differ by their rates first."
    )
    return doubts(rows, [own], asked=study.count())
