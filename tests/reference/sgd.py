"""Sequential SGD in plain numpy, one row and one output at a time: slow, and easy to read beside the equations."""

from __future__ import annotations

import math

import numpy as np


def parameter_of(name, epsilon):
    """Return a parameter that the loss can have: `epsilon`, but a power for tweedie."""
    return 1.0 + epsilon if name == "tweedie" else epsilon


def targets_of(name, y):
    """Return targets that the loss can take."""
    return np.abs(y) if name in ("poisson", "gamma", "tweedie") else y


def loss(name, y, p, epsilon):
    """Return the loss."""
    z, r, c = y * p, p - y, min(max(p, -500.0), 500.0)
    return {
        "hinge": lambda: max(0.0, 1 - z),
        "squared_hinge": lambda: max(0.0, 1 - z) ** 2,
        "log_loss": lambda: math.log1p(math.exp(-z)) if z > -30 else -z,
        "softmax": lambda: loss("log_loss", y, p, epsilon),  # of two classes, which have one prediction
        "modified_huber": lambda: max(0.0, 1 - z) ** 2 if z >= -1 else -4 * z,
        "perceptron": lambda: max(0.0, -z),
        "squared_error": lambda: r * r / 2,
        "huber": lambda: r * r / 2 if abs(r) <= epsilon else epsilon * abs(r) - epsilon**2 / 2,
        "epsilon_insensitive": lambda: max(0.0, abs(r) - epsilon),
        "squared_epsilon_insensitive": lambda: max(0.0, abs(r) - epsilon) ** 2,
        "quantile": lambda: max(-epsilon * r, (1 - epsilon) * r),
        "poisson": lambda: math.exp(c) - y * p,
        "gamma": lambda: p + y * math.exp(-c),
        "tweedie": lambda: (
            math.exp((2 - epsilon) * c) / (2 - epsilon) - y * math.exp((1 - epsilon) * c) / (1 - epsilon)
        ),
    }[name]()


def slope(name, y, p, epsilon):
    """Return the derivative of the loss with respect to p, with scikit-learn's choice at kinks."""
    z, r, c = y * p, p - y, min(max(p, -500.0), 500.0)
    found = {
        "hinge": lambda: -y if z <= 1 else 0.0,
        "squared_hinge": lambda: -2 * y * max(0.0, 1 - z),
        "log_loss": lambda: -y / (1 + math.exp(z)) if z < 300 else 0.0,
        "softmax": lambda: slope("log_loss", y, p, epsilon),
        "modified_huber": lambda: -4 * y if z < -1 else -2 * y * max(0.0, 1 - z),
        "perceptron": lambda: -y if z <= 0 else 0.0,
        "squared_error": lambda: r,
        "huber": lambda: math.copysign(min(abs(r), epsilon), r),
        "epsilon_insensitive": lambda: math.copysign(1.0, r) if abs(r) > epsilon else 0.0,
        "squared_epsilon_insensitive": lambda: 2 * math.copysign(max(0.0, abs(r) - epsilon), r),
        "quantile": lambda: 1 - epsilon if r > 0 else -epsilon,
        "poisson": lambda: math.exp(c) - y,
        "gamma": lambda: 1 - y * math.exp(-c),
        "tweedie": lambda: math.exp((2 - epsilon) * c) - y * math.exp((1 - epsilon) * c),
    }[name]()
    return min(max(found, -1e12), 1e12)


def rate(schedule, t, epoch, alpha, eta0, power_t, eta_scale=1.0):
    """Return the learning rate of step t (from 1) in an epoch (from 1)."""
    if schedule == "optimal":
        return 1 / (alpha * (1 / (alpha * math.sqrt(1 / math.sqrt(alpha))) + t - 1))
    return {
        "constant": lambda: eta0,
        "invscaling": lambda: eta0 / t**power_t,
        "adaptive": lambda: eta0 * eta_scale,
        "pegasos": lambda: 1 / (alpha * t),
        "per_epoch": lambda: 1 / (alpha * epoch),
    }[schedule]()


def sequential(
    X,
    y,
    sample_weight,
    *,
    n_epochs,
    loss_name,
    penalty,
    alpha,
    l1_ratio,
    epsilon,
    schedule,
    eta0,
    power_t,
    fit_intercept=True,
    average=0,
    intercept_decay=1.0,
    positive_weight=1.0,
    negative_weight=1.0,
):
    """Return (weights, intercept, average weights, average intercept, sum of losses of the last epoch)."""
    n, d = X.shape
    share = {"l2": 0.0, "l1": 1.0, "elasticnet": l1_ratio, None: 0.0}[penalty]
    strength = 0.0 if penalty is None else alpha
    w, b, received, owed, t = np.zeros(d), 0.0, np.zeros(d), 0.0, 1
    mean_w, mean_b, n_averaged = np.zeros(d), 0.0, 0
    for epoch in range(1, n_epochs + 1):
        loss_sum = 0.0
        for i in range(n):
            eta = rate(schedule, t, epoch, alpha, eta0, power_t)
            p = X[i] @ w + b
            loss_sum += loss(loss_name, y[i], p, epsilon)
            update = -eta * slope(loss_name, y[i], p, epsilon) * sample_weight[i]
            update *= positive_weight if y[i] > 0 else negative_weight
            w = w * max(0.0, 1 - (1 - share) * eta * strength) + update * X[i]
            if fit_intercept:
                b += update * intercept_decay
            if share * strength > 0:
                owed += share * strength * eta
                for j in range(d):
                    before = w[j]
                    if before > 0:
                        w[j] = max(0.0, before - (owed + received[j]))
                    elif before < 0:
                        w[j] = min(0.0, before + (owed - received[j]))
                    received[j] += w[j] - before
            if 0 < average <= t:
                n_averaged += 1
                mean_w += (w - mean_w) / n_averaged
                mean_b += (b - mean_b) / n_averaged
            t += 1
    return w, b, mean_w, mean_b, loss_sum


def gradient(X, y, sample_weight, w, b, loss_name, epsilon):
    """Return the sum over rows of the weighted gradient of the loss with respect to (w, b)."""
    out = np.zeros(X.shape[1] + 1)
    for row, target, weight in zip(X, y, sample_weight, strict=True):
        out += weight * slope(loss_name, target, row @ w + b, epsilon) * np.r_[row, 1.0]
    return out


def delayed_local_sgd(shards, optimise, *, n_rounds, n_epochs, initial):
    """Return the models of all ranks after epochs of local SGD whose means come one round late.

    `shards` are the rows of each rank as (X, y); ``optimise(rank, model, start, stop)`` returns the model after the
    rank's rows start..stop, at a constant rate: changes over steps, by rows, are means over the ranks that have any.
    The last mean of an epoch is in time.
    """
    sizes = [len(y) for _, y in shards]
    weights = [(n > 0) / sum(m > 0 for m in sizes) for n in sizes]
    models = [initial.copy() for _ in shards]
    for _ in range(n_epochs):
        sent = None
        for k in range(n_rounds):
            models = [
                optimise(rank, model, n * k // n_rounds, n * (k + 1) // n_rounds)
                for rank, (model, n) in enumerate(zip(models, sizes, strict=True))
            ]
            if sent is not None:
                mean = sum(weight * model for weight, model in zip(weights, sent, strict=True))
                models = [model + (mean - old) for model, old in zip(models, sent, strict=True)]
            sent = models
        mean = sum(weight * model for weight, model in zip(weights, models, strict=True))
        models = [mean.copy() for _ in models]
    return models
