"""Draw all figures and tables of the docs from their rows, or say which are stale.

python docs/figures                               # draws all of them: `make figures`
python docs/figures draw gossip claims            # draws some
python docs/figures check                         # says which are stale; the tests ask this too
python docs/figures measured gossip               # its rows were made again, of the code as it is
python docs/figures measured claims averages --because "another order of the same sums"
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from stamps import FIGURES, ROOT, Drawn, drawn_of, measured, read, stale, write


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", nargs="?", choices=["draw", "check", "measured"], default="draw")
    parser.add_argument("names", nargs="*", help="figures; after the figure of `measured` parts of its rows")
    parser.add_argument("--because", default="", help="why rows of before are true of the code as it is")
    options = parser.parse_args()
    known = {one.name: one for one in FIGURES}
    unknown = [name for name in options.names[: 1 if options.do == "measured" else None] if name not in known]
    if unknown:
        parser.error(f"no figure is called {', '.join(unknown)}; there are {', '.join(known)}")
    if options.do == "check":
        found = list(stale())
        sys.exit("\n".join(found) if found else 0)
    if options.do == "measured":
        if not options.names:
            parser.error("measured which?")
        name, *parts = options.names
        write(read() | {name: measured(known[name], parts, options.because)})
        draw(known[name])
        return
    for name in options.names or known:
        draw(known[name])


def draw(one: Drawn) -> None:
    """Run the script of a figure, and stamp what it has made."""
    subprocess.run(one.command, check=True, cwd=ROOT)
    stamp = read().get(one.name, {})
    if one.computed:  # what is computed is measured by drawing it
        stamp = measured(one)
    write(read() | {one.name: {**stamp, "drawn": drawn_of(one)}})
    sys.stdout.write(f"{one.name}: {', '.join(one.files)}\n")


if __name__ == "__main__":
    main()
