"""What the search finds: all problems, one after the other, from their initial kernels, without an LLM.

    .venv/bin/python benchmarks/search.py --out search.json                # the headline: full size, trn2
    .venv/bin/python benchmarks/search.py --out search.json --target trn1  # added to the same file
    .venv/bin/python benchmarks/search.py --out arms.json --arms           # strategies beside one another
    .venv/bin/python benchmarks/search.py --problems silu,bmm --size reduced --seeds 0,1,2

The same as `agentctl bench search`, which says what its options mean. Every latency is predicted by the
simulator's model; no hardware is timed. Exit status 0 when all runs left a result, 1 when some did not.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).resolve().parents[1])]  # as with `python -m`: both spellings work

from agentctl.verbs.bench import search  # noqa: E402
from daemon import exits  # noqa: E402 - the path is set above

if __name__ == "__main__":
    exits.run_command(search, "benchmarks/search.py")
