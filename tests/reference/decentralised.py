"""Decentralised gradient descent on least squares in plain numpy: Richards, Rebeschini and Rosasco 2020, equation 3."""

from __future__ import annotations

import numpy as np


def decentralised(blocks, W, eta, steps):
    """Return the models of all agents, one row each: a step along the own gradient, then the mean over neighbours."""
    models = np.zeros((len(blocks), blocks[0][0].shape[1]))
    for _ in range(steps):
        halves = [w - eta * F.T @ (F @ w - y) / len(y) for w, (F, y) in zip(models, blocks, strict=True)]
        models = W @ np.array(halves)
    return models


def after(F, y, eta, steps):
    """Return gradient descent on all rows after so many steps, in closed form: ``(I - (I - eta H)^t) H^+ b``."""
    values, vectors = np.linalg.eigh(F.T @ F / len(y))
    values = np.maximum(values, 0.0)
    filters = np.where(values > 1e-13, -np.expm1(steps * np.log1p(-eta * values)) / np.maximum(values, 1e-13), 0.0)
    filters[values <= 1e-13] = eta * steps
    return vectors @ (filters * (vectors.T @ (F.T @ y / len(y))))
