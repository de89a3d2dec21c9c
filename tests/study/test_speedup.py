"""The study of speed-up: gains and claims from rows alone, and rows that workers make."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsgd.datasets import load
from dsgd.study import DataSource, study_page
from dsgd.study.speedup import STUDY, rows_there
from gang_cluster import start_cluster
from study_rows import made_rows

SMALL = STUDY.replace(data=[DataSource("higgs-like", 400, 200)], epochs=(1, 2), seeds=(0, 1))
SECONDS = {
    ("scikit-learn", 1): 6.0, ("threads", 1): 2.0, ("threads", 2): 1.5, ("workers", 2): 1.0,
    ("workers, rows sent", 2): 3.0,
}  # fmt: skip


def rows_of(there: float = 1.0, slow: tuple[str, ...] = (), accurate: float = 0.8) -> list[dict[str, Any]]:
    """Return rows of ways that take so long an epoch; the slow ones are accurate after two, the others after one."""

    def found(run: Any) -> dict[str, Any]:
        way = (run.place, run.ranks)
        # Seeds are as far apart as ways are: only the medians must count.
        fit_s = (there if run.place == "workers" else SECONDS[way]) * run.epochs * (1.0 + run.seed)
        accuracy = accurate if run.epochs == 2 or run.place not in slow else 0.6
        own = {} if run.place == "scikit-learn" else {"train_s": fit_s / 2, "bytes_sent": 8}
        return {"fit_s": fit_s, "made_s": 0.1, "test_accuracy": accuracy, "majority_accuracy": 0.55} | own

    return made_rows(SMALL, found)


def test_gains_are_of_the_shortest_fits_that_are_accurate() -> None:
    """A way that needs two epochs is compared with one that needs one: 2 x 2 s against 1 s, medians over seeds."""
    rows = [row for row in rows_of(slow=("threads", "scikit-learn")) if (row["place"], row["ranks"]) != ("threads", 2)]
    cells = {row[0]: row for row in study_page(SMALL, rows).tables[0].rows}
    assert list(cells) == ["scikit-learn", "1 thread", "2 workers", "2 workers, rows sent"]
    assert cells["2 workers"][1:6] == ("1", "1.5", "0.75", "4x", "12x")


@pytest.mark.parametrize(("there", "verdict"), [(1.0, "holds"), (2.5, "fails")])
def test_claims_are_decided_by_the_rows(there: float, verdict: str) -> None:
    """Workers that are accurate before one thread confirm the promise, with every seed as many times as fast."""
    claims = study_page(SMALL, rows_of(there)).claims
    assert [claim.verdict for claim in claims] == [verdict, "holds"]
    assert claims[0].ours == f"{2.0 / there:.3g}x"


def test_what_no_way_learns_is_no_claim() -> None:
    """Where the best is no better than the commonest label, and where a way is never accurate, nothing is claimed."""
    assert {claim.verdict for claim in study_page(SMALL, rows_of(accurate=0.55)).claims} == {"no claim"}
    rows = rows_of()
    for row in rows:
        row["test_accuracy"] -= 0.1 * (row["place"] == "workers")
    page = study_page(SMALL, rows)
    assert {claim.verdict for claim in page.claims} == {"not run"}
    assert page.tables[0].rows[3][2] == "not reached"


def test_workers_make_the_rows_that_are_loaded_here() -> None:
    """Rows made where they are trained on are those of the set, each once, in equal parts on as many workers."""
    from dsgd.study.frame.data import load_data

    data = load_data(DataSource("criteo-like", 2_000, 100), "float32")
    with start_cluster(2, processes=False) as cluster, cluster.get_client() as client:
        blocks = rows_there(client, data, 2, "float32")
        homes = [next(iter(places)) for places in client.who_has(blocks).values()]
        X, y = zip(*client.gather(blocks), strict=True)
    assert sorted(homes.count(home) for home in set(homes)) == [4, 4]
    twin = load("criteo-like", n_rows=2_000, dtype="float32")
    assert sum(part.shape[0] for part in X) == 2_000
    assert np.array_equal(np.concatenate([part.data for part in X]), twin.X.data)
    assert np.array_equal(np.concatenate(y), twin.y)
