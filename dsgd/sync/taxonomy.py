"""The place of a strategy among all methods: the dimensions of a survey, as words that every strategy declares.

Problem: names of methods do not say how they differ. A few questions do: what is split over machines, whether there is
one model or one for each rank, who waits for whom, what is sent, and to whom.

The words are those of the survey, with two departures. What it calls an exchange and a topology is one word here, the
pattern. And an asynchronous method is "bounded" only where a rule bounds how old vectors may be, not where they are
seldom old in practice.

The laws hold what is declared against simulated gangs (``tests/laws/test_taxonomy.py``), and the table of the
documentation is made of it (``docs/figures/taxonomy.py``).

Source: Langer, He, Rahayu and Xue 2020, sections 3 to 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args, get_type_hints

from dsgd.validation import check_choice

Parallelism: TypeAlias = Literal["data", "model"]
Optimisation: TypeAlias = Literal["centralised", "decentralised"]
Scheduling: TypeAlias = Literal["synchronous", "bounded", "asynchronous"]
Sent: TypeAlias = Literal["gradient", "model", "change", "nothing"]
Pattern: TypeAlias = Literal["all-reduce", "broadcast", "gossip", "pairs", "server", "shared memory"]


@dataclass(frozen=True)
class Taxonomy:
    """What kind of method a strategy is.

    Parameters
    ----------
    optimisation : {"centralised", "decentralised"}
        ``"centralised"``: there is one model, which all ranks compute gradients or changes for, be it on a server or in
        equal copies. ``"decentralised"``: each rank optimises a model of its own, and models are brought together.
    scheduling : {"synchronous", "bounded", "asynchronous"}
        ``"synchronous"``: in every round a rank waits for those it exchanges with, and vectors are of this round.
        ``"bounded"``: what it uses of others may be a given number of rounds old. ``"asynchronous"``: it waits for no
        other worker within an epoch.
    sends : {"gradient", "model", "change", "nothing"}
        The vector that a rank sends: a gradient, a model, or a difference of models. Numbers beside it do not count.
    pattern : {"all-reduce", "broadcast", "gossip", "pairs", "server", "shared memory"}
        Who exchanges with whom. ``"all-reduce"``: all ranks, for a sum that all get. ``"broadcast"``: one rank sends to
        others. ``"gossip"``: each with its neighbours in a graph. ``"pairs"``: two at a time. ``"server"``: workers
        with a rank that has no rows.
    parallelism : {"data", "model"}, default "data"
        ``"data"``: ranks have rows of their own and a whole model. All strategies are of this kind; for the other see
        `dsgd.sim.scaling`.

    Raises
    ------
    InvalidParameterError
        A word is none of those.
    """

    optimisation: Optimisation
    scheduling: Scheduling
    sends: Sent
    pattern: Pattern
    parallelism: Parallelism = "data"

    def __post_init__(self) -> None:
        """Refuse other words."""
        for name, words in get_type_hints(Taxonomy).items():
            check_choice(f"Taxonomy({name}=...)", getattr(self, name), get_args(words))
