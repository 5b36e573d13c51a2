"""Real daemons, children and caches on machines that fail, each by a seed; each run must end as undisturbed.

    nice .venv/bin/python benchmarks/process_worlds.py --seeds 200 --jobs 2
    .venv/bin/python benchmarks/process_worlds.py --first 17 --seeds 1 --keep FOLDER
    .venv/bin/python benchmarks/process_worlds.py --seeds 20 --defect "damaged files are believed"

What a seed decides, `tests/support/process_worlds.py` says. `--keep` keeps the homes of seeds that failed.
`--defect` breaks the program on purpose: seeds should fail.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

from tests.support.fork_server import ForkServer  # noqa: E402 - the path is set above
from tests.support.process_worlds import DEFECTS, find_differences, make_twin, run_seed  # noqa: E402

CHUNK = 10
"""Seeds that one process tries, with one twin."""


def try_seeds(
    seeds: Sequence[int], *, keep: Path | None, defect: str | None
) -> tuple[list[str], Counter[str], float]:
    """Return which seeds failed and how, what was done to their homes, and the seconds of CPU."""
    failed: list[str] = []
    done: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="worlds-") as name:
        server = ForkServer()
        try:
            twin = make_twin(Path(name), server)
            for seed in seeds:
                story = run_seed(seed, Path(name), server, defect=defect)
                done += story.done
                if wrong := [*find_differences(story, twin)]:
                    failed.append(f"seed {seed}: {'; '.join(wrong)}")
                    if keep is not None:
                        shutil.copytree(story.home, keep / str(seed))
        finally:
            server.close()
    return failed, done, _cpu_seconds()


def _cpu_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for the homes of seeds that failed")
    parser.add_argument("--defect", choices=sorted(DEFECTS))
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    failed: list[str] = []
    done: Counter[str] = Counter()
    spent, began = 0.0, time.monotonic()
    with ProcessPoolExecutor(options.jobs, max_tasks_per_child=1) as pool:
        for one in pool.map(partial(try_seeds, keep=options.keep, defect=options.defect), chunks):
            failed += one[0]
            done += one[1]
            spent += one[2]
            print(*one[0], sep="\n", end="\n" if one[0] else "", flush=True)
    seconds = time.monotonic() - began
    for what, count in sorted(done.items()):
        print(f"{count:5} {what}")
    print(f"{len(seeds)} seeds, {len(failed)} failed; {seconds:.0f} s, {spent:.0f} s of CPU")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
