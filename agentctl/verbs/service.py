"""`agentctl service`: install `agentd` as a systemd service, look at it, remove it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from agentctl.app import Session, common
from agentctl.manager import SYSUSERS, Manager, ServiceFailed, write
from agentctl.systemd_unit import NAME, USER, BadUnit, Scope, Unit, closed_places
from agentctl.words import typed
from daemon import exits
from daemon.config import load
from daemon.places import resolve_home
from state.home import prepare

LINGER = Path("/var/lib/systemd/linger")

_HELP = {
    Scope.USER: "Your own service (the default, but for root).",
    Scope.SYSTEM: "A service of the whole system, with a user of its own (the default for root).",
}

_OWNERS = {Scope.USER: "this user", Scope.SYSTEM: "the system"}


def _scoped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--system` and `--user`: whose service it is."""
    for scope, help_ in _HELP.items():
        function = click.option(f"--{scope}", "scope", flag_value=scope.value, help=help_)(function)
    return function


def _pairs(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Path]:
    """Read NAME=FILE options."""
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
    callback=_pairs,
    help="Hand the file's content over as a credential, such as a key; never through the environment.",
)


@click.group(epilog=exits.epilog())
@common
def service(session: Session) -> None:
    """Run agentd as a systemd service."""


@service.command(epilog=exits.epilog())
@_scoped
@credential_option
@click.option("--no-start", is_flag=True, help="Only install and enable it.")
@common
def install(session: Session, scope: str | None, credentials: dict[str, Path], no_start: bool) -> None:
    """Write the unit, have systemd check it, enable and start it; again: replace and restart it."""
    unit, manager = _unit(session, scope, credentials)
    text = unit.text()
    if faults := manager.faults(text):
        raise BadUnit("\n".join(faults), hint="systemd-analyze verify says so")
    load(unit.state, {})  # a configuration with faults would keep the service from starting
    if unit.scope is Scope.SYSTEM:
        if closed := closed_places():
            places = " ".join(map(str, closed))
            raise BadUnit(f"user {USER} could not read {places}", hint=f"chmod -R o+rX {places}")
        manager.make_user()
    else:
        prepare(unit.state, create=True)
    write(manager.path, text)
    started = _activate(manager, start=not no_start)
    score = manager.score(text)
    found = {
        "unit": str(manager.path),
        "home": str(unit.state),
        "exposure": score and score.exposure,
        "started": started,
    }
    home = f"home      {unit.state}" + (f" (readable by group {USER})" if unit.home is None else "")
    lines = [f"unit      {manager.path}", home, f"exposure  {score or 'unknown: systemd is too old to say'}"]
    session.emit(found, "\n".join([*lines, *_advice(unit, manager, started=started)]))


@service.command(epilog=exits.epilog())
@_scoped
@common
def uninstall(session: Session, scope: str | None) -> int:
    """Stop and disable the service and remove its unit; the home stays."""
    manager = _manager(scope)
    if not manager.path.exists():
        session.emit({"removed": False}, f"not installed: {manager.path}")
        return exits.NOT_THERE
    manager.systemctl("disable", *(["--now"] if manager.running else []), NAME)
    manager.path.unlink()
    if manager.scope is Scope.SYSTEM:
        SYSUSERS.unlink(missing_ok=True)
    if manager.running:
        manager.systemctl("daemon-reload")
    session.emit({"removed": True, "unit": str(manager.path)}, f"removed {manager.path}; the home stays")
    return exits.OK


@service.command(epilog=exits.epilog())
@_scoped
@common
def status(session: Session, scope: str | None) -> int:
    """Show how the service is doing; status 3 unless it is active, also where no systemd answers."""
    manager = _manager(scope)
    try:
        found = manager.properties()
    except ServiceFailed as error:
        there = f"installed at {manager.path}" if manager.path.exists() else "not installed"
        session.emit(
            {"ActiveState": "unknown", "unit": str(manager.path), "installed": manager.path.exists(),
             "reason": str(error)},
            f"{NAME}: {there}; no systemd of {_OWNERS[manager.scope]} answers: {error}",
        )  # fmt: skip
        return exits.NOT_THERE
    session.emit(found, "\n".join(_told(found)))
    return exits.OK if found["ActiveState"] == "active" else exits.NOT_THERE


@service.command(epilog=exits.epilog())
@_scoped
@credential_option
@common
def show(session: Session, scope: str | None, credentials: dict[str, Path]) -> None:
    """Write the unit that `install` would install to stdout."""
    unit, manager = _unit(session, scope, credentials)
    text = unit.text()
    session.emit({"unit": str(manager.path), "text": text}, text.rstrip("\n"))


def _manager(scope: str | None) -> Manager:
    usual = Scope.SYSTEM if os.geteuid() == 0 else Scope.USER
    return Manager(Scope(scope) if scope else usual, os.environ)


def _unit(session: Session, scope: str | None, credentials: dict[str, Path]) -> tuple[Unit, Manager]:
    manager = _manager(scope)
    if manager.scope is Scope.USER:
        return Unit(manager.scope, credentials, resolve_home(session.home_option, os.environ)), manager
    if session.home_option is not None:
        raise click.UsageError(f"a system's service has its home at {Unit(Scope.SYSTEM).state}")
    return Unit(manager.scope, credentials), manager


def _activate(manager: Manager, *, start: bool) -> bool:
    """Enable the service, and (re)start it if wanted and possible; return whether it was started."""
    if not manager.running:
        manager.systemctl("enable", NAME)
        return False
    manager.systemctl("daemon-reload")
    manager.systemctl("enable", NAME)
    if start:
        manager.systemctl("restart", NAME)
    return start


def _advice(unit: Unit, manager: Manager, *, started: bool) -> list[str]:
    lines = []
    if not manager.running:
        lines.append("systemd does not run here: the service starts with it")
    if unit.scope is Scope.USER and not (LINGER / os.environ.get("USER", "")).is_file():
        lines.append("it stops when you log out, unless: loginctl enable-linger")
    scope = "" if unit.scope is Scope.SYSTEM else " --user"
    look = typed("--home", str(unit.state), "status")
    return [*lines, f"logs      journalctl{scope} -u {NAME}", f"look      {look}"] if started else lines


def _told(found: dict[str, str]) -> list[str]:
    if found["LoadState"] == "not-found":
        return [f"not installed; {typed('service', 'install')} installs it"]
    state = f"{found['ActiveState']} ({found['SubState']})"
    since = f" since {found['ActiveEnterTimestamp']}" if found["ActiveEnterTimestamp"] else ""
    lines = [f"{NAME}: {state}{since}, {found['UnitFileState']}, restarts {found['NRestarts']}"]
    if found["StatusText"]:
        lines.append(f"  {found['StatusText']}")
    if found["Result"] != "success":
        meaning = (
            exits.MEANING.get(int(found["ExecMainStatus"]), "") if found["Result"] == "exit-code" else ""
        )
        lines.append(f"  last end: {found['Result']}, status {found['ExecMainStatus']} {meaning}".rstrip())
    if found["MainPID"] != "0":
        lines.append(f"  pid {found['MainPID']}{_used(found)}")
    return lines


def _used(found: dict[str, str]) -> str:
    """Return what the service used, where the manager counts it."""
    memory, cpu = found.get("MemoryCurrent", ""), found.get("CPUUsageNSec", "")
    parts = [f", {int(memory) / 2**20:.0f} MiB"] if memory.isdecimal() else []
    parts += [f", {int(cpu) / 1e9:.0f} s of CPU"] if cpu.isdecimal() and int(cpu) < 2**63 else []
    return "".join(parts)
