"""Kill and fault the daemon and its log by a scenario, and say whether everything held that must.

    python -m benchmarks.faults                                   # what scenarios there are
    python -m benchmarks.faults --scenario storage --every 17     # each 17th place only
    python -m benchmarks.faults --scenario soak --out soak.json   # keep every case
    python -m benchmarks.faults --scenario soak --read soak.json  # judge what was kept, run nothing

Exit status 0 when everything held, 1 when something did not, 2 on bad usage or where the scenario cannot run
on this machine, 130 after Ctrl-C. At the deadline or after Ctrl-C, what came until then is judged and kept.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.faults.scenario import Case, Scenario
from benchmarks.faults.scenarios import SCENARIOS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "reliability.md"
SAY_SECONDS = 5.0


class DeadlinePassed(KeyboardInterrupt):
    """Ends a scenario as Ctrl-C does, so that nothing under test takes it for a failure of its own."""


class Keeper:
    """Takes the cases of a scenario: says how it goes, and keeps what came so far."""

    def __init__(self, scenario: Scenario, options: argparse.Namespace) -> None:
        self.cases: list[Case] = []
        self.is_complete = False
        self._scenario = scenario
        self._options = options
        self._began = self._said = time.monotonic()

    def report(self, case: Case) -> None:
        """Add a case.

        Raises:
            DeadlinePassed: no further case is wanted.
        """
        self.cases.append(case)
        now = time.monotonic()
        if case.wrong or now - self._said >= SAY_SECONDS or len(self.cases) == 1:
            self._said = now
            print(
                f"{len(self.cases):,} cases in {now - self._began:.0f} s; {case}", file=sys.stderr, flush=True
            )
            self.keep()
        if now - self._began > 60 * self._options.deadline:
            raise DeadlinePassed

    def keep(self) -> None:
        """Write what was asked for, of the cases so far."""
        if self._options.out:
            text = json.dumps(self.encode(), indent=1)
            self._options.out.write_text(f"{text}\n", encoding="utf-8")
        self._scenario.draw(self._options, self.cases)

    def encode(self) -> dict[str, Any]:
        """The result, in the form that every scenario has."""
        return {
            "scenario": self._scenario.name,
            "fails": self._scenario.fails,
            "must_hold": self._scenario.must_hold,
            "date": datetime.now(UTC).date().isoformat(),
            "seconds": round(time.monotonic() - self._began, 1),
            "is_complete": self.is_complete,
            "wrong": self._scenario.judge(self.cases),
            "summary": self._scenario.summarize(self.cases),
            "cases": [case.encode() for case in self.cases],
        }


def read_cases(path: Path) -> list[Case]:
    """The cases that `--out` kept."""
    return [Case(**case) for case in json.loads(path.read_text(encoding="utf-8"))["cases"]]


def replace_section(text: str, name: str, content: str) -> str:
    """A document with what stands between a scenario's marks replaced."""
    begin, end = f"<!-- faults {name} begin -->", f"<!-- faults {name} end -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{DOCUMENT.name} has no section for the scenario {name}")
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the block in order, also where a shell has them ignored."""
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_scenario(scenario: Scenario, options: argparse.Namespace) -> int:
    """Run, judge, print and keep; the exit status."""
    keeper = Keeper(scenario, options)
    status = 0
    if options.read:
        keeper.cases += read_cases(options.read)
    elif obstacle := scenario.find_obstacle():
        print(f"{scenario.name} cannot run here: {obstacle}", file=sys.stderr)
        return 2
    else:
        try:
            with interruptible():
                scenario.run(options, keeper.report)
            keeper.is_complete = True
        except DeadlinePassed:
            print(f"the deadline of {options.deadline:g} minutes has passed", file=sys.stderr)
        except KeyboardInterrupt:
            status = 130
        except Exception as error:  # noqa: BLE001 - what ends a scenario is its result
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            status = 1
    if not keeper.cases:
        return status or 1
    keeper.keep()
    lines = list(scenario.format(scenario.summarize(keeper.cases)))
    wrong = scenario.judge(keeper.cases)
    print("\n".join([*lines, *wrong]))
    print(f"{len(keeper.cases):,} cases; {len(wrong)} things that must not be")
    if options.write_docs and not status:
        text = replace_section(DOCUMENT.read_text(encoding="utf-8"), scenario.name, "\n".join(lines))
        DOCUMENT.write_text(text, encoding="utf-8")
    return status or (1 if wrong else 0)


def build_parser() -> argparse.ArgumentParser:
    """The arguments that every scenario has."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenario", choices=SCENARIOS, help="what to kill or fail; without it: the table")
    parser.add_argument("--every", type=int, default=1, help="only each n-th place of a sweep (%(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only faults with this text in their name")
    parser.add_argument("--seed", type=int, help="of all that is drawn; each scenario has its own default")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time, where there may be several")
    parser.add_argument(
        "--deadline", type=float, default=float("inf"), metavar="MIN", help="stop after these minutes"
    )
    parser.add_argument("--out", type=Path, help="keep the result, with every case, as JSON")
    parser.add_argument("--read", type=Path, help="run nothing: judge what --out kept earlier")
    parser.add_argument("--write-docs", action="store_true", help=f"put the table into docs/{DOCUMENT.name}")
    return parser


def format_scenarios() -> list[str]:
    return [
        line
        for one in SCENARIOS.values()
        for line in (
            f"{one.name}",
            f"  fails      {one.fails}",
            f"  rate       {one.rate}",
            f"  must hold  {one.must_hold}",
        )
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = build_parser()
    chosen, rest = parser.parse_known_args(arguments)
    if chosen.scenario is None:
        if rest:
            parser.error(f"--scenario is missing; these are a scenario's own: {' '.join(rest)}")
        print("\n".join(format_scenarios()))
        return 0
    scenario = SCENARIOS[chosen.scenario]
    scenario.add_arguments(parser)
    return run_scenario(scenario, parser.parse_args(arguments))
