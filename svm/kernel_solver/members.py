"""A round of the direct solver, as one compiled kernel.

A round takes the rows of new members in, solves the problem of all members, adds the rows of those that moved to
u = K(yα), and picks who becomes a member next. That is one call, without the interpreter: a round of a small problem
takes less than what a dozen calls of numpy do.
"""

from __future__ import annotations

import numpy as np

from dsgd.kernels.jit import kernel, part
from dsgd.svm.kernel_solver.smo import extremes, solve_block
from dsgd.svm.kernels.cached_rows import add_rows

#: Kernels that the ones here take in as parts. Numba would make kernels of them first, and then both together.
_solve_block, _add_rows = part()(solve_block.py_func), part()(add_rows.py_func)


@kernel
def add_members(flat, coefs, u):  # type: ignore[no-untyped-def]
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
    """Solve the problem of the members to `tol` and bring u up to date.

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
            if (rises and f < most[g]) or (falls and f > least[g]):
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
    add_members(flat, moved, u)
    return steps, extremes(u, c, y, upper, alpha, group, least, most), largest
