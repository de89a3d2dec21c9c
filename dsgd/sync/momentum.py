"""What happens to the momentum of local optimisers when models are averaged.

Problem: after an average, the velocity of a rank, or its running mean of squares, belongs to a model that it no longer
has. Papers and released code treat this differently, often without mentioning it.

Policies: ``"keep"`` leaves the memory of every rank alone (Lin et al. 2020; DiLoCo), ``"zero"`` resets it after every
synchronisation, ``"average"`` replaces it by the mean with the weights of the models (Yu, Jin and Yang 2019). Means of
squares stay non-negative under all three.

Cost: nothing, or for ``"average"`` one more all-reduce for each vector that the rule remembers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

from dsgd.collectives.group import Group
from dsgd.sync.averaging import weighted_mean
from dsgd.types import FloatVector
from dsgd.validation import check_choice

#: What becomes of the momentum of a rank where models are averaged: it is kept, reset or averaged as well.
MomentumPolicy = Literal["keep", "zero", "average"]


def check_momentum(strategy: Any) -> None:
    """Raise `InvalidParameterError` unless the momentum of a strategy is a policy."""
    check_choice(f"{type(strategy).__name__}(momentum=...)", strategy.momentum, get_args(MomentumPolicy))


def carry_over(policy: MomentumPolicy, group: Group, memory: Iterable[FloatVector], weight: float) -> None:
    """Apply the policy to the memory of a rule, in place; called by all ranks after their models are averaged.

    Parameters
    ----------
    policy : {"keep", "zero", "average"}
        The policy.
    group : Group
        The ranks of the gang.
    memory : iterable of arrays
        What the rule of this rank remembers.
    weight : float
        Share of this rank in the mean.
    """
    for vector in memory if policy != "keep" else ():
        if policy == "zero":
            vector.fill(0.0)
        else:
            weighted_mean(group, vector, weight)
