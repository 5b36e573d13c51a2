"""What every command prints, in both outputs, of a recorded run: `UPDATE_SNAPSHOTS=1` writes them anew.

What differs from machine to machine, or with any change of the program, is blanked first: folders, digests,
process numbers and times of the clock. Look at the difference before it is committed.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from daemon.ctl.app import VERBS
from tests.daemon import fakes
from tests.daemon.fakes import FAKE
from tests.support.recorded import record, world_of

FOLDER = Path(__file__).parent / "snapshots"
RUN = "toy-5eed01"
KERNEL = "r1.b0.p0.k0.f0"

READING: dict[str, tuple[str, ...]] = {
    "status": ("status",),
    "status-run": ("status", RUN),
    "tail": ("tail", "-n", "12"),
    "tail-grep": ("tail", "--run", RUN, "--type", "decision", "--grep", "elite", "-n", "3"),
    "show-event": ("show", f"{RUN}@5"),
    "show-kernel": ("show", RUN, "best"),
    "show-plan": ("show", RUN, KERNEL, "--what", "plan"),
    "show-profile": ("show", RUN, KERNEL, "--what", "profile"),
    "show-judge": ("show", RUN, KERNEL, "--what", "judge"),
    "why": ("why", RUN, "best"),
    "why-initial": ("why", RUN, "initial"),
    "tree": ("tree", RUN),
    "tree-kept": ("tree", RUN, "--kept"),
    "lineage": ("lineage",),
    "replay": ("replay", RUN),
    "diff": ("diff", RUN),
    "best": ("best", RUN),
    "stats": ("stats",),
    "wait": ("wait", RUN, "--for", "best>1.1x"),
    "wait-in-vain": ("wait", RUN, "--for", "best>99x"),
    "verify": ("verify",),
    "problems": ("problems", "--only", "silu"),
    "config-check": ("config", "check"),
    "memory": ("memory", "list"),
    "migrate": ("migrate",),
    "repair": ("repair",),
}
"""Commands that change nothing, by the name of their snapshot."""

STEERING: dict[str, tuple[str, ...]] = {
    "submit": ("submit", *FAKE),
    "pause": ("pause", "RUNNING"),
    "cancel": ("cancel", "RUNNING"),
    "set": ("set", "RUNNING", "search.rounds=3"),
    "fork": ("fork", f"{RUN}@5", "--set", "search.rounds=9"),
    "propose": ("propose", "RUNNING", "KERNEL"),
    "resume-again": ("resume", RUN),
    "run": ("run", *FAKE, "--kernel", "KERNEL", "--rounds", "1"),
    "backup": ("backup", "BACKUP"),
    "archive": ("archive", RUN, "-o", "ARCHIVE"),
    "compact": ("compact",),
}
"""Commands that ask for something; nobody owns the home, so that it waits."""

WRONG: dict[str, tuple[str, ...]] = {
    "no-such-verb": ("statsu",),
    "no-such-run": ("status", "toy-5eed0"),
    "no-such-kernel": ("why", RUN, "r1.b0.p0.k0.f1"),
    "no-such-problem": ("run", "--problem", "slu"),
    "no-such-condition": ("wait", RUN, "--for", "better"),
    "no-prompt": ("show", RUN, KERNEL, "--what", "prompt"),
}
"""What is answered to slips: one error that names the thing and what to do."""

ELSEWHERE = {
    "approve": "tests/daemon/test_steer.py",
    "bench": "tests/daemon/bench",
    "completion": "tests/daemon/ctl/test_completion.py",
    "doctor": "tests/daemon/ctl/test_doctor.py",
    "import": "tests/daemon/test_keep.py",
    "rescore": "tests/daemon/test_ctl_fork.py",
    "prompts": "tests/daemon/test_ctl_prompts.py",
    "restore": "tests/daemon/test_keep.py",
    "service": "tests/daemon/test_service.py",
    "try": "tests/daemon/test_kernels.py",
    "tune": "tests/daemon/tuned",
    "export": "tests/daemon/exports",
    "host": "tests/daemon/test_ctl_hosts.py",
    "report": "tests/daemon/reports",
    "ui": "tests/daemon/ui",
}
"""Verbs whose output is held by other tests: it depends on the machine, or takes the simulator."""

BLANKS = (
    (re.compile(r"(?<=/)[\w./-]*/home\b|/\S*/home\b"), "HOME"),
    (re.compile(r"/\S*/(?=start\.py|copy\.db|kept\.gz)"), "FOLDER/"),
    (re.compile(r"\S*bin/agentctl"), "agentctl"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "DIGEST"),
    (
        re.compile(r"(?<=hash )[0-9a-f]{12,16}|(?<=prompts )[0-9a-f]{12}|(?<=SHA-256 )\w+|\([0-9a-f]{12}\)"),
        "HASH",
    ),
    (re.compile(r"\b(toy|silu)-(?!5eed01)[0-9a-f]{6}\b"), r"\1-NEW"),
    (re.compile(r"\b\d{20}-[0-9a-f]{8}\b"), "COMMAND"),
    (re.compile(r"\b\d+:\d\d since it began"), "0:00 since it began"),
    (re.compile(r'("(?:elapsed_seconds|events_per_second|size|bytes)": )[\d.e+-]+'), r"\1 0"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)?"), "TIME"),
)
"""What is not told alike everywhere, and what stands for it."""


def blanked(text: str) -> str:
    for pattern, instead in BLANKS:
        text = pattern.sub(instead, text)
    return text


def outlined(value: object) -> object:
    """Return an event's line without what the event has: that is held where events are."""
    if not isinstance(value, dict) or "event" not in value:
        return value
    return value | {"event": "EVENT"} | ({"blobs": len(value["blobs"])} if "blobs" in value else {})


def compare(name: str, text: str) -> None:
    """Hold a text against its snapshot, or make it that."""
    path = FOLDER / name
    found = blanked(text)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(found, encoding="utf-8")
    assert path.exists(), f"no snapshot {name}: UPDATE_SNAPSHOTS=1 makes it"
    assert found == path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("recorded") / "home"
    record(home, {RUN: world_of().finish()})
    return home


@pytest.fixture(autouse=True)
def _alike(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "50")


def said(called) -> str:
    out = called.out if not called.err else f"{called.out}--- stderr\n{called.err}"
    return f"{out}--- status {called.status}\n"


@pytest.mark.parametrize("name", READING)
def test_what_a_reading_command_prints(ctl, recorded, name):
    arguments = READING[name]
    compare(f"{name}.txt", said(ctl(*arguments, home=recorded)))
    lines = ctl(*arguments, "--json", home=recorded).out.splitlines()
    parsed = [outlined(json.loads(line)) for line in lines]
    compare(f"{name}.json", "".join(f"{json.dumps(one, indent=1)}\n" for one in parsed))


@pytest.mark.parametrize("name", STEERING)
def test_what_a_steering_command_prints(ctl, home, tmp_path, name):
    record(home, {RUN: world_of().finish()})
    kernel = tmp_path / "start.py"
    kernel.write_text(fakes.KERNEL)
    stand = {"KERNEL": kernel, "BACKUP": tmp_path / "copy.db", "ARCHIVE": tmp_path / "kept.gz"}
    arguments = STEERING[name]
    if "RUNNING" in arguments:
        stand["RUNNING"] = fakes.submit(home)
        fakes.take_commands(home)
    called = ctl(*(stand.get(one, one) for one in arguments), home=home)
    compare(f"{name}.txt", said(called))


@pytest.mark.parametrize("name", WRONG)
def test_what_is_said_to_slips(ctl, recorded, name):
    called = ctl(*WRONG[name], home=recorded)
    assert called.status in (2, 3)
    assert called.out == ""
    compare(f"{name}.txt", said(called))


def test_every_verb_has_a_snapshot_or_a_test_elsewhere():
    shown = {arguments[0] for table in (READING, STEERING) for arguments in table.values()}
    assert set(VERBS) - shown - set(ELSEWHERE) == set()
    root = Path(__file__).parents[3]
    assert [place for place in ELSEWHERE.values() if not (root / place).exists()] == []


def test_every_snapshot_is_some_commands():
    names = {f"{name}.{kind}" for name in READING for kind in ("txt", "json")}
    names |= {f"{name}.txt" for name in (*STEERING, *WRONG)}
    assert {path.name for path in FOLDER.iterdir()} == names


def test_the_page_on_looking_has_what_is_printed():
    page = Path(__file__).parents[3] / "docs" / "looking.md"
    marked = re.compile(r"<!-- snapshot: (\S+) -->\n(?:```text\n.*?```\n)?", re.DOTALL)

    def shown(found: re.Match[str]) -> str:
        text = (FOLDER / found[1]).read_text(encoding="utf-8").partition("--- status ")[0]
        return f"<!-- snapshot: {found[1]} -->\n```text\n{text}```\n"

    text = page.read_text(encoding="utf-8")
    wanted = marked.sub(shown, text)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        page.write_text(wanted, encoding="utf-8")
    assert wanted == page.read_text(encoding="utf-8")
    assert len(marked.findall(text)) >= 5
