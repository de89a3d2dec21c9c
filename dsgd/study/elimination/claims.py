"""Claims on elimination, published and our own, compared with measurements: see `dsgd.study.published`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from dsgd.report import Claim
from dsgd.study.elimination.grid import REFERENCE
from dsgd.study.elimination.observe import MeasuredRun
from dsgd.study.elimination.rounds import (
    FABRIC,
    Place,
    RoundAmounts,
    extrapolate,
    fit_costs,
    pairwise_seconds,
    predict_phases,
)
from dsgd.study.elimination.summary import EliminationCell, EliminationSummary
from dsgd.study.frame.report import time_text
from dsgd.study.frame.summary import Stat
from dsgd.study.published import STATEMENTS, Statement
from dsgd.study.verdict import Interval, Margin, exact, ratio, were_busy
from dsgd.svm.kernel_solver.direct import LARGEST_DIRECT

__all__ = ["check_elimination_claims", "check_process_claim", "check_round_claims"]

# With so many times fewer values goes so many times less time.
_AUTO_FASTER: Final = Margin(1.3)
# The promise of fewer values is made for a cache of a hundredth; small problems have the least cache there is, 1 MB.
_SMALL_CACHE: Final = 0.02
# The largest set of the publications. What a kernel value takes on one core here; and in the published program, which
# computes the norms of both rows with each: products, and seconds of an entry of a sparse one.
_MANY_ROWS: Final = 11_000_000
_VALUE_S: Final = 2e-9
_PRODUCTS: Final = 3
_ENTRY_S: Final = 2e-9


def check_elimination_claims(summary: EliminationSummary) -> list[Claim]:
    """Return the claims, each with the result of a study on each of its problems."""
    checks: tuple[Callable[[EliminationSummary, str], Claim | None], ...] = (
        _faster_than_sequential,
        _less_time,
        _less_time_on_ranks,
        _same_optimum,
        _fewer_values,
        _never_slower,
    )
    found = [check(summary, problem) for check in checks for problem in summary.problems()]
    return [claim for claim in found if claim is not None]


def check_process_claim(amounts: RoundAmounts) -> Claim:
    """Return the claim on thousands of processes, from a run of the pairwise solver on some rows of a set.

    Parameters
    ----------
    amounts : RoundAmounts
        What this run did; `dsgd.study.elimination.rounds` goes on from there.
    """
    found = extrapolate(amounts, _MANY_ROWS)

    def gain(value_s: float) -> float:
        """Return how much faster 4,096 processes are than 2,048 if a kernel value takes so long."""
        half, full = (
            pairwise_seconds(found.rounds, found.looked, found.features, (0.0, value_s), Place(ranks, FABRIC)).total_s
            for ranks in (2048, 4096)
        )
        return half / full

    theirs_s = _PRODUCTS * found.features * _ENTRY_S
    note = (
        f"Simulated: {_MANY_ROWS:,} rows, steps in proportion to {amounts.n:,}, {1e6 * FABRIC.latency_s:g} us a "
        f"message and {1e9 * theirs_s:.0f} ns a kernel value, for which that program takes three sparse products. With "
        f"{1e9 * _VALUE_S:g} ns, as in products of matrices, it is {gain(_VALUE_S):.2f}x: messages take all the time."
    )
    return STATEMENTS["shrinking/processes"].judged("noisy", exact(gain(theirs_s)), note, baseline="1x: no gain")


def check_round_claims(
    turns: Sequence[Sequence[MeasuredRun]], pairs: Sequence[MeasuredRun], left_out: str, cores: int, *, busy: bool
) -> list[Claim]:
    """Return the claims on the model of rounds, from runs of the block solver, all of them made several times.

    Parameters
    ----------
    turns : sequence of sequence of MeasuredRun
        For each turn the runs on one rank and on two, of some sets.
    pairs : sequence of MeasuredRun
        For each turn a run of the pairwise solver on one rank.
    left_out : str
        The name of the set that is predicted; costs are fitted on the others.
    cores : int
        Of the machine.
    busy : bool
        Whether it had other work.
    """
    predicted: dict[int, float] = {}
    measured: dict[int, float] = {}
    times: dict[int, float] = {}
    for turn, (runs, pair) in enumerate(zip(turns, pairs, strict=True)):
        costs = fit_costs([run.observation(cores) for run in runs if run.settings.problem.name != left_out])
        alone, two = (
            next(run for run in runs if (run.settings.problem.name, run.ranks) == (left_out, ranks)) for ranks in (1, 2)
        )
        place = Place(2, two.link, cores)
        predicted[turn] = sum(phase.total_s for phase in predict_phases(alone.amounts, costs, place).values())
        measured[turn] = two.seconds
        many, theirs = Place(4096, FABRIC), extrapolate(pair.amounts, _MANY_ROWS)
        ours = predict_phases(extrapolate(alone.amounts, _MANY_ROWS), costs, many)
        value_s = pair.seconds / (2.0 * pair.amounts.looked)
        published = pairwise_seconds(theirs.rounds, theirs.looked, theirs.features, (0.0, value_s), many)
        times[turn] = published.total_s / sum(phase.total_s for phase in ours.values())
    fitted = ratio(predicted, measured)
    faster = ratio(times, dict.fromkeys(times, 1.0))
    # There are runs, and all of them took time.
    assert fitted is not None
    assert faster is not None
    note = (
        f"Two worker processes; costs are fitted on other sets, and amounts of work are those of one rank. Measured: "
        f"{time_text(measured[0])}."
    )
    grown = (
        f"Simulated: {_MANY_ROWS:,} rows, in proportion to those of the runs, {1e6 * FABRIC.latency_s:g} us a message, "
        "and what kernel values of both solvers cost on this machine. The published one speaks at every step."
    )
    return [
        STATEMENTS["dsgd/svm-model"].judged(left_out, fitted, note, busy=busy),
        STATEMENTS["dsgd/svm-ranks"].judged(left_out, faster, grown, busy=busy, baseline="1x: the published algorithm"),
    ]


def _faster_than_sequential(summary: EliminationSummary, problem: str) -> Claim:
    cache = summary.tight()
    base, cells = summary.cell(problem, REFERENCE, cache), summary.presets(problem, cache)
    if base is None or not cells:
        return STATEMENTS["shrinking/sequential"].not_run(problem, "Needs scikit-learn's SVC and a preset.")
    best = min(cells, key=lambda cell: cell.median("seconds"))
    speedup = _inverse(best.ratio(base, "seconds"))
    alone = summary.cell(problem, "none", cache)
    share = _inverse(alone.ratio(base, "seconds")) if alone else None
    note = (
        f"Sequential baseline: scikit-learn's SVC (LIBSVM, one thread), {time_text(base.median('seconds'))}. "
        f"Best preset: {best.method}, {time_text(best.median('seconds'))} in one process"
    )
    if share is not None and speedup is not None:
        note += (
            f". Without any elimination it is {share.median:.1f}x already, from blocks, matrix products and threads; "
            f"elimination makes it {speedup.median / share.median:.2f} times that"
        )
    cores = best.rows[0]["machine"]["cores"]
    note += f". The published figure is from many nodes, ours from {cores} core{'s' * (cores > 1)}."
    found = ratio(base.by_repeat("seconds"), best.by_repeat("seconds"))
    if found is None:
        return STATEMENTS["shrinking/sequential"].not_run(problem, note)
    plain = f"{share.median:.1f}x: no elimination" if share else ""
    return STATEMENTS["shrinking/sequential"].judged(problem, found, note, busy=_busy(base, best), baseline=plain)


def _less_time(summary: EliminationSummary, problem: str) -> Claim:
    cache = summary.tight()
    base, cells = summary.cell(problem, "none", cache), summary.presets(problem, cache)[1:]
    if base is None or not cells:
        return STATEMENTS["shrinking/saved"].not_run(problem, "Needs a preset beside none.")
    best = min(cells, key=lambda cell: _median(cell.ratio(base, "seconds")))
    note = _why(base, best, best.ratio(base, "kernel_evaluations"))
    return _saved(STATEMENTS["shrinking/saved"], base, best, note)


def _saved(statement: Statement, base: EliminationCell, best: EliminationCell, note: str) -> Claim:
    """Return a claim on the share of time that a preset saves."""
    share = ratio(best.by_repeat("seconds"), base.by_repeat("seconds"))
    if share is None:
        return statement.not_run(base.problem, "Needs both in one repetition.")
    saved = share.mapped(lambda left: 1.0 - left)
    return statement.judged(base.problem, saved, note, busy=_busy(base, best), baseline="0 %: no elimination")


def _busy(*cells: EliminationCell) -> bool:
    return any(were_busy(cell.rows) for cell in cells)


def _why(base: EliminationCell, best: EliminationCell, values: Stat | None) -> str:
    """Return what decides how much elimination can save on a problem."""
    samples = base.median("samples")
    note = (
        f"Best preset {best.method}: {time_text(base.median('seconds'))} -> {time_text(best.median('seconds'))}, "
        f"kernel values {100.0 * (1.0 - _median(values)):.0f} % fewer."
    )
    support = base.median("n_support") / base.median("rows")
    needed = base.median("kernel_evaluations") / (samples * samples)
    if base.rows[0]["classes"] > 2:
        return note + " Every pair of classes is a small problem of its own, whose kernel matrix fits the cache."
    if base.rows[0]["method"] == "none" and samples <= LARGEST_DIRECT:
        return note + (
            f" Up to {LARGEST_DIRECT:,} samples are solved with all rows kept, whatever the cache is, unless asked to"
            " eliminate: there is nothing to save."
        )
    if base.median("cache_share") > 0.9:
        note += f" {base.median('cache_share'):.0%} of the values came from the cache anyway."
    if support > 0.4:
        note += f" {support:.0%} of the samples are support vectors: few can be left out for good."
    elif needed < 1.0:
        note += (
            f" Without elimination {needed:.2f} n² values are computed in all, so most rows are needed once: there is "
            "little to save."
        )
    return note


def _less_time_on_ranks(summary: EliminationSummary, problem: str) -> Claim | None:
    for solver in ("pairwise", "block"):
        without = summary.distributed(problem, solver, "none")
        if not without or (without[-1].ranks or 1) < 2:
            continue
        base = without[-1]
        others = [
            cell
            for cell in summary.cells
            if (cell.problem, cell.solver, cell.ranks) == (problem, solver, base.ranks) and cell.method != "none"
        ]
        if not others:
            continue
        best = min(others, key=lambda cell: _median(cell.ratio(base, "seconds")))
        values = best.ratio(base, "kernel_evaluations")
        note = (
            f"{solver} solver on {base.ranks} processes, {best.method}: {time_text(base.median('seconds'))} -> "
            f"{time_text(best.median('seconds'))}, kernel values {100.0 * (1.0 - _median(values)):.0f} % fewer."
        )
        return _saved(STATEMENTS["shrinking/saved-on-ranks"], base, best, note)
    return None


def _same_optimum(summary: EliminationSummary, problem: str) -> Claim:
    base = {cell.cache: cell for cell in summary.cells if cell.problem == problem and cell.method == "none"}
    found = [
        (distance, cell)
        for cell in summary.cells
        if cell.problem == problem and cell.cache in base and (distance := cell.distance(base[cell.cache])) is not None
    ]
    if all(cell.method == "none" for _, cell in found):
        return STATEMENTS["dsgd/elimination-optimum"].not_run(problem, "Needs a preset beside none.")
    worst, cell = max(found, key=lambda pair: pair[0])
    gaps = [row["gap"] for _, c in found for row in c.rows]
    open_ = sum(not row["converged"] for _, c in found for row in c.rows)
    tol = cell.rows[0]["tol"]
    note = f"Widest gap over all samples in float64: {max(gaps):.2g} (tol {tol:g}); farthest preset: {cell.method}."
    if open_:
        note += f" {open_} runs stopped with an open gap."
        return STATEMENTS["dsgd/elimination-optimum"].said(problem, f"{worst:.1e}", "fails", note)
    return STATEMENTS["dsgd/elimination-optimum"].judged(problem, exact(worst), note)


def _fewer_values(summary: EliminationSummary, problem: str) -> Claim:
    base, auto = summary.cell(problem, "none", "small"), summary.cell(problem, "auto", "small")
    if base is None or auto is None:
        return STATEMENTS["dsgd/elimination-values"].not_run(problem, "Needs auto and the small cache.")
    values, seconds = _inverse(auto.ratio(base, "kernel_evaluations")), _inverse(auto.ratio(base, "seconds"))
    if values is None or seconds is None:
        return STATEMENTS["dsgd/elimination-values"].not_run(problem, "Nothing was computed.")
    faster = ratio(base.by_repeat("seconds"), auto.by_repeat("seconds")) or Interval(1.0, 0.0, math.inf, 1)
    ours = f"{values.median:.2f}x, {faster.text('{:.2f}x'.format)}"
    note = _why(base, auto, auto.ratio(base, "kernel_evaluations"))
    least = base.least_values()
    if least is not None:
        limit = base.median("kernel_evaluations") / least
        note += f" The proof alone needs as many values as leave {limit:.1f}x at most"
        note += (
            ": the promise cannot be kept here." if limit < STATEMENTS["dsgd/elimination-values"].margin.least else "."
        )
    # Values are counted and the same in every run: if there are too many, seconds do not matter.
    verdict = _AUTO_FASTER.verdict(faster)
    if values.median < STATEMENTS["dsgd/elimination-values"].margin.least:
        verdict = "fails"
    elif _busy(base, auto):
        verdict = "undecided"
    share = base.share_of_cache()
    if share > _SMALL_CACHE:
        note = f"The promise is for a cache of 1/100 of the matrix, this one holds 1/{1 / share:.0f}. {note}"
        verdict = "not run"
    return STATEMENTS["dsgd/elimination-values"].said(problem, ours, verdict, note, baseline="1x: no elimination")


def _never_slower(summary: EliminationSummary, problem: str) -> Claim:
    ratios: list[tuple[Interval, str, bool]] = []
    for cache in summary.caches():
        base, auto = summary.cell(problem, "none", cache), summary.cell(problem, "auto", cache)
        found = ratio(auto.by_repeat("seconds"), base.by_repeat("seconds")) if base and auto else None
        if base and auto and found is not None:
            ratios.append((found, cache, _busy(base, auto)))
    if not ratios:
        return STATEMENTS["dsgd/elimination-slower"].not_run(problem, "Needs auto.")
    worst, cache, busy = max(ratios, key=lambda found: found[0].estimate)
    more = worst.mapped(lambda times: times - 1.0)
    return STATEMENTS["dsgd/elimination-slower"].judged(
        problem, more, f"Time over that of none, {cache} cache.", busy=busy
    )


def _median(stat: Stat | None) -> float:
    return stat.median if stat else 1.0


def _inverse(stat: Stat | None) -> Stat | None:
    return stat.under() if stat else None
