"""The list of known defects: it goes with the code, and every law has one to find."""

from __future__ import annotations

import pytest

import mutations
from mutations import MUTATIONS, Mutation

#: Folders of tests, and modules, whose laws must find something.
LAWS = [
    "collectives",
    "comm",
    "compress",
    "estimators",
    "laws",
    "linear_model",
    "local",
    "sim",
    "svm",
    "sync",
    "runtime/test_registry.py",
    "runtime/test_simulation.py",
]


def test_every_mutation_can_be_planted() -> None:
    """What a mutation replaces is there once, what comes of it is another program, and its tests exist."""
    assert mutations.faults() == []


def test_a_passage_that_is_gone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutation without its passage, one that changes nothing and one without tests are named."""
    file, old = "dsgd/sync/elastic.py", "centre += pull"
    planted = [
        Mutation("gone", file, "centre -= pull", "", "laws"),
        Mutation("same", file, old, f"{old}  # as before", "laws"),
        Mutation("untested", file, old, "pass", "laws/test_nothing.py"),
        Mutation("right", file, old, "pass", "laws sync/test_gossip.py"),
    ]
    monkeypatch.setattr(mutations, "MUTATIONS", planted)
    assert [fault.partition(":")[0] for fault in mutations.faults()] == ["gone", "same", "untested"]


@pytest.mark.parametrize("law", LAWS)
def test_every_law_has_a_defect_to_find(law: str) -> None:
    """Tests that no mutation names may as well be deleted, for all that is known."""
    assert any(path == law or path.startswith(f"{law}/") for m in MUTATIONS for path in m.tests.split())
