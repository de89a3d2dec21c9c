"""Running the study of features: what is timed comes first, while nothing else runs; then kernel values and agents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

from dsgd.study.features.agents import run_agents
from dsgd.study.features.grid import FeatureStudy
from dsgd.study.features.machines import data_of_machines, run_machines, run_values
from dsgd.study.frame.missing import MissingData
from dsgd.study.frame.rows import StudyRun
from dsgd.study.frame.runner import Record

__all__ = ["run_feature_study"]


def run_feature_study(
    study: FeatureStudy, out: str | os.PathLike[str], *, force: bool = False, command: str | None = None
) -> Iterator[StudyRun]:
    """Make the runs of a study that have no row yet; yield every run: machines by sets, kernel values, agents by size.

    Parameters and errors are those of `dsgd.study.run_study`.
    """
    record = Record(out, force=force, command=command, ranks=None)
    for source in study.data:
        data = data_of_machines(source, record.rows(part="machines"))
        runs = study.machines(data.name, len(data.y), len(data.y_test))
        if isinstance(data, MissingData):
            yield from record.kept(runs)
        else:
            yield from record.finish(runs, partial(run_machines, data))
    yield from record.finish(study.values(), run_values)
    for rows, features in study.sizes():
        for seed in study.seeds:
            yield from record.finish(study.of_agents(rows, features, seed), run_agents)
