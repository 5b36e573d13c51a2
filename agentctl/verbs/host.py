"""`agentctl host`: trusts, sets up and checks the hosts that kernels run on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from agentctl.app import Session, common_options
from agentctl.command_answers import is_owned
from agentctl.formatting import format_command
from agentctl.run_flags import config_from_flags
from agentctl.verb_table import VERBS
from agentctl.views.hosts import HostView as Known
from agentctl.views.hosts import list_hosts as host_views
from daemon import exits
from daemon.errors import DaemonError

if TYPE_CHECKING:
    from remote.ssh.host import HostSpec
    from remote.ssh.host_keys import ShownKey
    from remote.ssh.host_setup import HostSurvey

T = TypeVar("T")

SET_UP = "run this script without --check"
"""The setup script's remedy for anything that a setup repairs."""

_NONE = "name a HOST, [user@]host[:port], or set run.hosts"


def _resolve_hosts(session: Session, names: Iterable[str]) -> list[HostSpec]:
    """Return the hosts of these names, or those of the configuration.

    Raises:
        click.UsageError: neither names any.
        remote.errors.RemoteError: a name is not a host address.
    """
    from remote.ssh.host_config import select_hosts

    found = select_hosts(names, config_from_flags(session, {}).run.hosts)
    if not found:
        raise click.UsageError(_NONE)
    return found


@click.group(epilog=exits.epilog())
@common_options
def host(session: Session) -> None:
    """Trust, set up and look at hosts that kernels run on (docs/hosts.md)."""


@host.command("list", epilog=exits.epilog())
@common_options
def list_hosts(session: Session) -> None:
    """List configured hosts and those of unfinished runs, each with its state."""
    named = [one.address for one in config_from_flags(session, {}).run.hosts]
    found = host_views(session.home, running=is_owned(session.home), configured=named)
    rows = [{**asdict(one), "configured": one.name in named} for one in found]
    none = "no hosts: none is configured (run.hosts), and no run that goes on names any"
    text = "\n".join(_format_table(found)) if found else none
    session.emit(rows, exits.add_home_option(text, session.home_words, VERBS))


@host.command(epilog=exits.epilog())
@click.argument("name", metavar="HOST")
@click.option("--key", is_flag=True, help="Also remove the key that `host trust` recorded.")
@common_options
def forget(session: Session, name: str, *, key: bool) -> None:
    """Drop the notes on HOST's state: its counts, when it last answered, and why it failed.

    Its key stays trusted unless you give --key. If the host is in use, new notes are made.
    """
    from state import host_status

    known = _distrust_key(session, name) if key else ()
    if not host_status.forget_host(session.home, name) and not key:
        raise DaemonError.for_unknown_name(
            "host",
            name,
            (one.address for one in host_status.read_host_status(session.home)),
            code="unknown_host",
        )
    said = f"what was noted of {name} is forgotten" + (", and its key" if key else "")
    if known:
        said += f"; your own known_hosts has {', '.join(known)} all the same"
    session.emit({"name": name, "forgotten": True, "key": key, "still_known": known}, said)


def _distrust_key(session: Session, name: str) -> tuple[str, ...]:
    """Stop trusting a host's key; return its keys that the user's own files still list.

    Raises:
        DaemonError: no key was recorded.
    """
    from remote.ssh.host import HostSpec
    from remote.ssh.host_keys import distrust_host

    was, known = asyncio.run(distrust_host(HostSpec.parse(name), session.home))
    if was:
        return known
    own = f"; your own known_hosts has {', '.join(known)}" if known else ""
    raise DaemonError(f"{name}: `host trust` has recorded no key for it{own}", code="unknown_host")


_COLUMNS = "{:28} {:12} {:>5} {:>6} {:>5}  {:20} {}"


def _format_table(found: Iterable[Known]) -> list[str]:
    lines = [_COLUMNS.format("HOST", "STATE", "JOBS", "DONE", "LOST", "HEARD", "DEVICE")]
    for one in found:
        jobs = f"{one.in_flight}/{one.slots}" if one.slots else "-"
        heard = (one.heard or "never").removesuffix("+00:00")
        row = (one.name, one.state, jobs, one.done, one.lost, heard, one.device or "unknown")
        lines.append(_COLUMNS.format(*row).rstrip())
        if one.why:
            lines.append(f"  {one.why}")
        if one.remedy:
            lines.append(f"  -> {one.remedy}")
    return lines


@host.command(epilog=exits.epilog())
@click.argument("hosts", nargs=-1, metavar="[HOST...]")
@common_options
def check(session: Session, hosts: tuple[str, ...]) -> int:
    """Look at hosts without changing anything: what is there, what is missing, and what to do about it."""
    return _survey_hosts(session, _resolve_hosts(session, hosts), change=False)


@host.command(epilog=exits.epilog())
@click.argument("hosts", nargs=-1, metavar="[HOST...]")
@common_options
def setup(session: Session, hosts: tuple[str, ...]) -> int:
    """Prepare hosts, and say what is there; a second time changes nothing.

    `agentctl host plan` says what this would run. Without a device the host gets an interpreter for the
    simulator, which stands in for the device then.
    """
    return _survey_hosts(session, _resolve_hosts(session, hosts), change=True)


def _survey_hosts(session: Session, hosts: list[HostSpec], *, change: bool) -> int:
    """Check hosts in parallel; return status 0 if kernels can run on all of them."""
    from remote.errors import InfrastructureError
    from remote.ssh.host_setup import survey_host
    from remote.ssh.link import SshLink

    target = config_from_flags(session, {}).run.target

    async def look(one: HostSpec) -> HostSurvey:
        link = SshLink(one, home=session.home)
        try:
            return await survey_host(link, target=target, change=change)
        finally:
            await link.aclose()

    if change:
        click.echo(f"setting up {', '.join(one.address for one in hosts)} ...", err=True)
    with session.progress_bar("asking hosts"):
        found = _gather_hosts(hosts, look)
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    good = True
    for one, answer in zip(hosts, found, strict=True):
        if isinstance(answer, InfrastructureError):
            good = False
            rows.append({"address": one.address, "error": {"code": answer.code, "message": answer.message}})
            lines.append(exits.add_home_option(answer.message, session.home_words, VERBS))
        else:
            good = good and answer.usable
            missing = [{"what": what, "remedy": remedy} for what, remedy in answer.missing]
            rows.append({**asdict(answer), "missing": missing})
            lines += _format_survey(session, answer, change=change)
    session.emit(rows, "\n".join(lines))
    return exits.OK if good else exits.FAILURE


def _gather_hosts(hosts: list[HostSpec], work: Callable[[HostSpec], Awaitable[T]]) -> list[T | Any]:
    """Return the result of `work` for each host, or the `InfrastructureError` that it raised."""
    from remote.errors import InfrastructureError

    async def one(host: HostSpec) -> T | InfrastructureError:
        try:
            return await work(host)
        except InfrastructureError as error:
            return error

    async def all_() -> list[T | Any]:
        return list(await asyncio.gather(*map(one, hosts)))

    return asyncio.run(all_())


def _format_survey(session: Session, found: HostSurvey, *, change: bool) -> list[str]:
    lines = [found.address]
    lines += [f"  {name:14} {value}" for name, value in found.found.items()]
    set_up = format_command("host", *session.home_words, "setup", found.address)
    for what, remedy in found.missing:
        done = set_up if remedy == SET_UP else remedy
        lines += [f"  {what}", f"    -> {done}"]
    ran = "ran" if change else "setting it up would run"
    lines += [f"  {ran}: {command}" for command in found.commands]
    verdict = "kernels can be run there" if found.usable else "kernels cannot be run there"
    return [*lines, f"  {verdict}"]


@host.command(epilog=exits.epilog())
@click.argument("hosts", nargs=-1, metavar="[HOST...]")
@common_options
def plan(session: Session, hosts: tuple[str, ...]) -> None:
    """Print every command that setup and runs would run on hosts, without contacting any."""
    from remote.ssh.host_setup import plan_commands

    target = config_from_flags(session, {}).run.target
    found = {one.address: plan_commands(one, target) for one in _resolve_hosts(session, hosts)}
    lines = []
    for address, groups in found.items():
        lines.append(f"# {address}")
        for name, commands in groups.items():
            lines += [f"## {_PLANNED[name]}", *commands]
    session.emit(found, "\n".join(lines))


_PLANNED = {
    "setup": "agentctl host setup: the script that is given to bash, and what it runs to change something",
    "runs": "runs: find an interpreter, put the worker there once, start it; PYTHON is the interpreter found",
    "device": "the worker, of the device's own tools; PROFILER is the newest there",
}


@host.command(epilog=exits.epilog())
@click.argument("name", metavar="HOST")
@click.option("--yes", "expected", metavar="FINGERPRINT", help="Trust it if its key has this fingerprint.")
@common_options
def trust(session: Session, name: str, expected: str | None) -> int:
    """Show the key of HOST, and trust it if you say so.

    Compare the fingerprint with one from a source that you trust, such as the console of the instance
    (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` there).
    """
    from remote.ssh import host_keys as keys

    (one,) = _resolve_hosts(session, [name])
    with session.progress_bar(f"asking {one.address}"):
        shown = asyncio.run(keys.fetch_host_key(one, home=session.home))
    if shown.is_trusted:
        _emit_key(session, shown, f"{one.address}: {shown.fingerprint} is trusted already")
        return exits.OK
    if expected is None:
        _confirm_key(one.address, shown)
    elif expected not in {shown.fingerprint, shown.fingerprint.split()[-1]}:
        text = f"{one.address} shows {shown.fingerprint}, not {expected}; it is not trusted"
        hint = "compare both with the key on the host's console"
        raise DaemonError(text, code="host_key_other", hint=hint)
    keys.trust_key(session.home, shown)
    _emit_key(session, shown, f"{one.address}: {shown.fingerprint} is trusted from now on")
    return exits.OK


def _confirm_key(address: str, shown: ShownKey) -> None:
    """Ask the user to confirm a key; refuse if nobody can answer."""
    click.echo(f"{address} is {shown.peer} and shows the key {shown.fingerprint}", err=True)
    if shown.known:
        click.echo(f"that is NOT the one that is known: {', '.join(shown.known)}", err=True)
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"there is no terminal to ask you on; give --yes {shown.fingerprint.split()[-1]}"
        )
    click.confirm("trust it?", abort=True, err=True)


def _emit_key(session: Session, shown: ShownKey, text: str) -> None:
    value = {"place": shown.place, "fingerprint": shown.fingerprint, "trusted": True, "was": shown.known}
    session.emit(value, text)
