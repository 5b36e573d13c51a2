"""Hosts under faults: one job's life while links are cut, machines reboot and clocks jump, as a table.

`python benchmarks/remote_faults.py [--only TEXT] [--json]` starts a real SSH server for each fault, sends
inputs, has a job wait at a gate on the host, inflicts the fault, opens the gate, fetches the result and
forgets the job. The job counts its beginnings and ends on the host. Held against what must be: the result
arrives and is right, the job came to its end exactly once, it began once more only where its runner died,
every core can be had afterwards, and no file of it is left. Some faults end in an error instead: then its
code is the result. It needs root, for network namespaces. The last results are kept in
`benchmarks/results/remote_faults.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULT = Path(__file__).parent / "results" / "remote_faults.json"
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

from tests.support.host_faults import (  # noqa: E402 - the path is set above
    CUTS,
    ENDED_BY,
    FAULTS,
    VERBS,
    Outcome,
    cut_at,
    live_through,
    rig,
)

_HEAD = f"{'fault':<44} {'result':<18} {'begun':>5} {'ended':>5} {'core':>5} {'left':>5} {'s':>6}"


@dataclass(frozen=True)
class Row:
    """One fault and what came of it; `wrong` says what must not be."""

    fault: str
    result: str
    begun: int
    ended: int
    cores_free: bool
    left: int
    seconds: float
    wrong: str

    def line(self) -> str:
        """The row as text."""
        core = "free" if self.cores_free else "HELD"
        text = f"{self.fault:<44} {self.result:<18} {self.begun:>5} {self.ended:>5} {core:>5} {self.left:>5}"
        return f"{text} {self.seconds:>6.1f} {self.wrong}".rstrip()


def _row(name: str, outcome: Outcome, *, begins: int, expected: str = "done") -> Row:
    wrong = [
        text
        for text, failed in (
            (f"expected {expected}", outcome.status != expected),
            ("the result is not right", expected == "done" and not outcome.right),
            (f"began {outcome.begun} times, not {begins}", outcome.begun != begins),
            ("did not end exactly once", expected == "done" and outcome.ended != 1),
            ("a core is held", not outcome.cores_free),
            # With a host whose key is another a home does not speak; what is there goes with its age.
            (f"left {len(outcome.litter)} files", bool(outcome.litter) and expected != "host_key_changed"),
        )
        if failed
    ]
    return Row(
        fault=name,
        result=outcome.status,
        begun=outcome.begun,
        ended=outcome.ended,
        cores_free=outcome.cores_free,
        left=len(outcome.litter),
        seconds=outcome.seconds,
        wrong="; ".join(wrong),
    )


async def rows(only: str) -> AsyncIterator[Row]:
    """Yield what came of each fault whose name has `only` in it."""
    for name, fault in FAULTS.items():
        if only in name:
            with tempfile.TemporaryDirectory() as folder:
                async with rig(Path(folder), fault) as there:
                    outcome = await live_through(there, fault.inflict)
                yield _row(name, outcome, begins=fault.begins)
    for verb in VERBS:
        for when in CUTS:
            name = f"link cut {when} {verb}"
            if only in name:
                with tempfile.TemporaryDirectory() as folder:
                    async with rig(Path(folder), FAULTS["nothing"]) as there:
                        with cut_at(verb, when, there.sshd):
                            outcome = await live_through(there, FAULTS["nothing"].inflict)
                    yield _row(name, outcome, begins=1)
    for name, (fault, code) in ENDED_BY.items():
        if only in name:
            with tempfile.TemporaryDirectory() as folder:
                async with rig(Path(folder), fault) as there:
                    outcome = await live_through(there, fault.inflict)
                yield _row(name, outcome, begins=fault.begins, expected=code)


async def measure(only: str) -> list[Row]:
    """Print the table as it comes, and return it."""
    print(_HEAD, flush=True)
    found = []
    async for row in rows(only):
        print(row.line(), flush=True)
        found.append(row)
    return found


def main() -> int:
    """Run the faults that were asked for; 1 if something must not be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only faults with this text in their name")
    parser.add_argument("--json", action="store_true", help="also print the rows as JSON")
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments.only))
    kept = json.dumps([asdict(row) for row in found], indent=1)
    if arguments.json:
        print(kept)
    if not arguments.only:
        RESULT.write_text(f"{kept}\n", encoding="utf-8")
    wrong = [row for row in found if row.wrong]
    print(f"{len(found)} faults, {len(found) - len(wrong)} as they must be, {len(wrong)} not")
    return 1 if wrong or not found else 0


if __name__ == "__main__":
    sys.exit(main())
