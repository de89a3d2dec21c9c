"""Spans and logs of jobs: what observers are told of, by Dask, by logging and by OpenTelemetry."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from distributed import Client

import gang_programs as programs
from dsgd.errors import RankError
from dsgd.runtime import JsonFormatter, RankFilter, run_on_cluster, tracing
from dsgd.runtime.credentials import MemberCredentials
from dsgd.runtime.logs import Whereabouts, whereabouts, working_for
from dsgd.runtime.tracing import SPANS_TOPIC, carrier, collected, span
from gang_cluster import start_cluster, wait_until


class _Provider:
    """What the API of OpenTelemetry does with a provider, as far as it is used: spans, their parents and errors."""

    def __init__(self) -> None:
        self.ended: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._current: ContextVar[dict[str, Any] | None] = ContextVar("current", default=None)

    def get_tracer(self, name: str) -> Any:
        assert name == "dsgd"
        return self

    @contextmanager
    def start_as_current_span(self, name: str, *, context: Any, attributes: dict[str, Any]) -> Iterator[None]:
        parent = self._current.get() if context is None else context
        with self._lock:
            number = len(self.ended) + 1
        at: dict[str, Any] = {"name": name, "id": f"{name}-{number}-{threading.get_ident()}", **attributes}
        at["parent"] = None if parent is None else parent["id"]
        at["trace"] = at["id"] if parent is None else parent["trace"]
        token = self._current.set(at)
        try:
            yield
        except Exception as error:
            at["error"] = type(error).__name__
            raise
        finally:
            self._current.reset(token)
            with self._lock:
                self.ended.append(at)

    def inject(self, carrier: dict[str, str]) -> None:
        at = self._current.get()
        if at is not None:
            carrier["traceparent"] = json.dumps({"id": at["id"], "trace": at["trace"]})

    def extract(self, carrier: dict[str, str]) -> Any:
        return json.loads(carrier["traceparent"])


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Provider]:
    """Give what takes the place of an installed OpenTelemetry."""
    found = _Provider()
    package: Any = types.ModuleType("opentelemetry")
    package.trace = package.propagate = found
    monkeypatch.setitem(sys.modules, "opentelemetry", package)
    tracing._opentelemetry.cache_clear()
    yield found
    tracing._opentelemetry.cache_clear()


def fail_late(rank: Any, data: Any) -> None:
    """Fail on rank 1; the others wait for it."""
    logging.getLogger("my.code").warning("about to begin")
    if rank.number == 1:
        raise ValueError("a bad row")
    rank.group.barrier()


@pytest.mark.cluster
def test_spans_and_logs_of_a_job_reach_observers(provider: _Provider, caplog: pytest.LogCaptureFixture) -> None:
    """Dask keeps the spans of each member; OpenTelemetry has them under the client's; every log line names its rank."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(RankFilter())
    handler.setFormatter(JsonFormatter())
    loggers = [logging.getLogger(name) for name in ("dsgd.runtime", "my.code")]
    with start_cluster(2, processes=False) as cluster, Client(cluster, set_as_default=False) as client:
        for logger in loggers:
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
        try:
            run_on_cluster(programs.add_up, [], client=client, pack=programs.keep)
            with pytest.raises(RankError):
                run_on_cluster(fail_late, [], client=client, pack=programs.keep)
            wait_until(lambda: len(client.get_events(SPANS_TOPIC)) != 4)
            _check_no_token(client, caplog)
        finally:
            for logger in loggers:
                logger.removeHandler(handler)
                logger.setLevel(logging.NOTSET)
        records = [record for _, record in client.get_events(SPANS_TOPIC)]
        ended = [record for _, record in client.get_events("dsgd") if record["state"] in ("done", "failed")]
        workers = set(client.scheduler_info(n_workers=-1)["workers"])
    good, bad = (record["job"] for record in ended)
    assert all(0 <= record["waited_s"] <= record["elapsed_s"] for record in ended)
    for job in (good, bad):
        mine = [record for record in records if record["job"] == job]
        assert sorted(record["rank"] for record in mine) == [0, 1]
        assert {record["worker"] for record in mine} == workers
        for record in mine:
            *parts, whole = record["spans"]
            assert ([part["name"] for part in parts], whole["name"]) == (["pack", "meet", "train"], "member")
            times = [(part["began"], part["began"] + part["seconds"]) for part in parts]
            assert times == sorted(times)
            assert sum(part["seconds"] for part in parts) <= whole["seconds"]
            assert bool(record["error"]) == bool(whole["error"]) == (job == bad)
    assert {record["error"] for record in records} >= {"", "rank 1 raised ValueError"}
    _check_traces(provider.ended, good, bad)
    _check_lines([json.loads(line) for line in stream.getvalue().splitlines()], good, bad)


def _fail_with(shown: MemberCredentials) -> None:
    raise ValueError(f"cannot do this for {shown.job_id}")


def _check_no_token(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Dask logs the arguments of what fails on a worker; those of ours have no token in them."""
    shown = MemberCredentials("the-job", 0, b"secret-secret-secret-secret", 0)
    with caplog.at_level(logging.INFO, "distributed.worker"), pytest.raises(ValueError, match="cannot do this"):
        client.run(_fail_with, shown)
    assert "the-job" in caplog.text
    assert "secret" not in caplog.text


def _check_traces(spans: list[dict[str, Any]], good: str, bad: str) -> None:
    """Each job is one trace: the client's spans, under its job the members of all workers, under these their parts."""
    for job in (good, bad):
        mine = {each["id"]: each for each in spans if each["dsgd.job"] == job}
        (root,) = (each for each in mine.values() if each["parent"] is None)
        assert root["name"] == "dsgd.job"
        assert {each["trace"] for each in mine.values()} == {root["id"]}
        parents = sorted((each["name"], mine[each["parent"]]["name"]) for each in mine.values() if each["parent"])
        of_member = [("dsgd.meet", "dsgd.member"), ("dsgd.pack", "dsgd.member"), ("dsgd.train", "dsgd.member")]
        of_job = [("dsgd.gang", "dsgd.job"), *[("dsgd.member", "dsgd.job")] * 2, ("dsgd.plan", "dsgd.job")]
        assert parents == sorted(of_job + 2 * of_member)
        failed = {each["name"] for each in mine.values() if "error" in each}
        assert failed == (set() if job == good else {"dsgd.job", "dsgd.gang", "dsgd.member"})


def _check_lines(lines: list[dict[str, Any]], good: str, bad: str) -> None:
    """Lines of the user's code and of dsgd have job and rank; those of the client have no rank."""
    own = [line for line in lines if line["logger"] == "my.code"]
    assert sorted((line["job"], line["rank"], line["formed"]) for line in own) == [(bad, 0, 0), (bad, 1, 0)]
    assert all(line["level"] == "WARNING" and line["time"].endswith("Z") for line in own)
    ours = [line for line in lines if line["logger"] == "dsgd.runtime"]
    assert {line["job"] for line in ours} == {good, bad}
    assert {line["message"].split()[0] for line in ours if "rank" not in line} == {"plan", "gang", "job"}
    assert {line["message"].split()[0] for line in ours if "rank" in line} == {"pack", "meet", "train", "member"}


def test_without_opentelemetry_spans_are_collected_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is carried, nested spans end first, and the error of one is its type."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    tracing._opentelemetry.cache_clear()
    with collected() as found:
        with pytest.raises(KeyError), span("outer"), span("inner"):
            carrier()["traceparent"]
        with span("after"):
            pass
    with span("nobody collects this"):
        pass
    assert [(each.name, each.error) for each in found] == [("inner", "KeyError"), ("outer", "KeyError"), ("after", "")]
    assert all(each.seconds >= 0 for each in found)
    tracing._opentelemetry.cache_clear()


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


def test_the_real_opentelemetry_gets_the_same_spans() -> None:
    """With the SDK installed, spans of two processes are one trace: the carrier brings the place to the other."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    tracing._opentelemetry.cache_clear()
    with working_for("j"), span("job", title="fit"):
        there = carrier()

    def member() -> None:
        with working_for("j", 1, 3), pytest.raises(ValueError, match="bad"), span("member", there), span("train"):
            raise ValueError("bad")

    thread = threading.Thread(target=member)
    thread.start()
    thread.join()
    found = {each.name: each for each in exporter.get_finished_spans()}
    assert set(found) == {"dsgd.job", "dsgd.member", "dsgd.train"}
    assert found["dsgd.member"].parent.span_id == found["dsgd.job"].context.span_id
    assert found["dsgd.train"].parent.span_id == found["dsgd.member"].context.span_id
    assert dict(found["dsgd.member"].attributes) == {"dsgd.job": "j", "dsgd.formed": 1, "dsgd.rank": 3}
    assert not found["dsgd.train"].status.is_ok


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
