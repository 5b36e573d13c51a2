"""Runs the command line: `python -m nki_sim.cli`."""

import sys

from nki_sim.cli import main

if __name__ == "__main__":
    sys.exit(main())
