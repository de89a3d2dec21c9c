"""Partitions of a study: what is asked for is what ranks hold, whether they are workers or simulated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from distributed import LocalCluster

from dsgd.study import DataSource, Study, run_study, strategies
from dsgd.study.frame.data import checksum_of, load_data
from dsgd.sync import SCAFFOLD
from gang_cluster import start_cluster

PARTITIONS = ("contiguous", "shuffled", "label-skewed", "feature-skewed", "dirichlet:0.2", "quantity:0.4")
STUDY = strategies.STUDY.replace(
    data=(DataSource("webspam-like", 600, 200),),
    strategies={"local": 50, "scaffold": SCAFFOLD(every=50, stretch=5)},
    ranks=(3,),
    network="10GbE",
    seeds=(0,),
    epochs=8,
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Give three workers, threads of this process."""
    with start_cluster(3, processes=False) as cluster:
        yield cluster


def objectives(study: Study, out: Path, **options: Any) -> dict[str, float]:
    """Return the objective of each strategy on more than one rank."""
    rows = [run.row for run in run_study(study, out, **options)]
    return {row["strategy"]: row["objective"] for row in rows if row["ranks"] > 1}


@pytest.mark.filterwarnings("ignore::dsgd.errors.DivergenceWarning")
@pytest.mark.slow
def test_simulated_ranks_part_on_unlike_rows(tmp_path: Path) -> None:
    """Where each rank sees one class, local SGD drifts and SCAFFOLD does not; where rows are alike they end close."""
    found = {how: objectives(STUDY.replace(partition=how), tmp_path / how) for how in PARTITIONS}
    for name in ("local", "scaffold"):
        assert len({one[name] for one in found.values()}) == len(PARTITIONS)
    like, unlike = found["shuffled"], found["label-skewed"]
    assert unlike["local"] > 1.5 * like["local"]
    assert unlike["scaffold"] < 1.1 * like["scaffold"]
    assert like["scaffold"] == pytest.approx(like["local"], rel=0.1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dsgd.errors.DivergenceWarning")
@pytest.mark.parametrize("how", PARTITIONS)
def test_simulated_ranks_train_on_the_rows_of_workers(how: str, tmp_path: Path, cluster: LocalCluster) -> None:
    """The same study on workers and on simulated ranks ends in the same models: each rank has the same rows."""
    study = STUDY.replace(partition=how, epochs=2)
    simulated = objectives(study, tmp_path / "simulated")
    real = objectives(study.replace(network=None), tmp_path / "real", scheduler=cluster.scheduler_address)
    assert real == simulated


def test_data_have_equal_checksums_only_if_they_are_equal() -> None:
    """A value, a label, the type, the shape or the place of a sparse entry tell data apart; copies are equal."""
    rows = np.arange(12.0).reshape(4, 3)
    sparse = sp.csr_array(rows)
    others = [
        rows + np.eye(4, 3) * 1e-15, rows.astype(np.float32), rows.reshape(3, 4), rows[:, ::-1], sparse,
        sp.csr_array(np.roll(rows, 1, axis=1)), np.array(["a", "b"], dtype=object), np.array(["a", "c"], dtype=object),
    ]  # fmt: skip
    found = [checksum_of(rows), *map(checksum_of, others)]
    assert len(set(found)) == len(found)
    assert checksum_of(np.zeros((0, 3))) != checksum_of(np.zeros((3, 0)))
    assert checksum_of(rows) == checksum_of(np.asfortranarray(rows)) == checksum_of(rows.copy())
    assert checksum_of(sparse) == checksum_of(sparse.copy())
    source = DataSource("ijcnn1-like", 200, 100)
    one, same, other = load_data(source, "float64"), load_data(source, "float64"), load_data(source, "float32")
    assert one.describe()["checksum"] == same.checksum != other.checksum
