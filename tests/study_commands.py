"""What ``dsgd study`` asks of a study, without running it."""

from __future__ import annotations

from typing import Any

import pytest

from dsgd.__main__ import main
from dsgd.errors import DsgdError

__all__ = ["study_asked"]


def study_asked(monkeypatch: pytest.MonkeyPatch, runner: str, *command: str) -> Any:
    """Return the study that a command hands to its runner, named as in ``dsgd.study.run_study``."""
    asked = []

    def run(study: Any, *others: Any, **options: Any) -> Any:
        asked.append(study)
        raise DsgdError("that is enough")

    monkeypatch.setattr(runner, run)
    assert main(["study", *command]) == 2
    (study,) = asked
    return study
