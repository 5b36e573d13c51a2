"""A recorded run, read from its archive: its events, and what today's code makes of them.

`summarize_history` and `digest_report` are what is kept of a run in a JSON file beside its archive;
`tell_outcome` is what it has in common with the same run made anew, which has other times and may have come
about in another order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_core.decide import decide
from agent_core.effects import Decision, Effect
from agentctl.reports.document import gather_report
from agentctl.views import as_json
from remote import code_digest
from state.archive import open_archive, read_archive
from state.archive_import import import_archive
from state.blobs import unpack_blob
from state.events import (
    CallEnded,
    EffectEnded,
    Event,
    KernelProposed,
    ProfileRecorded,
    RunCreated,
    idempotency_key,
)
from state.fold import RunState, apply_event, state_hash
from state.model import canonical_json, digest_of
from state.reader import LogReader
from state.records import EventRow
from state.upcast import decode_event
from state.verify import verify_log

RUNS = Path(__file__).parent / "runs"
"""Of each recorded run its archive, NAME.jsonl.gz, and what is kept of it, NAME.json.

Runs in `earlier/` were recorded by older versions. They are folded and reported, and not made anew.
"""

NAMES = sorted(path.relative_to(RUNS).with_suffix("").as_posix() for path in RUNS.rglob("*.json"))

SHORT = 12
"""Digits of a digest that is there to be compared, and names nothing."""


@dataclass(frozen=True, slots=True)
class History:
    """The events of a run, those of the runs that it continues first, and the hash of the last one.

    `keys` are those under which the log took each event once, None where repeats are legal.
    """

    events: tuple[Event, ...]
    keys: tuple[str | None, ...]
    head: str
    blobs: dict[str, bytes]

    def states(self) -> list[RunState]:
        """Return the states after each event, folded anew."""
        found: list[RunState] = []
        for event in self.events:
            found.append(apply_event(found[-1] if found else None, event))
        return found


def archive_of(name: str) -> Path:
    return RUNS / f"{name}.jsonl.gz"


def load(path: Path) -> History:
    """Read an archive, and check its hash chain and blobs."""
    found = read_archive(path)
    lines = list(open_archive(path)[1])
    rows = [line for line in lines if isinstance(line, EventRow)]
    return History(
        events=tuple(decode_event(row) for row in rows),
        keys=tuple(row.idem for row in rows),
        head=found.head.hex(),
        blobs={line.digest.hex(): unpack_blob(line) for line in lines if not isinstance(line, EventRow)},
    )


# --- what is kept ------------------------------------------------------------------------------------


def summarize_history(history: History) -> dict[str, Any]:
    """Return what a run comes to: its end, what was asked for after each event, its kernels' codes."""
    states = history.states()
    last = states[-1]
    asked = [decide(state) for state in states]
    return {
        "events": len(history.events),
        "head": history.head,
        "state_hash": state_hash(last),
        "decision_digest": last.decision_digest,
        "best": last.best
        and {
            "id": last.best.id,
            "source": last.best.source,
            "code": last.best.code,
            "latency_ms": last.best.latency_ms,
        },
        "decisions": digest_of(canonical_json([_plain(one) for decisions in asked for one in decisions])),
        "asked": [
            f"after {type(event).__name__}: {_describe_decisions(decisions)}"
            for event, decisions in zip(history.events, asked, strict=True)
        ],
        "codes": {
            key: code_digest(history.blobs[source], last.config.target) for key, source in _kernels(history)
        },
    }


def _plain(decision: Decision) -> Any:
    if isinstance(decision, Effect):
        request = decision.request.model_dump(mode="json")
        return [str(decision.key), request, [digest_of(blob) for blob in decision.blobs]]
    return [event.model_dump(mode="json") for event in decision.events]


def _describe_decisions(decisions: list[Decision]) -> str:
    """Say what is asked for in a line, with the digest of all that it holds."""
    if not decisions:
        return "nothing"
    names = [
        str(one.key) if isinstance(one, Effect) else " + ".join(type(event).__name__ for event in one.events)
        for one in decisions
    ]
    return f"{', '.join(names)} ({_short([_plain(one) for one in decisions])})"


def _short(content: Any) -> str:
    return digest_of(canonical_json(content))[:SHORT]


def _kernels(history: History) -> list[tuple[str, str]]:
    """Return the kernels of a run by the key of who wrote them, as digests of their sources."""
    first = [("initial", event.kernel) for event in history.events if isinstance(event, RunCreated)]
    proposed = (event for event in history.events if isinstance(event, KernelProposed))
    return [*first, *((event.key, event.source) for event in proposed)]


def digest_report(path: Path, home: Path) -> dict[str, str]:
    """Take an archive into the new log of `home`; return the digest of each section of the run's report."""
    import_archive(home, path)
    verify_log(home).require_ok("the log with the run")
    with LogReader.open(home) as reader:
        run = read_archive(path).manifest.run
        found = gather_report(reader, run, owned=False, version="1.2.3", now="2026-01-02T03:04:05+00:00")
        return {name: _short(section) for name, section in as_json(found).items()}


# --- what it shares with the same run made anew --------------------------------------------------------

_OF_THE_MACHINE = (
    "usage", "cached_from", "stage_ms", "device_seconds", "tries", "predicted_ms", "where", "ms", "reserved",
)  # fmt: skip
"""What an outcome says of how it came about."""


def tell_outcome(history: History) -> dict[str, Any]:
    """Return what was asked and answered and what became of it, whenever and in whatever order it came."""
    told = {
        key: _fold_shared_event(event)
        for event in history.events
        if (key := idempotency_key(event)) is not None
    }
    last = history.states()[-1].model_copy(update={"prompts": None})
    return told | {"the last state": state_hash(last), "all decisions": last.decision_digest}


def _fold_shared_event(event: Event) -> Any:
    # The version of the prompts is that of this program; what is rendered of them is in the calls' requests.
    content = event.model_dump(mode="json", exclude={"code_version", "prompts", "parent_hash"})
    if isinstance(event, EffectEnded | CallEnded | ProfileRecorded):
        for name in _OF_THE_MACHINE:
            content.pop(name, None)
    if content.get("evaluation"):
        content["evaluation"]["rel_l2"] = sorted(content["evaluation"]["rel_l2"])  # sums of floats of a CPU
    return content
