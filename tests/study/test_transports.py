"""The study of transports: messages over every way, their copies, tables and claims from rows alone, the page."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from dsgd.errors import ClusterError, ProtocolError
from dsgd.runtime import run_on_threads
from dsgd.study import Run, run_study, study_page
from dsgd.study.frame.data import cluster_of
from dsgd.study.frame.study import Batch
from dsgd.study.transports import STUDY
from dsgd.study.transports import study as declared
from dsgd.study.transports.pairs import AbstractChannel, Pair, run_pair
from dsgd.study.transports.parties import COUNTS, Amount, Work, can_count, counted, counts_here, make_party, run_alone
from dsgd.study.transports.study import WayCell, missing_parts
from study_rows import made_rows

#: Seconds of a round of training over each way, as made up here.
ROUND_S = {"none": 0.5e-4, "rpc": 40e-4, "ring": 3e-4, "agreed": 2e-4, "registered": 1e-4}
SMALL = STUDY.replace(ways=tuple(ROUND_S), sizes=(4, 64_000), models=("logistic", "25M"), repeats=3)


def rows_of(load: float = 0.1, **seconds: float) -> list[dict[str, Any]]:
    """Return rows of a study in which a round over each way takes so long."""

    def found(run: Run) -> dict[str, Any]:
        # Repetitions are farther apart than ways are: only ratios of one repetition must count.
        one, size = {**ROUND_S, **seconds}[run.way] * (1.0 + run.repeat), run.n_bytes
        if run.part == "counts":
            return {
                "copied": 2.0 * size, "to_kernel": size, "from_kernel": size, "pulled": 0.0,
                "allocated": 3.0 * size, "allocations": 7.0, "calls": 2.5, "rounds": 5, "digest": "",
            }  # fmt: skip
        copies = {"copy_s": 1e-5} if run.way == "none" else {}
        return {"round_s": one, "least_s": one, "rounds": 5, "digest": run.work, **copies}

    return made_rows(SMALL, found, load_at_start=load)


def test_tables_hold_ways_against_each_other() -> None:
    """A message is half a round, a step is held against registered slots, copies against the size."""
    page = study_page(SMALL, rows_of())
    message, memory, copies, few, training = page.tables
    assert message.rows[1] == ("Dask RPC", "4 ms", "4 ms")
    assert copies.rows[0] == ["Dask RPC", "4.00", "2.00", "2.00", "3.00", "7", "2.5"]
    assert few.rows[0][:3] == ["Dask RPC", "16 B", "8 B"]
    assert training.rows[1][:3] == ("Dask RPC", "8 ms", "40x")
    assert memory.rows[1][-1] == "80x"
    assert "40 times at 4 B and 40 times at 64 kB, where memory allows 80 and 80." in page.answer
    assert not any("different models" in text for text in page.doubts)


def test_a_model_that_differs_is_said() -> None:
    """Ways that do not end with the same bits are named before the claims."""
    rows = rows_of()
    wrong = next(row for row in rows if row["part"] == "training" and row["way"] == "ring")
    wrong["digest"] = "another"
    assert any("2 different models" in text for text in study_page(SMALL, rows).doubts)


@pytest.mark.parametrize(
    ("seconds", "load", "verdicts"),
    [
        ({}, 0.1, ["exceeds", "exceeds"]),
        ({"rpc": 20e-4, "ring": 2e-4}, 0.1, ["holds", "holds"]),
        ({"rpc": 10e-4, "ring": 1.5e-4}, 0.1, ["fails", "fails"]),
        ({}, 8.0, ["undecided", "undecided"]),
    ],
)
def test_claims_are_decided_by_training(seconds: dict[str, float], load: float, verdicts: list[str]) -> None:
    """Steps over RPC and ring, over those of registered slots, decide; not on a busy machine."""
    claims = study_page(SMALL, rows_of(load, **seconds)).claims
    assert [claim.verdict for claim in claims] == verdicts


def test_slots_carry_training_to_the_same_model() -> None:
    """Registered and agreed slots and the wire between two ranks end with the bits of one process."""
    works = [(Work("logistic", 254), Amount(0.0, 9)), (Work.of_bytes(4), Amount(0.0, 3))]
    due = [row["digest"] for row in run_alone(works)]
    for way in ("registered", "agreed", "wire"):
        rows = run_on_threads(run_pair, [None] * 2, (way, works, False)).value
        assert [row["digest"] for row in rows] == due, way
        assert [row["rounds"] for row in rows] == [9, 3]


class _Torn(AbstractChannel):
    """Brings all but the end of what the peer has sent."""

    def out(self) -> Any:
        return np.empty(8, np.float32)

    def post(self) -> None:
        pass

    def get(self) -> Any:
        return np.array([0.5] * 7 + [0.0], np.float32)

    def release(self) -> None:
        pass


def test_a_message_that_is_torn_is_an_error() -> None:
    """What came is compared with what was sent."""
    pair = Pair(_Torn(), make_party(Work("messages", 8), is_first=True), begins=True)
    held = pair.step(None)
    with pytest.raises(ProtocolError, match="should be all"):
        pair.step(held)


_MOVES = f"""
import json, socket, sys
sys.path[:] = {sys.path!r}
import numpy as np
from dsgd.study.transports.parties import counts_here
a, b = socket.socketpair()
source, target, data = np.zeros(1 << 20, np.uint8), np.zeros(1 << 20, np.uint8), bytes(1 << 16)
found = []
def step(act):
    before = counts_here(); held = act(); after = counts_here()
    found.append([late - early for early, late in zip(before, after)]); return held
step(lambda: None)
step(lambda: np.copyto(target, source))
step(lambda: np.copy(source))
step(lambda: bytearray(1 << 20))
step(lambda: a.sendall(data))
step(lambda: b.recv_into(target, 1 << 16, socket.MSG_PEEK))
step(lambda: b.recv_into(target, 1 << 16, socket.MSG_WAITALL))
print(json.dumps(found))
"""


@pytest.mark.skipif(not can_count(), reason="counting needs Linux and a C compiler")
@pytest.mark.slow
def test_copies_and_allocations_are_counted_where_they_happen() -> None:
    """A copy, an allocation, what is sent and what is received count once, a look at a socket does not."""
    with counted():
        said = subprocess.run([sys.executable, "-c", _MOVES], capture_output=True, check=True, text=True, timeout=60)
    nothing, copied, made, empty, sent, looked, received = (
        dict(zip(COUNTS, step, strict=True)) for step in json.loads(said.stdout)
    )

    def more(step: dict[str, int], name: str) -> int:
        return step[name] - nothing[name]

    few = 4096
    assert 0 <= more(copied, "copied") - (1 << 20) < few
    assert abs(more(copied, "allocated")) < few
    assert 0 <= more(made, "copied") - (1 << 20) < few
    assert 0 <= more(made, "allocated") - (1 << 20) < few
    assert 0 <= more(empty, "allocated") - (1 << 20) < few
    assert abs(more(empty, "copied")) < few
    assert (sent["to_kernel"], sent["calls"]) == (1 << 16, 1)
    assert (looked["from_kernel"], looked["calls"]) == (0, 1)
    assert received["from_kernel"] == 1 << 16
    with pytest.raises(ClusterError, match="does not count"):
        counts_here()


def test_what_cannot_be_run_is_left_out(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ways, models and counts that need something that is not here are named, and nothing is started for them."""
    monkeypatch.setattr(declared, "find_spec", lambda name: None)
    monkeypatch.setattr(declared, "launcher", lambda: None)
    monkeypatch.setattr(declared, "can_count", lambda: False)
    study = STUDY.replace(ways=("none", "tls", "mpi"), sizes=(4,), models=("cnn", "logistic"), repeats=1, seconds=0.0)
    assert set(missing_parts(study)) == {"tls", "mpi", "cnn", "counts"}
    rows = [run.row for run in run_study(study, tmp_path)]
    assert [(row["way"], row["work"]) for row in rows] == [("none", "messages"), ("none", "logistic")]
    assert set(missing_parts(study.replace(ways=("none",), models=("logistic",)))) == {"counts"}


@pytest.mark.cluster
@pytest.mark.slow
def test_worker_processes_carry_messages_and_count() -> None:
    """The same messages arrive over Dask and memory; sockets and rings copy twice, slots not at all, an RPC more."""
    counts = can_count()
    study = STUDY.replace(sizes=(64_000,), models=(), seconds=0.0)
    due = run_alone([(Work.of_bytes(64_000), Amount(0.0, 50))])[0]["digest"]
    cells = {}
    with counted() if counts else nullcontext(), cluster_of(2) as client:
        client.wait_for_workers(2)
        clients: Any = lambda **kind: client  # noqa: E731
        for way in ("graph", "actor", "rpc", "tcp", "ring", "registered"):
            settings = {"part": "counts", "way": way, "_work": Work.of_bytes(64_000)}
            run = Run(study, settings)
            (row,) = declared._measure(Batch(study, None, clients, list, [run]), [run])
            assert row["digest"] == due, way
            cells[way] = WayCell([{**run.settings(), "n_bytes": 64_000, **row}])
    if counts:
        assert cells["registered"].copies() < 0.1
        assert cells["tcp"].copies() == pytest.approx(2.0, abs=0.1)
        assert cells["tcp"].copies("to_kernel", "from_kernel", "pulled") == pytest.approx(2.0, abs=0.1)
        # Out of one array into the ring, and out of the ring into the other array.
        assert cells["ring"].copies("copied") == pytest.approx(2.0, abs=0.1)
        assert cells["rpc"].copies() > 2.0
        assert cells["rpc"].median("allocations") > cells["tcp"].median("allocations")
