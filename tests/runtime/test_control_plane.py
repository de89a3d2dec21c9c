"""What a gang of hundreds costs the scheduler, in messages and calls; members are coroutines, without workers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks.simulation.control_plane import ControlPlane

N_MEMBERS = 300


@pytest.mark.parametrize("how", ["done", "fails"])
def test_a_member_costs_the_scheduler_the_same_however_many_there_are(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member sends three messages, gets three, and has its gang looked at twice at most."""
    plane = ControlPlane(N_MEMBERS, apart_s=0.0005)
    registry, looks = plane.plugin.registry, Counter[int]()
    join = registry.join

    def counted(job_id: str, epoch: int, token: bytes, member: int, *rest: Any) -> dict[str, Any]:
        looks[member] += 1
        return join(job_id, epoch, token, member, *rest)

    monkeypatch.setattr(registry, "join", counted)
    try:
        plane.run(how)
    finally:
        plane.close()
    messages = plane.traffic.messages
    assert messages["dsgd_join"] == messages["dsgd_join answer"] == N_MEMBERS
    assert messages["dsgd-member-event"] == messages["dsgd-member-end"] + messages["dsgd_finish"] == N_MEMBERS
    # To open and to close the job, and of one that fails to stop it, but for who has said so.
    assert messages["to workers"] == 2 * N_MEMBERS + (N_MEMBERS - 1) * (how == "fails")
    assert max(looks.values()) <= 2
    assert not registry.jobs
