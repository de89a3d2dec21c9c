"""Every strategy and every compressor is a member of the laws, with all that applies to it."""

from __future__ import annotations

import pytest

from dsgd import compress
from dsgd.sync import ADPSGD, STRATEGIES, AnytimeSGD, Hogwild
from members import having

SERVED = {strategy for strategy in STRATEGIES.values() if strategy.n_servers}
#: No exchange has a twin where ranks do not all meet, or when the clock says so; who meets in pairs is chance.
EXEMPT = {"twin": {*SERVED, ADPSGD, AnytimeSGD, Hogwild}, "sent": {ADPSGD}, "settles": set(), "training": set()}


@pytest.mark.parametrize("field", EXEMPT)
def test_every_strategy_has_a_member_that_says(field: str) -> None:
    """No strategy of the package is left out of a law that applies to it."""
    missing = set(STRATEGIES.values()) - EXEMPT[field] - {type(member.strategy) for member in having(field)}
    assert not missing, f"tests/members.py needs {field}= for {', '.join(s.__name__ for s in missing)}"


def test_every_compressor_has_a_twin() -> None:
    """No compressor of the package is left out of whole trainings."""
    used = " ".join(map(repr, having("training")))
    for name, value in vars(compress).items():
        if isinstance(value, type) and issubclass(value, compress.AbstractCompressor):
            assert name == "AbstractCompressor" or f"{name}(" in used
