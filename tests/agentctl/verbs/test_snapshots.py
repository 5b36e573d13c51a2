"""What every command prints, in both outputs, of a recorded run: `UPDATE_SNAPSHOTS=1` writes them anew.

What differs from machine to machine, or with any change of the program, is blanked first: folders, digests,
process numbers and times of the clock. Look at the difference before it is committed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest

from agentctl.app import agentctl
from agentctl.verb_table import VERBS
from remote.evaluator import EvaluationAnswer
from state.events import BreakerOpened, DayReserved, RunPaused
from state.host_status import HostStatus, publish_host_status
from state.log import EventLog
from state.model import SYSTEM_STREAM, Amount, ErrorInfo, EvaluationHost
from state.records import NewEvent
from tests.support import fakes
from tests.support.fakes import FAKE
from tests.support.otlp import receiver
from tests.support.simulated_logs import asking, record, store, world_of

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
    "rescore": ("rescore", RUN, "--objective", "p90", "-n", "3"),
    "stats": ("stats",),
    "wait": ("wait", RUN, "--for", "best>1.1x"),
    "wait-in-vain": ("wait", RUN, "--for", "best>99x"),
    "verify": ("verify",),
    "problems": ("problems", "--only", "silu"),
    "problems-show": ("problems", "show", "silu"),
    "config-check": ("config", "check"),
    "config-show": ("config", "show"),
    "prompts": ("prompts",),
    "memory-empty": ("memory", "list"),
    "host-list": ("host", "list"),
    "completion": ("completion", "bash"),
    "init": ("init",),
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
    "approve": ("approve", "WAITING"),
    "resume-again": ("resume", RUN),
    "run": ("run", *FAKE, "--kernel", "KERNEL", "--rounds", "1"),
    "backup": ("backup", "OUT"),
    "archive": ("archive", RUN, "-o", "OUT"),
    "compact": ("compact",),
    "restore": ("restore", "BACKUP"),
    "import": ("import", "ARCHIVE"),
    "try": ("try", "KERNEL", "--problem", "silu", "--size", "reduced"),
    "try-host": ("try", "KERNEL", "--problem", "silu", "--size", "reduced", "--host", "JUDGING"),
    "report": ("report", RUN, "-o", "OUT.html"),
    "export-git": ("export", RUN, "--git", "-o", "OUT"),
    "export-layout": ("export", RUN, "--layout", "nki-kernel-agent", "-o", "OUT"),
    "export-otlp": ("export", RUN, "--otlp", "RECEIVER"),
    "problems-new": ("problems", "new", "mine", "--into", "OUT"),
    "problems-export": ("problems", "export", "RUNNING", "-o", "OUT"),
    "memory-import": ("memory", "import", "REWRITES"),
    "memory": ("memory", "list", "--from", "LEARNT-FROM"),
    "memory-show": ("memory", "show", "LEARNT"),
    "memory-export": ("memory", "export", "LEARNT", "-o", "OUT"),
    "host-forget": ("host", "forget", "NOTED"),
    "host-forget-key": ("host", "forget", "TRUSTED", "--key"),
    "memory-forget": ("memory", "forget", "LEARNT"),
}
"""Commands that ask for something, or write a file; nobody owns the home, so that what is asked for waits."""

WRONG: dict[str, tuple[str, ...]] = {
    "no-such-verb": ("statsu",),
    "no-such-run": ("status", "toy-5eed0"),
    "no-such-kernel": ("why", RUN, "r1.b0.p0.k0.f1"),
    "no-such-problem": ("run", "--problem", "slu"),
    "no-such-condition": ("wait", RUN, "--for", "better"),
    "no-prompt": ("show", RUN, KERNEL, "--what", "prompt"),
}
"""What is answered to slips: one error that names the thing and what to do."""

REWRITES = [{"slow": "x = 1\n", "fast": "x = 2\n", "summary": "Store wider tiles\nin one transfer."}]

NARROW = (80, 60, 40)
"""Columns of terminals."""

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"

ELSEWHERE = {
    "tune": ("tests/targets/nki/knobs/export", "it takes the simulator for a while"),
    "translate": ("tests/agentctl/test_translate.py", "it takes the simulator for a while"),
    "bench search": ("tests/agentctl/bench", "it takes the simulator for minutes"),
    "ui": ("tests/agentctl/page/test_verb.py", "it serves until it is ended"),
    "doctor": ("tests/agentctl/verbs/test_doctor.py", "it tells what the machine has"),
    "config keys": ("tests/agentctl/test_config_keys.py", "docs/configuration.md is what it prints"),
    "service install": ("tests/agentctl/test_service.py", "it needs systemd"),
    "service status": ("tests/agentctl/test_service.py", "it needs systemd"),
    "service uninstall": ("tests/agentctl/test_service.py", "it needs systemd"),
    "service show": ("tests/agentctl/test_service.py", "it names where the program is installed"),
    "mcp": ("tests/agentctl/mcp", "it serves until its client leaves"),
    "plugin install": ("tests/agentctl/test_plugin.py", "it writes into a project"),
    "target build": ("tests/targets/folders/test_builder.py", "it writes a folder"),
    "target check": ("tests/targets/folders/test_builder.py", "it compiles the examples of a folder"),
    "calibrate": ("tests/agentctl/test_calibrate.py", "it needs a host"),
    "host check": ("tests/agentctl/test_host.py", "it needs a host"),
    "host setup": ("tests/agentctl/test_host.py", "it needs a host"),
    "host trust": ("tests/agentctl/test_host.py", "it needs a host"),
    "host plan": ("tests/agentctl/test_host.py", "it prints whole scripts"),
}
"""Commands whose output is held by other tests, and why."""

BLANKS = (
    (re.compile(r"(?<=/)[\w./-]*/home\b|/\S*/home\b"), "HOME"),
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
    (re.compile(r"\d{8}T\d{6}Z|(?<=127\.0\.0\.1:)\d+|\d+(?= kB\))|\b *\d+(?= bytes)"), "N"),
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


def compare(name: str, text: str, folder: Path | None = None) -> None:
    """Hold a text against its snapshot, or make it that; what lies in `folder` is told without it."""
    path = FOLDER / name
    found = blanked(text).replace(str(folder), "FOLDER")
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
def _alike(monkeypatch, tmp_path_factory, patient_verification) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))  # no rates of this machine
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "50")
    for pool in ("EVALUATIONS", "PROPOSALS"):  # by default as many as there are CPUs
        monkeypatch.setenv(f"NKI_AGENT_DAEMON__{pool}", "2")


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


def judged_on(monkeypatch: pytest.MonkeyPatch, where: EvaluationHost) -> None:
    """Have the fake evaluator stand in for a host."""

    async def judged(*arguments: Any) -> EvaluationAnswer:
        return replace(await evaluate(*arguments), where=where)

    evaluate = fakes.FakeEvaluator.evaluate
    monkeypatch.setattr(fakes.FakeEvaluator, "evaluate", judged)
    monkeypatch.setattr("agentctl.verbs.try_.select_host", lambda config, address: config)


@pytest.fixture(scope="module")
def busy(tmp_path_factory) -> Path:
    """A home with much to tell: runs that ended and that nobody drives, calls that failed, a day's budget."""
    home = tmp_path_factory.mktemp("busy") / ("so-long-" * 8) / "home"  # breaks lines wherever it lies
    home.parent.mkdir()
    going = world_of(order=7)
    going.finish(until=lambda state: state.round == 3)
    record(home, {RUN: world_of().finish()})
    with EventLog.open(home) as log:
        store(log, "rmsnorm_matmul-5eed02", asking(going), blobs=[*going.blobs.values()])
        error = ErrorInfo(code="key", message="the key was refused, twice")
        opened = BreakerOpened(name="house", error=error)
        day = DayReserved(day="2026-01-02", call="c", amount=Amount(usd=2.5))
        log.append_now([NewEvent(SYSTEM_STREAM, event) for event in (opened, day)])
    return home


@pytest.mark.parametrize("width", NARROW)
def test_what_status_prints_on_a_narrow_terminal(ctl, busy, monkeypatch, width):
    """Lines break between words, and what is told is the same; commands to type are whole."""
    wide = ctl("status", home=busy).out
    monkeypatch.setenv("COLUMNS", str(width))
    text = ctl("status", home=busy).out
    compare(f"status-{width}.txt", text)
    longer = [line for line in text.splitlines() if len(line) > width]
    assert [line for line in longer if not re.match(r"  \S*agentctl |  /\S+$", line)] == []
    told = r"[\w$.@:-]*\d[\w$.@:-]*"  # whatever has a number in it
    assert set(re.findall(told, wide)) - set(re.findall(told, text)) <= {"4.2"}  # the initial latency at 80


@pytest.fixture
def called(ctl, home, recorded, tmp_path, monkeypatch):
    """Call one of `STEERING` on a home of its own, with what it names in place."""
    monkeypatch.setenv("NKI_AGENT_RUN__EVALUATOR", "fake")
    monkeypatch.setattr("agentctl.command_answers.QUEUED_AFTER_SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)
    stand: dict[str, Any] = {"OUT": tmp_path / "out", "OUT.html": tmp_path / "out.html"}

    def done(*arguments: object):
        answer = ctl(*arguments, home=home)
        assert answer.status == 0, answer.err
        return answer

    def make(word: str) -> object:
        if word == "RUNNING":
            stand[word] = fakes.submit_run(home)
            fakes.take_commands(home)
        elif word == "WAITING":
            stand[word] = str(make("RUNNING"))
            paused = RunPaused(reason="needs approval: before_round 1", needs_approval=("before_round 1",))
            with EventLog.open(home) as log:
                log.append_now([NewEvent(stand[word], paused)])
        elif word == "KERNEL":
            stand[word] = tmp_path / "start.py"
            stand[word].write_text(fakes.KERNEL)
        elif word == "BACKUP":
            done("backup", "copy.db")
            stand[word] = "copy.db"
        elif word == "ARCHIVE":
            done("archive", RUN, "-o", "kept.gz")
            done("compact", "kept.gz")
            stand[word] = "kept.gz"
        elif word == "REWRITES":
            stand[word] = tmp_path / "rewrites.json"
            stand[word].write_text(json.dumps(REWRITES))
        elif word == "NOTED":
            noted = HostStatus(address="trn-a", state="up", since=datetime(2026, 1, 2, tzinfo=UTC))
            publish_host_status(home, [noted])
            stand[word] = "trn-a"
        elif word == "TRUSTED":
            (home / "known_hosts").write_text(f"trn-a {KEY}\n")
            stand[word] = "trn-a"
        elif word == "JUDGING":
            judged_on(monkeypatch, EvaluationHost(host="trn-a", device="nki_sim (no Neuron SDK on host)"))
            stand[word] = "trn-a"
        elif word in ("LEARNT", "LEARNT-FROM"):
            done("memory", "import", make("REWRITES"))
            fakes.take_commands(home)
            (one,) = done("memory", "list", "--json").json
            stand.update({"LEARNT": one["id"], "LEARNT-FROM": one["origin"]})
        return stand.get(word, word)

    def call(name: str, *more: str):
        shutil.copytree(recorded, home)
        arguments = [make(one) for one in STEERING[name] if one != "RECEIVER"]
        if "RECEIVER" not in STEERING[name]:
            return ctl(*arguments, *more, home=home)
        with receiver() as got:
            return ctl(*arguments, got.address, *more, home=home)

    return call


@pytest.mark.needs("git")
@pytest.mark.parametrize("name", STEERING)
def test_what_a_steering_command_prints(called, tmp_path, name):
    compare(f"{name}.txt", said(called(name)), tmp_path)


@pytest.mark.needs("git")
@pytest.mark.parametrize("name", STEERING)
def test_what_a_steering_command_tells_programs(called, tmp_path, name):
    lines = called(name, "--json").out.splitlines()
    compare(
        f"{name}.json", "".join(f"{json.dumps(json.loads(line), indent=1)}\n" for line in lines), tmp_path
    )


@pytest.mark.parametrize("name", WRONG)
def test_what_is_said_to_slips(ctl, recorded, name):
    called = ctl(*WRONG[name], home=recorded)
    assert called.status in (2, 3)
    assert called.out == ""
    compare(f"{name}.txt", said(called))


def commands(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield every command by the words that call it; a group that does something by itself is one, too."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        words = (*before, name)
        if not isinstance(command, click.Group):
            yield " ".join(words)
            continue
        if command.invoke_without_command:
            yield " ".join(words)
        yield from commands(command, words)


def test_every_command_has_both_snapshots_or_a_reason_and_a_test_elsewhere():
    known = set(commands(agentctl))
    assert {name.partition(" ")[0] for name in known} == set(VERBS)
    shown = set()
    for arguments in (*READING.values(), *STEERING.values()):
        words = " ".join(arguments[:2])
        shown.add(words if words in known else arguments[0])
    assert shown | set(ELSEWHERE) == known
    assert shown & set(ELSEWHERE) == set()
    root = Path(__file__).parents[3]
    assert [place for place, _ in ELSEWHERE.values() if not (root / place).exists()] == []


def test_every_snapshot_is_some_commands():
    names = {f"{name}.{kind}" for name in (*READING, *STEERING) for kind in ("txt", "json")}
    names |= {f"{name}.txt" for name in (*WRONG, *(f"status-{width}" for width in NARROW))}
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
    assert (
        len(marked.findall(text)) == text.count("\n```text\n") >= 5
    )  # nothing is shown that nobody compares
