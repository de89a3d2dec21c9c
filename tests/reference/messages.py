"""What exchanges send, in closed form: messages of all ranks together, and the numbers in each.

It is what the papers and the tables of the documentation say, and not what the library counts with. A fit has three
epochs over sixteen rows a rank, each with five features.
"""

from __future__ import annotations

from collections.abc import Callable

FEATURES, ROWS, EPOCHS = 5, 16, 3
M = FEATURES + 1  # the intercept
# Exchanges of a strategy with a period of eight rows; of an epoch, and of the fit.
PER_EPOCH, ROUNDS = ROWS // 8, EPOCHS * (ROWS // 8)
#: Messages of all ranks in the all-reduce of a short vector, by recursive doubling; of five ranks one hands its vector
#: to a neighbour and gets the sum back.
SUM = {2: 2, 5: 4 * 2 + 2, 16: 16 * 4}
#: Vectors that a rank sends in each step of an all-gather of short ones: all it has, up to those that are missing.
LISTS = {2: [1], 5: [1, 2, 1], 16: [1, 2, 4, 8]}

#: Messages of all ranks, and the numbers in each.
Sent = list[tuple[int, int]]


def sums(P: int, n: int, times: int = 1) -> Sent:
    """Return what so many all-reduces of n numbers send."""
    return [(times * SUM[P], n)]


def gathers(P: int, times: int = 1) -> Sent:
    """Return what so many all-gathers of a number from each rank send."""
    return [(times * P, n) for n in LISTS[P]]


def averages(P: int) -> Sent:
    """Return what an all-reduce of the model after every eight rows sends."""
    return sums(P, M, ROUNDS)


def with_lengths(P: int) -> Sent:
    """Return what is sent where ranks sum the model and how far it has shrunk, after the lengths of their payloads."""
    return [*gathers(P, ROUNDS), *sums(P, M + 1, ROUNDS)]


def payloads(n_words: int) -> Callable[[int], Sent]:
    """Return what a payload from each rank to all in every round sends, or a sum of the model where that is less."""

    def sent(P: int) -> Sent:
        gathered = [(messages, n * n_words) for messages, n in gathers(P, ROUNDS)]
        return min(gathered, averages(P), key=lambda ways: sum(messages * n for messages, n in ways))

    return sent


def along(edges: Callable[[int], int], n: int = M) -> Callable[[int], Sent]:
    """Return what a message of n numbers on each edge of a graph in every round sends, and a mean at last."""
    return lambda P: [(ROUNDS * edges(P), n), *sums(P, n)]


def ring(P: int) -> int:
    """Return how many edges a ring has, both ways."""
    return 2 * P if P > 2 else 2


def star(P: int) -> int:
    """Return how many edges a star has, both ways."""
    return 2 * (P - 1)


def one_each(P: int) -> int:
    """Return how many edges a graph has in which every rank sends to one other."""
    return P


def leaders(P: int) -> Sent:
    """Return what leader SGD sends: a number of each rank to all, the model down a tree, and a mean at last."""
    return [*gathers(P, ROUNDS), (ROUNDS * (P - 1), M), *sums(P, M)]


def served(P: int) -> Sent:
    """Return what a worker and its server send: a message and its answer a round, and once more an epoch."""
    return [(2 * P * (ROUNDS + EPOCHS), 3 + M)]


def followed(P: int) -> Sent:
    """Return what a worker and its server send: a message and its answer a round, and a mean at last."""
    return [(2 * P * ROUNDS, 3 + M), *sums(P, M)]
