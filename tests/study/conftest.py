"""What the tests of all studies have in common."""

from __future__ import annotations

import pytest

from dsgd.report import page as provenance


@pytest.fixture(autouse=True)
def hasty_look(monkeypatch) -> None:
    """Let a study look only for a moment at what else the machine does: no test judges seconds."""
    monkeypatch.setattr(provenance, "_LOOK_S", 0.01)
