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
from state.learning import MAX_IMPORTED
from state.model import ExperienceContext, FrozenModel, RunConfig, digest_of, validation_reason

CommandOrigin = Literal["agentctl", "page"]
"""Where a person gave a command: on the command line, or on the live page."""


class CommandBase(FrozenModel):
    """What all commands say: where they were given, for the log."""

    origin: CommandOrigin = "agentctl"


class Submit(CommandBase):
    """Start a run on the problem in `files` (base64 by relative path), from `kernel` or the problem's own.

    `pinned` are the keys of `config` that were set for this run, not taken from the file or defaults.
    """

    verb: Literal["submit"] = "submit"
    config: RunConfig
    files: dict[str, Base64Bytes]
    kernel: str | None = None
    pinned: tuple[str, ...] = ()


class Pause(CommandBase):
    """Start nothing new in a run; what is in flight is finished."""

    verb: Literal["pause"] = "pause"
    run: str
    reason: str = "asked for"


class Resume(CommandBase):
    """Carry on: a paused run runs again; one that was only interrupted is taken up."""

    verb: Literal["resume"] = "resume"
    run: str
    reason: str = "asked for"


class Cancel(CommandBase):
    """End a run for good; what is in flight is dropped."""

    verb: Literal["cancel"] = "cancel"
    run: str
    reason: str = "asked for"


class Propose(CommandBase):
    """Enter a person's kernel into a run, to be judged like any other."""

    verb: Literal["propose"] = "propose"
    run: str
    source: str = Field(min_length=1)
    note: str = ""


class Set(CommandBase):
    """Change settings of a run, from its next round on; keys as in the configuration."""

    verb: Literal["set"] = "set"
    run: str
    settings: dict[str, JsonValue] = Field(min_length=1)


class Approve(CommandBase):
    """Let a run go on that waits for a person."""

    verb: Literal["approve"] = "approve"
    run: str
    reason: str = "approved"


class Fork(CommandBase):
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


MAX_SOURCE = 1 << 17
"""Characters of a kernel that comes with an experience."""
MAX_SUMMARY = 20_000
MAX_ABOUT = 8_000
"""Characters of what an experience is about, as JSON."""


class ExperienceEntry(FrozenModel):
    """An experience as a file has it: a slow and a fast kernel's source, and what made the difference."""

    slow: str = Field(default="", max_length=MAX_SOURCE)
    fast: str = Field(default="", max_length=MAX_SOURCE)
    summary: str = Field(min_length=1, max_length=MAX_SUMMARY)
    about: ExperienceContext | None = None

    @field_validator("about")
    @classmethod
    def _check_about_size(cls, about: ExperienceContext | None) -> ExperienceContext | None:
        if about is not None and len(about.model_dump_json()) > MAX_ABOUT:
            raise ValueError(f"longer than {MAX_ABOUT} characters")
        return about


class Learn(CommandBase):
    """Take the experiences of a file into the home, under its name; those that do not say are for `target`.

    Without a target they are for any.
    """

    verb: Literal["learn"] = "learn"
    file: str = Field(min_length=1, max_length=200)
    target: str = Field(default="", max_length=40)
    rewrites: tuple[ExperienceEntry, ...] = Field(min_length=1, max_length=MAX_IMPORTED)


class Forget(CommandBase):
    """Tell no later run these experiences, named by their ids."""

    verb: Literal["forget"] = "forget"
    ids: tuple[str, ...] = Field(min_length=1, max_length=1000)


SteeringCommand = Pause | Resume | Cancel | Propose | Set | Approve
"""What concerns one run that is there."""

ExperienceCommand = Learn | Forget
"""What concerns the experiences of the home, and no run."""

Command = Submit | SteeringCommand | Fork | ExperienceCommand
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


def read_verb(data: bytes) -> str:
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


def read_origin(data: bytes) -> CommandOrigin | None:
    """Return where a command was given, as its file says; None where it says nothing that is known."""
    origin = json.loads(data).get("origin")
    return next((known for known in get_args(CommandOrigin) if known == origin), None)


def parse_command(data: bytes) -> Command:
    """Read a command whose verb was found by `read_verb`.

    Raises:
        CommandRefused: the verb is unknown, or fields are missing or wrong (all are named).
    """
    verb = read_verb(data)
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
            f"{'.'.join(map(str, fault['loc'][1:]))}: {validation_reason(fault).lower()}"
            for fault in error.errors()
        )
        raise CommandRefused(f"{verb}: {faults}", code="bad_command") from error
