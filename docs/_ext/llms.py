"""Write ``llms.txt``: what the package is, and a line for each page, for programs that read documentation.

The file follows llmstxt.org: a title, a summary, and a list of links under a heading for each section of the pages.
"""

from __future__ import annotations

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import dsgd

_LEAST = """\
    from dsgd import SGDClassifier
    clf = SGDClassifier(sync=256, n_jobs=2).fit(X, y)       # two threads; scikit-learn's parameters
    clf = SGDClassifier(sync="auto", client=client).fit(X, y)  # a dask.distributed.Client: its workers
    clf.ledger_.summary()                                   # where seconds and bytes went
"""


def lines_of(env: BuildEnvironment, root: str) -> list[str]:
    """Return the lines of the file."""
    summary = " ".join((dsgd.__doc__ or "").partition("\n\n")[0].split())
    lines = ["# dsgd", "", f"> {summary}", "", "The least that trains:", "", _LEAST]
    for section in env.toctree_includes.get(root, []):
        lines += [f"## {env.titles[section].astext()}", "", _line(env, section)]
        lines += [_line(env, page) for page in _below(env, section)]
        lines.append("")
    return lines


def _below(env: BuildEnvironment, page: str) -> list[str]:
    """Return the pages under one, depth first, without those of single objects."""
    found = []
    for child in env.toctree_includes.get(page, []):
        if not child.startswith("api/generated/") or child.rpartition("/")[2].startswith("module-"):
            found += [child, *_below(env, child)]
    return found


def _line(env: BuildEnvironment, page: str) -> str:
    paragraphs = env.get_doctree(page).findall(nodes.paragraph)
    texts = (paragraph.astext() for paragraph in paragraphs if not isinstance(paragraph.parent, nodes.Admonition))
    first = next((text for text in texts if ". " in f"{text} " or text.endswith(":")), "")
    sentence = " ".join(first.split()).partition(". ")[0].rstrip(".:")
    return f"- [{env.titles[page].astext()}]({page}.html)" + (f": {sentence}." if sentence else "")


def _write(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        text = "\n".join(lines_of(app.env, str(app.config.root_doc)))
        (Path(app.outdir) / "llms.txt").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
