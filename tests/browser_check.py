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
_DRAWN = "[...document.querySelectorAll('figure')].every((figure) => figure.dataset.drawn === '{}')"


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
        page.wait_for_function(_DRAWN.format("light"))
        seen = look(page) | sort(page) | hover(page) | hide(page) | download(page) | switch(page) | narrow(page)
        browser.close()
    sys.stdout.write(json.dumps(seen | {"asked": asked, "said": said}))


def look(page: Page) -> dict[str, Any]:
    """Return what is there."""
    canvases = page.locator("figure .plot canvas")
    return {
        "title": page.title(),
        "headings": page.locator("h1, h2").all_inner_texts(),
        "plots": page.locator("figure .plot").count(),
        "canvases": canvases.count(),
        "inked": canvases.first.evaluate(
            "(c) => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size"
        ),
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
    """Return what is said when the pointer comes to a point of the first panel."""
    plot = page.locator("figure .plot").first
    plot.scroll_into_view_if_needed()
    place = page.evaluate(
        """() => {
          const doc = Bokeh.documents.at(-1);
          const [plot] = doc.roots();
          const view = Bokeh.index.get_by_id(plot.id);
          const [hover] = plot.toolbar.tools.filter((tool) => tool.type === "HoverTool");
          const [source] = hover.renderers.map((renderer) => renderer.data_source);
          const box = view.el.getBoundingClientRect();
          const {x_scale, y_scale, bbox} = view.frame;
          const {x, y} = source.data;
          return [box.x + x_scale.compute(x[1]), box.y + y_scale.compute(y[1])];
        }"""
    )
    page.mouse.move(place[0] - 3, place[1] - 3)
    page.mouse.move(*place)
    tip = page.locator(".dsgd-tip").first
    tip.wait_for()
    return {"tip": tip.inner_text()}


def hide(page: Page) -> dict[str, Any]:
    """Return whether a series goes when its key is pressed, and comes again."""
    key = page.get_by_role("button", name="2 ranks")
    visible = """() => {
      const models = [...Bokeh.documents.at(-1).all_models];
      return models.filter((model) => model.name === "2 ranks").some((model) => model.visible);
    }"""
    states = [page.evaluate(visible)]
    for _ in range(2):
        key.click()
        states.append(page.evaluate(visible))
    return {"series": states}


def download(page: Page) -> dict[str, Any]:
    """Return the files of rows."""
    files = {}
    for name in ("JSON lines", "CSV"):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=name).click()
        files[waiting.value.suggested_filename] = Path(waiting.value.path()).read_text(encoding="utf-8")
    return {"files": files}


def switch(page: Page) -> dict[str, Any]:
    """Return the grounds before and after the switch, and after the system has changed."""
    ground = "() => getComputedStyle(document.body).backgroundColor"
    found = [page.evaluate(ground)]
    page.get_by_role("button", name="Switch to dark").click()
    page.wait_for_function(_DRAWN.format("dark"))
    found.append(page.evaluate(ground))
    page.get_by_role("button", name="Switch to light").click()
    page.wait_for_function(_DRAWN.format("light"))
    found.append(page.evaluate(ground))
    return {"grounds": found, "canvases_after": page.locator("figure .plot canvas").count()}


def narrow(page: Page) -> dict[str, Any]:
    """Return whether the page fits a phone."""
    page.set_viewport_size({"width": 360, "height": 740})
    page.wait_for_timeout(300)
    return {"fits": page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")}


if __name__ == "__main__":
    main()
