"""What must hold of every answer, and the verdict on one problem.

1. Both libraries refuse, or neither does; kernel values that are not finite are refused.
2. ``converged_`` is honest: the gap that plain numpy computes from the public attributes is below ``tol``, but for what
   rounding may do, and a machine that has not converged warns, and was stopped by ``max_iter`` or by rounding.
3. ``gap_`` and ``dual_objective_`` are what plain numpy computes. Where public coefficients are rounded once more than
   the variables behind them, a gap below ``tol`` may be told that numpy does not see.
4. The objective is LIBSVM's or lower. For a positive semi-definite kernel, a point whose gap is g lies above any other
   feasible one by at most g/2 times the sum of |difference of a variable|: the sum of those that grow and that of
   those that shrink are equal, and the slopes of any two differ by at most g. This needs no optimum, so LIBSVM may
   stop early.
5. The threshold is LIBSVM's: the mean of f where variables are free, or the middle of what is optimal where rounding is
   all that keeps variables from their bounds. So predictions are LIBSVM's, but for ties: rows whose decision value is
   within what the gaps of both leave open, in the weights and in the thresholds that are optimal.
6. Steps are at most `step_bound` of LIBSVM's. No theory bounds them in a useful way; a solver that needs a hundred
   times as many as LIBSVM, beyond some for each variable, is going round. Only what chooses pairs to first order may
   take more, as it creeps where a second-order choice takes one step: the published algorithm, ``solver="pairwise"``,
   and blocks of a few variables. And LIBSVM is a peer only where it has closed the gap, as its rows are float32, and
   where that takes more than luck: rounding does not exceed ``tol``, and of a tolerance a hundredth below it as much
   is true. (A start whose gap is ``tol`` to the last digit is optimal for one of two libraries.)
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp

from svm_soak.fits import Answer, ask_libsvm, ask_us
from svm_soak.oracle import Part, find_parts, kernel_values
from svm_soak.problems import Problem

#: LIBSVM's steps for one dual are cut off here: it is a peer, and not what is tested.
_PEER_STEPS = 20_000
#: And here where ours are slow, as rounds are short; ours are cut off at so many times as many.
_FEW_STEPS, _CUT = 1000, 2
#: Blocks of fewer variables have little to choose from.
_SMALL_BLOCK = 16
#: A tolerance that is met by more than luck is met as well where it is so many times as large.
_LESS = 0.99
#: Rounding that is as large a share of `tol` as this may keep a gap open.
_ROUNDING = 1e-3
#: Variables so near to a bound, as a share of it, may be at it where a solver goes a little further; and where rounding
#: is all that keeps them from it.
_FURTHER, _BY_ROUNDING = 1e-6, 1e-11
#: A nu so near to the most that is feasible, as a share of it, is feasible or not by the order of a sum.
_AT_LIMIT = 1e-9


def step_bound(peer_steps: int, n: int) -> int:
    """Return how many steps a machine may take where LIBSVM takes `peer_steps` for n samples."""
    return 100 * peer_steps + 100 * n + 1000


@dataclass
class Verdict:
    """What was found.

    Parameters
    ----------
    outcome : str
        How it ended: ``converged``, ``open``, ``refused``.
    failures : list of str
        The laws that are broken.
    seconds : float
        Of our fit.
    ratio : float
        Our steps by those that are allowed.
    is_loose : bool
        Whether rounding may exceed ``tol``, so that a claim says little.
    n_rows, n_ties : int
        Predictions that were compared with LIBSVM's, and those that differ where both may be right.
    n_corrected : int
        Duals where rounding has chosen LIBSVM's threshold, which the middle of what is optimal then stands for.
    """

    outcome: str = "converged"
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    ratio: float = 0.0
    is_loose: bool = False
    n_rows: int = 0
    n_ties: int = 0
    n_corrected: int = 0


def judge(problem: Problem) -> Verdict:
    """Solve a problem with both libraries and compare."""
    if problem.estimator.startswith("Linear"):
        return _judge_linear(problem)
    is_slow = problem.block_size is not None or problem.is_pairwise
    peer_steps = _FEW_STEPS if is_slow else _PEER_STEPS
    used = problem.used()
    theirs = ask_libsvm(used, peer_steps)
    options: dict[str, Any] = {}
    if "max_iter" not in problem.ours and theirs.error is not None and is_slow:
        options["max_iter"] = _CUT * _PEER_STEPS  # there is no peer, and steps in tiny blocks take their time
    elif "max_iter" not in problem.ours and theirs.error is None:
        # Beyond this the bound is broken; what is not stopped may still run for ever, so one in four is not.
        if theirs.warned or _creeps(problem):
            options["max_iter"] = _CUT * peer_steps
        elif problem.number % 4:
            options["max_iter"] = step_bound(theirs.n_iter, problem.X.shape[0])
    begin = time.perf_counter()
    ours = ask_us(problem, **options)
    if options and ours.warned and not (theirs.error is not None or theirs.warned or _creeps(problem)):
        # A cap on steps keeps a linear kernel from the solver that would help: what counts is how the user's fit ends.
        ours = ask_us(problem)
    verdict = Verdict(seconds=time.perf_counter() - begin)
    verdict.failures += [f"a warning: {text}" for text in ours.others]
    if ours.error is not None:
        verdict.outcome = "refused"
        if theirs.error is None and not _may_refuse(problem, ours.error):
            verdict.failures.append(f"refused what LIBSVM takes: {ours.error}")
        return verdict
    if theirs.error is not None and "infeasible" in str(theirs.error) and not _is_at_limit(used):
        verdict.failures.append(f"took what LIBSVM refuses: {theirs.error}")
    values, used_values = kernel_values(problem), kernel_values(used)
    with np.errstate(all="ignore"):
        parts = find_parts(problem, values, ours.model)
        peers = find_parts(used, used_values, theirs.model) if theirs.error is None else None
        _check(problem, verdict, ours, theirs, parts, peers)
    return verdict


def _creeps(problem: Problem) -> bool:
    """Return whether pairs of variables are chosen to first order."""
    return problem.is_pairwise or (problem.block_size is not None and problem.block_size < _SMALL_BLOCK)


def _is_at_limit(problem: Problem) -> bool:
    """Return whether the nu of a problem, without rows of weight zero, asks a class for all that it has."""
    if problem.estimator != "NuSVC":
        return False
    totals = np.bincount(np.unique(problem.y, return_inverse=True)[1], weights=problem.weights)
    halves = [0.5 * problem.parameters["nu"] * (a + b) / min(a, b) for a, b in combinations(totals, 2)]
    return abs(max(halves) - 1.0) < _AT_LIMIT


def _is_rounded(problem: Problem) -> bool:
    """Return whether public coefficients are rounded once more than variables: divided by a margin, or dealt out.

    A variable a rounding away from its bound may then be at it, so that a gap below the tolerance cannot be seen.
    """
    if problem.estimator == "NuSVC":
        return True
    X = np.asarray(problem.X.todense() if sp.issparse(problem.X) else problem.X)
    return problem.kernel != "precomputed" and len(np.unique(X, axis=0)) < len(X)


def _may_refuse(problem: Problem, error: Exception) -> bool:
    """Return whether there is a reason to refuse: values not finite, no margin to divide by."""
    K = kernel_values(problem).K
    return not np.isfinite(K).all() or (problem.estimator == "NuSVC" and "margin" in str(error))


def _check(
    problem: Problem, verdict: Verdict, ours: Answer, theirs: Answer, parts: list[Part], peers: list[Part] | None
) -> None:
    say, model = verdict.failures.append, ours.model
    tol = problem.parameters["tol"]
    limit = model.max_iter
    gap, noise = max(part.gap for part in parts), max(part.noise for part in parts)
    is_finite = all(np.isfinite(part.u).all() for part in parts)  # of the columns that have a coefficient
    if not (is_finite and np.isfinite(gap) and np.isfinite(model.gap_)):
        say(f"kernel values that are not finite were taken: gap_={model.gap_}, by numpy {gap}")
        return
    verdict.is_loose = noise > tol
    if not np.isfinite(noise):  # the bound on rounding has overflown, and nothing can be held against the rest
        return
    if model.converged_ and not is_nu_machine(problem):
        _check_thresholds(say, tol, parts)
    n_iter = np.atleast_1d(model.n_iter_)
    if limit >= 0 and (n_iter > limit).any():
        say(f"{n_iter.max()} steps, max_iter={limit}")
    if model.converged_ == ours.warned:
        say(f"converged_={model.converged_}, and a warning: {ours.warned}")
    if model.converged_ != (model.gap_ < tol):
        say(f"converged_={model.converged_}, gap_={model.gap_:.3g}, tol={tol:g}")
    is_nu_svr = problem.estimator == "NuSVR"  # of its two variables per sample only the difference is public
    if model.converged_ and not is_nu_svr and not gap < tol + 2 * noise:
        say(f"converged_ with gap_={model.gap_:.3g}, by numpy {gap:.3g}, tol={tol:g}, rounding {noise:.1g}")
    strict = max(part.gap_at(0.0) for part in parts)
    if model.converged_ and _is_rounded(problem):
        strict = max(strict, tol)
    if not is_nu_svr and not gap - 2 * noise <= model.gap_ * (1 + 1e-6) <= strict * (1 + 2e-6) + 2 * noise:
        say(f"gap_={model.gap_:.6g}, by numpy {gap:.6g} to {strict:.6g}, rounding {noise:.1g}")
    objective, size = sum(part.objective for part in parts), sum(part.size for part in parts)
    rounding = sum(part.noise * part.alpha.sum() + part.dealt * part.slope for part in parts) + 1e-9 * size
    if abs(objective - model.dual_objective_) > rounding:
        say(f"dual_objective_={model.dual_objective_:.12g}, by numpy {objective:.12g}")
    at_bounds = 1e-15 * max(float(part.upper.max() * np.abs(part.values.K).max()) for part in parts)
    if is_nu_svr:  # and a difference of two variables can be no finer than these are
        noise += at_bounds
    is_peer = (
        peers is not None
        and not theirs.warned
        and noise < tol
        and all(peer.gap < tol + 2 * peer.noise for peer in peers)
    )
    peer_steps = theirs.n_iter if is_peer else None
    if peer_steps is not None and ours.n_iter > step_bound(peer_steps, problem.X.shape[0]):
        peer_steps = _steps_without_luck(problem, peer_steps)
    if theirs.warned or (theirs.error is not None and "not finite" in str(theirs.error)):
        # Nobody shows a way round variables at their bounds, where rounding hides the rest of what is open.
        noise += at_bounds
    _check_end(problem, verdict, ours, peer_steps, noise, n_iter)
    if is_peer and problem.is_psd and model.converged_:
        assert peers is not None
        _check_predictions(say, problem, verdict, parts, peers)
    if peers is not None and problem.is_psd and model.converged_:
        # What two variables of a sample share is not public: as sums of signs are fixed it moves as far as the rest.
        _check_objectives(say, tol, parts, peers, 2.0 if is_nu_svr else 1.0)


def _steps_without_luck(problem: Problem, peer_steps: int) -> int | None:
    """Return LIBSVM's steps where its tolerance is a little smaller; None where it does not arrive there."""
    used = problem.used()
    again = ask_libsvm(
        replace(used, parameters={**used.parameters, "tol": _LESS * used.parameters["tol"]}), _PEER_STEPS
    )
    return None if again.error is not None or again.warned else max(peer_steps, again.n_iter)


def _check_end(
    problem: Problem, verdict: Verdict, ours: Answer, peer_steps: int | None, noise: float, n_iter: np.ndarray
) -> None:
    """Judge where a run has ended, and after how many steps, where LIBSVM takes so many (None: gets nowhere)."""
    model, tol, say = ours.model, problem.parameters["tol"], verdict.failures.append
    allowed = np.inf if peer_steps is None or _creeps(problem) else step_bound(peer_steps, problem.X.shape[0])
    verdict.ratio = ours.n_iter / allowed
    if model.converged_:
        if ours.n_iter > allowed:
            say(f"{ours.n_iter} steps, LIBSVM takes {peer_steps}")
        return
    verdict.outcome = "open"
    limit = model.max_iter
    is_spent = limit >= 0 and (n_iter >= limit).any()
    if is_spent and ("max_iter" in problem.ours or np.isinf(allowed)):
        return
    if noise < _ROUNDING * tol:
        say(f"gave up after {ours.n_iter} steps with gap_={model.gap_:.3g}, tol={tol:g}; LIBSVM takes {peer_steps}")


def is_nu_machine(problem: Problem) -> bool:
    """Return whether public coefficients do not say which variables are free: divided, or differences of two."""
    return problem.estimator in {"NuSVC", "NuSVR"}


def _check_thresholds(say: Any, tol: float, parts: list[Part]) -> None:
    """Compare thresholds with what the variables say; as equal rows share one, others may seem free, within `tol`."""
    for part in parts:
        by_rule = [part.thresholds_at(share)[2] for share in (None, _BY_ROUNDING)]
        off = min(abs(part.threshold - each) for each in by_rule)
        if off > tol + 4 * part.noise + 1e-9 * part.slope:
            say(f"the threshold is {part.threshold:.9g}, by its variables {by_rule[0]:.9g}")


def _check_predictions(say: Any, problem: Problem, verdict: Verdict, parts: list[Part], peers: list[Part]) -> None:
    """Compare the signs of decision values, or the values of a regression, of the rows of each dual."""
    for part, peer in zip(parts, peers, strict=True):
        own = peer.thresholds_at()[2]
        ours, theirs = part.u - part.threshold, peer.u - own
        verdict.n_corrected += int(abs(peer.threshold - own) > part.noise + peer.noise + 1e-6 * peer.slope)
        gaps = [max(each.duality_gap, 0.0) for each in (part, peer)]
        if problem.estimator == "NuSVR":  # and what its hidden variables leave open
            gaps = [gap + problem.parameters["tol"] * float(part.upper.sum()) for gap in gaps]
        open_weights = np.sqrt(2.0 * np.array(gaps)).sum()
        room = open_weights * np.sqrt(np.maximum(np.diag(part.values.K), 0.0)) + part.noise + peer.noise
        if problem.estimator == "NuSVR":
            room = room + 2.0 * problem.parameters["tol"]
        edge = room.max() + part.gap + peer.gap
        shift = abs(part.threshold - own)
        is_open = False
        for one, other in ((part, own), (peer, part.threshold)):
            low, high, _ = one.thresholds_at(_FURTHER)
            is_open |= low - edge <= other <= high + edge
        allowed = room + (shift if is_open else edge)
        verdict.n_rows += len(ours)
        if problem.estimator.endswith("SVR"):
            wrong = np.abs(ours - theirs) > allowed + 1e-9 * part.slope
        else:
            differ = (ours > 0) != (theirs > 0)
            wrong = differ & (np.minimum(np.abs(ours), np.abs(theirs)) > allowed)
            verdict.n_ties += int(np.sum(differ & ~wrong))
        if wrong.any():
            row = int(np.argmax(wrong))
            say(
                f"{wrong.sum()} predictions differ from LIBSVM's, the first {ours[row]:.6g} and {theirs[row]:.6g}, "
                f"{allowed[row]:.2g} allowed; thresholds {part.threshold:.9g} and {own:.9g}"
            )


def _check_objectives(say: Any, tol: float, parts: list[Part], peers: list[Part], hidden: float) -> None:
    """Compare objectives; variables differ by `hidden` times as much as what is public of them."""
    for part, peer in zip(parts, peers, strict=True):
        moved = 0.5 * hidden * float(np.abs(part.alpha - peer.alpha).sum())
        noise = part.noise * 2 * moved + 1e-9 * (part.size + peer.size)
        # What LIBSVM's own rounding leaves open of its constraint is worth a threshold for each unit.
        noise += part.slope * abs(float(part.beta.sum() - peer.beta.sum()))
        if part.objective > peer.objective + tol * moved + noise:
            say(f"objective {part.objective:.12g}, LIBSVM's {peer.objective:.12g}, {tol * moved + noise:.1g} allowed")


# -- linear machines -----------------------------------------------------------------------------------------------


def _judge_linear(problem: Problem) -> Verdict:
    theirs = ask_libsvm(problem.used(), 200)
    begin = time.perf_counter()
    ours = ask_us(problem)
    verdict = Verdict(seconds=time.perf_counter() - begin)
    if ours.error is not None or theirs.error is not None:
        verdict.outcome = "refused"
        if (ours.error is None) != (theirs.error is None):
            verdict.failures.append(f"ours: {ours.error}; LIBLINEAR: {theirs.error}")
        return verdict
    model, say = ours.model, verdict.failures.append
    verdict.outcome = "converged" if model.converged_ else "open"
    if model.converged_ == ours.warned:
        say(f"converged_={model.converged_}, and a warning: {ours.warned}")
    if model.converged_ != (model.gap_ <= model.tol):
        say(f"converged_={model.converged_}, gap_={model.gap_:.3g}, tol={model.tol:g}")
    (own, noise), (peer, _) = _primals(problem, model), _primals(problem, theirs.model)
    told, bound = np.ravel(model.primal_objective_), np.ravel(model.dual_objective_)
    if (np.abs(told - own) > 1e-7 * own + noise).any():
        say(f"primal_objective_={told}, by numpy {own}")
    lowest = np.minimum(own, peer)
    if (bound > lowest * (1 + 1e-9) + noise).any():
        say(f"dual_objective_={bound} is above a primal one, {lowest}")
    if model.converged_ and (own * (1 - model.tol) > peer * (1 + 1e-9) + noise).any():
        say(f"primal objective {own}, LIBLINEAR's {peer}, tol={model.tol:g}")
    return verdict


def _primals(problem: Problem, model: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the primal objectives of a linear machine, one for each of its problems, and what rounding may add."""
    X = np.asarray(problem.X.todense() if sp.issparse(problem.X) else problem.X, dtype=np.float64)
    weights = np.ones(len(X)) if problem.weights is None else problem.weights
    coef = np.atleast_2d(model.coef_)
    intercept = np.broadcast_to(np.ravel(model.intercept_), len(coef))
    costs = problem.parameters["C"] * weights
    assert problem.y is not None
    scores = X @ coef.T + intercept
    size = np.abs(X) @ np.abs(coef.T) + np.abs(intercept) + (np.abs(problem.y).max() if problem.y is not None else 0.0)
    noise = 1e-13 * (costs @ (size * (1.0 + size if "squared" in problem.parameters["loss"] else 1.0)))
    norms = 0.5 * ((coef * coef).sum(axis=1) + intercept**2)
    if problem.estimator == "LinearSVR":
        loss = np.maximum(np.abs(scores - problem.y[:, None]) - problem.parameters["epsilon"], 0.0)
    else:
        classes, codes = np.unique(problem.y, return_inverse=True)
        positive = [1] if len(classes) == 2 else range(len(classes))
        signs = np.where(codes[:, None] == np.array(positive), 1.0, -1.0)
        factors = np.ones(signs.shape)
        if problem.parameters.get("class_weight") == "balanced":
            balance = (weights.sum() / (len(classes) * np.bincount(codes, weights)))[codes]
            # LIBLINEAR weights only the class that is told from the rest where there are more than two.
            factors = np.where((signs > 0) | (len(classes) == 2), balance[:, None], 1.0)
        loss = np.maximum(1.0 - signs * scores, 0.0)
        loss = loss * loss * factors if "squared" in problem.parameters["loss"] else loss * factors
        return norms + costs @ loss, noise
    if "squared" in problem.parameters["loss"]:
        loss = loss * loss
    return norms + costs @ loss, noise
