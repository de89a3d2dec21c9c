"""A topology from outside the package: a ring, and chords across it that turn by round."""

from dataclasses import dataclass

from dsgd.comm.topology import AbstractTopology


@dataclass(frozen=True)
class Chords(AbstractTopology):
    """Ranks exchange with both neighbours and those k ahead and behind; k is 2, ..., `reach`."""

    reach: int = 3

    def out_peers(self, rank, size, round_number=0):
        """Return the ranks to send to: none twice, and never the rank itself."""
        chord = 2 + round_number % self.period(size)
        peers = [(rank + hop) % size for hop in (1, -1, chord, -chord)]
        return tuple(sorted(set(peers) - {rank}))

    def in_peers(self, rank, size, round_number=0):
        """Return the ranks to receive from: the same ones, as every edge goes both ways."""
        return self.out_peers(rank, size, round_number)

    def period(self, size):
        """Return after how many rounds the graph repeats."""
        return max(1, self.reach - 1)
