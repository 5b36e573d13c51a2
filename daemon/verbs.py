"""The command values: what a file in the inbox may say, one frozen type per verb.

A command carries everything it refers to: a problem travels with its files. Reading one tells apart
what is no command at all (`BadFile`: the file is moved aside) from a command that cannot be carried out
(`CommandRefused`: it gets its answer in the log).
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import Annotated, Literal, get_args

from pydantic import Base64Bytes, Field, JsonValue, TypeAdapter, ValidationError, field_validator

from daemon.errors import BadFile, CommandRefused
from state.learnt import MOST_IMPORTED
from state.model import About, Frozen, RunConfig, digest_of, reason

Origin = Literal["agentctl", "page"]
"""Where a person gave a command: on the command line, or on the live page."""


class Given(Frozen):
    """What all commands say: where they were given, for the log."""

    origin: Origin = "agentctl"


class Submit(Given):
    """Start a run on the problem in `files` (base64 by relative path), from `kernel` or the problem's own.

    `pinned` are the keys of `config` that were set for this run, not taken from the file or defaults.
    """

    verb: Literal["submit"] = "submit"
    config: RunConfig
    files: dict[str, Base64Bytes]
    kernel: str | None = None
    pinned: tuple[str, ...] = ()


class Pause(Given):
    """Start nothing new in a run; what is in flight is finished."""

    verb: Literal["pause"] = "pause"
    run: str
    reason: str = "asked for"


class Resume(Given):
    """Carry on: a paused run runs again; one that was only interrupted is taken up."""

    verb: Literal["resume"] = "resume"
    run: str
    reason: str = "asked for"


class Cancel(Given):
    """End a run for good; what is in flight is dropped."""

    verb: Literal["cancel"] = "cancel"
    run: str
    reason: str = "asked for"


class Propose(Given):
    """Enter a person's kernel into a run, to be judged like any other."""

    verb: Literal["propose"] = "propose"
    run: str
    source: str = Field(min_length=1)
    note: str = ""


class Set(Given):
    """Change settings of a run, from its next round on; keys as in the configuration."""

    verb: Literal["set"] = "set"
    run: str
    settings: dict[str, JsonValue] = Field(min_length=1)


class Approve(Given):
    """Let a run go on that waits for a person."""

    verb: Literal["approve"] = "approve"
    run: str
    reason: str = "approved"


class Fork(Given):
    """Continue a run from its event `seq` (None: its last) as another one, with some settings changed.

    `files` are those of the problem (base64 by relative path) where that changes. With `rewind` the run
    itself is paused: the fork goes on in its place.
    """

    verb: Literal["fork"] = "fork"
    run: str
    seq: int | None = Field(default=None, ge=1)
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    files: dict[str, Base64Bytes] | None = None
    rewind: bool = False


MOST_SOURCE = 1 << 17
"""Characters of a kernel that comes with an experience."""
MOST_SUMMARY = 20_000
MOST_ABOUT = 8_000
"""Characters of what an experience is about, as JSON."""


class Rewrite(Frozen):
    """An experience as a file has it: a slow and a fast kernel's source, and what made the difference."""

    slow: str = Field(default="", max_length=MOST_SOURCE)
    fast: str = Field(default="", max_length=MOST_SOURCE)
    summary: str = Field(min_length=1, max_length=MOST_SUMMARY)
    about: About | None = None

    @field_validator("about")
    @classmethod
    def _bounded(cls, about: About | None) -> About | None:
        if about is not None and len(about.model_dump_json()) > MOST_ABOUT:
            raise ValueError(f"longer than {MOST_ABOUT} characters")
        return about


class Learn(Given):
    """Take the experiences of a file into the home, under its name; those that do not say are for `target`.

    Without a target they are for any.
    """

    verb: Literal["learn"] = "learn"
    file: str = Field(min_length=1, max_length=200)
    target: str = Field(default="", max_length=40)
    rewrites: tuple[Rewrite, ...] = Field(min_length=1, max_length=MOST_IMPORTED)


class Forget(Given):
    """Tell no later run these experiences, named by their ids."""

    verb: Literal["forget"] = "forget"
    ids: tuple[str, ...] = Field(min_length=1, max_length=1000)


Steering = Pause | Resume | Cancel | Propose | Set | Approve
"""What concerns one run that is there."""

Remembering = Learn | Forget
"""What concerns the experiences of the home, and no run."""

Command = Submit | Steering | Fork | Remembering
VERBS: dict[str, type[Command]] = {
    "submit": Submit,
    "pause": Pause,
    "resume": Resume,
    "cancel": Cancel,
    "propose": Propose,
    "set": Set,
    "approve": Approve,
    "fork": Fork,
    "learn": Learn,
    "forget": Forget,
}
_COMMAND: TypeAdapter[Command] = TypeAdapter(Annotated[Command, Field(discriminator="verb")])


def run_id(command_id: str, problem: str) -> str:
    """Return the id of the run that a submit with this id creates: the same however often it is seen."""
    return f"{problem}-{digest_of(command_id.encode())[:6]}"


def verb_of(data: bytes) -> str:
    """Return the verb of a command file's content.

    Raises:
        BadFile: it is not a JSON object with a `verb`.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"not JSON: {error}") from error
    verb = content.get("verb") if isinstance(content, dict) else None
    if not isinstance(verb, str) or not verb.isascii():
        raise BadFile("not a command: a JSON object with the text field 'verb' was expected")
    return verb


def origin_of(data: bytes) -> Origin | None:
    """Return where a command was given, as its file says; None where it says nothing that is known."""
    origin = json.loads(data).get("origin")
    return next((known for known in get_args(Origin) if known == origin), None)


def parse(data: bytes) -> Command:
    """Read a command whose verb was found by `verb_of`.

    Raises:
        CommandRefused: the verb is unknown, or fields are missing or wrong (all are named).
    """
    verb = verb_of(data)
    if verb not in VERBS:
        close = get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else None
        raise CommandRefused(
            f"unknown verb {verb!r} (known: {', '.join(VERBS)})", code="unknown_verb", hint=hint
        )
    try:
        return _COMMAND.validate_json(data)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'][1:]))}: {reason(fault).lower()}" for fault in error.errors()
        )
        raise CommandRefused(f"{verb}: {faults}", code="bad_command") from error
