"""Stages of a fit: they add up, bytes are exact, and every process tells of its own."""

from __future__ import annotations

import pickle
import threading
from itertools import count

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from dask.distributed import Client

from dsgd import SGDClassifier
from dsgd.stages import Recording, Stage, carried, recorded, recording, stage
from gang_cluster import client_fixture, cluster_fixture

cluster, client = cluster_fixture(2), client_fixture(2)

N, D = 3000, 8
OPTIONS = {"max_iter": 3, "tol": None, "random_state": 0}


def rows_of(kind: str):
    """Return rows and two classes."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D)).astype(np.float32)
    y = X[:, 0] > 0
    return (sp.csr_matrix(np.where(np.abs(X) > 0.5, X, 0)) if kind == "sparse" else X), y


def seconds_of(stages: list[Stage]) -> dict[str, float]:
    return {found.name: found.seconds for found in stages}


def test_the_seconds_of_stages_are_their_own_and_add_up() -> None:
    """A stage inside another one is counted once, and what no stage claims is "other"."""
    clock = count().__next__  # one second at every look
    found = Recording(clock)
    found.begin("pack")
    found.begin("order")
    found.end()
    found.begin("order")
    found.end()
    found.end()
    for name, nbytes in (("pack", 7), ("order", 10), ("order", 5)):
        found.add(name, nbytes)
    stages = found.stages("here")
    assert [(s.name, s.nbytes) for s in stages] == [("pack", 7), ("order", 15), ("other", 0)]
    assert seconds_of(stages) == {"pack": 3.0, "order": 2.0, "other": 2.0}


def test_bytes_of_threads_count_and_their_seconds_only_where_they_lead() -> None:
    """A thread that was carried adds its bytes; one that leads has its seconds counted; another leaves no trace."""

    def work() -> None:
        with stage("order", 3):
            threading.Event().wait(0.01)

    with recording():
        for call in (carried(work), work, carried(work, leads=True)):
            with stage("pack"):
                thread = threading.Thread(target=call)
                thread.start()
                thread.join()
        stages = {found.name: found for found in recorded("here")}
    assert stages["order"].nbytes == 6
    assert 0.01 <= stages["order"].seconds < stages["pack"].seconds
    assert recorded("here") == []


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("n_jobs", [1, 2, 3])
def test_a_fit_tells_its_stages(kind: str, n_jobs: int) -> None:
    """Names, places and bytes of a fit in this process are known to the byte, whatever the number of threads."""
    X, y = rows_of(kind)
    model = SGDClassifier(**OPTIONS, n_jobs=n_jobs).fit(X, y)
    stages = {entry["stage"]: entry for entry in model.fit_report_["stages"]}
    assert {entry["where"] for entry in stages.values()} == {"client"}
    assert all(entry["seconds"] >= 0 for entry in stages.values())
    assert next(iter(stages)) == "check"
    assert list(stages)[-1] == "other"
    assert {"labels", "order", "pack", "kernels", "train", "gather"} < set(stages)
    walked = (X.nnz * 8 if kind == "sparse" else N * D * 4) + N * (12 + (8 if kind == "sparse" else 0))
    assert stages["check"]["bytes"] == 0  # the first epoch meets what is not finite
    assert stages["train"]["bytes"] == 3 * walked
    assert stages["pack"]["bytes"] == 0  # rows are trained on where they are
    converted = X.tocsc() if kind == "sparse" else np.asfortranarray(X)
    foreign = SGDClassifier(**OPTIONS, n_jobs=n_jobs).fit(converted, y)
    assert (foreign.coef_ == model.coef_).all()
    assert sum(entry["seconds"] for entry in stages.values()) <= model.fit_report_["elapsed_s"] + 1.0
    assert [vars(s)["name"] for s in model.ledger_.stages] == list(stages)
    assert pickle.loads(pickle.dumps(model.ledger_)).stages == model.ledger_.stages


@pytest.mark.cluster
def test_workers_tell_their_stages(client: Client) -> None:
    """Beside those of the client there are those of every worker; what is handed over and packed is exact."""
    X, y = rows_of("dense")
    workers = sorted(client.scheduler_info()["workers"])
    sent = SGDClassifier(**OPTIONS, client=client).fit(X, y).fit_report_["stages"]
    there = SGDClassifier(**OPTIONS, client=client).fit(
        *(da.from_array(a, chunks=(N // 4, *a.shape[1:])) for a in (X, y))
    )
    for stages in (sent, there.fit_report_["stages"]):
        at_client = {entry["stage"]: entry for entry in stages if entry["where"] == "client"}
        assert {"connect", "hand over", "look", "plan", "workers", "gather", "other"} <= set(at_client)
        assert sorted({entry["where"] for entry in stages} - {"client"}) == workers
        for name, nbytes in (("pack", N * (D * 4 + 12)), ("train", 3 * N * (D * 4 + 12)), ("fetch", None)):
            found = [entry for entry in stages if entry["stage"] == name]
            assert len(found) == len(workers)
            assert nbytes is None or sum(entry["bytes"] for entry in found) == nbytes
        at_worker = [entry for entry in stages if entry["where"] == workers[0]]
        assert sum(entry["seconds"] for entry in at_worker) <= at_client["workers"]["seconds"]
    assert next(e["bytes"] for e in sent if e["stage"] == "hand over") == X.nbytes + y.nbytes
