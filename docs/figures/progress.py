"""Make docs/_static/dashboard.png and docs/_static/progress-line.png: what people see while a model is trained.

A fit runs on two worker processes while a browser looks at the page of the dashboard; then the line of a terminal is
drawn as it stands in the middle of a fit. Needs playwright and a Chromium on the PATH.

python docs/figures/progress.py
"""

from __future__ import annotations

import argparse
import io
import logging
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.terminal_theme import MONOKAI

from dsgd import SGDClassifier
from dsgd.datasets import make_like
from dsgd.progress import Notice, ProgressEvent, ProgressLine, StopTraining

STATIC = Path(__file__).parent.parent / "_static"
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_HAS_CURVE = """() => {
  const plot = [...Bokeh.documents[0].all_models].find((model) => model.name === "loss");
  const [seconds] = plot.renderers[0].data_source.data.seconds;
  return seconds !== undefined && seconds.length > 8;
}"""


class Until:
    """Ends training once an event is set."""

    def __init__(self, enough: threading.Event) -> None:
        self.enough = enough

    def on_begin(self, estimator: Any) -> None:
        """Wait for events."""

    def on_event(self, estimator: Any, event: ProgressEvent | Notice) -> None:
        """Look whether it is set."""
        if self.enough.is_set():
            raise StopTraining

    def on_end(self, estimator: Any, error: BaseException | None) -> None:
        """Nothing is left to do."""


class Frame(ProgressLine):
    """Keeps the line as it looks after the events of the first second and a half, and ends training then."""

    frame: str | None = None

    def on_event(self, estimator: Any, event: ProgressEvent | Notice) -> None:
        """Draw it, on a terminal of its own."""
        super().on_event(estimator, event)
        if isinstance(event, ProgressEvent) and event.seconds > 1.5:
            terminal = Console(record=True, file=io.StringIO(), force_terminal=True, width=100)
            terminal.print(self)
            self.frame = terminal.export_svg(title="model.set_callbacks(ProgressLine()).fit(X, y)", theme=MONOKAI)
            raise StopTraining


def dashboard(browser: Browser, X: np.ndarray, y: np.ndarray, path: Path) -> None:
    """Take a picture of the page while one job runs and one waits."""
    enough = threading.Event()
    options: dict[str, Any] = {"dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
    with LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster, Client(cluster) as client:

        def fit(**parameters: Any) -> None:
            model = SGDClassifier(random_state=0, client=client, tol=None, **parameters)
            model.set_callbacks(Until(enough)).fit(X, y)

        fit(max_iter=5, sync=1024)  # the page comes with the first job
        jobs = [
            threading.Thread(target=fit, kwargs={"max_iter": 10**6, "loss": "log_loss", "alpha": 1e-5, "sync": 256}),
            threading.Thread(target=fit, kwargs={"max_iter": 10, "sync": 64}),
        ]
        try:
            for job in jobs:
                job.start()
                time.sleep(1.0)  # one after the other into the queue
            page = browser.new_page(viewport={"width": 1400, "height": 740})
            page.goto(f"http://127.0.0.1:{cluster.scheduler.http_server.port}/dsgd")
            page.wait_for_function("() => window.Bokeh && Bokeh.documents.length > 0", timeout=60_000)
            page.wait_for_function(_HAS_CURVE, timeout=60_000)
            page.wait_for_timeout(700)
            page.screenshot(path=path)
            page.close()
        finally:
            enough.set()
            for job in jobs:
                job.join(60.0)


def line(browser: Browser, X: np.ndarray, y: np.ndarray, path: Path) -> None:
    """Take a picture of the live line in the middle of a fit on two threads."""
    shown = Frame(Console(file=io.StringIO(), force_terminal=True, width=100))
    model = SGDClassifier(loss="log_loss", alpha=1e-5, max_iter=10**5, tol=None, n_jobs=2, sync=256, random_state=0)
    model.set_callbacks(shown).fit(X, y)
    page = browser.new_page(viewport={"width": 1360, "height": 300})
    page.set_content(f"<body style='margin: 0'>{shown.frame}</body>")
    page.locator("svg").first.screenshot(path=path)
    page.close()


def main() -> None:
    """Make both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=STATIC, help="folder of the pictures")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    executable = next(filter(None, map(shutil.which, _NAMES)), None)
    rows = make_like("ijcnn1", n_rows=40_000, seed=0)
    with sync_playwright() as driver:
        # The sandbox needs rights that containers do not have; the pages are ours.
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        line(browser, rows.X, rows.y, out / "progress-line.png")
        dashboard(browser, rows.X, rows.y, out / "dashboard.png")
        browser.close()


if __name__ == "__main__":
    main()
