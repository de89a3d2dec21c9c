"""Logs and records of jobs: what observers are told of, by logging and by Dask."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
import threading
from typing import Any

import pytest
from distributed import Client

import gang_programs as programs
from dsgd.errors import RankError
from dsgd.runtime import JsonFormatter, RankFilter
from dsgd.runtime.logs import Whereabouts, whereabouts, working_for
from dsgd.runtime.messages import MemberCredentials
from gang_cluster import on_ranks, start_cluster, wait_until


def fail_late(rank: Any, data: Any) -> None:
    """Fail on rank 1; the others wait for it."""
    logging.getLogger("my.code").warning("about to begin")
    if rank.number == 1:
        raise ValueError("a bad row")
    rank.group.barrier()


def ends(client: Client) -> list[dict[str, Any]]:
    """Return what Dask keeps of jobs that have ended."""
    return [record for _, record in client.get_events("dsgd") if record["state"] in ("done", "failed")]


@pytest.mark.cluster
def test_logs_and_records_of_a_job_reach_observers(caplog: pytest.LogCaptureFixture) -> None:
    """Every line that a rank logs names its job and rank, and Dask keeps what became of the job; no token is shown."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(RankFilter())
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("my.code")
    with start_cluster(2, processes=False) as cluster, Client(cluster, set_as_default=False) as client:
        logger.addHandler(handler)
        try:
            on_ranks(client, programs.add_up)
            with pytest.raises(RankError):
                on_ranks(client, fail_late)
            _check_no_token(client, caplog)
        finally:
            logger.removeHandler(handler)
        wait_until(lambda: len(ends(client)) != 2)
        ended = ends(client)
    assert [record["state"] for record in ended] == ["done", "failed"]
    assert all(0 <= record["waited_s"] <= record["elapsed_s"] for record in ended)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    bad = ended[1]["job"]
    assert sorted((line["job"], line["rank"], line["formed"]) for line in lines) == [(bad, 0, 0), (bad, 1, 0)]
    assert all(line["level"] == "WARNING" and line["time"].endswith("Z") for line in lines)


def _fail_with(shown: MemberCredentials) -> None:
    raise ValueError(f"cannot do this for {shown.job_id}")


def _check_no_token(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Dask logs the arguments of what fails on a worker; those of ours have no token in them."""
    shown = MemberCredentials("the-job", 0, b"secret-secret-secret-secret", 0)
    with caplog.at_level(logging.INFO, "distributed.worker"), pytest.raises(ValueError, match="cannot do this"):
        client.run(_fail_with, shown)
    assert "the-job" in caplog.text
    assert "secret" not in caplog.text


def test_a_thread_works_for_one_job_at_a_time() -> None:
    """Threads do not see each other's jobs; outside of a job records have dashes, and JSON leaves them out."""
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "no %s", ("rows",), None)
    seen: list[Whereabouts] = []
    with working_for("j", 2, 0):
        thread = threading.Thread(target=lambda: seen.append(whereabouts()))
        thread.start()
        thread.join()
        assert RankFilter().filter(record)
        assert (record.dsgd_job, record.dsgd_formed, record.dsgd_rank) == ("j", 2, 0)  # type: ignore[attr-defined]
        found = json.loads(JsonFormatter().format(record))
        assert (found["job"], found["formed"], found["rank"], found["message"]) == ("j", 2, 0, "no rows")
    assert seen == [Whereabouts()]
    RankFilter().filter(record)
    assert (record.dsgd_job, record.dsgd_formed, record.dsgd_rank) == ("-", "-", "-")  # type: ignore[attr-defined]
    assert set(json.loads(JsonFormatter().format(record))) == {"time", "level", "logger", "message"}
    try:
        raise ValueError("why")
    except ValueError:
        failed = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    assert "ValueError: why" in json.loads(JsonFormatter().format(failed))["error"]


def test_a_log_that_nobody_has_set_up_says_when_and_for_which_job() -> None:
    """Lines of dsgd, and warnings of a thread that works for a job, have time, level and job; other warnings do not."""
    script = """
import logging, warnings
from dsgd.runtime.logs import keep_log, working_for
keep_log()
keep_log()
with working_for("0123456789", 0, 3):
    logging.getLogger("dsgd.runtime").warning("slow")
    warnings.warn("odd")
warnings.warn("of others")
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = found.stderr.splitlines()
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+"
    assert re.fullmatch(rf"{when} - dsgd\.runtime - WARNING - job 01234567, rank 3 - slow", lines[0])
    assert re.fullmatch(
        rf"{when} - dsgd\.warnings - WARNING - job 01234567, rank 3 - UserWarning: odd \(<string>:\d\)", lines[1]
    )
    assert lines[2].startswith("<string>:")
    assert len([line for line in lines if "slow" in line]) == 1
