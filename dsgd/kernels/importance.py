"""Steps on rows that are drawn by importance, from a tree of sums.

With uniform rows the noise of a step is the mean square of the rows' gradients, which a few outliers dominate; drawn in
proportion to their norms it is the square of their mean, which may be n times less.

Update, with h_i the last seen norm of the gradient of row i, and the share theta of uniform draws::

    p_i = (1 - theta) h_i / sum(h) + theta / n;   draw i;   w <- w - eta grad_i / (n p_i);   h_i <- norm(grad_i)

So the expected step is that of the mean gradient, whatever h is. As in the source, h_i is set only if the draw was a
uniform one. The norm of a row's gradient is ``weight |slope| sqrt(|x|^2 + 1)``, over the outputs together where there
are several: one draw serves them all, and a row is read once. The penalty has no part in it.

The first epoch visits every row once, in the order of an epoch, and fills h. Later ones draw as many rows as there are.
`AHEAD` draws are made together, from h as it is before the first of their steps: then their rows come from memory
meanwhile. They stay unbiased, since p_i is that of the draw.

**The tree.** To draw one of n rows with a probability proportional to a weight, while each step changes one of the
weights.

Level 0 holds the weights; an entry of the level above is the sum of eight neighbours, which share a cache line. The top
level has eight entries at most. A draw goes down from the top, a change goes up from its weight. A sum is added up
again from its eight entries and never changed by a difference: the tree is a function of the weights, to the bit, and
rounding does not build up.

Cost: 8 n / 7 numbers of float64, and log_8(n) lines of memory for a draw or a change. Weights have fixed places, so
nothing needs to be rebalanced.

Source: El Hanchi and Stephens 2020 (Adaptive importance sampling for finite-sum optimization); El Hanchi, Stephens and
Maddison 2022 (Stochastic reweighted gradient descent), whose red-black tree is for the same bound.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from dsgd.kernels import scaled, state
from dsgd.kernels.jit import leaf_kernel, scalar
from dsgd.kernels.order import block_at, draw, mix64, rows_ahead
from dsgd.kernels.rows import (
    RowArrays,
    Span,
    Sparse,
    add_columns,
    add_row,
    prefetch,
    row_bounds,
    row_dot,
    row_square,
    score_columns,
)
from dsgd.kernels.state import Beside, Steps
from dsgd.types import FloatVector, IntMatrix, IntVector, WordVector

#: Entries that a sum is of: a cache line of float64.
FANOUT = 8

#: The tree of norms and its levels; the epoch that fills it; scratch for rows and their scales; the stream; theta.
Drawn: TypeAlias = tuple[FloatVector, IntVector, FloatVector, WordVector, WordVector, FloatVector, np.uint64, float]
_EIGHT = np.uint64(8)
_THREE = np.uint64(3)
_ONE = np.uint64(1)
_ZERO = np.uint64(0)


def sum_levels(n: int) -> IntVector:
    """Return where each level of a tree of n weights begins, and the top level ends: multiples of `FANOUT`."""
    places, size = [0], max(1, n)
    while True:
        n_groups = math.ceil(size / FANOUT)
        places.append(places[-1] + FANOUT * n_groups)
        if n_groups == 1:
            return np.array(places, np.int64)
        size = n_groups


@scalar
def group_sum(tree: FloatVector, first: np.uint64) -> float:
    """Return the sum of a group."""
    # As two halves of two: rounding is the same for all that read it, and additions wait less for each other.
    low = (tree[first] + tree[first + np.uint64(1)]) + (tree[first + np.uint64(2)] + tree[first + np.uint64(3)])
    high = (tree[first + np.uint64(4)] + tree[first + np.uint64(5)]) + (
        tree[first + np.uint64(6)] + tree[first + np.uint64(7)]
    )
    return float(low + high)


@scalar
def total(tree: FloatVector, levels: IntVector) -> float:
    """Return the sum of all weights."""
    found: float = group_sum(tree, np.uint64(levels[levels.shape[0] - 2]))
    return found


@scalar
def update_all(tree: FloatVector, levels: IntVector, places: WordVector, n: np.uint64) -> None:
    """Add up the sums above n places whose weights have changed; level by level, so that none waits for another."""
    for level in range(levels.shape[0] - 2):
        first, above = np.uint64(levels[level]), np.uint64(levels[level + 1])
        for k in range(n):
            group = places[k] >> _THREE
            tree[above + group] = group_sum(tree, first + group * _EIGHT)
            places[k] = group


@scalar
def descend(tree: FloatVector, first: np.uint64, left: float) -> tuple[np.uint64, float]:
    """Return the child of a group that something left of its sum falls on, and what is left of that child."""
    # Without branches, which nobody could predict: how many entries end at or before what is left.
    end, child, before = 0.0, _ZERO, 0.0
    for k in range(np.uint64(7)):
        end += tree[first + k]
        is_beyond = left >= end
        child += _ONE if is_beyond else _ZERO
        before = end if is_beyond else before
    # Rounding may lead past the last entry that is not zero: that one is meant.
    while tree[first + child] <= 0.0 and child > _ZERO:
        child -= _ONE
    return child, max(0.0, left - before)


@scalar
def find_all(
    tree: FloatVector, levels: IntVector, which: WordVector, n: np.uint64, left: FloatVector, places: WordVector
) -> None:
    """Find the places that `left`, parts of the sum of all weights, fall on, by levels; never one of weight zero."""
    n_levels = levels.shape[0] - 1
    for d in range(n):
        places[which[d]] = _ZERO
    for above in range(n_levels):
        base = np.uint64(levels[n_levels - 1 - above])
        below = np.uint64(levels[max(0, n_levels - 2 - above)])
        for d in range(n):
            j = which[d]
            child, left[j] = descend(tree, base + places[j] * _EIGHT, left[j])
            places[j] = places[j] * _EIGHT + child
            if above < n_levels - 1:
                prefetch(tree, below + places[j] * _EIGHT)


@leaf_kernel
def build(tree: FloatVector, levels: IntVector) -> None:
    """Add up all levels above the weights."""
    for level in range(levels.shape[0] - 2):
        first, above = np.uint64(levels[level]), np.uint64(levels[level + 1])
        n_groups = np.uint64(levels[level + 1] - levels[level]) >> _THREE
        for group in range(n_groups):
            tree[above + group] = group_sum(tree, first + group * _EIGHT)


#: Rows that are drawn together.
AHEAD = 32

#: Entries of a row that are asked for ahead, in lines of 64 bytes; those behind follow by themselves.
_LINES = 4
_HALF = np.uint64(32)
_UNIT = 2.0**-53
_ELEVEN = np.uint64(11)


@scalar
def walk_rows(order: IntMatrix, chosen: WordVector, start: int, stop: int) -> None:
    """Write into `chosen` the rows at the places start..stop of a walk."""
    at, block = start, block_at(order, start)
    while at < stop:
        begins = np.uint64(at - start)
        first, last, at, block = rows_ahead(order, block, at, stop)
        for j in range(last - first):
            chosen[begins + j] = first + j


@scalar
def any_row(word: np.uint64, n_rows: int) -> np.uint64:
    """Return the row that a random word stands for, each of them as likely as the others."""
    return ((word >> _HALF) * np.uint64(n_rows)) >> _HALF


@leaf_kernel
def choose_rows(drawn: Drawn, order: IntMatrix, epoch: float, start: int, stop: int) -> None:
    """Choose the rows of the places start..stop of an epoch, `AHEAD` at most.

    - `epoch`: the epoch; a place of it has the same random numbers whatever calls it is in.
    - `drawn`: see `Drawn`. Of the scales, each is ``1 / (n p)``, negative where the norm is not to be set; in the epoch
      that fills the norms, rows are those of the walk.
    """
    tree, levels, filled, which, chosen, scales, key, uniform = drawn
    n_rows = order[0, order.shape[1] - 1]
    if filled[0] == epoch:
        walk_rows(order, chosen, start, stop)
        for j in range(np.uint64(stop - start)):
            scales[j] = 1.0
        return
    whole = total(tree, levels)
    stream = draw(mix64(key), np.uint64(epoch))
    # Without any gradient all rows are alike.
    share = uniform if whole > 0.0 else 1.0
    inverse = (1.0 - share) * n_rows / whole if whole > 0.0 else 0.0
    n, n_found = np.uint64(stop - start), _ZERO
    for j in range(n):
        counter = (np.uint64(start) + j) * np.uint64(2)
        coin, word = draw(stream, counter), draw(stream, counter + _ONE)
        chosen[j] = any_row(word, n_rows)
        scales[j] = float(word >> _ELEVEN) * _UNIT * whole
        which[n_found] = j
        is_uniform = float(coin >> _ELEVEN) * _UNIT < share
        n_found += _ZERO if is_uniform else _ONE
        prefetch(tree, chosen[j])
    find_all(tree, levels, which, n_found, scales, chosen)
    for j in range(n):
        scales[j] = 1.0 / (inverse * tree[chosen[j]] + share)
    for d in range(n_found):
        scales[which[d]] = -scales[which[d]]


@scalar
def ask_for(rows: RowArrays, sparse: Sparse | None, n_features: np.uint64, chosen: WordVector, n: np.uint64) -> None:
    """Ask for the memory of rows that come next."""
    values, index, targets, row_weights, _ = rows
    for j in range(n):
        prefetch(targets, chosen[j])
        prefetch(row_weights, chosen[j])
        if sparse is not None:
            prefetch(sparse[1], np.uint64(index[chosen[j]]))
    for j in range(n):
        first, last = row_bounds(index, sparse, chosen[j], n_features)
        for line in range(np.uint64(_LINES)):
            place = first + line * np.uint64(64 // values.itemsize)
            if place < last:
                prefetch(values, place)
                if sparse is not None:
                    prefetch(sparse[0], place)


@scalar
def row_norm(values: FloatVector, span: Span, row_weight: float, squares: float, intercept_rate: float) -> float:
    """Return the norm of a row's gradient, of the squares of the slopes of its outputs; 0 if it is not finite."""
    square = float(row_square(values, span)) if squares > 0.0 else 0.0
    norm = abs(row_weight) * math.sqrt(squares * (square + (1.0 if intercept_rate > 0.0 else 0.0)))
    # A model that leaves the range of numbers is noticed elsewhere; the tree must not.
    return norm if norm < math.inf else 0.0


@leaf_kernel
def run_drawn(
    rows: RowArrays,
    sparse: Sparse | None,
    params: FloatVector,
    beside: Beside,
    steps: Steps,
    drawn: Drawn,
    start: int,
    stop: int,
) -> None:
    """Take one step on the row of each of the places start..stop, in order, for all outputs.

    - `constants`, `codes`, `order`: as in `dsgd.kernels.sgd.run_rows`. Losses are counted times ``1 / (n p)``.
    - `tree`: the sum tree of the norms h, updated in place. While an epoch fills h, only its first level.
    - `filled`, shape (1,): the epoch that has filled h, or does so now; 0 before.
    """
    values, index, _, row_weights, _ = rows
    factors = beside[2]
    counters, constants, codes, order = steps
    tree, levels, filled, which, chosen, scales, _, uniform = drawn
    n_outputs = np.uint64(codes[state.N_OUTPUTS])
    n_features = np.uint64(codes[state.N_FEATURES])
    n_weights = n_outputs * n_features
    dtype = params.dtype.type
    t, n_averaged, owed_total = counters[state.T], counters[state.N_AVERAGED], counters[state.L1_TOTAL]
    loss_sum, guard = 0.0, 0.0
    scale, a, b = 1.0, 0.0, 1.0
    min_scale = scaled.MIN_SCALE_AVERAGING if codes[state.AVERAGE] > 0 else scaled.MIN_SCALE
    is_wide = sparse is not None and n_outputs > _ONE
    if filled[0] == 0.0:
        filled[0] = counters[state.EPOCH]
    walks = filled[0] == counters[state.EPOCH]
    before = False, (_ZERO, _ZERO)
    for at in range(start, stop, AHEAD):
        end = min(stop, at + AHEAD)
        n_chosen = np.uint64(end - at)
        choose_rows(drawn, order, counters[state.EPOCH], at, end)
        if not walks:
            ask_for(rows, sparse, n_features, chosen, n_chosen)
        n_set = _ZERO
        for j in range(n_chosen):
            i = chosen[j]
            span = row_bounds(index, sparse, i, n_features)
            eta = state.rate_now(counters, constants, codes, t)
            averages = 0 < codes[state.AVERAGE] <= t
            score_scale = scale
            shrink = 1.0 - constants[state.SHRINK_RATE] * eta
            is_wiped = shrink < scaled.MIN_SHRINK
            scale = 1.0 if is_wiped else scale * shrink
            if sparse is not None:
                if is_wide:
                    score_columns(values, sparse, span, params, factors)
                else:
                    factors[0] = row_dot(values, sparse, span, params, _ZERO)
                if is_wiped:
                    scaled.wipe(params, beside, a, sparse, before, n_outputs)
                before = is_wiped, span
            if scale < min_scale:
                scaled.fold(params, beside, scale, a, b, n_weights)
                if sparse is None:
                    score_scale /= scale
                scale, a, b = 1.0, 0.0, 1.0
            inverse = 1.0 / scale
            weight = abs(scales[j])
            squares = 0.0
            for k in range(n_outputs):
                base = k * n_features
                if sparse is None:
                    p = score_scale * row_dot(values, sparse, span, params, base) + params[n_weights + k]
                    if is_wiped:
                        scaled.clear(params, beside, a, None, (base, base + n_features), n_outputs)
                else:
                    p = score_scale * factors[k] + params[n_weights + k]
                loss, slope, class_weight = state.loss_of_output(rows, steps, i, k, p)
                loss_sum += weight * loss
                counters[np.uint64(state.COUNTERS) + k] += weight * loss
                guard += p * 0.0
                slope *= class_weight
                squares += slope * slope
                gain = eta * weight * row_weights[i]
                params[n_weights + k] -= dtype(constants[state.INTERCEPT_RATE] * gain * slope)
                step = -slope * (gain * inverse)
                if is_wide:
                    factors[k] = step
                elif step != 0.0:
                    scaled.add_step(values, sparse, span, params, beside, base, step, a)
            if sparse is not None and is_wide:
                scaled.add_steps(values, sparse, span, params, beside, a)
            if scales[j] > 0.0 and uniform < 1.0:
                tree[i] = row_norm(values, span, row_weights[i], squares, constants[state.INTERCEPT_RATE])
                which[n_set] = i
                n_set += _ONE
            if constants[state.L1_RATE] > 0.0:
                owed_total += constants[state.L1_RATE] * eta
                scaled.truncate_row(sparse, span, params, beside, owed_total, scale, a)
            if averages:
                n_averaged, a, b = scaled.join_average(params, beside, n_weights, scale, (n_averaged, a, b))
            t += 1.0
        if not walks:
            update_all(tree, levels, which, n_set)
    scaled.fold(params, beside, scale, a, b, n_weights)
    counters[state.T] = t
    counters[state.N_AVERAGED] = n_averaged
    counters[state.L1_TOTAL] = owed_total
    state.count_rows(counters, stop - start, loss_sum, guard)


@leaf_kernel
def gradient_drawn(
    rows: RowArrays,
    sparse: Sparse | None,
    params: FloatVector,
    out: FloatVector,
    factors: FloatVector,
    steps: Steps,
    drawn: Drawn,
    start: int,
    stop: int,
) -> None:
    """Write into `out` the sum of the gradients of the rows of some places, each times ``1 / (n p)``."""
    values, index, _, row_weights, _ = rows
    counters, constants, codes, order = steps
    tree, levels, filled, which, chosen, scales, _, uniform = drawn
    n_outputs = np.uint64(codes[state.N_OUTPUTS])
    n_features = np.uint64(codes[state.N_FEATURES])
    n_weights = n_outputs * n_features
    for j in range(np.uint64(out.shape[0])):
        out[j] = 0.0
    loss_sum, guard = 0.0, 0.0
    is_wide = sparse is not None and n_outputs > _ONE
    if filled[0] == 0.0:
        filled[0] = counters[state.EPOCH]
    walks = filled[0] == counters[state.EPOCH]
    for at in range(start, stop, AHEAD):
        end = min(stop, at + AHEAD)
        n_chosen = np.uint64(end - at)
        choose_rows(drawn, order, counters[state.EPOCH], at, end)
        if not walks:
            ask_for(rows, sparse, n_features, chosen, n_chosen)
        n_set = _ZERO
        for j in range(n_chosen):
            i = chosen[j]
            span = row_bounds(index, sparse, i, n_features)
            if sparse is not None and is_wide:
                score_columns(values, sparse, span, params, factors)
            weight = abs(scales[j])
            squares = 0.0
            for k in range(n_outputs):
                base = k * n_features
                dot = factors[k] if is_wide else row_dot(values, sparse, span, params, base)
                p = float(dot) + params[n_weights + k]
                loss, slope, class_weight = state.loss_of_output(rows, steps, i, k, p)
                loss_sum += weight * loss
                counters[np.uint64(state.COUNTERS) + k] += weight * loss
                guard += p * 0.0
                slope *= class_weight
                squares += slope * slope
                slope *= weight * row_weights[i]
                if constants[state.INTERCEPT_RATE] > 0.0:
                    out[n_weights + k] += out.dtype.type(slope)
                if is_wide:
                    factors[k] = slope
                elif slope != 0.0:
                    add_row(values, sparse, span, out, base, slope)
            if sparse is not None and is_wide:
                add_columns(values, sparse, span, out, factors, 1.0)
            if scales[j] > 0.0 and uniform < 1.0:
                tree[i] = row_norm(values, span, row_weights[i], squares, constants[state.INTERCEPT_RATE])
                which[n_set] = i
                n_set += _ONE
        if not walks:
            update_all(tree, levels, which, n_set)
    state.count_rows(counters, stop - start, loss_sum, guard)
