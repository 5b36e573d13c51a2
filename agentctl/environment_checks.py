"""The checks of `agentctl doctor`: each asks one question about this machine or home, and suggests a
remedy.

A check never changes anything. It says where a key was found, but never shows the key.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from agentctl.endpoint_checks import BAD, GOOD, LOOK, Check, check_endpoints
from agentctl.views.hosts import UNUSED, list_hosts
from agentctl.views.owner_process import find_owner_process
from daemon.errors import DaemonError
from daemon.home_paths import INSTANCE_LOCK, waiting_commands
from state.disk_reserve import LOW_BYTES, free_bytes
from state.errors import NoLog, StateError
from state.home import MOUNTS, NETWORK_FILESYSTEMS, HomeLayout, filesystem_type
from state.lock import read_owner
from state.reader import LogReader

MIN_PYTHON = (3, 11)
PACKAGES = ("pydantic", "numpy", "libcst", "asyncssh", "anthropic", "openai", "sqlite-utils")
"""The installed packages whose versions are reported; all are locked."""

SCARCE_BYTES = 10 * LOW_BYTES
"""With less free space than this, a run of several days may fill the disk."""

OFTEN_DELIVERED = 3
"""An effect that was delivered this often is worth a look."""

LIFE_PER_START = 2.0
"""A process needs so many times what a worker takes to start, until the first part of an effect is kept."""

_JAILS = {
    "bubblewrap": (GOOD, "bubblewrap: kernels run with no network, no files and limits", ""),
    "namespaces": (
        LOOK,
        "namespaces of the kernel, without bubblewrap",
        "apt-get install bubblewrap: it is the stronger jail",
    ),
    "weak": (
        BAD,
        "weak: nothing but limits holds a kernel's code",
        "apt-get install bubblewrap; until then kernels that models write need daemon.allow_weak_jail",
    ),
}


def run_checks(
    home: Path, env: Mapping[str, str], home_words: tuple[str, ...], *, target: str | None = None
) -> Iterator[Check]:
    """Yield the checks of a home, one by one as they are made; of `target` too."""
    at = " ".join(("", *home_words))
    yield _check_python()
    yield _check_packages()
    yield _check_platform()
    for check in (_check_home, _check_disk, _check_owner, _check_inbox):
        yield check(home, at)
    yield _check_log(home, at)
    yield _check_effects(home, at)
    yield _check_cache(home)
    yield from _check_configuration(home, env, at)
    yield _check_jail()
    yield _check_device()
    yield from _check_target(home, env, target)
    yield from _check_hosts(home, env, at)
    yield from _check_ray(home, env)
    yield from _check_coding_agent(home, env)
    yield _check_service(home)


def _check_python() -> Check:
    said = f"Python {platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < MIN_PYTHON:
        return Check("python", BAD, said, "Python 3.11 or newer is needed")
    return Check("python", GOOD, said)


def _check_packages() -> Check:
    found, gone = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            gone.append(name)
    try:
        own = version("nki-kernel-agent")
    except PackageNotFoundError:
        own = "not installed"
    said = f"nki-kernel-agent {own}; {', '.join(found)}"
    if gone:
        return Check(
            "packages", BAD, f"{said}; without {', '.join(gone)}", "./run.sh installs what is locked"
        )
    return Check("packages", GOOD, said)


def _check_platform() -> Check:
    said = f"{platform.system()} {platform.release()} on {platform.machine()}, {os.cpu_count() or 1} CPUs"
    if platform.system() != "Linux":
        return Check("platform", BAD, said, "runs need Linux: its namespaces hold the kernels' code")
    return Check("platform", GOOD, said)


def _check_home(home: Path, at: str) -> Check:
    if not home.exists():
        return Check("home", LOOK, f"{home} is not there yet", f"agentctl{at} run makes it")
    if not home.is_dir():
        return Check("home", BAD, f"{home} is no directory", "name another --home")
    kind = filesystem_type(home.resolve(), MOUNTS.read_text(encoding="utf-8")) if MOUNTS.exists() else None
    if kind in NETWORK_FILESYSTEMS:
        return Check("home", BAD, f"{home} is on {kind}", "the log needs a local disk: name another --home")
    if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        return Check("home", LOOK, f"{home} can be read and not written", "steering and runs need its owner")
    mode = stat.S_IMODE(home.stat().st_mode)
    if mode & 0o007:
        return Check(
            "home",
            LOOK,
            f"{home}, mode {mode:04o}: everybody on this machine may look",
            f"chmod o-rwx {home}",
        )
    return Check("home", GOOD, f"{home}, mode {mode:04o}, {kind or 'unknown file system'}")


def _check_disk(home: Path, at: str) -> Check:
    place = next(folder for folder in (home, *home.parents) if folder.is_dir())
    free, total = free_bytes(place), shutil.disk_usage(place).total
    said = f"{free / 1e9:.1f} GB free of {total / 1e9:.1f} GB"
    if free < LOW_BYTES:
        return Check("disk", BAD, said, "free some space: runs pause until there is some")
    if free < SCARCE_BYTES:
        return Check("disk", LOOK, said, "a run of days may fill it; agentctl compact makes the log smaller")
    return Check("disk", GOOD, said)


def _check_owner(home: Path, at: str) -> Check:
    if not home.is_dir():
        return Check("owner", GOOD, "nobody, there is no home yet")
    try:
        found = find_owner_process(home)
    except StateError as error:
        return Check("owner", LOOK, str(error), "its owner can say")
    if found.is_running:
        return Check("owner", GOOD, f"{found.kind} {found.pid} since {found.since}")
    if read_owner(home / INSTANCE_LOCK) is not None:
        return Check("owner", LOOK, "agentd waits for the home", "its log says for whom")
    return Check("owner", GOOD, "nobody: runs rest until agentctl or agentd owns the home")


def _check_inbox(home: Path, at: str) -> Check:
    rejected = list((home / "inbox" / "rejected").glob("*"))
    queued = len(waiting_commands(home))
    said = f"{queued} waiting, {len(rejected)} files of what was no command"
    if queued and not _is_owned(home):
        return Check(
            "inbox", LOOK, said, f"nobody owns the home: agentd, or agentctl{at} resume --last, takes them"
        )
    if rejected:
        return Check("inbox", LOOK, said, f"the reasons are beside them in {home / 'inbox' / 'rejected'}")
    return Check("inbox", GOOD, said)


def _is_owned(home: Path) -> bool:
    try:
        return find_owner_process(home).is_running
    except StateError:
        return False


def _check_log(home: Path, at: str) -> Check:
    layout = HomeLayout(home)
    if not home.is_dir():
        return Check("log", GOOD, "none yet")
    try:
        with LogReader.open(home) as reader:
            reader.check_end()
            head = reader.head
            runs = len(reader.run_ids())
    except NoLog:
        return Check("log", GOOD, "none yet")
    except StateError as error:
        return Check(
            "log", BAD, str(error), f"agentctl{at} verify says more, agentctl{at} repair saves what is sound"
        )
    size = sum(path.stat().st_size for path in (layout.database, layout.wal) if path.exists())
    said = f"{head.seq} events, {runs} runs, {size / 1e6:.1f} MB; it ends where HEAD says"
    return Check("log", GOOD, f"{said} (agentctl{at} verify proves all of it)")


def _check_effects(home: Path, at: str) -> Check:
    """Say which effects of live runs were given up, or are delivered again and again."""
    found: list[str] = []
    cut_off: set[str] = set()
    try:
        with LogReader.open(home) as reader:
            for run in reader.active_runs():
                state = reader.run_state(run)
                poisoned = reader.read(stream=run, types=("EffectPoisoned",), newest=True, limit=3)
                found += [f"{one.event_id} gave {one.event.key} up" for one in poisoned]  # type: ignore[attr-defined]
                often = {
                    key: effect.delivery
                    for key, effect in state.open.items()
                    if effect.delivery >= OFTEN_DELIVERED
                }
                found += [f"{run} {key} was delivered {count} times" for key, count in often.items()]
                cut_off |= {state.config.target} if often and state.config.evaluator == "sim" else set()
    except StateError:  # another check reports this error
        return Check("effects", GOOD, "none to be read")
    if not found:
        return Check("effects", GOOD, "none of the live runs was given up, or is delivered again and again")
    found += [_describe_shortest_life(target) for target in sorted(cut_off)]
    return Check(
        "effects",
        LOOK,
        "; ".join(found),
        "something in them may end the process; its own log, and that of the kernel, say what ended it",
    )


def _describe_shortest_life(target: str) -> str:
    """Say how long a process must live for an effect to get on: what works on it has to start first."""
    from remote.pool import measure_start_seconds

    seconds = measure_start_seconds(target)
    text = f"what judges for {target} takes {seconds:.1f} s to start here now"
    return f"{text}: a process that ends within {LIFE_PER_START * seconds:.1f} s of it brings nothing on"


def _check_cache(home: Path) -> Check:
    """Say which files of the judge's cache are not as they were computed."""
    from remote.references import list_damaged_references

    damaged = list_damaged_references(home)
    if not damaged:
        return Check("cache", GOOD, "each reference is as it was computed")
    more = f" and {len(damaged) - 1} more" if damaged[1:] else ""
    return Check(
        "cache",
        LOOK,
        f"{damaged[0]}{more}: not as it was computed",
        "it is computed again when it is needed; if this comes again, the disk is failing",
    )


def _check_configuration(home: Path, env: Mapping[str, str], at: str) -> Iterator[Check]:
    """Yield the checks of the configuration, and of the keys for its endpoints."""
    from daemon.calls.model_checks import find_model_faults
    from daemon.config import load_config
    from daemon.name_checks import find_unknown_names

    try:
        found = load_config(home, env, look_up=find_unknown_names).config
    except (DaemonError, OSError) as error:
        yield Check(
            "configuration",
            BAD,
            str(error).replace("\n", "; "),
            f"agentctl{at} config check names each fault",
        )
        return
    wrong = find_model_faults(found.run, found.daemon, env)
    if wrong:
        yield Check("configuration", BAD, "; ".join(wrong), f"agentctl{at} config keys explains every key")
    else:
        file = home / "config.toml"
        yield Check(
            "configuration", GOOD, f"{file if file.exists() else 'defaults, there is no config.toml'}"
        )
    yield from check_endpoints(home, found.run, found.daemon, env)


def _check_jail() -> Check:
    from remote.jail_backends import jail_strength

    result, said, remedy = _JAILS[jail_strength().value]
    return Check("jail", result, said, remedy)


def _check_device() -> Check:
    from targets.registry import load_families

    return Check("device", GOOD, "; ".join(one.describe_toolchain() for one in load_families()))


def _check_target(home: Path, env: Mapping[str, str], target: str | None) -> Iterator[Check]:
    """Yield what a target checks, the given one or that of the configuration, and its state if it is a
    folder.
    """
    from daemon.config import load_config
    from targets.base import UnknownTargetError, import_part
    from targets.registry import is_folder, load_target

    try:
        name = target or load_config(home, env).config.run.target
    except DaemonError:  # other checks report it
        return
    try:
        found = load_target(name)
        if is_folder(name):
            yield Check("target", GOOD, found.describe_toolchain())
    except UnknownTargetError as error:
        if is_folder(name):
            yield Check("target", BAD, str(error), "docs/own-targets.md says what its files hold")
        elif target:  # an unknown name in the configuration is a fault of that
            yield Check("target", BAD, str(error), "name another --target, or the path of a folder")
        return
    if (part := found.parts.device_checks) is not None:
        for one in import_part(part)():
            yield Check(one.name, LOOK if one.remedy else GOOD, one.found, one.remedy)


def _check_hosts(home: Path, env: Mapping[str, str], at: str) -> Iterator[Check]:
    """Yield the state of the configured hosts, and of those of active runs."""
    from daemon.config import load_config

    try:
        configured = [one.address for one in load_config(home, env).config.run.hosts]
        found = list_hosts(home, running=_is_owned(home), configured=configured)
    except (DaemonError, StateError, OSError):  # other checks report these errors
        return
    for one in found:
        said = f"{one.state.replace('_', ' ')}{f', heard of at {one.heard}' if one.heard else ''}"
        if one.why:
            said = f"{said}: {one.why}"
        healthy = one.state in ("up", UNUSED) and not one.why
        remedy = (one.remedy or "").replace("agentctl ", f"agentctl{at} ")
        yield Check(f"host: {one.name}", GOOD if healthy else LOOK, said, remedy)


def _check_ray(home: Path, env: Mapping[str, str]) -> Iterator[Check]:
    """Yield whether Ray is installed and its cluster answers, if it is the evaluator."""
    from daemon.config import load_config

    try:
        found = load_config(home, env).config
    except (DaemonError, OSError):  # another check reports this error
        return
    if found.run.evaluator != "ray":
        return
    from remote.cluster.evaluator import INSTALL, probe_address
    from remote.errors import InfrastructureError

    try:
        said = f"Ray {version('ray')}"
        probe_address(found.daemon.ray_address)
    except PackageNotFoundError:
        yield Check("ray", BAD, "run.evaluator is ray, and Ray is not installed", INSTALL)
    except InfrastructureError as error:
        yield Check("ray", BAD, error.message, "start it (ray start --head), or mend daemon.ray_address")
    else:
        where = found.daemon.ray_address or "a cluster of this machine's CPUs"
        yield Check("ray", GOOD, f"{said}, {where}")


def _check_coding_agent(home: Path, env: Mapping[str, str]) -> Iterator[Check]:
    """Yield what the configured coding agent can reach, because its network is open."""
    from daemon.agents.scratch import find_program
    from daemon.config import load_config
    from remote.jail_backends import JailStrength, jail_strength

    name = "coding agent"
    try:
        found = load_config(home, env).config
    except (DaemonError, OSError):  # another check reports this error
        return
    agent = found.run.agent
    if not agent.command:
        return
    program = find_program(agent.command)
    if program is None:
        fix = "install it, or name its path in run.agent.command"
        yield Check(name, BAD, f"run.agent.command: there is no program {agent.command[0]!r}", fix)
        return
    unset = [variable for variable in agent.variables if variable not in env]
    gets = f"; it gets {', '.join(agent.variables)}" if agent.variables else "; it gets no keys"
    gets += f" ({', '.join(unset)} not set here)" if unset else ""
    if jail_strength() is JailStrength.BUBBLEWRAP:
        said = f"{program} works in a jail with an open network: it can send out the problem and its kernels"
        fix = "a firewall of this machine can bound whom it reaches; run.agent.shown are the folders it reads"
        yield Check(name, LOOK, f"{said}{gets}", fix)
    elif found.daemon.allow_weak_jail:
        said = f"nothing confines {program}: it can read and send out what this user can"
        yield Check(name, LOOK, f"{said}{gets}", "apt-get install bubblewrap")
    else:
        yield Check(name, BAD, f"{program} is refused: nothing confines it", "apt-get install bubblewrap")


def _check_service(home: Path) -> Check:
    units = (Path("/etc/systemd/system/agentd.service"), Path.home() / ".config/systemd/user/agentd.service")
    found = [str(path) for path in units if path.exists()]
    if not found:
        return Check("service", GOOD, "not installed; agentctl service install makes agentd survive reboots")
    return Check("service", GOOD, f"installed: {', '.join(found)}; agentctl service status says how it is")
