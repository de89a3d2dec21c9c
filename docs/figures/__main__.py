"""Draw figures and tables of the docs from their rows.

python docs/figures                 # all of them: `make figures`
python docs/figures gossip claims   # some
python docs/figures --list          # what makes the rows of each
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from listed import FIGURES, ROOT


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="figures; all by default")
    parser.add_argument("--list", action="store_true", help="print the commands that make their rows instead")
    options = parser.parse_args()
    known = {one.name: one for one in FIGURES}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"no figure is called {', '.join(unknown)}; there are {', '.join(known)}")
    for name in options.names or known:
        if not options.list:
            subprocess.run(known[name].command, check=True, cwd=ROOT)
        sys.stdout.write(f"{name}: {known[name].again if options.list else ', '.join(known[name].files)}\n")


if __name__ == "__main__":
    main()
