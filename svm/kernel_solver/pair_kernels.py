"""A small pair of classes, solved and proven by one compiled kernel.

The method is that of `dsgd.svm.kernel_solver.direct`: members whose rows over all samples of the pair are held, rounds
that take in the worst violators, and sums added up anew before the gap is believed. Of many classes most pairs take
less time than a few dozen calls of numpy do, so here everything between two looks at the clock is one call without the
interpreter lock. Unusual cases are not handled: the call ends and reports that the pair is open, and the caller
continues from its variables with a solver that handles them.

A value costs a product of two rows by BLAS and a function of it. Values between samples of one class are those of all
pairs of that class; they are read if they have been computed before.
"""

from __future__ import annotations

import numpy as np

from dsgd.kernels.jit import kernel, part, scalar
from dsgd.svm.kernel_solver.members import add_members, advance, pick_worst
from dsgd.svm.kernel_solver.problem import SUM_ROUNDING
from dsgd.svm.kernel_solver.smo import extremes
from dsgd.svm.kernels.exponential import exp_double

#: How a call ends: with a gap below the tolerance, with work left to do, with numbers that are not finite.
PROVEN, OPEN, BROKEN = 0, 1, 2
#: Kernels by name; of a given matrix rows are read.
KINDS = {"linear": 0, "rbf": 1, "poly": 2, "sigmoid": 3, "precomputed": 4}
_RBF, _POLY, _SIGMOID, GIVEN = 1, 2, 3, 4
#: The results of a call, in this order; then the threshold of each group.
TOLD = ("status", "n_iter", "n_records", "gap", "duality_gap", "objective", "n_evaluations")

#: Kernels that are parts of the one here, as in `dsgd.svm.kernel_solver.members`.
_advance, _pick_worst = part()(advance.py_func), part()(pick_worst.py_func)

#: Members that a round adds: one for so many that there are.
_SHARE = 4
#: How far a round closes the gap of its members; the last go to the tolerance.
_BY_ROUND = 0.1
#: Proofs that may fail.
_MOST_PROOFS = 3
_EPS = float(np.finfo(np.float64).eps)


@scalar
def _finish(kind, gamma, coef0, degree, values):  # type: ignore[no-untyped-def]
    """Turn products into kernel values."""
    if kind == _RBF:
        exp_double(values)
    elif kind == _SIGMOID:
        for k in range(len(values)):
            values[k] = np.tanh(gamma * values[k] + coef0)
    elif kind == _POLY:
        for k in range(len(values)):
            value = gamma * values[k] + coef0
            if degree == 3.0:
                values[k] = value * (value * value)
            elif degree == 2.0:
                values[k] = value * value
            else:
                values[k] = value**degree


@part()
def fill_rows(kernel_of, rows, order, own, own_at, starts, samples, before, room, flat):  # type: ignore[no-untyped-def]
    """Set rows `before`, `before` + 1, ... of ``flat`` to those of `samples`; return the values computed."""
    kind, gamma, coef0, degree = kernel_of
    n0, width = starts[1] - starts[0], rows.shape[1]
    n, computed = n0 + starts[3] - starts[2], 0
    if kind == GIVEN:
        for s in range(len(samples)):
            at = samples[s] + (starts[0] if samples[s] < n0 else starts[2] - n0)
            for k in range(n):
                flat[(before + s) * n + k] = rows[order[at], order[k + (starts[0] if k < n0 else starts[2] - n0)]]
        return len(samples) * n
    for side in range(2):
        shift, count = starts[0] if side == 0 else starts[2] - n0, 0
        for s in range(len(samples)):
            if (samples[s] >= n0) == (side == 1):
                row = rows[samples[s] + shift]
                for k in range(width):
                    room[count * width + k] = row[k]
                if kind == _RBF:
                    # Rows end in (-γ‖x‖², 1); swapped on this side, so that a product is the exponent itself.
                    room[(count + 1) * width - 2], room[(count + 1) * width - 1] = row[width - 1], row[width - 2]
                count += 1
        if count == 0:
            continue
        left = room[: count * width].reshape(count, width)
        for other in range(2):
            begin, end = starts[2 * other], starts[2 * other + 1]
            m, at, a = end - begin, own_at[side] if side == other else -1, 0
            values = room[count * width : count * (width + m)]
            if at < 0:
                np.dot(left, rows[begin:end].T, values.reshape(count, m))
                _finish(kind, gamma, coef0, degree, values)
                computed += count * m
            for s in range(len(samples)):
                if (samples[s] >= n0) == (side == 1):
                    target = (before + s) * n + (n0 if other == 1 else 0)
                    # Loops: to assign a slice, Numba compiles the text of an error, which takes it some seconds.
                    if at < 0:
                        for k in range(m):
                            flat[target + k] = values[a * m + k]
                    else:
                        source = at + (samples[s] - (n0 if side == 1 else 0)) * m
                        for k in range(m):
                            flat[target + k] = own[source + k]
                    a += 1
    return computed


@scalar
def _sort(points, weights, m):  # type: ignore[no-untyped-def]
    """Sort the first m points, and their weights with them, by Shell's method: `np.argsort` takes Numba seconds."""
    apart = m
    while apart > 1:
        apart = max(1, apart * 5 // 11)
        for s in range(apart, m):
            point, weight, k = points[s], weights[s], s
            while k >= apart and points[k - apart] > point:
                points[k], weights[k] = points[k - apart], weights[k - apart]
                k -= apart
            points[k], weights[k] = point, weight


@part()
def _settle(y, upper, alpha, group, n_groups, fixed):  # type: ignore[no-untyped-def]
    """Put variables at their bounds where `dsgd.svm.kernel_solver.problem.settled` does; return whether any moved."""
    has_moved, drift = False, -fixed
    for k in range(alpha.shape[1]):
        drift += y[0, k] * alpha[0, k]
    for g in range(n_groups):
        total, farthest = 0.0, 0.0
        for k in range(alpha.shape[1]):
            if group[0, k] == g:
                total += alpha[0, k]
                farthest = max(farthest, min(alpha[0, k], upper[0, k] - alpha[0, k]))
        if 0.0 < farthest <= SUM_ROUNDING * total + abs(drift):
            has_moved = True
            for k in range(alpha.shape[1]):
                if group[0, k] == g:
                    alpha[0, k] = 0.0 if alpha[0, k] < upper[0, k] - alpha[0, k] else upper[0, k]
    return has_moved


@part()
def conclude_pair(u, c, y, p, upper, alpha, group, least, most, fixed, told):  # type: ignore[no-untyped-def]
    """Set what is told of a solution: gap, objective, duality gap and thresholds, as `conclude` computes them.

    `fixed` is what y α has to sum to. The best threshold is a weighted quantile of -f. Whose f is above the highest of
    I_low counts in full, whose f is below the lowest of I_up not at all, so it lies between the two, and few have to be
    sorted.
    """
    n, objective, total = len(u), 0.0, 0.0
    if _settle(y, upper, alpha, group, len(least), fixed):
        told[3] = extremes(u, c, y, upper, alpha, group, least, most)
    points, weights = np.empty(n), np.empty(n)
    for k in range(n):
        objective += alpha[0, k] * (0.5 * y[0, k] * u[k] + p[0, k])
    for g in range(len(least)):
        m, mass, free, n_free, best = 0, 0.0, 0.0, 0, -np.inf
        low, high = min(least[g], most[g]), max(least[g], most[g])
        for k in range(n):
            if group[0, k] == g:
                f = u[k] + c[0, k]
                mass += upper[0, k] - alpha[0, k] if y[0, k] > 0 else alpha[0, k]
                if f > high:
                    mass -= upper[0, k]
                    best = max(best, -f)
                elif f >= low:
                    points[m], weights[m] = -f, upper[0, k]
                    m += 1
                if 0.0 < alpha[0, k] < upper[0, k]:
                    free, n_free = free + f, n_free + 1
        _sort(points, weights, m)
        for s in range(m):
            best = points[s]
            mass -= weights[s]
            if mass <= 0.0:
                break
        for k in range(n):
            if group[0, k] == g:
                slack = -y[0, k] * (u[k] + c[0, k] + best)
                total += (upper[0, k] - alpha[0, k]) * slack if slack > 0.0 else -alpha[0, k] * slack
        ends, n_ends = 0.0, 0
        for end in (least[g], most[g]):
            if np.isfinite(end):
                ends, n_ends = ends + end, n_ends + 1
        told[7 + g] = free / n_free if n_free else (ends / n_ends if n_ends else 0.0)
    told[4], told[5] = total, objective


@scalar
def _total(values):  # type: ignore[no-untyped-def]
    """Return the sum, one number after another."""
    total = 0.0
    for k in range(len(values)):
        total += values[k]
    return total


@part()
def _renew(flat, slots, u, c, y, upper, alpha, group, least, most):  # type: ignore[no-untyped-def]
    """Add u up anew from the rows of the members, and return the gap."""
    coefs = np.empty(len(slots))
    for s in range(len(slots)):
        coefs[s] = y[0, slots[s]] * alpha[0, slots[s]]
    u[:] = 0.0
    add_members(flat, coefs, u)
    return extremes(u, c, y, upper, alpha, group, least, most)


@kernel
def solve_pairs(kernel_of, rows, order, own, owns, places, duals, tol, limits, fewests, memory, sums, results, events):  # type: ignore[no-untyped-def]
    """Solve the duals of pairs of classes; the variables change, ``results`` and ``events`` are set.

    - `rows`, shape (n_rows, width): prepared rows, those of a class one after another; or the given matrix.
    - `own`, `owns`, shape (n_pairs, 2): values within classes, and where those of either class begin; below zero
      where they are not held.
    - `places`, shape (n_pairs, 4): where the rows of either class begin and end; the samples of a pair are those of
      the first, then the second.
    - `duals`, shape (4, n): signs, linear terms, upper bounds and variables, those of one pair after those of
      another.
    - `limits`, `fewests`, shape (n_pairs,): steps at most; members that a round adds at least. With as many as
      there are samples all are members at once.
    - `events`, shape (n_pairs * n_records, 4): takes of each event whether it is a proof, the steps, the gap and
      the values computed; the events of a pair come after those of the one before, and are `n_records` at most.
    """
    begin, first, n_events = 0, 0, len(events) // len(places)
    # No call for each: Numba would optimise what it calls, and then both together once more.
    for number in range(len(places)):
        own_at, starts, told = owns[number], places[number], results[number]
        limit, fewest = limits[number], fewests[number]
        n, n_groups = starts[1] - starts[0] + starts[3] - starts[2], len(told) - 7
        u, records = sums[begin : begin + n], events[first : first + n_events]
        # Copied by a loop: to give a slice another shape takes Numba longer.
        y, p, upper, alpha = np.empty((1, n)), np.empty((1, n)), np.empty((1, n)), np.empty((1, n))
        group = np.empty((1, n), np.int64)
        for k in range(n):
            y[0, k], p[0, k] = duals[0, begin + k], duals[1, begin + k]
            upper[0, k], alpha[0, k] = duals[2, begin + k], duals[3, begin + k]
            group[0, k] = 1 if n_groups > 1 and y[0, k] < 0.0 else 0
        flat, room = memory[: n * n], memory[n * n :]  # room holds values among members, or what rows are made of
        c, least, most = np.empty((1, n)), np.empty(n_groups), np.empty(n_groups)
        slot_of, keys, picked = np.empty(n, np.int64), np.empty(n), np.empty(2 * n, np.int64)
        # A literal 0 has a type of its own, for which Numba would compile what it is handed to once more.
        members, held, computed, steps, at, n_failed = np.empty(n, np.int64), np.int64(0), 0, 0, 0, 0
        fixed = 0.0
        for k in range(n):
            c[0, k], slot_of[k] = y[0, k] * p[0, k], -1
            fixed += y[0, k] * alpha[0, k]
            if alpha[0, k] > 0.0:
                slot_of[k], members[held] = held, k
                held += 1
        computed += fill_rows(kernel_of, rows, order, own, own_at, starts, members[:held], np.int64(0), room, flat)
        gap = _renew(flat, members[:held], u, c, y, upper, alpha, group, least, most)
        # A little below `tol`: u that is added up anew for the proof differs by rounding.
        status, target, largest, is_stuck, has_grown = OPEN, 0.9 * tol, 0.0, False, True
        told[3] = gap
        while True:
            if not np.isfinite(largest + _total(u)):
                status = BROKEN
                break
            if at + 2 > len(records):
                break
            if gap < target or is_stuck:
                gap = _renew(flat, members[:held], u, c, y, upper, alpha, group, least, most)
                records[at, 0], records[at, 1], records[at, 2], records[at, 3] = 1.0, steps, gap, computed
                at += 1
                if gap < tol:
                    status = PROVEN
                    break
                n_failed, target = n_failed + 1, 0.5 * target
            if steps >= limit or n_failed >= _MOST_PROOFS:
                break
            # Rounding of u may be as large as this, so no further step shows.
            if not has_grown and gap < _EPS * largest * _total(alpha[0]):
                break
            records[at, 0], records[at, 1], records[at, 2], records[at, 3] = 0.0, steps, gap, computed
            at += 1
            if fewest < n:
                fresh = max(1, max(fewest, held // _SHARE) // (2 * n_groups))
                fresh = _pick_worst(u, c, y, upper, alpha, group, least, most, slot_of, held, fresh, keys, picked)
            else:
                fresh = 0
                for k in range(n):
                    if slot_of[k] < 0:
                        slot_of[k], picked[fresh] = held + fresh, k
                        fresh += 1
            has_grown = fresh > 0
            if has_grown:
                computed += fill_rows(kernel_of, rows, order, own, own_at, starts, picked[:fresh], held, room, flat)
                for k in range(fresh):
                    members[held + k] = picked[k]
                held += fresh
            aim = target if held == n else max(target, _BY_ROUND * gap)
            made, gap, size = _advance(
                slot_of, flat, room, u, c, y, upper, alpha, group, least, most, aim, min(limit - steps, limit)
            )
            largest, is_stuck = max(largest, size), made == 0 and not has_grown
            if not size >= 0.0:  # NaN
                largest = size
            steps += made
        told[0], told[1], told[2], told[3], told[6] = status, steps, at, gap, computed
        if status == PROVEN:
            conclude_pair(u, c, y, p, upper, alpha, group, least, most, fixed, told)
            if not np.isfinite(told[5]):
                told[0] = BROKEN
        for k in range(n):
            duals[3, begin + k] = alpha[0, k]
        begin, first = begin + n, first + at
