"""The study of random features: agents on graphs that learn with them, and machines beside the exact kernel.

::

    study = demo_feature_study()
    runs = list(run_feature_study(study, "study/"))
    feature_page(study, [run.row for run in runs]).save("study/")

`grid` has the runs, `agents` the descent of agents on all graphs, `machines` the sets, the exact machine and the
features; `runner` makes the rows, `summary` holds them against one machine and the exact kernel, `report` draws the
page. The command line and programs call what is exported here; begin with `runner`.
"""

from dsgd.study.features.grid import (
    ALONE,
    GRAPHS,
    ONE_MACHINE,
    AgentRun,
    FeatureStudy,
    MachineRun,
    ValueRun,
    demo_feature_study,
)
from dsgd.study.features.report import feature_page
from dsgd.study.features.runner import run_feature_study
from dsgd.study.features.summary import (
    AgentCell,
    AgentSize,
    MachineCell,
    MachineSet,
    ValueCell,
    best_table,
    check_feature_claims,
    error_table,
    feature_verdict,
    graph_table,
    machine_table,
    speedup_table,
    summarise_agents,
    summarise_machines,
    summarise_values,
)

__all__ = [
    "ALONE",
    "GRAPHS",
    "ONE_MACHINE",
    "AgentCell",
    "AgentRun",
    "AgentSize",
    "FeatureStudy",
    "MachineCell",
    "MachineRun",
    "MachineSet",
    "ValueCell",
    "ValueRun",
    "best_table",
    "check_feature_claims",
    "demo_feature_study",
    "error_table",
    "feature_page",
    "feature_verdict",
    "graph_table",
    "machine_table",
    "run_feature_study",
    "speedup_table",
    "summarise_agents",
    "summarise_machines",
    "summarise_values",
]
