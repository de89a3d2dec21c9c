"""Parameters that declare what they may be: the law of all parts of a fit."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any, Literal, get_origin, get_type_hints

import pytest

from dsgd import compress, local, sim, sync
from dsgd.comm import topology
from dsgd.errors import InvalidParameterError
from dsgd.sync import adaptive
from dsgd.validation import Checked

#: What the parts that have no defaults for all parameters are made with.
GIVEN: dict[str, dict[str, Any]] = {
    "ErrorFeedback": {"compressor": compress.TopK()},
    "SimulatedCluster": {"ranks": 2},
    "Link": {"byte_s": 1.0},
    "Groups": {"n_groups": 2},
    "Layerwise": {"rules": {"*": None}},
    "Taxonomy": {"optimisation": "centralised", "scheduling": "bounded", "sends": "model", "pattern": "pairs"},
    "GrowingBatch": {"n": 8, "growth": 2.0, "epochs": 1},
    "OftenThenRarely": {"often": sync.EveryEpoch(), "stride": 1, "epochs": 1},
}
#: Numbers without bounds, and those of periods that strategies make.
FREE = {"GrowingBatch", "OftenThenRarely", "batch", "hub", "rank", "seed", "step"}


def parts() -> list[type]:
    """Return the parts of a fit that users make."""
    found = [
        getattr(package, name)
        for package in (sync, adaptive, compress, topology, local, sim)
        for name in package.__all__
    ]
    kinds = {one for one in found if isinstance(one, type) and issubclass(one, Checked) and is_dataclass(one)}
    return sorted(kinds, key=lambda kind: kind.__name__)


def made(kind: Any, **changed: Any) -> Any:
    return kind(**{**GIVEN.get(kind.__name__, {}), **changed})


@pytest.mark.parametrize("kind", parts(), ids=lambda kind: kind.__name__)
def test_values_out_of_range_are_refused(kind: Any) -> None:
    """Every number has bounds, and what is beyond them, no number or no word is refused with the parameter's name."""
    usual, types = made(kind), get_type_hints(kind)
    for field in fields(kind):
        within, text = field.metadata.get("within"), str(field.type)
        wrong: list[Any] = []
        if within is not None:
            low, high = (
                getattr(usual, end) if isinstance(end, str) else end for end in (within["low"], within["high"])
            )
            wrong = ["1", math.nan, True, low if within["open_low"] else low - 1]
            if high < math.inf:
                wrong.append(high if within["open_high"] else high + 1)
            wrong += [1.5] * text.startswith("int") + [None] * ("None" not in text)
        elif text == "bool":
            wrong = [1, None]
        elif get_origin(types[field.name]) is Literal:
            wrong = ["none of them"]
        elif text.split(" ")[0] in ("int", "float"):
            assert {field.name, kind.__name__} & FREE, f"{kind.__name__}.{field.name} has no bounds"
        for value in wrong:
            with pytest.raises(InvalidParameterError, match=rf"{kind.__name__}\({field.name}=\.\.\.\) must be"):
                made(kind, **{field.name: value})
