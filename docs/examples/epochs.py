"""A study from outside the package: how much is a further epoch worth? It can be resumed."""

from dsgd import SGDClassifier
from dsgd.report import Axis, Figure, Line, Panel, Table
from dsgd.study import DataSource, Grid, Option, Study, run_study, study_page
from dsgd.study.frame.rows import cells_of


def measure(batch, runs):
    """Yield what was found of each run that has no row yet."""
    data = batch.data
    for run in runs:
        model = SGDClassifier(max_iter=run.epochs, tol=None, random_state=run.seed)
        model.fit(data.X, data.y)
        yield {"accuracy": model.score(data.X_test, data.y_test)}


def report(study, rows):
    """Return what the page says: here, medians over seeds, as an answer, a table and a figure."""
    cells = cells_of(rows, "epochs")
    found = {cell.epochs: cell.median("accuracy") for cell in cells}
    texts = [(str(epochs), f"{accuracy:.2%}") for epochs, accuracy in found.items()]
    curve = Line("median of seeds", list(found), list(found.values()), marker="circle")
    ticks = {epochs: str(epochs) for epochs in found}
    sides = Axis("epochs", "log", ticks=ticks), Axis("accuracy", unit="%")
    return {
        "answer": "Accuracy by epochs is " + ", ".join(map(": ".join, texts)) + ".",
        "figures": [Figure("accuracy", "Accuracy", "Higher is better.", [Panel("ijcnn1-like", *sides, [curve])])],
        "tables": [Table("Accuracy", ("epochs", "of test rows"), texts)],
    }


options = {
    "data": Option((DataSource("ijcnn1-like", 2000),)),
    "epochs": Option((1, 2, 4), "Passes over the rows.", least=1),
    "seeds": Option((0, 1, 2), "Repetitions.", seeds=True),
}
grid = Grid(lambda s: {"dataset": s.data, "epochs": s.epochs, "seed": s.seeds}, measure)
STUDY = Study("epochs", "What is a further epoch worth?", ["local"], options, [grid], report)


def main(out, **values):
    """Make the runs that are missing, print what they say, and return all runs."""
    study = STUDY.replace(**values)
    made = list(run_study(study, out))
    page = study_page(study, [run.row for run in made])
    print(page.answer, page.save(out))
    return made
