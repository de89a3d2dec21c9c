"""``dsgd jobs``: the list of jobs on the command line, and how it stops them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np
import pytest
from distributed import Client

import dsgd
from dsgd import SGDClassifier
from dsgd.__main__ import main
from gang_cluster import module_client, wait_until

pytestmark = pytest.mark.cluster


client = module_client(2, processes=False)


@pytest.fixture
def run(client: Client, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs ``dsgd jobs`` on the cluster and gives its status, output and errors."""

    def call(*args: str) -> tuple[int, str, str]:
        status = main(["jobs", *args, "--scheduler", client.scheduler.address])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_jobs_are_listed_shown_stopped_and_forgotten(client: Client, run: Callable[..., tuple[int, str, str]]) -> None:
    """Every command sees the same job under its first digits, and says what it cannot do."""
    assert run("list", "--json") == (0, "[]\n", "")
    X = np.arange(400.0).reshape(200, 2) % 7
    model = SGDClassifier(max_iter=10**8, tol=None, sync=16)
    fit = dsgd.submit(model, X, X[:, 0] > 3, client=client)
    wait_until(lambda: not fit.info().epoch)

    _, out, _ = run("list")
    head, line = (text.split("\t") for text in out.splitlines())
    row = dict(zip(head, line, strict=True))
    assert (row["id"], row["title"], row["state"]) == (fit.id[:8], "SGDClassifier", "running")
    assert (row["detached"], row["ranks"], row["strategy"]) == ("yes", "2", "LocalSGD")
    assert row["epoch"].endswith("/100,000,000")

    (listed,) = json.loads(run("list", "--json")[1])
    shown = json.loads(run("show", fit.id[:6], "--json")[1])
    assert shown.keys() == listed.keys()
    assert (shown["id"], shown["state"], len(shown["workers"])) == (fit.id, "running", 2)
    assert shown["started"] <= time.time()
    assert f"driver           {shown['driver']}" in run("show", fit.id)[1].splitlines()

    status, out, _ = run("cancel", fit.id[:6])
    assert (status, out) == (0, f"stopped SGDClassifier {fit.id} of {shown['owner']}\n")
    assert fit.status == "unknown"
    done = dsgd.submit(SGDClassifier(max_iter=1, tol=None), X, X[:, 0] > 3, client=client)
    done.result(timeout=60.0)
    status, _, err = run("cancel", done.id)
    assert (status, err) == (2, f"dsgd: error: job {done.id} of {shown['owner']} has ended: it is done.\n")
    assert run("forget", done.id) == (0, f"forgot {done.id}\n", "")
    status, _, err = run("show", fit.id)
    assert status == 2
    assert f"has no job '{fit.id}'" in err
