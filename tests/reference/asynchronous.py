"""Plain-numpy twins of the methods whose workers send gradients to a server; one event after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Gradient = Callable[[int, np.ndarray], np.ndarray]


class Server:
    """A server and its workers as plain numbers; `arrive` is one event."""

    def __init__(self, x: np.ndarray, n_workers: int, rate: float, gradient: Gradient) -> None:
        self.x, self.rate, self.gradient = x.copy(), rate, gradient
        self.version = 0
        self.seen = [x.copy() for _ in range(n_workers)]
        self.versions = [0] * n_workers
        self.sent = [0] * n_workers
        self.parked: list[int] = []
        self.pool: list[tuple[np.ndarray, float]] = []
        self.mean_square = np.zeros_like(x)

    def step(self, g: np.ndarray, share: float = 1.0) -> None:
        """Take a step; `share` is that of the rate at which other things than gradients are to be stepped along."""
        self.x = self.x - self.rate * g
        self.version += 1

    def settle(self) -> None:
        """Take a step with what has come for one that is not full."""
        if self.pool:
            self.step(np.mean([g for g, _ in self.pool], axis=0), float(np.mean([share for _, share in self.pool])))
            self.pool = []

    def hand_out(self, worker: int) -> None:
        """Give a worker the model."""
        self.seen[worker], self.versions[worker] = self.x.copy(), self.version

    def arrive(self, worker: int, method: str, **options: Any) -> None:
        """Let the gradient of a worker arrive; workers that are held back cannot be the ones."""
        g = self.gradient(worker, self.seen[worker])
        delay = self.version - self.versions[worker]
        self.sent[worker] += 1
        if method == "asgd":
            self.step(g)
            self.hand_out(worker)
        elif method == "aware":
            share = min(1.0, options["usual"] / max(delay, 1))
            self.pool.append((share * g, share))
            if len(self.pool) == options["arrivals"]:
                self.settle()
            self.hand_out(worker)
        elif method == "compensated":
            scale = np.ones_like(g)
            if options["decay"] is not None:
                self.mean_square = options["decay"] * self.mean_square + (1 - options["decay"]) * g * g
                scale = 1.0 / np.sqrt(self.mean_square + 1e-7)
            self.step(g + options["strength"] * scale * g * g * (self.x - self.seen[worker]))
            self.hand_out(worker)
        elif method == "stale":
            self.step(g)
            self.parked.append(worker)
            free = [w for w in self.parked if self.sent[w] - min(self.sent) <= options["slack"]]
            self.parked = [w for w in self.parked if w not in free]
            for w in free:
                self.hand_out(w)
        elif method == "backup":
            if delay:
                self.hand_out(worker)
                return
            self.pool.append((g, 1.0))
            self.parked.append(worker)
            if len(self.pool) == options["wanted"]:
                self.settle()
                for w in self.parked:
                    self.hand_out(w)
                self.parked = []


def run(server: Server, order: Sequence[int], method: str, **options: Any) -> list[int]:
    """Let workers arrive in an order, one that is held back giving way to the next that is not; return who came."""
    came = []
    n = len(server.seen)
    for wish in order:
        worker = next(w % n for w in range(wish, wish + n) if w % n not in server.parked)
        server.arrive(worker, method, **options)
        came.append(worker)
    return came


def hogwild(
    X: np.ndarray, y: np.ndarray, rate: float, alpha: float, penalty: str, epochs: int, intercept_rate: float
) -> np.ndarray:
    """Take the steps of one thread: log loss, and on the columns of each row the penalty over how often they occur."""
    often = np.count_nonzero(X, axis=0) / len(X)
    w, b = np.zeros(X.shape[1]), 0.0
    for row, target in list(zip(X, y, strict=True)) * epochs:
        columns = np.flatnonzero(row)
        slope = -target / (1.0 + np.exp(target * (row @ w + b)))
        share = rate / often[columns]
        shrunk = w[columns] * (1.0 - alpha * share) if penalty == "l2" else w[columns]
        w[columns] = shrunk - rate * slope * row[columns]
        if penalty == "l1":
            w[columns] = np.sign(w[columns]) * np.maximum(0.0, np.abs(w[columns]) - alpha * share)
        b -= rate * intercept_rate * slope
    return np.append(w, b)
