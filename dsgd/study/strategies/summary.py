"""Summary of the study of strategies: what its rows are of, and its claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from dsgd.report import Claim
from dsgd.study.comparison.methods import SEQUENTIAL
from dsgd.study.comparison.summary import StrategyCell, StrategyGang, gang_of, strategy_answer, strategy_table
from dsgd.study.frame.report import gang_text
from dsgd.study.frame.rows import Row
from dsgd.study.frame.summary import grouped
from dsgd.study.published import STATEMENTS
from dsgd.study.verdict import Interval, difference, exact

__all__ = [
    "StrategyCell",
    "StrategyGang",
    "check_strategy_claims",
    "strategy_table",
    "strategy_verdict",
    "summarise_strategies",
]

# A strategy is as good as the sequential run if its accuracy is at most this much lower.
_CLOSE: Final = 0.01


def summarise_strategies(rows: Iterable[Row]) -> list[StrategyGang]:
    """Return one entry per number of ranks and dataset with a sequential run."""
    gangs = grouped(rows, "dataset", "ranks", "network")
    found = []
    for (dataset, ranks, network), own in gangs.items():
        alone = grouped(gangs.get((dataset, 1, network), ()), "strategy").get((SEQUENTIAL,))
        if ranks > 1 and alone:
            found.append(gang_of(dataset, gang_text(ranks, network), alone, own))
    return found


def check_strategy_claims(gangs: Sequence[StrategyGang], *, excess: float) -> list[Claim]:
    """Return the promises of this library about its strategies, and whether they hold here; see `strategy_table`."""
    claims = []
    for gang in gangs:
        lowest = min(gang.cells, key=gang.behind)
        far = [f"{cell.name} ({100 * gang.behind(cell):+.1f})" for cell in gang.cells if gang.behind(cell) < -_CLOSE]
        note = f"More than a point below: {', '.join(far)}." if far else "Of the strategies that were run."
        behind = gang.sequential.median("majority_accuracy") - gang.sequential.median("test_accuracy")
        commonest = STATEMENTS["dsgd/strategies-accuracy"].form(behind)
        accurate = STATEMENTS["dsgd/strategies-accuracy"].judged(
            gang.name, _distance(gang, lowest), note, trivial=gang.is_trivial, baseline=f"{commonest}: commonest label"
        )
        claims.append(replace(accurate, ours=f"{accurate.ours}, {lowest.name}"))
        late = [cell.name for cell in gang.cells if cell.name not in gang.reached(excess)]
        share = exact(1.0 - len(late) / len(gang.cells))
        note = f"Not reached by {', '.join(late)}." if late else "All of those that were run."
        objective = STATEMENTS["dsgd/strategies-objective"].judged(gang.name, share, note, trivial=gang.is_trivial)
        within = f"Every strategy comes within {excess:.0%} of the sequential objective in as many epochs"
        ours = f"{len(gang.cells) - len(late)} strategies"
        claims.append(replace(objective, name=within, published=f"{len(gang.cells)} strategies", ours=ours))
    return claims


def _distance(gang: StrategyGang, cell: StrategyCell) -> Interval:
    """Return the accuracy of a strategy less that of the sequential run, over the seeds."""
    found = difference(cell.column("test_accuracy"), gang.sequential.column("test_accuracy"))
    # Seeds are run in their order, so that both have the first.
    assert found is not None
    return found


def strategy_verdict(gangs: Sequence[StrategyGang], *, excess: float) -> str:
    """Return the answer of the study, a sentence or two per dataset and number of ranks; see `strategy_table`."""
    return (
        " ".join(strategy_answer(gang, excess) for gang in gangs)
        or "No strategy has been run beside a sequential run yet."
    )
