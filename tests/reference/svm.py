"""Plain-numpy twin of the kernel SVM solver: one pair at a time, no blocks, no cache, no elimination."""

from __future__ import annotations

import numpy as np


def dual_gap(K: np.ndarray, y: np.ndarray, p: np.ndarray, upper: np.ndarray, alpha: np.ndarray) -> float:
    """Return max f over I_low minus min f over I_up, f = K(y alpha) + y p."""
    f = K @ (y * alpha) + y * p
    up = np.where(y > 0, alpha < upper, alpha > 0)
    low = np.where(y > 0, alpha > 0, alpha < upper)
    return float(f[low].max(initial=-np.inf) - f[up].min(initial=np.inf))


def smo(
    K: np.ndarray, y: np.ndarray, p: np.ndarray, upper: np.ndarray, alpha: np.ndarray, tol: float
) -> tuple[np.ndarray, float]:
    """Minimise alpha'Q alpha / 2 + p'alpha with y'alpha fixed; return alpha and the objective."""
    alpha = alpha.astype(float)
    f = K @ (y * alpha) + y * p
    diagonal = np.diag(K)
    for _ in range(1_000_000):
        up = np.where(y > 0, alpha < upper, alpha > 0)
        low = np.where(y > 0, alpha > 0, alpha < upper)
        i = int(np.argmin(np.where(up, f, np.inf)))
        rise = np.where(low, f - f[i], -np.inf)
        if rise.max() < tol:
            break
        eta = np.maximum(diagonal[i] + diagonal - 2 * K[i], 1e-12)
        j = int(np.argmax(np.where(rise > 0, rise * rise / eta, -np.inf)))
        room_i = upper[i] - alpha[i] if y[i] > 0 else alpha[i]
        room_j = alpha[j] if y[j] > 0 else upper[j] - alpha[j]
        t = min(rise[j] / eta[j], room_i, room_j)
        alpha[i] = upper[i] * (y[i] > 0) if t == room_i else alpha[i] + y[i] * t
        alpha[j] = upper[j] * (y[j] < 0) if t == room_j else alpha[j] - y[j] * t
        f += t * (K[i] - K[j])
    return alpha, float(0.5 * (y * alpha) @ K @ (y * alpha) + p @ alpha)
