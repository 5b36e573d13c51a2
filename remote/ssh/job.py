"""The values that go to a host and come back, and the checks that an answer must pass.

Everything from a host is parsed strictly: each field has the right type and is within bounds, or the whole
answer is refused (`HostProtocolError`). Durations are of the host's monotonic clock, never its calendar.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import JsonValue

from remote.hostside.limits import ANSWER_BYTES, MAX_FILES, STATUSES, TEXT_CHARS, Status
from remote.ssh.errors import HostProtocolError

assert set(get_args(Status)) == set(STATUSES)

_DIGEST = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_MAX_CORES = 4096
_MAX_CPUS = 1024  # CPUs become slots: a host that claims more would draw every job to itself
_MAX_BYTES = 1 << 60
_MAX_S = 1e12  # JSON allows whole numbers that are too large for a float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One piece of work for a host.

    The same `key` is the same job: it is done once, however often it is submitted. `inputs` maps file names
    to the sha256 of their contents. `cores` is 1 for a job that needs a device core to itself, 0 for one that
    needs a CPU; `prefer` is the core to wait for first. `deadline_s` counts from the job's turn; `queue_s`
    bounds the wait for it. The job ends unless its lease is renewed within `lease_s`.
    """

    key: str
    step: str
    payload: JsonValue
    inputs: Mapping[str, str] = field(default_factory=dict)
    cores: int = 0
    prefer: int | None = None
    deadline_s: float = 600.0
    queue_s: float = 3600.0
    lease_s: float = 60.0

    def __post_init__(self) -> None:
        faults = [
            what
            for what, wrong in (
                ("key must be 64 hexadecimal digits", not _DIGEST.fullmatch(self.key)),
                ("step must be a name", not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", self.step)),
                ("inputs must be names with sha256", not all(map(_is_named_digest, self.inputs.items()))),
                ("cores must be 0 or 1", self.cores not in {0, 1}),
                ("deadline_s, queue_s and lease_s must be above 0", not self._has_valid_spans()),
            )
            if wrong
        ]
        if faults:
            raise ValueError(f"job {self.key[:12]}: {'; '.join(faults)}")

    def _has_valid_spans(self) -> bool:
        return all(0 < span < math.inf for span in (self.deadline_s, self.queue_s, self.lease_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """How a job ended on its host.

    `done`: the step ended by itself and answered. `failed`: it ended without an answer. `deadline`,
    `cancelled`, `lease_lost`: it was ended. `unending`: it should have ended but processes are left;
    `log_tail` names them, and their core stays out of use. `files` are the files it left, as name to (sha256,
    bytes). `attempts` counts how often it was started: more than once only if the host went down in between,
    and only the last attempt has a result.
    """

    status: Status
    answer: JsonValue
    files: Mapping[str, tuple[str, int]]
    log_tail: str
    core: int | None
    exit_status: int | None
    queued_s: float
    ran_s: float
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The facts about a host that the worker collects without running any vendor tool.

    `cores` are the device cores that can be leased; without a device there is one stand-in per CPU, and
    `has_device` is false. `boot_id` changes when the host restarts. `walls` are the programs there that jails
    are built with.
    """

    worker: str
    hostname: str
    system: str
    python: str
    boot_id: str
    cpus: int
    memory_bytes: int
    free_disk_bytes: int
    cores: tuple[int, ...]
    has_device: bool
    walls: tuple[str, ...]
    workdir: str


def read_facts(answer: Mapping[str, Any], address: str) -> HostFacts:
    """Return the facts of a greeting.

    Raises:
        HostProtocolError: it is not a greeting.
    """
    reader = AnswerReader(answer, address)
    return HostFacts(
        worker=reader.read_text("worker"),
        hostname=reader.read_text("hostname"),
        system=reader.read_text("system"),
        python=reader.read_text("python"),
        boot_id=reader.read_text("boot_id"),
        cpus=reader.read_count("cpus", _MAX_CPUS),
        memory_bytes=reader.read_count("memory_bytes", _MAX_BYTES),
        free_disk_bytes=reader.read_count("free_disk_bytes", _MAX_BYTES),
        cores=tuple(reader.read_numbers("cores", _MAX_CORES)),
        has_device=reader.read_flag("has_device"),
        walls=tuple(reader.read_texts("walls")),
        workdir=reader.read_text("workdir"),
    )


def read_result(answer: Any, address: str) -> JobResult:
    """Return the result that a host reports.

    Raises:
        HostProtocolError: it is not a result.
    """
    reader = AnswerReader(answer, address)
    if not isinstance(answer, Mapping):
        raise reader.field_error("result")
    status = reader.read_text("status")
    if status not in STATUSES:
        raise reader.field_error("status")
    core, exit_status = answer.get("core"), answer.get("exit_status")
    return JobResult(
        status=status,  # type: ignore[arg-type]  # it is one of them
        answer=answer.get("answer"),
        files=reader.read_files("files"),
        log_tail=reader.read_text("log_tail"),
        core=None if core is None else reader.read_count("core"),
        exit_status=None if exit_status is None else reader.read_integer("exit_status"),
        queued_s=reader.read_span("queued_s"),
        ran_s=reader.read_span("ran_s"),
        attempts=reader.read_count("attempts"),
    )


@dataclass(frozen=True, slots=True)
class AnswerReader:
    """Reads fields of an answer, each with its required type and size."""

    answer: Mapping[str, Any]
    address: str

    def field_error(self, name: str) -> HostProtocolError:
        """The error that `name` is missing or invalid."""
        return HostProtocolError(
            f"{self.address}: its worker answers with a {name!r} that is none; "
            "if it comes back, remove the folder of the worker there and try again"
        )

    def read_text(self, name: str) -> str:
        value = self.answer.get(name)
        if not isinstance(value, str) or len(value) > TEXT_CHARS:
            raise self.field_error(name)
        return value

    def read_integer(self, name: str) -> int:
        value = self.answer.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 63:
            raise self.field_error(name)
        return value

    def read_count(self, name: str, most: int = 1 << 63) -> int:
        value = self.read_integer(name)
        if not 0 <= value <= most:
            raise self.field_error(name)
        return value

    def read_span(self, name: str) -> float:
        value = self.answer.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < _MAX_S:
            raise self.field_error(name)
        return float(value)

    def read_flag(self, name: str) -> bool:
        value = self.answer.get(name)
        if not isinstance(value, bool):
            raise self.field_error(name)
        return value

    def _read_list(self, name: str, most: int) -> list[Any]:
        value = self.answer.get(name)
        if not isinstance(value, list) or len(value) > most:
            raise self.field_error(name)
        return value

    def read_numbers(self, name: str, most: int) -> list[int]:
        """Return distinct numbers below `most`."""
        values = self._read_list(name, most)
        if not all(type(value) is int and 0 <= value < most for value in values):
            raise self.field_error(name)
        if len(set(values)) < len(values):
            raise self.field_error(name)
        return values

    def read_texts(self, name: str, most: int = 64) -> list[str]:
        values = self._read_list(name, most)
        if not all(isinstance(value, str) and len(value) <= TEXT_CHARS for value in values):
            raise self.field_error(name)
        return values

    def read_digests(self, name: str, most: int) -> set[str]:
        values = self._read_list(name, most)
        if not all(isinstance(value, str) and _DIGEST.fullmatch(value) for value in values):
            raise self.field_error(name)
        return set(values)

    def read_files(self, name: str) -> dict[str, tuple[str, int]]:
        value = self.answer.get(name)
        if (
            not isinstance(value, dict)
            or len(value) > MAX_FILES
            or not all(map(_is_file_entry, value.items()))
        ):
            raise self.field_error(name)
        return {file: (digest, size) for file, (digest, size) in value.items()}


def _is_named_digest(item: tuple[str, str]) -> bool:
    return bool(_FILE.fullmatch(item[0]) and _DIGEST.fullmatch(item[1]))


def _is_file_entry(item: tuple[Any, Any]) -> bool:
    match item:
        case (str(file), [str(digest), int(size)]):
            return _is_named_digest((file, digest)) and 0 <= size <= ANSWER_BYTES
    return False
