"""A period from outside the package: averages that become rarer from epoch to epoch."""

from dataclasses import dataclass

from dsgd.sync import AbstractPeriod, LocalSGD


@dataclass(frozen=True)
class Doubling(AbstractPeriod):
    """After every n rows in the first epoch, and after twice as many in each epoch that follows."""

    n: int = 64

    def rounds_per_epoch(self, rows):
        """Return the rounds of the first epoch."""
        return self.rounds_in_epoch(rows, 0)

    def rounds_in_epoch(self, rows, epoch):
        """Return how many times the rank with the most rows exchanges in an epoch, at least once."""
        return max(1, max(rows) // (self.n * 2**epoch))


@dataclass(frozen=True)
class Rarer(LocalSGD):
    """Local SGD with a period that doubles in each epoch; `every` is that of the first."""

    every: int = 64

    @property
    def period(self):
        """When ranks exchange."""
        return Doubling(self.every)
