"""The study of strategies: seconds and bytes to a target, and accuracy.

::

    study = demo_strategy_study()
    runs = list(run_strategy_study(study, "study/"))
    strategy_page(study, [run.row for run in runs]).save("study/")

`grid` lists the runs and their rates, `runner` trains, `summary` computes the target and which strategies reach it,
`plots` and `report` draw the page. The command line and programs call what is exported here; begin with `grid`.
"""

from dsgd.study.strategies.grid import StrategyRun, StrategyStudy, demo_strategy_study
from dsgd.study.strategies.report import strategy_page
from dsgd.study.strategies.runner import run_strategy_study
from dsgd.study.strategies.summary import (
    StrategyCell,
    StrategyGang,
    check_strategy_claims,
    strategy_table,
    strategy_verdict,
    summarise_strategies,
)

__all__ = [
    "StrategyCell",
    "StrategyGang",
    "StrategyRun",
    "StrategyStudy",
    "check_strategy_claims",
    "demo_strategy_study",
    "run_strategy_study",
    "strategy_page",
    "strategy_table",
    "strategy_verdict",
    "summarise_strategies",
]
