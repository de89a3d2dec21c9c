"""A study from outside the package: how much is a further epoch worth? It can be resumed."""

from dataclasses import dataclass

from dsgd import SGDClassifier
from dsgd.datasets import make_like
from dsgd.study.frame.rows import AbstractRun
from dsgd.study.frame.runner import Record, run_grids
from dsgd.study.frame.summary import Stat, grouped


@dataclass(frozen=True)
class EpochsRun(AbstractRun):
    """One cell of the grid, once."""

    epochs: int
    seed: int

    def settings(self):
        """Return what makes two runs the same."""
        return {"epochs": self.epochs, "seed": self.seed}


def measure(client, rows, runs):
    """Yield what was found of each run that has no row yet."""
    for run in runs:
        model = SGDClassifier(max_iter=run.epochs, tol=None, random_state=run.seed)
        model.fit(rows.X, rows.y)
        yield {"accuracy": model.score(rows.X, rows.y)}


def main(out, epochs=(1, 2, 4)):
    """Make the runs that are missing, print the median of each cell, and return all runs."""
    runs = [EpochsRun(n, seed) for n in epochs for seed in range(3)]
    rows = make_like("ijcnn1", n_rows=2000, seed=0)
    made = list(run_grids(Record(out), [(0, [(rows, runs)])], measure))
    for (n,), rows in grouped([run.row for run in made], "epochs").items():
        print(n, Stat.of(row["accuracy"] for row in rows))
    return made
