"""`agentctl service`: installs, checks and removes `agentd` as a systemd service."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

from agentctl.app import Session, root_options
from agentctl.formatting import format_command
from agentctl.service_manager import SYSUSERS, ServiceFailed, ServiceManager, write_system_file
from agentctl.systemd_unit import (
    SERVICE_USER,
    UNIT_NAME,
    BadUnit,
    ServiceScope,
    ServiceUnit,
    unreadable_folders,
)
from daemon import exits
from daemon.config import load_config
from daemon.home_paths import resolve_home
from daemon.privileges import become_home_user
from state.errors import HomeLocked
from state.log import EventLog

LINGER = Path("/var/lib/systemd/linger")

_HELP = {
    ServiceScope.USER: "Your own service (the default, unless you are root).",
    ServiceScope.SYSTEM: "A service of the whole system, with a user of its own (the default for root).",
}

_OWNERS = {ServiceScope.USER: "this user", ServiceScope.SYSTEM: "the system"}


def _scope_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--system` and `--user`, which choose the service manager."""
    for scope, help_ in _HELP.items():
        function = click.option(f"--{scope}", "scope", flag_value=scope.value, help=help_)(function)
    return function


def _parse_credentials(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, Path]:
    """Parse NAME=FILE options."""
    pairs = [value.partition("=") for value in values]
    for name, _, file in pairs:
        if not (name and file):
            raise click.BadParameter("expected NAME=FILE", context, parameter)
    return {name: Path(file).expanduser().absolute() for name, _, file in pairs}


credential_option = click.option(
    "--credential",
    "credentials",
    multiple=True,
    metavar="NAME=FILE",
    callback=_parse_credentials,
    help="Hand the file's content over as a credential, such as a key; never through the environment.",
)


@click.group(epilog=exits.epilog())
@root_options
def service(session: Session) -> None:
    """Run agentd as a systemd service."""


@service.command(epilog=exits.epilog())
@_scope_options
@credential_option
@click.option("--no-start", is_flag=True, help="Only install and enable it.")
@click.option("--dry-run", is_flag=True, help="Print the unit and where it would go; change nothing.")
@root_options
def install(
    session: Session,
    *,
    scope: str | None,
    credentials: dict[str, Path],
    no_start: bool,
    dry_run: bool,
) -> None:
    """Write the unit, have systemd check it, enable and start it; a second time replaces it."""
    if _create_manager(scope).scope is ServiceScope.USER:
        session.become_home_user()
    unit, manager = _create_unit(session, scope, credentials)
    text = unit.render_text()
    if dry_run:
        preview = {"unit": str(manager.unit_path), "home": str(unit.state_directory), "text": text}
        session.emit(preview, f"# would be written to {manager.unit_path}\n{text}")
        return
    if faults := manager.find_unit_faults(text):
        raise BadUnit("\n".join(faults), hint="these are findings of `systemd-analyze verify`")
    load_config(unit.state_directory, {})  # a faulty configuration would keep the service from starting
    if unit.scope is ServiceScope.SYSTEM:
        if closed := unreadable_folders():
            places = " ".join(map(str, closed))
            raise BadUnit(f"user {SERVICE_USER} could not read {places}", hint=f"chmod -R o+rX {places}")
        manager.create_user()
    _make_home(unit)
    write_system_file(manager.unit_path, text)
    started = _activate_service(manager, start=not no_start)
    score = manager.exposure_score(text)
    found = {
        "unit": str(manager.unit_path),
        "home": str(unit.state_directory),
        "exposure": score and score.exposure,
        "started": started,
    }
    home = f"home      {unit.state_directory}" + (
        f" (readable by group {SERVICE_USER})" if unit.home is None else ""
    )
    lines = [
        f"unit      {manager.unit_path}",
        home,
        f"exposure  {score or 'unknown: systemd is too old to say'}",
    ]
    session.emit(found, "\n".join([*lines, *_advice_lines(unit, manager, started=started)]))


@service.command(epilog=exits.epilog())
@_scope_options
@root_options
def uninstall(session: Session, scope: str | None) -> int:
    """Stop and disable the service and remove its unit; the home stays."""
    manager = _create_manager(scope)
    if not manager.unit_path.exists():
        session.emit({"removed": False}, f"not installed: {manager.unit_path}")
        return exits.NOT_THERE
    manager.systemctl("disable", *(["--now"] if manager.is_running else []), UNIT_NAME)
    manager.unit_path.unlink()
    if manager.scope is ServiceScope.SYSTEM:
        SYSUSERS.unlink(missing_ok=True)
    if manager.is_running:
        manager.systemctl("daemon-reload")
    session.emit(
        {"removed": True, "unit": str(manager.unit_path)}, f"removed {manager.unit_path}; the home stays"
    )
    return exits.OK


@service.command(epilog=exits.epilog())
@_scope_options
@root_options
def status(session: Session, scope: str | None) -> int:
    """Show how the service is doing; status 3 if it is not active or systemd does not answer."""
    manager = _create_manager(scope)
    try:
        found = manager.properties()
    except ServiceFailed as error:
        there = f"installed at {manager.unit_path}" if manager.unit_path.exists() else "not installed"
        session.emit(
            {"ActiveState": "unknown", "unit": str(manager.unit_path),
             "installed": manager.unit_path.exists(), "reason": str(error)},
            f"{UNIT_NAME}: {there}; no systemd of {_OWNERS[manager.scope]} answers: {error}",
        )  # fmt: skip
        return exits.NOT_THERE
    session.emit(found, "\n".join(_format_properties(found)))
    return exits.OK if found["ActiveState"] == "active" else exits.NOT_THERE


@service.command(epilog=exits.epilog())
@_scope_options
@credential_option
@root_options
def show(session: Session, scope: str | None, credentials: dict[str, Path]) -> None:
    """Print the unit that `install` would write."""
    unit, manager = _create_unit(session, scope, credentials)
    text = unit.render_text()
    session.emit({"unit": str(manager.unit_path), "text": text}, text.rstrip("\n"))


def _make_home(unit: ServiceUnit) -> None:
    """Make the home as the service's user if there is none: a service itself never makes one.

    A process of that user does it, so that no file in it is root's.
    """
    home = unit.state_directory
    if unit.scope is ServiceScope.SYSTEM:
        owner = pwd.getpwnam(SERVICE_USER)
        home.mkdir(mode=0o750, parents=True, exist_ok=True)
        if home.stat().st_uid == 0:
            os.chown(home, owner.pw_uid, owner.pw_gid, follow_symlinks=False)
    if (home / "events.db").exists():
        return
    with suppress(HomeLocked), ProcessPoolExecutor(1, get_context("fork")) as pool:
        pool.submit(_make_log, home).result()


def _make_log(home: Path) -> None:
    become_home_user(home, check_program=False)
    os.umask(0o027)
    EventLog.open(home).close()


def _create_manager(scope: str | None) -> ServiceManager:
    usual = ServiceScope.SYSTEM if os.geteuid() == 0 else ServiceScope.USER
    return ServiceManager(ServiceScope(scope) if scope else usual, os.environ)


def _create_unit(
    session: Session, scope: str | None, credentials: dict[str, Path]
) -> tuple[ServiceUnit, ServiceManager]:
    manager = _create_manager(scope)
    if manager.scope is ServiceScope.USER:
        return ServiceUnit(manager.scope, credentials, resolve_home(session.home_option, os.environ)), manager
    if session.home_option is not None:
        raise click.UsageError(
            f"a system's service has its home at {ServiceUnit(ServiceScope.SYSTEM).state_directory}"
        )
    return ServiceUnit(manager.scope, credentials), manager


def _activate_service(manager: ServiceManager, *, start: bool) -> bool:
    """Enable the service, and (re)start it if wanted and possible; return whether it was started."""
    if not manager.is_running:
        manager.systemctl("enable", UNIT_NAME)
        return False
    manager.systemctl("daemon-reload")
    manager.systemctl("enable", UNIT_NAME)
    if start:
        manager.systemctl("restart", UNIT_NAME)
    return start


def _advice_lines(unit: ServiceUnit, manager: ServiceManager, *, started: bool) -> list[str]:
    lines = []
    if not manager.is_running:
        lines.append("systemd does not run here: the service starts with it")
    if unit.scope is ServiceScope.USER and not (LINGER / os.environ.get("USER", "")).is_file():
        lines.append("it stops when you log out, unless: loginctl enable-linger")
    scope = "" if unit.scope is ServiceScope.SYSTEM else " --user"
    look = format_command("--home", str(unit.state_directory), "status")
    return [*lines, f"logs      journalctl{scope} -u {UNIT_NAME}", f"look      {look}"] if started else lines


def _format_properties(found: dict[str, str]) -> list[str]:
    if found["LoadState"] == "not-found":
        return [f"not installed; {format_command('service', 'install')} installs it"]
    state = f"{found['ActiveState']} ({found['SubState']})"
    since = f" since {found['ActiveEnterTimestamp']}" if found["ActiveEnterTimestamp"] else ""
    lines = [f"{UNIT_NAME}: {state}{since}, {found['UnitFileState']}, restarts {found['NRestarts']}"]
    if found["StatusText"]:
        lines.append(f"  {found['StatusText']}")
    if found["Result"] != "success":
        meaning = (
            exits.MEANING.get(int(found["ExecMainStatus"]), "") if found["Result"] == "exit-code" else ""
        )
        lines.append(f"  last end: {found['Result']}, status {found['ExecMainStatus']} {meaning}".rstrip())
    if found["MainPID"] != "0":
        lines.append(f"  pid {found['MainPID']}{_format_usage(found)}")
    return lines


def _format_usage(found: dict[str, str]) -> str:
    """Return the memory and CPU time that the service used, if the manager counts them."""
    memory, cpu = found.get("MemoryCurrent", ""), found.get("CPUUsageNSec", "")
    parts = [f", {int(memory) / 2**20:.0f} MiB"] if memory.isdecimal() else []
    parts += [f", {int(cpu) / 1e9:.0f} s of CPU"] if cpu.isdecimal() and int(cpu) < 2**63 else []
    return "".join(parts)
