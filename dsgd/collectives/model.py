"""The predicted seconds of a collective.

Problem: which algorithm is fastest depends on the number of ranks, the length of the vector and the cost of a message.
The choice must be made in advance and be the same on every rank.

Model: a message of n bytes takes ``alpha + n beta`` seconds, adding up n bytes that came ``n gamma``; a rank sends to
one and receives from one other at a time. With P ranks, L = ceil(log2 P), 2**q the largest power of two up to P and
F = 2 alpha + 2 n beta + n gamma for the two extra messages of the fold where P is none:

======================  ===============================================================================
recursive doubling      q (alpha + n beta + n gamma) + F
ring                    2 (P - 1) alpha + 2 (P - 1)/P n beta + (P - 1)/P n gamma
Rabenseifner            2 q alpha + 2 (2**q - 1)/2**q n beta + (2**q - 1)/2**q n gamma + F
binomial                2 L (alpha + n beta) + L n gamma
double tree             (4 L - 2 + 5 (K - 1)) (alpha + n beta / 2K + n gamma / 4K), K pieces per tree
torus of X by Y         2 (X + Y - 2) alpha + 2 (P - 1)/P n beta + (P - 1)/P n gamma
hierarchical            2 L' (alpha' + n beta') + L' n gamma' inside, and the leaders' all-reduce
broadcast               L (alpha + n beta)
all-gather, ring        (P - 1) (alpha + n beta), n bytes from each
all-gather, Bruck       L alpha + (P - 1) n beta + P n gamma
barrier                 L alpha
gossip                  d (alpha + n beta + n gamma), d peers
tally                   (w + b - 2 + L) (alpha + n beta), b blocks of w ranks
======================  ===============================================================================

No algorithm is faster than L alpha and 2 (P - 1)/P n beta.

Source: Hockney 1994 (alpha and beta); Bruck et al. 1997 (all-gather); Thakur, Rabenseifner and Gropp 2005 (the table up
to binomial); Sanders, Speck and Träff 2009 (double tree, in 4 steps for one piece more; the steps here are those of
`dsgd.collectives.algorithms.pipeline`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, get_args

from dsgd.errors import InvalidParameterError

#: All-reduces of ranks at equal distances.
FlatAlgorithm = Literal["recursive_doubling", "ring", "rabenseifner", "binomial", "double_tree", "torus"]
ALGORITHMS: Final[tuple[FlatAlgorithm, ...]] = get_args(FlatAlgorithm)
#: All-gathers of ranks at equal distances.
GatherAlgorithm = Literal["ring", "bruck"]


@dataclass(frozen=True)
class LinkCost:
    """The cost of a message between two ranks."""

    latency_s: float
    byte_s: float
    added_byte_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse negative times."""
        for name, value in vars(self).items():
            if not value >= 0.0:
                raise InvalidParameterError(f"LinkCost({name}=...) must be 0 or more seconds. Got {value!r}.")


#: Costs of wires between two ranks of one machine, as `dsgd.collectives.calibrate` measured them on two cores of an
#: Intel Xeon of 2.8 GHz. Measure a network with it.
LINKS: Final = MappingProxyType(
    {
        "inproc": LinkCost(28e-6, 0.05e-9, 0.03e-9),
        "shm": LinkCost(13e-6, 0.14e-9, 0.03e-9),
        "tcp": LinkCost(22e-6, 0.5e-9, 0.03e-9),
    }
)
#: Costs from which ``"auto"`` chooses by default. The same for all wires, so that the same vectors are added up in the
#: same order on all of them.
DEFAULT_LINK: Final = LinkCost(15e-6, 0.25e-9, 0.03e-9)


def n_levels(size: int) -> int:
    """Return ``ceil(log2(size))``."""
    return (size - 1).bit_length()


def allreduce_seconds(algorithm: FlatAlgorithm, n_bytes: int, size: int, link: LinkCost) -> float:
    """Return the seconds of an all-reduce."""
    if size == 1:
        return 0.0
    alpha, n_beta, n_gamma = link.latency_s, n_bytes * link.byte_s, n_bytes * link.added_byte_s
    q = size.bit_length() - 1
    fold = 0.0 if size == 1 << q else 2 * alpha + 2 * n_beta + n_gamma
    if algorithm == "recursive_doubling":
        return q * (alpha + n_beta + n_gamma) + fold
    if algorithm == "rabenseifner":
        return 2 * q * alpha + (1.0 - 0.5**q) * (2 * n_beta + n_gamma) + fold
    if algorithm == "binomial":
        return n_levels(size) * (2 * (alpha + n_beta) + n_gamma)
    if algorithm == "double_tree":
        pieces = tree_pieces(n_bytes, size)
        return tree_steps(pieces, size) * (alpha + n_beta / (2 * pieces) + n_gamma / (4 * pieces))
    from dsgd.comm.topology import grid_shape  # all graphs: a fit in one process needs none

    rows, columns = (1, size) if algorithm == "ring" else grid_shape(size)
    return 2 * (rows + columns - 2) * alpha + (size - 1) / size * (2 * n_beta + n_gamma)


def hierarchical_seconds(
    n_bytes: int, hosts: Sequence[int], inside: LinkCost, between: LinkCost, chosen_by: LinkCost = DEFAULT_LINK
) -> float:
    """Return the seconds of an all-reduce in two levels, up to the last rank of the largest host."""
    counts = list(Counter(hosts).values())
    across = choose_algorithm(n_bytes, len(counts), chosen_by)
    levels = n_levels(max(counts))
    down = levels * (inside.latency_s + n_bytes * inside.byte_s)
    up = down + levels * n_bytes * inside.added_byte_s
    return up + allreduce_seconds(across, n_bytes, len(counts), between) + down


def tree_steps(pieces: int, size: int) -> float:
    """Return the steps of a double tree's schedule: 4 L - 2 for the first piece, and some 5 for each one more."""
    if size == 2:
        return 2.0 * pieces
    return 4.0 * n_levels(size) - 2.0 + 5.0 * (pieces - 1)


def tree_pieces(n_bytes: int, size: int, link: LinkCost = DEFAULT_LINK) -> int:
    """Return into how many pieces each tree of a double tree cuts its half of the vector: the fastest number, to 64.

    With S = 4 L - 2 steps for one piece, (S + 5 (K - 1)) (alpha + c / K) is least at K = sqrt((S - 5) c / 5 alpha).
    """
    per_piece = n_bytes * (link.byte_s / 2 + link.added_byte_s / 4)
    extra = tree_steps(1, size) - 5.0
    if size == 2 or extra <= 0.0 or link.latency_s == 0.0:
        return 1
    return max(1, min(64, round(math.sqrt(extra * per_piece / (5.0 * link.latency_s)))))


def broadcast_seconds(n_bytes: int, size: int, link: LinkCost) -> float:
    """Return the seconds of a broadcast of n bytes down a binomial tree."""
    return n_levels(size) * (link.latency_s + n_bytes * link.byte_s)


def allgather_seconds(
    n_bytes: float, size: int, link: LinkCost, algorithm: GatherAlgorithm | Literal["auto"] = "auto"
) -> float:
    """Return the seconds until all ranks have n bytes from each, on average."""
    if algorithm == "auto":
        algorithm = choose_gather(n_bytes * size, size, link)
    on_wire = (size - 1) * n_bytes * link.byte_s
    if algorithm == "ring":
        return (size - 1) * link.latency_s + on_wire
    return n_levels(size) * link.latency_s + on_wire + size * n_bytes * link.added_byte_s


def choose_gather(n_bytes: float, size: int, link: LinkCost = DEFAULT_LINK) -> GatherAlgorithm:
    """Return how `size` ranks at equal distances gather n bytes of all of them: the faster way by the model.

    Bruck's way saves ``P - 1 - L`` latencies, and copies the bytes once more.
    """
    saved = (size - 1 - n_levels(size)) * link.latency_s
    return "bruck" if saved > n_bytes * link.added_byte_s else "ring"


def barrier_seconds(size: int, link: LinkCost) -> float:
    """Return the seconds of a barrier."""
    return n_levels(size) * link.latency_s


def tally_seconds(n_bytes: int, size: int, link: LinkCost) -> float:
    """Return the seconds until all ranks have the sums of a tally (`dsgd.collectives.algorithms.tally`)."""
    if size == 1:
        return 0.0
    width = math.isqrt(size - 1) + 1
    steps = width + -(-size // width) - 2 + n_levels(size)
    return steps * (link.latency_s + n_bytes * link.byte_s)


def gossip_seconds(n_bytes: int, n_peers: int, link: LinkCost) -> float:
    """Return the seconds of a round of gossip with this many peers."""
    return n_peers * (link.latency_s + n_bytes * (link.byte_s + link.added_byte_s))


def choose_algorithm(n_bytes: int, size: int, link: LinkCost = DEFAULT_LINK) -> FlatAlgorithm:
    """Return what ``"auto"`` means for n bytes on `size` ranks at equal distances: the fastest by the model.

    Of equally fast ones it is the first in `ALGORITHMS`, however their formulas are rounded.
    """
    seconds = {algorithm: allreduce_seconds(algorithm, n_bytes, size, link) for algorithm in ALGORITHMS}
    limit = min(seconds.values()) * (1.0 + 1e-9)
    return next(algorithm for algorithm, takes in seconds.items() if takes <= limit)
