"""Sequential minimal optimisation of a block: two variables per step, second-order selection, float64.

In the notation f = K(yα) + y·p, variable k may raise y_k α_k when it is in I_up and lower it when in I_low. The step
takes i = argmin f over I_up and the j of I_low that maximises (f_j − f_i)²/η, η = K_ii + K_jj − 2K_ij, and moves
t = (f_j − f_i)/η, clipped to the box. Pairs lie within one group: ν-SVMs hold the sum of α of each sign,
which makes two groups.

Two pairs that take turns, each undoing most of what the other gained, creep along a narrow valley: a hundred thousand
steps on eight samples. When a pair comes back after one other, the two are moved together to the minimum of the plane
that they span, or as far towards it as the box allows; that counts as two steps. It never raises the objective, and the
step after it is one of a single pair again.

Pairs also creep where only many variables together get far. With a kernel of few dimensions and a large C the dual is
almost a linear programme: each pair is stopped by the curvature between its two rows, while the vertex of the box that
is wanted lies in directions without any. So when a block has taken some steps for each of its variables, conjugate
gradients go on from there, over the free variables: a variable that reaches a bound stays there, and they restart with
the others. A product counts as a step, and they take no longer than the steps before them. They never raise the
objective; only pair steps let variables leave a bound.

Source: Fan, Chen, Lin, "Working Set Selection Using Second Order Information", JMLR 2005, algorithm 2. Polyak, "The
conjugate gradient method in extremal problems", 1969; that steps of another kind decide who is at a bound is as in
Moré, Toraldo, SIAM J. Optim. 1991. The step on two pairs is ours.

**A round of the direct solver** (`advance`) takes the rows of new members in, solves the problem of all members, adds
the rows of those that moved to u = K(yα), and picks who becomes a member next. That is one call, without the
interpreter: a round of a small problem takes less than what a dozen calls of numpy do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dsgd.kernels.jit import kernel, part, scalar
from dsgd.svm.kernels.cache import add_rows

#: Stands for a curvature that is not above zero: equal rows, or a kernel that is not positive semi-definite.
_TAU = 1e-12

#: Extremes are taken of that many lanes side by side, by vector instructions; in a lane are k, k + 64, k + 128, ...
_LANES = 64

#: Steps for each variable before conjugate gradients, and rows of kernel values that these may read for each step: one
#: takes about as long.
_STEPS_EACH, _ROWS_EACH = 4, 3

#: No variable. The type of a literal -1 is that number, and Numba would compile `_turn` for it as well.
_NONE: Any = np.int64(-1)


@scalar
def _spread(lows, highs, f, bar_up, bar_low):  # type: ignore[no-untyped-def]
    """Take the lowest f_k + bar_up_k and the highest f_k − bar_low_k of each lane."""
    lanes, n = np.uint64(_LANES), np.uint64(len(f))
    for start in range(np.uint64(0), n, lanes):
        for lane in range(min(lanes, n - start)):
            low, high = f[start + lane] + bar_up[start + lane], f[start + lane] - bar_low[start + lane]
            lows[lane] = low if low < lows[lane] else lows[lane]
            highs[lane] = high if high > highs[lane] else highs[lane]


@scalar
def _gain_of(above, eta):  # type: ignore[no-untyped-def]
    """Return what a step with a variable wins whose f is so far above the least; none if it is below."""
    above = above if above > 0.0 else 0.0
    return above * above / (eta if eta > 0.0 else _TAU)


@scalar
def _gain(best, f, bar, row, diagonal, least, curvature):  # type: ignore[no-untyped-def]
    """Take the largest gain of a step with a variable of each lane."""
    lanes, n = np.uint64(_LANES), np.uint64(len(f))
    for start in range(np.uint64(0), n, lanes):
        for lane in range(min(lanes, n - start)):
            k = start + lane
            value = _gain_of(f[k] - bar[k] - least, curvature + diagonal[k] - 2.0 * row[k])
            best[lane] = value if value > best[lane] else best[lane]


@scalar
def _lowest(lanes, spare):  # type: ignore[no-untyped-def]
    """Return the lowest number of all lanes, by halves: one after another they would take as long as the sweep does."""
    half = _LANES // 2
    for k in range(half):
        spare[k] = lanes[k] if lanes[k] < lanes[k + half] else lanes[k + half]
    while half > 1:
        half //= 2
        for k in range(half):
            spare[k] = spare[k] if spare[k] < spare[k + half] else spare[k + half]
    return spare[0]


@scalar
def _highest(lanes, spare):  # type: ignore[no-untyped-def]
    """Return the highest number of all lanes."""
    half = _LANES // 2
    for k in range(half):
        spare[k] = lanes[k] if lanes[k] > lanes[k + half] else lanes[k + half]
    while half > 1:
        half //= 2
        for k in range(half):
            spare[k] = spare[k] if spare[k] > spare[k + half] else spare[k + half]
    return spare[0]


@scalar
def _find_least(f, bar, lanes, least):  # type: ignore[no-untyped-def]
    """Return the first variable whose f is the least."""
    found = len(f)
    for lane in range(min(len(f), _LANES)):
        if lanes[lane] == least:
            for k in range(lane, found, _LANES):
                if f[k] + bar[k] == least:
                    found = k
                    break
    return found


@scalar
def _find_gain(f, bar, row, diagonal, least, curvature, lanes, most):  # type: ignore[no-untyped-def]
    """Return the first variable whose gain is the most."""
    found = len(f)
    for lane in range(min(len(f), _LANES)):
        if lanes[lane] == most:
            for k in range(lane, found, _LANES):
                if _gain_of(f[k] - bar[k] - least, curvature + diagonal[k] - 2.0 * row[k]) == most:
                    found = k
                    break
    return found


@scalar
def _move(f, t, one, two):  # type: ignore[no-untyped-def]
    """Add t (one − two) to f."""
    for k in range(len(f)):
        f[k] += t * (np.float64(one[k]) - two[k])  # float64 before the difference, which cancels in float32


@scalar
def _set_bars(bar_up, bar_low, g, k, y, upper, alpha):  # type: ignore[no-untyped-def]
    """Note whether variable k is in I_up and in I_low."""
    below, above = alpha < upper, alpha > 0.0
    # Added to f they take a variable out of an extreme without a branch.
    bar_up[g, k] = 0.0 if (below if y > 0 else above) else np.inf
    bar_low[g, k] = 0.0 if (above if y > 0 else below) else np.inf


@part()
def _turn(K, y, group, upper, alpha, f, bar_up, bar_low, i, j, a, b):  # type: ignore[no-untyped-def]
    """Move two pairs together as far as it pays, apart from the faster loop of steps; return whether they moved."""
    g, h = f[i] - f[j], f[a] - f[b]
    first = np.float64(K[i, i]) + K[j, j] - 2.0 * np.float64(K[i, j])
    second = np.float64(K[a, a]) + K[b, b] - 2.0 * np.float64(K[a, b])
    both = np.float64(K[i, a]) - K[i, b] - K[j, a] + K[j, b]
    s, t = both * h - second * g, both * g - first * h  # towards the minimum, times the determinant
    size = max(abs(s), abs(t))
    if not (0.0 < size < np.inf):
        return False
    s, t = s / size, t / size
    slope, curvature = g * s + h * t, first * s * s + 2.0 * both * s * t + second * t * t
    if not slope < 0.0:
        return False
    most = -slope / curvature if curvature > 0.0 else np.inf
    which, by = (i, j, a, b), (s, -s, t, -t)
    moves = np.empty(4)
    for m in range(4):  # a variable may be in both pairs; then it moves once, by the sum
        moves[m] = 0.0
        for k in range(4):
            if which[k] == which[m]:
                moves[m] += by[k]
        k = which[m]
        room = upper[k] - alpha[k] if y[k] * moves[m] > 0.0 else alpha[k]
        if moves[m] != 0.0:
            most = min(most, room / abs(moves[m]))
    if not (0.0 < most < np.inf):
        return False
    for m in range(4):
        k = which[m]
        is_new = True
        for before in range(m):
            is_new &= which[before] != k
        if is_new and moves[m] != 0.0:
            rises = y[k] * moves[m] > 0.0
            room = upper[k] - alpha[k] if rises else alpha[k]
            if room / abs(moves[m]) == most:
                alpha[k] = upper[k] if rises else 0.0
            else:
                alpha[k] = min(max(alpha[k] + y[k] * most * moves[m], 0.0), upper[k])
    _move(f, most * s, K[i], K[j])
    _move(f, most * t, K[a], K[b])
    for k in which:
        _set_bars(bar_up, bar_low, group[k], k, y[k], upper[k], alpha[k])
    return True


@part()
def _descend(K, y, group, upper, alpha, f, bar_up, bar_low, n_groups, tol, max_steps, max_rows):  # type: ignore[no-untyped-def]
    """Minimise over free variables by conjugate gradients, to `tol`; return products, and if `max_rows` ended it."""
    q, made, n_rows, size, scale, is_fresh = len(y), 0, 0, 0.0, 1.0, True
    rest, move, change = np.empty(q), np.empty(q), np.empty(q)
    move[:] = 0.0
    sums, counts, means = np.empty(n_groups), np.empty(n_groups), np.empty(n_groups)
    while made < max_steps and n_rows < max_rows:
        sums[:], counts[:] = 0.0, 0.0
        for k in range(q):
            if 0.0 < alpha[k] < upper[k]:
                sums[group[k]] += f[k]
                counts[group[k]] += 1.0
        worst = 0.0
        for turn in range(2):  # sums to zero, as moves must, to the digits of what is left and not to those of f
            for g in range(n_groups):  # a loop, which Numba compiles in half the time of an array expression
                means[g], sums[g] = sums[g] / counts[g], 0.0
            for k in range(q):
                if 0.0 < alpha[k] < upper[k]:
                    rest[k] = means[group[k]] - f[k] if turn == 0 else rest[k] + means[group[k]]
                    sums[group[k]] -= rest[k]
                else:
                    rest[k] = 0.0
        for k in range(q):
            worst = max(worst, abs(rest[k]))
        if not tol < 2.0 * worst < np.inf:
            break
        scale = worst if is_fresh else scale  # moves are about one, so that no square overflows
        before, size = size, 0.0
        for k in range(q):
            rest[k] /= scale
            size += rest[k] * rest[k]
        share = 0.0 if is_fresh else size / before
        slope, curvature, most = 0.0, 0.0, np.inf
        change[:] = 0.0
        for k in range(q):
            move[k] = rest[k] + share * move[k] if 0.0 < alpha[k] < upper[k] else 0.0
            if move[k] != 0.0:
                slope += rest[k] * move[k]
                most = min(most, (upper[k] - alpha[k] if y[k] * move[k] > 0.0 else alpha[k]) / abs(move[k]))
                by, row = move[k], K[k]
                for m in range(q):
                    change[m] += by * row[m]
                n_rows += 1
        for k in range(q):
            curvature += move[k] * change[k]
        made += 1
        t = min(most, scale * slope / curvature) if curvature > 0.0 else most
        if not (slope > 0.0 and 0.0 < t < np.inf and abs(curvature) < np.inf):
            break
        is_fresh = t == most
        for k in range(q):
            f[k] += t * change[k]
            if move[k] != 0.0:
                rises = y[k] * move[k] > 0.0
                if (upper[k] - alpha[k] if rises else alpha[k]) / abs(move[k]) == t:
                    alpha[k] = upper[k] if rises else 0.0
                else:
                    alpha[k] = min(max(alpha[k] + y[k] * t * move[k], 0.0), upper[k])
                _set_bars(bar_up, bar_low, group[k], k, y[k], upper[k], alpha[k])
    return made, n_rows >= max_rows


@kernel
def solve_block(K, y, group, upper, alpha, f, tol, max_steps, n_groups):  # type: ignore[no-untyped-def]
    """Solve the block to `tol`; `alpha` and `f` change in place; return the steps made."""
    q = len(y)
    bar_up, bar_low = np.empty((n_groups, q)), np.empty((n_groups, q))  # zero in I_up, in I_low; else ∞
    diagonal = np.empty(q)
    for k in range(q):
        diagonal[k] = K[k, k]
        for g in range(n_groups):
            bar_up[g, k], bar_low[g, k] = np.inf, np.inf
        _set_bars(bar_up, bar_low, group[k], k, y[k], upper[k], alpha[k])
    lows, highs, gains = np.empty((n_groups, _LANES)), np.empty((n_groups, _LANES)), np.empty(_LANES)
    least, spare = np.empty(n_groups), np.empty(_LANES // 2)
    t, one, two, steps = 0.0, K[0], K[0], 0
    a, b, before_a, before_b = _NONE, _NONE, _NONE, _NONE  # the last pair, and the one before
    last, pause = 0, _STEPS_EACH * q  # when conjugate gradients ended, and the steps until they begin
    while True:
        lows[:] = np.inf
        highs[:] = -np.inf
        if steps:
            _move(f, t, one, two)
        for g in range(n_groups):
            _spread(lows[g], highs[g], f, bar_up[g], bar_low[g])
        gap = -np.inf
        for g in range(n_groups):
            least[g] = _lowest(lows[g], spare)
            gap = max(gap, _highest(highs[g], spare) - least[g])
        if gap < tol or steps >= max_steps:
            break
        i, j, gain = _NONE, _NONE, 0.0
        for g in range(n_groups):
            if least[g] == np.inf:
                continue
            lowest = _find_least(f, bar_up[g], lows[g], least[g])
            row = K[lowest]
            gains[:] = 0.0
            _gain(gains, f, bar_low[g], row, diagonal, least[g], diagonal[lowest])
            most = _highest(gains, spare)
            if most > gain:
                i, gain = lowest, most
                j = _find_gain(f, bar_low[g], row, diagonal, least[g], diagonal[lowest], gains, most)
        if j < 0:
            break
        if steps >= last + pause:
            limits = max_steps - steps, _ROWS_EACH * (steps - last)
            made, is_spent = _descend(K, y, group, upper, alpha, f, bar_up, bar_low, n_groups, 0.5 * tol, *limits)
            steps += made
            # If the rows were spent before the end, conjugate gradients are due again at once: they restart each time.
            last, pause = steps, 2 * pause if is_spent else q
            if made:
                t, a, b, before_a, before_b = 0.0, _NONE, _NONE, _NONE, _NONE
                continue
        one, two = K[i], K[j]
        takes_turns = i == before_a and j == before_b and steps + 2 <= max_steps
        if takes_turns and _turn(K, y, group, upper, alpha, f, bar_up, bar_low, i, j, a, b):
            t, a, b, before_a, before_b = 0.0, _NONE, _NONE, _NONE, _NONE
            steps += 2
            continue
        before_a, before_b, a, b = a, b, i, j
        eta = diagonal[i] + diagonal[j] - 2.0 * K[i, j]
        if eta <= 0.0:
            eta = _TAU
        room_i = upper[i] - alpha[i] if y[i] > 0 else alpha[i]
        room_j = alpha[j] if y[j] > 0 else upper[j] - alpha[j]
        t = min((f[j] - f[i]) / eta, room_i, room_j)
        alpha[i] = alpha[i] + y[i] * t
        alpha[j] = alpha[j] - y[j] * t
        # To the bound itself: the sum may round to beside it, and who is in I_up and I_low is found by comparison.
        if t == room_i:
            alpha[i] = upper[i] if y[i] > 0 else 0.0
        if t == room_j:
            alpha[j] = 0.0 if y[j] > 0 else upper[j]
        for k in (i, j):
            _set_bars(bar_up, bar_low, group[k], k, y[k], upper[k], alpha[k])
        steps += 1
    return steps


@kernel
def extremes(u, c, y, upper, alpha, group, least, most):  # type: ignore[no-untyped-def]
    """Set least[g] = min f over I_up and most[g] = max f over I_low; return the largest violation."""
    least[:] = np.inf
    most[:] = -np.inf
    for v in range(y.shape[0]):
        for k in range(y.shape[1]):
            f = u[k] + c[v, k]
            g = group[v, k]
            positive = y[v, k] > 0
            if (alpha[v, k] < upper[v, k] if positive else alpha[v, k] > 0) and f < least[g]:
                least[g] = f
            if (alpha[v, k] > 0 if positive else alpha[v, k] < upper[v, k]) and f > most[g]:
                most[g] = f
    gap = -np.inf
    for g in range(len(least)):
        gap = max(gap, most[g] - least[g])
    return gap


@kernel
def collect(u, c, y, upper, alpha, group, least, most, side, which, keys, places):  # type: ignore[no-untyped-def]
    """Collect in `keys` and `places` the violators of a group, of I_up by f or of I_low by −f; return how many."""
    count = 0
    n = y.shape[1]
    for v in range(y.shape[0]):
        for k in range(n):
            if group[v, k] != which:
                continue
            f = u[k] + c[v, k]
            positive = y[v, k] > 0
            if side == 0:
                if f < most and (alpha[v, k] < upper[v, k] if positive else alpha[v, k] > 0):
                    keys[count] = f
                    places[count] = v * n + k
                    count += 1
            elif f > least and (alpha[v, k] > 0 if positive else alpha[v, k] < upper[v, k]):
                keys[count] = -f
                places[count] = v * n + k
                count += 1
    return count


#: Kernels that the ones here take in as parts. Numba would make kernels of them first, and then both together.
_solve_block, _add_rows, _extremes = (part()(each.py_func) for each in (solve_block, add_rows, extremes))


@part()
def _add_members(flat, coefs, u):  # type: ignore[no-untyped-def]
    """Add to u the rows of the members times their coefficients, most of which may be zero."""
    slots, used, count = np.empty(len(coefs), np.int64), np.empty(len(coefs)), 0
    for a in range(len(coefs)):
        if coefs[a] != 0.0:
            slots[count], used[count] = a, coefs[a]
            count += 1
    _add_rows(u, flat, len(u), slots[:count], used[:count], np.int64(0), len(u))  # not a literal: see `solve_pairs`


@kernel
def pick_worst(u, c, y, upper, alpha, group, least, most, slot_of, n_held, room, keys, samples):  # type: ignore[no-untyped-def]
    """Pick the samples of the worst violators, `room` at most of each side of each group, and give them slots.

    Those that have one, `n_held` in number, are passed over; it is negative of the others. ``samples``, shape
    (n + r n,), takes the new ones, and ``keys``, shape (room,), is scratch; return how many there are. The rest is as
    for `extremes`.
    """
    total = 0
    for g in range(len(least)):
        for side in range(2):
            count, worst = 0, most[g] if side == 0 else -least[g]
            for v in range(y.shape[0]):
                for k in range(y.shape[1]):
                    f = u[k] + c[v, k]
                    key = f if side == 0 else -f
                    if not key < worst or slot_of[k] >= 0 or group[v, k] != g:  # most fail the first, late in a run
                        continue
                    would_rise = (y[v, k] > 0) == (side == 0)
                    if alpha[v, k] >= upper[v, k] if would_rise else alpha[v, k] <= 0.0:
                        continue
                    # Insertion into the few worst so far: `room` is small, and most samples fail the test above.
                    count = min(count + 1, room)
                    place = count - 1
                    while place > 0 and keys[place - 1] > key:
                        keys[place], samples[total + place] = keys[place - 1], samples[total + place - 1]
                        place -= 1
                    keys[place], samples[total + place] = key, k
                    if count == room:
                        worst = min(worst, keys[room - 1])
            fresh = total
            for s in range(total, total + count):  # a sample may have two variables here
                if slot_of[samples[s]] < 0:
                    slot_of[samples[s]] = n_held + fresh
                    samples[fresh] = samples[s]
                    fresh += 1
            total = fresh
    return total


@part()
def gather(slots, samples, flat, stride, out):  # type: ignore[no-untyped-def]
    """Set `out` to the values between variables, whose rows are in slots of ``flat``; return the largest in size."""
    largest = 0.0
    for a in range(len(slots)):
        row = slots[a] * stride
        for b in range(len(samples)):
            value = flat[row + samples[b]]
            out[a, b] = value
            if not abs(value) <= largest and largest == largest:  # NaN stays
                largest = abs(value)
    return largest


@kernel
def advance(slot_of, flat, block, u, c, y, upper, alpha, group, least, most, tol, max_steps):  # type: ignore[no-untyped-def]
    """Solve the problem of the members to `tol` and bring u up to date; with no steps at most, sum u = K(yα) again.

    Return the steps made, the gap over all samples, and the largest size of a kernel value in between. Members that
    violate with nobody take no part. The row of member k is in slot slot_of[k] of ``flat``, which is negative of who is
    none; ``block`` has room for the values among all their variables, and the others are as for `extremes`. ``alpha``,
    ``u``, ``least`` and ``most`` change.
    """
    n, size, q, n_held = len(u), y.size, 0, 0
    slots, samples, kinds = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    for v in range(y.shape[0]):
        for k in range(n):  # in their order, as then values are gathered from one end of a row to the other
            if slot_of[k] < 0:
                continue
            n_held, g, f = max(n_held, slot_of[k] + 1), group[v, k], u[k] + c[v, k]
            below, above = alpha[v, k] < upper[v, k], alpha[v, k] > 0.0
            rises, falls = (below, above) if y[v, k] > 0 else (above, below)
            if max_steps > 0 and ((rises and f < most[g]) or (falls and f > least[g])):
                slots[q], samples[q], kinds[q] = slot_of[k], k, v
                q += 1
    signs, bounds, f, values, groups = np.empty(q), np.empty(q), np.empty(q), np.empty(q), np.empty(q, np.int64)
    for s in range(q):
        v, k = kinds[s], samples[s]
        signs[s], bounds[s], groups[s] = y[v, k], upper[v, k], group[v, k]
        f[s], values[s] = u[k] + c[v, k], alpha[v, k]
    K = block[: q * q].reshape(q, q)
    largest = gather(slots[:q], samples[:q], flat, n, K)
    steps = _solve_block(K, signs, groups, bounds, values, f, tol, max_steps, len(least)) if q else 0
    moved = np.empty(n_held)  # nor `np.zeros` here, which Numba compiles for as long as all of this
    moved[:] = 0.0
    for s in range(q):
        v, k = kinds[s], samples[s]
        moved[slots[s]] += signs[s] * (values[s] - alpha[v, k])
        alpha[v, k] = values[s]
    if max_steps == 0:
        u[:] = 0.0
        for v in range(y.shape[0]):
            for k in range(n):
                if slot_of[k] >= 0:
                    moved[slot_of[k]] += y[v, k] * alpha[v, k]
    _add_members(flat, moved, u)
    return steps, _extremes(u, c, y, upper, alpha, group, least, most), largest
