"""The model of the kernel SVM's rounds: its costs are found again, and its messages are those of the collectives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dsgd.collectives.cost import Link, allgather_seconds, allreduce_seconds
from dsgd.errors import InvalidParameterError
from dsgd.study.svm_problems import PROBLEMS
from dsgd.study.svm_rounds import (
    MeasuredRun,
    Observation,
    Place,
    RoundAmounts,
    RunSettings,
    check_round_claims,
    extrapolate,
    fit_costs,
    pairwise_seconds,
    predict_phases,
)
from dsgd.svm.kernel_solver.elimination import PHASES

LINK = Link(latency_s=20e-6, byte_s=0.5e-9)
#: Costs of every phase, as many as it has amounts.
COSTS = {
    "scan": (1e-5, 1e-9, 2e-11, 3e-11),
    "choose": (1e-4, 5e-9, 5e-5),
    "rows": (5e-5, 1e-8),
    "solve": (2e-4, 1e-9, 4e-10, 5e-11, 3e-4, 6e-4),
    "update": (1e-4, 5e-10, 4e-11, 3e-10, 2e-10),
    "check": (5e-3, 1e-9, 5e-11, 4e-10),
}
#: Which of them nothing tells where every rank has a machine of its own.
OF_SHARED_MACHINES = {"scan": (3,), "solve": (5,), "update": (4,), "check": (3,)}


def amounts(seed=0, n=10_000):
    """Return the amounts of a run that was never made."""
    rng = np.random.default_rng(seed)
    rounds, q = int(rng.integers(20, 90)), float(rng.integers(200, 512))
    new, read, exact = rng.uniform(1e7, 1e8, 3)
    return RoundAmounts(
        n,
        int(rng.integers(2, 800)),
        4,
        rounds,
        rounds * n * rng.uniform(0.5, 1.0),
        rounds * q,
        rounds * q / 2,
        rounds * q * rng.uniform(500, 4000),
        rounds * q * q,
        rounds * q * q / 2,
        new,
        read,
        exact,
        rng.uniform(0.1, 0.5) * n,
    )


@pytest.mark.parametrize("cores", [None, 2])
def test_costs_are_found_again_from_runs_on_any_number_of_ranks(cores):
    """Seconds that the model itself gives for some runs determine all of its costs."""
    runs = []
    for seed in range(30):
        known, place = amounts(seed), Place((1, 2, 4, 8)[seed % 4], LINK, cores)
        seconds = {phase: taken.total_s for phase, taken in predict_phases(known, COSTS, place).items()}
        runs.append(Observation(known, place, seconds))
    found = fit_costs(runs)
    assert list(found) == list(PHASES)
    for phase, costs in COSTS.items():
        unseen = OF_SHARED_MACHINES.get(phase, ()) if cores is None else ()
        known = [0.0 if number in unseen else cost for number, cost in enumerate(costs)]
        assert found[phase] == pytest.approx(known, rel=1e-6), phase
    with pytest.raises(InvalidParameterError, match="at least one"):
        fit_costs([])


def test_work_is_divided_but_for_blocks_and_messages_are_those_of_collectives():
    """On P ranks a share of the work is left, blocks stay whole, and a phase says what its collectives cost."""
    known = amounts()
    alone, many = (predict_phases(known, COSTS, Place(ranks, LINK)) for ranks in (1, 64))
    assert all(phase.wire_s == 0.0 for phase in alone.values())
    per_round = known.rounds * COSTS["update"][0]
    assert many["update"].work_s - per_round == pytest.approx((alone["update"].work_s - per_round) / 64)
    woken = known.rounds * COSTS["solve"][4]
    assert many["solve"].work_s == pytest.approx(alone["solve"].work_s + woken)
    q = known.per_round("variables")
    offer = int(np.ceil(28 * q + 16))
    assert many["choose"].wire_s == pytest.approx(
        known.rounds * allreduce_seconds("recursive_doubling", offer, 64, LINK)
    )
    ring = predict_phases(known, COSTS, Place(64, LINK, talk="ring"))
    assert ring["choose"].wire_s == pytest.approx(known.rounds * allgather_seconds(offer, 64, LINK, "ring"))
    assert ring["choose"].wire_s > 10 * many["choose"].wire_s
    assert ring["rows"].wire_s - many["rows"].wire_s == pytest.approx(known.rounds * (63 - 6) * LINK.latency_s)


def test_ranks_that_share_cores_do_what_is_divided_one_after_the_other():
    """Four ranks on two cores take as long for divided work as two, and for blocks as two but for finding a core."""
    known = amounts()
    two, four = (predict_phases(known, COSTS, Place(ranks, LINK, 2)) for ranks in (2, 4))
    per_round = known.rounds * COSTS["update"][0]
    assert four["update"].work_s == pytest.approx(two["update"].work_s + per_round)
    assert four["solve"].work_s == pytest.approx(two["solve"].work_s + known.rounds * COSTS["solve"][5])
    assert four["scan"].work_s > two["scan"].work_s


def test_ranks_of_one_machine_share_its_memory():
    """They compute, read and check kernel values more slowly than ranks that have a machine each."""
    known = amounts()
    apart, beside, alone = (
        predict_phases(known, COSTS, place) for place in (Place(4, LINK), Place(4, LINK, 16), Place(1, LINK, 16))
    )
    values = known.new_values + known.read_values
    assert beside["update"].work_s - apart["update"].work_s == pytest.approx(values / 4 * COSTS["update"][4])
    assert beside["check"].work_s - apart["check"].work_s == pytest.approx(known.exact_values / 4 * COSTS["check"][3])
    assert all(beside[phase] == apart[phase] for phase in ("scan", "choose", "rows", "solve"))
    assert alone == predict_phases(known, COSTS, Place(1, LINK))


def test_the_published_algorithm_speaks_at_every_step():
    """Its messages grow by the logarithm of the ranks and its work falls by their number."""
    one, two, many = (pairwise_seconds(1000, 1e7, 30, (0.0, 2e-9), Place(ranks, LINK)) for ranks in (1, 2, 4096))
    assert one.wire_s == 0.0
    assert many.wire_s == pytest.approx(12 * two.wire_s)
    assert two.wire_s == pytest.approx(1000 * (5 * 20e-6 + 2 * 16 * 30 * 0.5e-9))
    assert many.work_s == pytest.approx(one.work_s / 4096) == pytest.approx(2e7 * 2e-9 / 4096)


def test_amounts_of_more_samples_are_those_of_their_support_vectors():
    """Ten times the samples take ten times the rounds and a hundred times the values, none of which was cached."""
    known = amounts()
    found = extrapolate(known, 10 * known.n)
    for name in ("rounds", "variables", "fresh", "step_variables", "squares", "support"):
        assert getattr(found, name) == pytest.approx(10 * getattr(known, name)), name
    assert found.looked == pytest.approx(100 * known.looked)
    assert found.new_values == pytest.approx(100 * (known.new_values + known.read_values))
    assert found.read_values == 0.0
    assert extrapolate(replace(known, read_values=0.0), known.n) == replace(known, read_values=0.0)


def observed(name, seed, ranks, slower=1.0, solver="block"):
    """Return a run that takes what the model says, or so many times as long."""
    known, place = amounts(seed), Place(ranks, LINK, 2)
    phases = {phase: slower * taken.total_s for phase, taken in predict_phases(known, COSTS, place).items()}
    settings = RunSettings(replace(PROBLEMS["noisy"], name=name), solver=solver)
    return MeasuredRun(settings, ranks, LINK, sum(phases.values()), known, 1.0, phases)


@pytest.mark.parametrize(("slower", "verdict"), [(1.0, "holds"), (0.9, "holds"), (0.5, "fails")])
def test_the_claim_on_predicted_seconds_is_judged_on_a_set_that_was_not_fitted(slower, verdict):
    """Costs of other sets predict it as it is; a machine that is twice as fast at that set alone refutes the model."""
    turns = [
        [observed(f"set {seed}", 10 * turn + seed, ranks) for seed in range(9) for ranks in (1, 2)]
        + [observed("left out", 10 * turn + 9, ranks, slower) for ranks in (1, 2)]
        for turn in range(3)
    ]
    pairs = [observed("left out", 10 * turn + 9, 1, solver="pairwise") for turn in range(3)]
    model, ranks = check_round_claims(turns, pairs, "left out", 2, busy=False)
    assert (model.key, model.verdict) == ("dsgd/svm-model", verdict)
    assert model.interval[0] == pytest.approx(1.0 / slower, rel=0.05)
    assert ranks.key == "dsgd/svm-ranks"
    assert check_round_claims(turns, pairs, "left out", 2, busy=True)[0].verdict == "undecided"
