"""Look at the built documentation as a reader does: ``python .ci/pages.py docs/_build/html``; exits with 1 on a fault.

Every page is read: links lead somewhere, pictures have words, and no cell holds what markup has made of a dash. With a
browser on the ``PATH`` the pages of the guide are opened, light and dark: text is readable (WCAG 2.1, contrast of
level AA), formulas are set, nothing but boxes that scroll is wider than a phone, and the console is silent.
"""

from __future__ import annotations

import shutil
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_IN_CELLS = {"ul", "ol", "dl", "blockquote"}
# What autodoc says of a number or a tuple that has no comment.
_OF_PYTHON = ("Convert a number or string to an integer", "Built-in immutable sequence")

# Returns texts with too little contrast, and formulas that were not set. Colours are blended over those below them.
_LOOK = """() => {
  const channels = (colour) => {
    const [red, green, blue, alpha = 1] = colour.match(/[\\d.]+/g).map(Number);
    return colour.startsWith("color(") ? [255 * red, 255 * green, 255 * blue, alpha] : [red, green, blue, alpha];
  };
  const over = (above, below) => [0, 1, 2].map((at) => above[at] * above[3] + below[at] * (1 - above[3])).concat(1);
  const linear = (value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const known = new Map([[null, [255, 255, 255, 1]]]);
  const ground = (element) => {
    if (!known.has(element)) {
      known.set(element, over(channels(getComputedStyle(element).backgroundColor), ground(element.parentElement)));
    }
    return known.get(element);
  };
  const found = new Set();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const isSeen = element.checkVisibility({opacityProperty: true, visibilityProperty: true});
    const skipped = element.closest("script, style, svg, mjx-container, .headerlink, .visually-hidden, dialog");
    if (!isSeen || skipped || !texts.currentNode.textContent.trim()) continue;
    const style = getComputedStyle(element);
    const pair = [over(channels(style.color), ground(element)), ground(element)];
    const [low, high] = pair.map(light).sort((one, other) => one - other);
    const size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    if ((high + 0.05) / (low + 0.05) < least) found.add(`little contrast: ${element.textContent.trim().slice(0, 40)}`);
  }
  for (const formula of document.querySelectorAll(".math:not(:has(mjx-container)), mjx-merror, [data-mjx-error]")) {
    found.add(`not set: ${formula.textContent.slice(0, 40)}`);
  }
  return [...found];
}"""


class _Reader(HTMLParser):
    """Collects the anchors, the links and the faults of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.faults: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take in an element."""
        given = dict(attrs)
        self.anchors.add(given.get("id") or "")
        self.links += [link for name in ("href", "src") if (link := given.get(name))]
        if tag == "img" and (given.get("alt") is None or (given["alt"] or "").endswith((".png", ".svg"))):
            self.faults.append(f"a picture without words: {given.get('src')}")
        if tag in ("td", "table"):
            self._open.append(tag)
        if tag in _IN_CELLS and self._open[-1:] == ["td"]:
            self.faults.append(f"<{tag}> in a cell, line {self.getpos()[0]}")

    def handle_endtag(self, tag: str) -> None:
        """Leave an element."""
        if tag in ("td", "table") and self._open[-1:] == [tag]:
            self._open.pop()


def read(root: Path) -> list[str]:
    """Return the faults of all pages under a folder."""
    pages = {}
    for path in sorted(root.rglob("*.html")):
        if "_static" not in path.parts:
            text, pages[path] = path.read_text(encoding="utf-8"), _Reader()
            pages[path].feed(text)
            pages[path].faults += [f"a docstring of Python's: {words}" for words in _OF_PYTHON if words in text]
    return [
        f"{path.relative_to(root)}: {fault}"
        for path, page in pages.items()
        for fault in [*page.faults, *(f"leads nowhere: {link}" for link in page.links if _is_broken(path, link, pages))]
    ]


def _is_broken(path: Path, link: str, pages: dict[Path, _Reader]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target in pages:
        return bool(parts.fragment) and unquote(parts.fragment) not in pages[target].anchors
    return not target.exists()


def look(root: Path, executable: str) -> list[str]:
    """Return what a reader of the guide would stumble over in a browser."""
    from playwright.sync_api import sync_playwright

    faults = []
    with sync_playwright() as driver:
        # The sandbox needs rights that containers do not have; the pages are ours.
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 900}, color_scheme="light")
        page.set_default_timeout(120_000)
        said: list[str] = []
        page.on("console", lambda line: said.append(line.text) if line.type in ("error", "warning") else None)
        for path in sorted(root.glob("*.html")):
            said.clear()
            page.set_viewport_size({"width": 1100, "height": 900})
            page.goto(path.as_uri())
            page.evaluate("() => window.MathJax?.startup?.promise")
            page.add_style_tag(content="* { transition: none !important; }")  # else colours change slowly
            seen = []
            for ground in ("light", "dark"):
                page.evaluate(f"document.documentElement.dataset.theme = '{ground}'")
                seen += [f"{ground}: {fault}" for fault in page.evaluate(_LOOK)]
            page.set_viewport_size({"width": 400, "height": 800})
            if page.evaluate("() => document.documentElement.scrollWidth > innerWidth"):
                seen.append("wider than a phone")
            faults += [f"{path.name}: {fault}" for fault in [*seen, *said]]
        browser.close()
    return faults


def main() -> int:
    """Print the faults."""
    root = Path(sys.argv[1]).resolve()
    # The package that drives it comes with the environment of the tests.
    executable = next(filter(None, map(shutil.which, _BROWSERS)), None) if find_spec("playwright") else None
    faults = [*read(root), *(look(root, executable) if executable else [])]
    sys.stdout.writelines(f"{fault}\n" for fault in faults)
    if executable is None:
        sys.stdout.write("no browser here, or no playwright: pages were read and not looked at\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
