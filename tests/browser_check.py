"""Open a report in a browser, use it as a reader would, and print what was seen as JSON: ``browser_check.py PATH EXE``.

A process of its own, as the driver of the browser starts an event loop and processes that outlive a test.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

# A machine that is busy with other work is slow to begin.
_PATIENCE_MS = 120_000


def main() -> None:
    """Look at the page."""
    path, executable = sys.argv[1:]
    with sync_playwright() as driver:
        # The sandbox needs rights that containers do not have; the page is ours.
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme="light")
        asked: list[str] = []
        said: list[str] = []
        context.route("**/*", lambda route: (asked.append(route.request.url), route.continue_()))
        context.set_default_timeout(_PATIENCE_MS)
        page = context.new_page()
        page.on("console", lambda line: said.append(line.text) if line.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(Path(path).as_uri())
        seen = look(page) | sort(page) | hover(page) | download(page) | switch(page) | narrow(page)
        browser.close()
    sys.stdout.write(json.dumps(seen | {"asked": asked, "said": said}))


def look(page: Page) -> dict[str, Any]:
    """Return what is there."""
    size = "(all) => all.map((one) => { const {width, height} = one.getBoundingClientRect(); return [width, height]; })"
    return {
        "title": page.title(),
        "headings": page.locator("h1, h2").all_inner_texts(),
        "sizes": [[round(side) for side in sides] for sides in page.locator("figure svg").evaluate_all(size)],
        "captions": page.locator("table caption").count() == page.locator("table").count(),
    }


def sort(page: Page) -> dict[str, Any]:
    """Return the first column after sorting by columns: with a click, again, and with the keyboard."""
    table = page.locator("#tables table").first

    def first() -> list[str]:
        return table.locator("tbody td:first-child").all_inner_texts()

    table.get_by_role("button", name="time").click()
    up, state = first(), table.locator("th").nth(1).get_attribute("aria-sort")
    table.get_by_role("button", name="time").click()
    down = first()
    table.get_by_role("button", name="sent").focus()
    page.keyboard.press("Enter")
    by_key = first()
    table.get_by_role("button", name="ranks").click()
    return {"up": up, "state": state, "down": down, "by_key": by_key, "words": first()}


def hover(page: Page) -> dict[str, Any]:
    """Return the title of what is under the pointer where the first point of the second series is."""
    point = page.locator("figure svg use", has=page.locator("title")).first
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    assert box is not None
    found = "([x, y]) => document.elementFromPoint(x, y).querySelector('title')?.textContent"
    return {"tip": page.evaluate(found, [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2])}


def download(page: Page) -> dict[str, Any]:
    """Return the files of rows."""
    files = {}
    for name in ("JSON lines", "CSV"):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=name).click()
        files[waiting.value.suggested_filename] = Path(waiting.value.path()).read_text(encoding="utf-8")
    return {"files": files}


def switch(page: Page) -> dict[str, Any]:
    """Return the colours of page and figure before and after the switch, and after it is used again."""
    colours = """() => [getComputedStyle(document.body).backgroundColor,
                        getComputedStyle(document.querySelector("figure svg path")).fill]"""
    found = [page.evaluate(colours)]
    for name in ("Switch to dark", "Switch to light"):
        page.get_by_role("button", name=name).click()
        found.append(page.evaluate(colours))
    return {"grounds": found}


def narrow(page: Page) -> dict[str, Any]:
    """Return whether the page fits a phone."""
    page.set_viewport_size({"width": 360, "height": 740})
    page.wait_for_timeout(300)
    return {"fits": page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")}


if __name__ == "__main__":
    main()
