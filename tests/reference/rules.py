"""Update rules of minibatch steps in plain numpy, for one output and dense rows."""

from __future__ import annotations

import math

import numpy as np

from reference.sgd import gradient, rate


def minibatches(X, y, sample_weight, rule, *, n_epochs, batch, loss_name, alpha, schedule, eta0, power_t):
    """Return the model after epochs of minibatch steps with an L2 penalty.

    `rule` is (name, constants): "momentum" (mu), "nesterov" (mu), "adagrad" (epsilon), "adam", "adamw" (beta1, beta2,
    epsilon), "lars" (mu, trust).
    """
    name, constants = rule
    n, d = X.shape
    x, u, v, t = np.zeros(d + 1), np.zeros(d + 1), np.zeros(d + 1), 0
    for epoch in range(1, n_epochs + 1):
        n_batches = math.ceil(n / batch)
        for k in range(n_batches):
            rows = slice(n * k // n_batches, n * (k + 1) // n_batches)
            g = gradient(X[rows], y[rows], sample_weight[rows], x[:d], x[d], loss_name, 0.1)
            g /= rows.stop - rows.start
            t += 1
            eta = rate(schedule, t, epoch, alpha, eta0, power_t)
            penalty = np.r_[alpha * x[:d], 0.0]
            if name == "lars":
                mu, trust = constants
                norm_x, norm_g = np.linalg.norm(x[:d]), np.linalg.norm(g[:d])
                ratio = trust * norm_x / (norm_g + alpha * norm_x) if norm_x * norm_g > 0 else 1.0
                u = mu * u + eta * np.r_[ratio * (g + penalty)[:d], g[d]]
                x = x - u
                continue
            if name == "adamw":
                x = x - eta * penalty
            else:
                g = g + penalty
            if name in ("momentum", "nesterov"):
                (mu,) = constants
                u = mu * u + g
                g = u if name == "momentum" else g + mu * u
            elif name == "adagrad":
                v = v + g**2
                g = g / (np.sqrt(v) + constants[0])
            else:
                beta1, beta2, epsilon = constants
                u = beta1 * u + (1 - beta1) * g
                v = beta2 * v + (1 - beta2) * g**2
                g = u / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + epsilon)
            x = x - eta * g
    return x
