"""Take pictures of everything people see: the page of each kind of study, light, dark, on a phone and on paper.

Every study of the list is run in its small form first; its rows stay in OUT/studies, so that a second call only draws.
Then come the scripts that take pictures of what moves: the line of a terminal and the page of the dashboard. Needs
playwright and a Chromium on the PATH.

python docs/figures/screenshots.py                     # all of them, into build/screenshots/
python docs/figures/screenshots.py msf strategies      # some
python docs/figures/screenshots.py --docs gtopk gtopk  # and docs/_static/report.png, the top of that page
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from dsgd.study import read_rows
from dsgd.study.comparison import Comparison

HERE: Final = Path(__file__).parent
#: Pages by name: the command that makes each, but for ``--out``.
PAGES: Final = {
    "msf": ("study", "msf", "--demo"),
    "strategies": ("study", "strategies", "--demo"),
    "collectives": ("study", "collectives", "--demo"),
    "elimination": ("study", "elimination", "--demo"),
    "gtopk": ("study", "gtopk", "--demo"),
    "tuning": ("study", "tuning", "--demo"),
    "scaling": ("study", "scaling"),
    "dnn": ("study", "dnn", "--demo"),
    "speedup": ("study", "speedup", "--demo"),
    "variance": ("study", "variance", "--demo"),
    "transports": ("study", "transports", "--demo"),
    "failures": ("study", "failures", "--demo"),
    "features": ("study", "features", "--demo"),
    "claims": ("claims",),
}
#: Pages that no command makes: functions that write them into a file.
MADE: Final = {"comparing": lambda path: Comparison(read_rows(HERE / "comparing.jsonl"), [], 0.05).save(path)}
#: What is not a page of a report: scripts beside this one, called with ``--out FOLDER``.
SCRIPTS: Final = {"progress": "progress.py"}
_LOOKS: Final = {
    "light": ("light", 1280), "dark": ("dark", 1280), "phone": ("light", 390), "phone-dark": ("dark", 390),
}  # fmt: skip
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_PATIENCE_MS: Final = 180_000


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join([*PAGES, *MADE, *SCRIPTS])}; all by default")
    parser.add_argument("--out", type=Path, default=Path("build/screenshots"), help="folder of the pictures")
    parser.add_argument("--docs", metavar="NAME", choices=list(PAGES), help="whose top becomes docs/_static/report.png")
    options = parser.parse_args()
    names = options.names or [*PAGES, *MADE, *SCRIPTS]
    executable = next(filter(None, map(shutil.which, _NAMES)), None)
    if executable is None:
        sys.exit(f"needs a browser on the PATH: {', '.join(_NAMES)} (Debian: apt-get install chromium)")
    options.out.mkdir(parents=True, exist_ok=True)
    reports = {name: report(name, options.out / "studies" / name) for name in names if name not in SCRIPTS}
    with sync_playwright() as driver:
        # The sandbox needs rights that containers do not have; the pages are ours.
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for name, path in reports.items():
            look(browser, path, options.out / name)
        if options.docs:
            top(
                browser,
                report(options.docs, options.out / "studies" / options.docs),
                HERE.parent / "_static/report.png",
            )
        browser.close()
    for name in names:
        if name in SCRIPTS:
            subprocess.run([sys.executable, str(HERE / SCRIPTS[name]), "--out", str(options.out)], check=True)
    sys.stdout.write(f"{options.out}\n")


def report(name: str, folder: Path) -> Path:
    """Run what of a study is not yet there; return its page."""
    if name in MADE:
        return MADE[name](folder / "report.html")
    command = [sys.executable, "-m", "dsgd", *PAGES[name], "--out", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "report.html"


def look(browser: Browser, path: Path, to: Path) -> None:
    """Take the pictures of one page: whole, in each look, and as PDF."""
    for look_name, (scheme, width) in _LOOKS.items():
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        page.set_default_timeout(_PATIENCE_MS)
        page.goto(path.resolve().as_uri())
        page.wait_for_timeout(500)
        page.screenshot(path=f"{to}-{look_name}.png", full_page=True)
        if look_name == "light":
            page.pdf(path=f"{to}.pdf", format="A4")
        page.close()


def top(browser: Browser, path: Path, to: Path) -> None:
    """Take a picture of what is seen first, for the documentation: the left half light, the right half dark."""
    halves = []
    for scheme in ("light", "dark"):
        page = browser.new_page(viewport={"width": 1240, "height": 1000}, color_scheme=scheme)  # type: ignore[arg-type]
        page.set_default_timeout(_PATIENCE_MS)
        page.goto(path.resolve().as_uri())
        page.wait_for_timeout(500)
        halves.append(Image.open(io.BytesIO(page.screenshot(timeout=_PATIENCE_MS))).convert("RGB"))
        page.close()
    light, dark = halves
    middle = light.width // 2
    light.paste(dark.crop((middle, 0, dark.width, dark.height)), (middle, 0))
    light.save(to, optimize=True)


if __name__ == "__main__":
    main()
