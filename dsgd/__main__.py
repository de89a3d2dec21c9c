"""The ``dsgd`` command: runs the command line and reports errors in one line.

Exit status: 0 when all went well, 2 when the command or its input was wrong or the job could not run, 130 after
ctrl-C. Errors nobody foresaw keep their traceback and leave status 1.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

from dsgd.errors import DsgdError, RankError
from dsgd.printing import printable

# What a wrong path, a full disk or a folder in the place of a file raise: the user's to mend, so no traceback.
_USER_ERRORS = (DsgdError, OSError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args or os.environ.get("DSGD_DEBUG", "") not in ("", "0")
    # --debug is understood anywhere on the line, as it is mostly added to the end of a line that has just failed.
    args = [arg for arg in args if arg != "--debug"]
    try:
        _run(args)
    except SystemExit as done:  # how the command line library ends a run, good or bad
        return _status(done.code)
    except KeyboardInterrupt:
        sys.stderr.write("dsgd: interrupted\n")
        return 130
    except _USER_ERRORS as error:
        if debug:
            raise
        sys.stderr.write(f"dsgd: error: {_one_line(error)}\n")
        return 2
    return 0


def _run(args: list[str]) -> None:
    import typer

    from dsgd.cli import app

    with warnings.catch_warnings():
        # A warning is for the user of the command, who does not need to know which line of which file it comes from.
        warnings.showwarning = _show_warning
        typer.main.get_command(app)(args=args, prog_name="dsgd")


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    del category, filename, lineno, file, line
    text = "\n".join(map(printable, str(message).split("\n")))
    sys.stderr.write(f"dsgd: warning: {text}\n")


def _status(code: str | int | None) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    sys.stderr.write(f"{code}\n")
    return 1


def _one_line(error: BaseException) -> str:
    """Return what went wrong without the traceback of a rank."""
    if isinstance(error, RankError):
        last = error.cause.strip().splitlines()[-1:] or ["no cause was given"]
        where = f"rank {error.rank} on worker {error.worker} (host {error.host})"
        return f"{where} raised {printable(last[0])}. Add --debug for the traceback."
    if isinstance(error, OSError) and not isinstance(error, DsgdError) and error.strerror and error.filename:
        return printable(f"{error.filename}: {error.strerror}")
    return printable(" ".join(str(error).split())) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
