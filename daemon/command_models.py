"""The command values: one frozen type per verb, for the files in the inbox.

A command carries everything it refers to; a problem travels with its files. Parsing distinguishes two
failures. `BadFile`: the file is not a command, and is moved aside. `CommandRefused`: the command cannot
be carried out, and its answer goes into the log.
"""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice
from typing import Annotated, Literal, get_args

from pydantic import Base64Bytes, Field, JsonValue, TypeAdapter, ValidationError, field_validator

from daemon.errors import BadFile, CommandRefused
from state.json_bounds import cut_text, has_too_much_structure, parse_utf8_json
from state.learning import MAX_IMPORTED
from state.model import (
    DeviceCalibration,
    ExperienceContext,
    FrozenModel,
    RunConfig,
    digest_of,
    validation_reason,
)

CommandOrigin = Literal["agentctl", "page", "mcp"]
"""Where a command was given: on the command line, on the live page, or by a client of `agentctl mcp`."""


MAX_STRUCTURE_BYTES = 1 << 20
"""The most that a command has beside its texts, of which the long ones are kernels and files of problems."""

MAX_MESSAGE = 4096
"""The longest message of a refused command, and the longest reason or note, in characters."""

MAX_VERB = 100

MAX_FAULTS = 100
"""The most faults of a command that are named."""

ShortText = Annotated[str, Field(max_length=MAX_MESSAGE)]


class CommandBase(FrozenModel):
    """The fields of all commands: where the command was given, for the log."""

    origin: CommandOrigin = "agentctl"


class Submit(CommandBase):
    """Start a run on the problem in `files` (base64 by relative path), from `kernel` or the problem's
    own kernel.

    `pinned` are the keys of `config` that were set for this run, and not by the file or a default.
    `allow_unknown_prices` starts a run whose cap in US$ cannot be kept.
    """

    verb: Literal["submit"] = "submit"
    config: RunConfig
    files: dict[str, Base64Bytes]
    kernel: str | None = None
    pinned: tuple[str, ...] = ()
    allow_unknown_prices: bool = False


class Pause(CommandBase):
    """Start nothing new in a run; effects in flight are finished."""

    verb: Literal["pause"] = "pause"
    run: ShortText
    reason: ShortText = "asked for"


class Resume(CommandBase):
    """Continue a run: a paused run is resumed, and an interrupted one is taken up again."""

    verb: Literal["resume"] = "resume"
    run: ShortText
    reason: ShortText = "asked for"


class Cancel(CommandBase):
    """End a run for good; effects in flight are dropped."""

    verb: Literal["cancel"] = "cancel"
    run: ShortText
    reason: ShortText = "asked for"


class Propose(CommandBase):
    """Add a person's kernel to a run; it is judged like any other."""

    verb: Literal["propose"] = "propose"
    run: ShortText
    source: str = Field(min_length=1)
    note: ShortText = ""


class Set(CommandBase):
    """Change settings of a run, from its next round on; the keys are those of the configuration."""

    verb: Literal["set"] = "set"
    run: ShortText
    settings: dict[str, JsonValue] = Field(min_length=1)


class Approve(CommandBase):
    """Let a run go on that waits for a person's approval."""

    verb: Literal["approve"] = "approve"
    run: ShortText
    reason: ShortText = "approved"


class Fork(CommandBase):
    """Continue a run from its event `seq` (None: the last) as a new run, with some settings changed.

    `files` are the problem's files (base64 by relative path) if the problem changes. With `rewind` the
    original run is paused, because the fork replaces it.
    """

    verb: Literal["fork"] = "fork"
    run: ShortText
    seq: int | None = Field(default=None, ge=1)
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    files: dict[str, Base64Bytes] | None = None
    rewind: bool = False


MAX_SOURCE = 1 << 17
"""The longest kernel of an imported experience, in characters."""
MAX_SUMMARY = 20_000
MAX_ABOUT = 8_000
"""The longest `about` of an experience, in characters of JSON."""


class ExperienceEntry(FrozenModel):
    """An experience as a file has it: the sources of a slow and a fast kernel, and what made the
    difference.
    """

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
    """Add the experiences of a file to the home, under the file's name.

    Experiences without a target are for `target`; if that is empty, they are for any.
    """

    verb: Literal["learn"] = "learn"
    file: str = Field(min_length=1, max_length=200)
    target: str = Field(default="", max_length=40)
    rewrites: tuple[ExperienceEntry, ...] = Field(min_length=1, max_length=MAX_IMPORTED)


class Forget(CommandBase):
    """Do not give these experiences, named by their ids, to later runs."""

    verb: Literal["forget"] = "forget"
    ids: tuple[str, ...] = Field(min_length=1, max_length=1000)


class Calibrate(CommandBase):
    """Record a calibration of the performance model; its file is written by whoever made it."""

    verb: Literal["calibrate"] = "calibrate"
    calibration: DeviceCalibration


class Compact(CommandBase):
    """Make the log's file anew without the runs in these archives, which the owner must be able to read."""

    verb: Literal["compact"] = "compact"
    archives: tuple[ShortText, ...] = Field(default=(), max_length=1000)


SteeringCommand = Pause | Resume | Cancel | Propose | Set | Approve
"""Commands that concern one existing run."""

ExperienceCommand = Learn | Forget
"""Commands that concern the experiences of the home, and no run."""

Command = Submit | SteeringCommand | Fork | ExperienceCommand | Calibrate | Compact
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
    "calibrate": Calibrate,
    "compact": Compact,
}
_COMMAND: TypeAdapter[Command] = TypeAdapter(Annotated[Command, Field(discriminator="verb")])


def run_id(command_id: str, problem: str) -> str:
    """Return the id of the run that a submit with this command id creates; it is always the same."""
    return f"{problem}-{digest_of(command_id.encode())[:6]}"


def read_verb(data: bytes) -> str:
    """Return the verb of a command file's content.

    Raises:
        BadFile: it is not a JSON object with a `verb`.
    """
    if has_too_much_structure(data, MAX_STRUCTURE_BYTES):
        raise BadFile(f"more than {MAX_STRUCTURE_BYTES >> 20} MiB, kernels and files not counted")
    try:
        content = parse_utf8_json(data)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"not JSON: {error}") from error
    verb = content.get("verb") if isinstance(content, dict) else None
    if not isinstance(verb, str) or not verb.isascii() or len(verb) > MAX_VERB:
        raise BadFile("not a command: a JSON object with the text field 'verb' was expected")
    return verb


def read_origin(data: bytes) -> CommandOrigin | None:
    """Return where a command was given, as its file says; None if it gives no known origin."""
    origin = parse_utf8_json(data).get("origin")
    return next((known for known in get_args(CommandOrigin) if known == origin), None)


def parse_command(data: bytes) -> Command:
    """Parse a command whose verb was read by `read_verb`.

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
            for fault in islice(error.errors(include_url=False, include_input=False), MAX_FAULTS)
        )
        text = cut_text(f"{verb}: {faults}", MAX_MESSAGE)
        raise CommandRefused(text, code="bad_command") from error
