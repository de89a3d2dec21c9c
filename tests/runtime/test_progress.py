"""What a fit tells while it runs: events, callbacks, a live line; how a callback ends it."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import threading
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from sklearn.base import clone

from dsgd import SGDClassifier, SGDRegressor
from dsgd.errors import InvalidParameterError
from dsgd.progress import Callback, Notice, ProgressEvent, ProgressLine, StopTraining, read_event
from dsgd.runtime.progress import Publisher
from dsgd.sim import SimulatedCluster
from dsgd.svm import SVC


class Notes:
    """Keeps what it is told; may end training, or fail, at the event with a number."""

    def __init__(
        self, at: int = -1, problem: type[Exception] = StopTraining, ending: BaseException | None = None
    ) -> None:
        self.at, self.problem, self.ending = at, problem, ending
        self.events: list[Any] = []
        self.ends: list[BaseException | None] = []
        self.begun = 0
        self.thread = 0

    def on_begin(self, estimator: Any) -> None:
        """Count."""
        self.begun += 1
        self.thread = threading.get_ident()

    def on_event(self, estimator: Any, event: Any) -> None:
        """Keep it."""
        assert threading.get_ident() == self.thread
        self.events.append(event)
        if len(self.events) == self.at:
            raise self.problem("enough")

    def on_end(self, estimator: Any, error: BaseException | None) -> None:
        """Keep what fit raises."""
        self.ends.append(error)
        if self.ending is not None:
            raise self.ending


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Rows of two classes."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 6))
    return X, np.where(X[:, 0] > 0, "yes", "no")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every epoch be told."""
    monkeypatch.setattr("dsgd.runtime.train.epoch._PERIOD_S", 0.0)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("client", [None, SimulatedCluster(ranks=2)])
def test_events_say_how_far_and_at_what_cost(rows: Any, client: Any) -> None:
    """Every epoch is one event with the loss, the period and the seconds of every rank."""
    notes = Notes()
    model = SGDClassifier(max_iter=4, tol=None, n_jobs=2, sync=50, random_state=0, client=client)
    model.set_callbacks(notes).fit(*rows)
    assert [event.epoch for event in notes.events] == [1, 2, 3, 4]
    assert [event.train_loss for event in notes.events] == model.loss_curve_
    last = notes.events[-1]
    assert (last.max_iter, last.period, last.strategy) == (4, 50, "LocalSGD")
    assert len(last.compute_s) == len(last.wait_s) == 2
    assert min(last.compute_s) > 0.0
    assert 0.0 <= last.comm_share <= 1.0
    assert last.rows_per_s > 0.0
    spent = model.ledger_.totals()["compute_s"]
    assert sum(last.compute_s) <= spent * (1 + 1e-9)
    assert (notes.begun, notes.ends) == (1, [None])
    assert not hasattr(model, "_audience") or model._audience is None


def test_a_publisher_thins_out_and_keeps_the_last() -> None:
    """Events closer than 0.2 s replace each other; flush passes on the one that waits, once."""
    now, sent = [0.0], []
    publisher = Publisher(sent.append, lambda: now[0])
    for number in range(10):
        now[0] = number * 0.05
        publisher({"n": number})
    publisher.flush()
    publisher.flush()
    assert [event["n"] for event in sent] == [0, 4, 8, 9]


@pytest.mark.usefixtures("often")
def test_periods_that_are_not_a_number_of_rows_are_counted(rows: Any) -> None:
    """The period of an epoch is the rows of a rank; a rank alone, and one that waits for the end, has none."""
    told = {}
    for name, sync, n_jobs in (("epoch", "epoch", 2), ("once", "one-shot", 2), ("alone", 50, 1)):
        notes = Notes()
        SGDClassifier(max_iter=2, tol=None, n_jobs=n_jobs, sync=sync).set_callbacks(notes).fit(*rows)
        told[name] = notes.events[0].period
    assert told == {"epoch": 200, "once": None, "alone": None}


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("sync", [50, "one-shot", "minibatch"])
@pytest.mark.parametrize("client", [None, SimulatedCluster(ranks=2)])
def test_stop_training_ends_with_the_model_so_far(rows: Any, sync: Any, client: Any) -> None:
    """After StopTraining all ranks end with the next epoch, and the model is that of a fit of so many epochs."""
    options = {"tol": None, "n_jobs": 2, "sync": sync, "random_state": 0, "client": client}
    model = SGDRegressor(max_iter=50, **options).set_callbacks(Notes(at=2))
    X, y = rows[0], rows[0][:, 0]
    model.fit(X, y)
    assert model.n_iter_ == 3
    assert not model.fit_report_["converged"]
    np.testing.assert_array_equal(model.coef_, SGDRegressor(max_iter=3, **options).fit(X, y).coef_)


@pytest.mark.usefixtures("often")
def test_an_error_in_a_callback_comes_out_of_fit(rows: Any) -> None:
    """An error of a callback stops the ranks, all callbacks get the end, and an earlier model is untouched."""
    notes, after = Notes(at=2, problem=KeyError), Notes()
    model = SGDClassifier(max_iter=50, tol=None, n_jobs=2, sync=50, random_state=0).fit(*rows)
    before = model.coef_.copy()
    with pytest.raises(KeyError, match="enough"):
        model.set_callbacks(notes, after).fit(*rows)
    assert [type(error) for error in notes.ends + after.ends] == [KeyError, KeyError]
    np.testing.assert_array_equal(model.coef_, before)
    assert threading.active_count() == 1 or not [t for t in threading.enumerate() if t.name.startswith("dsgd-rank")]


def test_an_error_at_the_end_does_not_hide_another(rows: Any) -> None:
    """A callback that fails in on_end adds a note to what fit raises."""
    model = SGDClassifier(max_iter=2, tol=None).set_callbacks(Notes(ending=OSError("no room")))
    with pytest.raises(ValueError, match="inconsistent") as caught:
        model.fit(rows[0], rows[1][:-1])
    assert "a callback raised OSError: no room" in caught.value.__notes__[0]


@pytest.mark.parametrize("raised", [ValueError("no"), KeyboardInterrupt()])
def test_every_callback_ends_whatever_another_raises(rows: Any, raised: BaseException) -> None:
    """An error or an interrupt at the end of one comes out of ``fit`` when those that began before it have ended."""
    notes = [Notes(), Notes(ending=raised), Notes()]
    with pytest.raises(type(raised)) as caught:
        SGDClassifier(max_iter=1, tol=None).set_callbacks(*notes).fit(*rows)
    assert caught.value is raised
    assert [each.ends for each in notes] == [[None]] * 3


def test_clones_share_callbacks_and_pickles_keep_them(rows: Any) -> None:
    """A clone tells the same callback; a line that is pickled can be used; none are left after set_callbacks()."""
    notes = Notes()
    assert isinstance(notes, Callback)
    model = SGDClassifier(max_iter=1, tol=None).set_callbacks(notes, ProgressLine(Console(file=io.StringIO())))
    clone(model).fit(*rows)
    # Before 1.9 a clone of scikit-learn knows no callbacks.
    told = int(find_spec("sklearn.callback") is not None)
    assert notes.begun == told
    copied = pickle.loads(pickle.dumps(model))
    assert len(copied._skl_callbacks) == 2
    assert model.set_callbacks() is model
    model.fit(*rows)
    assert notes.begun == told
    for wrong in (3, Notes, print):
        with pytest.raises(InvalidParameterError, match=r"SGDClassifier.set_callbacks\(...\) takes instances"):
            model.set_callbacks(wrong)


def test_svms_tell_what_they_do(rows: Any) -> None:
    """A kernel SVM tells of its steps; to stop it early has no effect."""
    notes = Notes(at=1)
    model = SVC().set_callbacks(notes).fit(*rows)
    assert model.converged_
    assert isinstance(notes.events[0], Notice)
    assert "gap" in notes.events[0].text


def test_partial_fit_tells_too(rows: Any) -> None:
    """Every call of partial_fit begins, tells one epoch and ends."""
    notes = Notes()
    model = SGDClassifier().set_callbacks(notes)
    for _ in range(2):
        model.partial_fit(*rows, classes=["no", "yes"])
    assert (notes.begun, len(notes.events), notes.ends) == (2, 2, [None, None])


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.usefixtures("often")
def test_the_line_shows_the_figures(rows: Any, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal shows one live line per fit; elsewhere lines follow each other, seldom."""
    monkeypatch.setattr("dsgd.progress._LOG_EVERY_S", 0.0)
    screen = io.StringIO()
    line = ProgressLine(Console(file=screen, force_terminal=terminal, width=150))
    SGDClassifier(max_iter=2, tol=None, n_jobs=2, sync=50).set_callbacks(line).fit(*rows)
    shown = screen.getvalue()
    assert "SGDClassifier" in shown
    for text in ("loss", "rows/s", "comm", "period 50"):
        assert text in shown
    assert ("\x1b[" in shown) == terminal
    assert line._display is None


def test_callbacks_of_scikit_learn_need_its_version(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sklearn.callback, as before 1.9, ours work and theirs are refused with a reason."""
    monkeypatch.setitem(sys.modules, "sklearn.callback", None)

    class Theirs:
        setup = on_fit_task_begin = on_fit_task_end = teardown = print

    notes = Notes()
    SGDClassifier(max_iter=1, tol=None).set_callbacks(notes).fit(*rows)
    assert notes.ends == [None]
    with pytest.raises(InvalidParameterError, match=r"need scikit-learn 1\.9 or newer"):
        SGDClassifier().set_callbacks(Theirs())


def test_a_line_says_that_a_fit_failed(rows: Any) -> None:
    """The line of a fit that raises ends with the name of the error."""
    screen = io.StringIO()
    line = ProgressLine(Console(file=screen, force_terminal=True, width=150))
    with pytest.raises(InvalidParameterError):
        SGDClassifier(alpha=-1).set_callbacks(line).fit(*rows)
    assert "stopped: InvalidParameterError" in screen.getvalue()


@pytest.mark.usefixtures("often")
def test_scikit_learn_callbacks_follow_the_epochs(rows: Any) -> None:
    """A callback of scikit-learn has a task for every epoch, sees the fitted model at the end, and can stop the fit."""
    pytest.importorskip("sklearn.callback")

    class Tasks:
        def __init__(self, stop_at: int = -1) -> None:
            self.stop_at, self.ended, self.calls = stop_at, 0, []

        def setup(self, estimator: Any, context: Any) -> None:
            self.calls.append("setup")

        def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
            self.calls.append((context.task_name, context.max_subtasks))

        def on_fit_task_end(self, estimator: Any, context: Any, *, fitted_estimator: Any = None) -> bool:
            self.ended += context.task_name == "epoch"
            if context.task_name == "fit":
                self.score = fitted_estimator.score(*rows)
            return self.ended == self.stop_at

        def teardown(self, estimator: Any, context: Any) -> None:
            self.calls.append("teardown")

    tasks, ours = Tasks(), Notes()
    model = SGDClassifier(max_iter=3, tol=None, n_jobs=2).set_callbacks(tasks, ours).fit(*rows)
    assert tasks.calls == ["setup", ("fit", 3), *[("epoch", 0)] * 3, "teardown"]
    assert tasks.score == model.score(*rows)
    assert len(ours.events) == 3
    assert model.set_callbacks(Tasks(stop_at=2)).fit(*rows).n_iter_ == 3
    assert SVC().set_callbacks(svm := Tasks()).fit(*rows).converged_
    assert svm.calls == ["setup", ("fit", 0), "teardown"]
    failing = Tasks()
    with pytest.raises(InvalidParameterError):
        SGDClassifier(alpha=-1).set_callbacks(failing).fit(*rows)
    assert failing.calls == ["setup", ("fit", 1000), "teardown"]


_BARS = """
import numpy as np
from sklearn.callback import ProgressBar
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from dsgd import SGDClassifier

X = np.array([[-1.0], [1.0]])
model = SGDClassifier(max_iter=3, tol=None)
model.set_callbacks(ProgressBar()).fit(X, [0, 1])
make_pipeline(StandardScaler(), model.set_callbacks()).set_callbacks(ProgressBar()).fit(X, [0, 1])
assert not hasattr(model, "_skl_callbacks")
"""


@pytest.mark.slow
def test_the_progress_bar_of_scikit_learn_works() -> None:
    """Its bars show a fit, and the fit inside a pipeline; in a process of its own, as it leaves threads behind."""
    pytest.importorskip("sklearn.callback")
    done = subprocess.run([sys.executable, "-c", _BARS], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("SGDClassifier - fit") == 2
    assert "Pipeline - fit" in done.stdout
    assert "100%" in done.stdout


def test_events_are_read_back() -> None:
    """An event that has travelled as plain values is the same record; anything else is a notice."""
    event = ProgressEvent(1, 9, 0.5, 1.0, 2e6, 0.25, 64, "LocalSGD", (1.0,), (0.0,), (0.5,), (0.25,))
    sent = {name: list(value) if isinstance(value, tuple) else value for name, value in event.as_mapping().items()}
    assert read_event(sent) == event
    notice = read_event({"phase": "queued", "text": "place 1", "position": 1})
    assert (notice.text, notice.phase) == ("place 1", "queued")
    assert notice.values["position"] == 1
