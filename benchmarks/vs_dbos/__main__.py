"""`python -m benchmarks.vs_dbos`, or `python benchmarks/vs_dbos`."""

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).resolve().parents[2])]  # both spellings work

from benchmarks.vs_dbos.comparison import main  # noqa: E402 - the path is set above

if __name__ == "__main__":
    sys.exit(main())
