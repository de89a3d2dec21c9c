"""The directive ``command-help``: the help text of a command of ``dsgd``, as the program prints it."""

from __future__ import annotations

import os
import subprocess
import sys

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class CommandHelp(SphinxDirective):
    """Show ``dsgd <arguments> --help``."""

    optional_arguments = 8

    def run(self) -> list[nodes.Node]:
        """Run the command and return its output as a literal block."""
        command = [*self.arguments, "--help"]
        plain = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "98", "TERMINAL_WIDTH": "98"}
        text = subprocess.run(
            [sys.executable, "-P", "-m", "dsgd", *command],
            env={**os.environ, **plain},
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        ).stdout
        lines = [line.rstrip() for line in text.strip("\n").splitlines()]
        block = nodes.literal_block(text="\n".join([f"$ dsgd {' '.join(command)}", *lines]))
        block["language"] = "none"
        return [block]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
