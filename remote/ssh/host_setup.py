"""Sets a host up, or inspects it, with the script of a target; reports what was done, found and missing.

The script is sent to the standard input of `bash -s`. Its answer is parsed strictly, like everything from a
host.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError

from remote.ssh.errors import HostProtocolError, HostWorkerError
from remote.ssh.host import HostSpec
from remote.ssh.link import SshLink
from state.model import FrozenModel
from targets.base import HostParts
from targets.registry import load_target

_PROJECT = Path(__file__).parents[2]

CHECK_S = 120.0
SETUP_S = 1800.0

_NO_BASH = frozenset({126, 127})
_Line = Annotated[str, StringConstraints(max_length=2000)]
_Lines = Annotated[tuple[_Line, ...], Field(max_length=64)]


class _SurveyAnswer(FrozenModel):
    usable: bool
    found: dict[_Line, _Line] = Field(max_length=64)
    missing: _Lines
    remedies: _Lines
    commands: _Lines


@dataclass(frozen=True, slots=True)
class HostSurvey:
    """What a host has. `missing` lists each missing thing with its remedy, `commands` what was run.

    `usable`: kernels can run there, if only on the simulator.
    """

    address: str
    usable: bool
    found: dict[str, str]
    missing: tuple[tuple[str, str], ...]
    commands: tuple[str, ...]


async def survey_host(link: SshLink, *, target: str, change: bool) -> HostSurvey:
    """Inspect a host for kernels of a target; with `change`, set it up first.

    Raises:
        HostError: it cannot be reached, has no bash, or gives an invalid answer.
    """
    host = link.host
    ran = await link.run_command(
        script_command(host, change=change),
        stdin=find_script(target).read_bytes(),
        deadline_s=SETUP_S if change else CHECK_S,
    )
    if ran.status in _NO_BASH:
        raise HostWorkerError(f"{host.address}: there is no bash; install it there")
    try:
        answer = _SurveyAnswer.model_validate_json(ran.stdout)
        missing = tuple(zip(answer.missing, answer.remedies, strict=True))
    except (ValidationError, ValueError) as error:
        said = _strip_control(ran.stderr.decode(errors="replace").strip()[-300:])
        raise HostProtocolError(
            f"{host.address}: looking at it ends with status {ran.status}, and no answer can be read: {said}"
        ) from error
    return HostSurvey(
        address=host.address,
        usable=answer.usable,
        found={_strip_control(name): _strip_control(value) for name, value in answer.found.items()},
        missing=tuple((_strip_control(what), _strip_control(remedy)) for what, remedy in missing),
        commands=tuple(map(_strip_control, answer.commands)),
    )


def script_command(host: HostSpec, *, change: bool) -> list[str]:
    """Return the command that reads the script."""
    options = ["--json", *([] if change else ["--check"]), "--workdir", host.workdir]
    return ["bash", "-s", "--", *options, *(["--python", host.python] if host.python else [])]


def find_script(target: str) -> Path:
    """Return the script that prepares hosts for kernels of a target."""
    return _PROJECT / _host_parts(target).setup_script


def _host_parts(target: str) -> HostParts:
    parts = load_target(target).parts.hosts
    assert parts is not None, f"{target} runs on no hosts"
    return parts


def list_script_changes(script: Path) -> list[str]:
    """Return the commands by which a script changes something, as written in it."""
    text = script.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = (line.partition(" act ")[2] for line in text.splitlines() if " act " in line)
    return [" ".join(line.split()) for line in lines if not line.startswith("COMMAND")]


def plan_commands(host: HostSpec, target: str) -> dict[str, list[str]]:
    """Return every command that setup and runs would execute on a host, by purpose."""
    from remote.ssh import jobs

    script = find_script(target)
    return {
        "setup": [f"{join(script_command(host, change=True))} < {script}", *list_script_changes(script)],
        "runs": [join(command) for command in jobs.list_host_commands(host)],
        "device": [" ".join(command) for command in _host_parts(target).commands],
    }


def _strip_control(text: Any) -> str:
    """Return text without control characters that could move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text))
