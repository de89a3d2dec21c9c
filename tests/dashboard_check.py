"""Look at the page of a dashboard while a job runs, and print what was seen as JSON: ``dashboard_check.py URL EXE``."""

from __future__ import annotations

import json
import sys

from playwright.sync_api import sync_playwright

# What is drawn of a figure: the data of its glyphs.
_FIGURE = """(name) => {
  const plot = [...Bokeh.documents[0].all_models].find((model) => model.name === name);
  return {
    title: plot.title.text,
    data: plot.renderers.map((renderer) => Object.fromEntries(
      Object.entries(renderer.data_source.data).map(([key, column]) => [key, [...column]]))),
    legend: plot.below.filter((model) => model.type === "Legend").map((legend) => legend.items.length),
  };
}"""
_HAS_RANKS = """() => {
  const plot = [...Bokeh.documents[0].all_models].find((model) => model.name === "ranks");
  return plot.renderers[0].data_source.data.rank.length > 0;
}"""
_INKED = "(c) => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size"


def main() -> None:
    """Look at the page."""
    url, executable = sys.argv[1:]
    with sync_playwright() as driver:
        # The sandbox needs rights that containers do not have; the page is ours.
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 760})
        said: list[str] = []
        page.on("console", lambda line: said.append(line.text) if line.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(url)
        page.wait_for_function("() => window.Bokeh && Bokeh.documents.length > 0", timeout=60_000)
        page.wait_for_function(_HAS_RANKS, timeout=60_000)
        first = page.locator("tbody tr").first.inner_text()
        page.wait_for_timeout(1200)
        seen = {
            "pages": page.locator(".navbar a").all_inner_texts(),
            "headings": page.locator("th").all_inner_texts(),
            "first": first,
            "later": page.locator("tbody tr").first.inner_text(),
            "ranks": page.evaluate(_FIGURE, "ranks"),
            "loss": page.evaluate(_FIGURE, "loss"),
            "inked": [canvas.evaluate(_INKED) for canvas in page.locator("canvas").all()],
            "said": said,
        }
        browser.close()
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main()
