"""`python -m benchmarks.faults`, or `python benchmarks/faults`."""

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).resolve().parents[2])]  # both spellings work

from benchmarks.faults.runner import main  # noqa: E402 - the path is set above

if __name__ == "__main__":
    sys.exit(main())
