"""Studies of strategies: seconds and bytes to a target, and accuracy, of every way of talking beside each other.

::

    study = demo_strategy_study()
    runs = list(run_strategy_study(study, "study/"))
    write_strategy_report(study, [run.row for run in runs], "study/")
"""

from dsgd.study.strategies.grid import StrategyRun, StrategyStudy, demo_strategy_study
from dsgd.study.strategies.report import write_strategy_report
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
    "strategy_table",
    "strategy_verdict",
    "summarise_strategies",
    "write_strategy_report",
]
