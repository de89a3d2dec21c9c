"""Anytime SGD in plain numpy: ranks run in turn, each on a clock that only its own rows advance."""

from __future__ import annotations

import numpy as np

from reference.sgd import rate, slope


def anytime(parts, costs_s, seconds, n_epochs, *, loss_name, alpha, schedule):
    """Return (model of every rank, rows that each rank visited in each round, rounds in each epoch).

    `parts` has (X, y, weights) of each rank, `costs_s` the seconds that a row of each takes.
    """
    d = parts[0][0].shape[1]
    n_total = sum(len(y) for _, y, _ in parts)
    model = np.zeros(d + 1)
    steps = [0] * len(parts)
    visits, rounds = [], []
    for epoch in range(1, n_epochs + 1):
        visited, n_rounds = 0, 0
        while visited < n_total or not n_rounds:
            models, done = [], []
            for rank, (X, y, weights) in enumerate(parts):
                w, b = model[:d].copy(), model[d]
                n_own = walked(len(y), costs_s[rank], seconds, steps[rank])
                for _ in range(n_own):
                    i = steps[rank] % len(y)
                    eta = rate(schedule, steps[rank] + 1, epoch, alpha, 0.01, 0.5)
                    update = -eta * slope(loss_name, y[i], X[i] @ w + b, 0.1) * weights[i]
                    w = w * max(0.0, 1 - eta * alpha) + update * X[i]
                    b += update
                    steps[rank] += 1
                models.append(np.r_[w, b])
                done.append(n_own)
            total = sum(done)
            if total:
                model = sum(n * own for n, own in zip(done, models, strict=True)) / total
            visits.append(done)
            visited += total
            n_rounds += 1
        rounds.append(n_rounds)
    return model, visits, rounds


def walked(n_rows, cost_s, seconds, step):
    """Return how many rows a rank visits in a round that it begins at this step.

    It looks at the clock after every slice; the end of the rows ends a slice too.
    """
    done, size = 0, 1
    while done < n_rows:
        start = step % n_rows
        n = min(size, n_rows - done, n_rows - start)
        done, step = done + n, step + n
        elapsed_s = done * cost_s
        if elapsed_s >= seconds:
            break
        size = max(1, int(min(2 * size, done / elapsed_s * min(seconds - elapsed_s, seconds / 8))))
    return done
