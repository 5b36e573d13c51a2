"""Watches the configuration file and the prompts of an owned home, and records and applies edits.

A changed `[daemon]` section counts at once. A changed `[run]` section counts for new runs, and for runs
under way from their next round on, except for keys that were set for that run and keys that decide how
its kernels are judged. Changed prompts count for all runs, from their next round on.

Edits are compared with what the log last recorded. So edits made while nobody owned the home are found
when somebody does, and so are prompts that a new version of this program brings. An edit is taken whole
or not at all: if it has faults, it is refused with every fault of every file, in the log and in the
status, until all are corrected.

Files are polled by their metadata alone. They are read only when that has changed and two polls in a row
found the same, because editors write in steps. Key files are polled too: an edit that names a model
without a key, or that removes a model's key, has a fault.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agent_core.prompting import PromptSet
from daemon import prompt_overrides
from daemon.calls import model_checks
from daemon.config import FILE_NAME, Config, ConfigError, DaemonConfig, load_config, read_all
from daemon.name_checks import find_unknown_names
from daemon.optimistic_append import append_if_current
from daemon.run_settings import EVALUATION_KEYS, apply_settings, diff_configs
from daemon.structured_log import structlog
from state.events import ConfigChanged, ConfigRefused, Event
from state.fold import RunState
from state.log import EventLog
from state.model import SYSTEM_STREAM, Digest, ErrorInfo, RunConfig
from state.records import NewEvent, RecordedEvent

LOOK_SECONDS = 1.0

FileStamp = tuple[tuple[str, int, int, int], ...]
"""For each existing file: its path, the time of its last change (also of its mode), its size and its
inode.
"""

NEVER_READ: FileStamp = (("", 0, 0, 0),)
"""The stamp of no files: any existing file counts as not taken yet."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("config")


@dataclass(frozen=True, slots=True)
class HomeFiles:
    """The content of a home's files: `fresh` without, and `effective` with, the environment of this
    process.
    """

    fresh: Config
    effective: DaemonConfig
    prompts: PromptSet


def load_start_config(home: Path, event_log: EventLog, env: Mapping[str, str]) -> DaemonConfig:
    """Return the process's settings at start. If the file has faults, use the settings that were last in
    force.

    After a crash, the service must be able to restart even if an edit was refused; `ConfigWatcher` then
    refuses the file. In a log without events, nothing was in force.

    Raises:
        ConfigError: the environment has faults, or the file of a new home.
    """
    try:
        return load_config(home, env).config.daemon
    except ConfigError:
        if event_log.head.seq == 0:
            raise
        return load_config(home, env, instead=last_accepted_config(event_log).model_dump()).config.daemon


def last_accepted_config(event_log: EventLog) -> Config:
    """Return the file's content when it was last taken, by this process or an earlier one."""
    try:
        return Config.model_validate(event_log.system_state().config or {})
    except ValidationError:  # written by another version, with keys that no longer exist
        return Config()


class ConfigWatcher:
    """Watches the configuration file and the prompts of the owned home, and applies changes."""

    def __init__(
        self,
        event_log: EventLog,
        *,
        turn: asyncio.Lock,
        apply: Callable[[DaemonConfig], None],
        env: Mapping[str, str] = os.environ,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """`turn` is held while settings are read and changed; `apply` puts the daemon's own settings
        into force.
        """
        self._log = event_log
        self._home = event_log.home
        self._path = event_log.home / FILE_NAME
        self._turn = turn
        self._apply = apply
        self._env = env
        self._look_seconds = look_seconds
        self._key_files: tuple[Path, ...] = ()
        self._seen = self._file_stamp()
        self._taken = NEVER_READ
        self._known = last_accepted_config(event_log)
        self._in_force: DaemonConfig | None = None
        with suppress(ConfigError):
            self._in_force = load_start_config(self._home, event_log, env)

    async def watch(self) -> None:
        """Take the file as it is, then poll it until cancelled."""
        await self.poll()
        while True:
            await asyncio.sleep(self._look_seconds)
            await self.poll()

    async def poll(self) -> None:
        """Take the file if it changed, and has not changed again since the last poll."""
        stamp = self._file_stamp()
        settled, self._seen = stamp == self._seen, stamp
        if settled and stamp != self._taken:
            self._taken = stamp
            async with self._turn:
                await self._apply_edit()

    def _file_stamp(self) -> FileStamp:
        folder = self._home / prompt_overrides.PROMPTS_FOLDER
        return tuple(
            _file_stamps((self._path, folder, *prompt_overrides.override_paths(self._home), *self._key_files))
        )

    async def _apply_edit(self) -> None:
        try:
            found = self._read_files()
            changed = await self._record_edit(found)
        except ConfigError as error:
            await self._record_refusal(error)
            return
        self._known = found.fresh
        if found.effective != self._in_force:  # otherwise other edits would undo the flags of this process
            self._in_force = found.effective
            self._apply(found.effective)
        if changed:
            log.info(
                "config_changed",
                home=str(self._home),
                runs=sorted({one.stream for one in changed} - {SYSTEM_STREAM}),
            )

    def _read_files(self) -> HomeFiles:
        """Return the content of the files.

        Raises:
            ConfigError: it names every fault of every file.
        """
        fresh, effective, prompts = read_all(
            lambda: load_config(self._home, {}, look_up=find_unknown_names).config,
            lambda: load_config(self._home, self._env).config.daemon,
            lambda: prompt_overrides.load_prompts(self._home),
        )
        self._key_files = tuple(_key_files(effective))
        found = HomeFiles(fresh, effective, prompts)
        self._require_known_models(found)
        return found

    def _require_known_models(self, found: HomeFiles) -> None:
        """Check that the models of new runs are known and have keys; faults from before the edit do not
        count.

        Raises:
            ConfigError: it names the models that are unknown or have no key.
        """
        before = model_checks.find_unusable_models(self._known.run, self._config_before(found), self._env)
        now = model_checks.find_unusable_models(found.fresh.run, found.effective, self._env)
        _raise_new_faults(now, before)

    def _config_before(self, found: HomeFiles) -> DaemonConfig:
        """Return the process's settings from before an edit."""
        return found.effective if self._in_force is None else self._in_force

    def _require_run_models(self, found: HomeFiles, run: RunConfig, after: RunConfig) -> None:
        """Check that an edit does not take away the models of a run under way, or the prices of these.

        Raises:
            ConfigError: it does; the error says why.
        """
        former, now = self._config_before(found), found.effective
        before = model_checks.find_model_faults(run, former, self._env)
        unpriced = model_checks.find_unpriced_models(
            run.model_copy(update={"cap_usd": after.cap_usd}), former
        )
        faults = model_checks.find_model_faults(after, now, self._env)
        _raise_new_faults([*faults, *model_checks.find_unpriced_models(after, now)], [*before, *unpriced])

    async def _record_edit(self, found: HomeFiles) -> Sequence[RecordedEvent]:
        """Record what is new in the files, and what that changes in the runs under way.

        Raises:
            ConfigError: the change does not fit the settings of a run.
        """
        changed = diff_configs(self._known.run, found.fresh.run)
        system = self._log.system_state()
        prompts = (
            None
            if found.prompts.version == prompt_overrides.prompts_in_force(self._log)
            else found.prompts.version
        )
        taken = ConfigChanged(config=found.fresh.model_dump(mode="json"), prompts=prompts)
        news = found.fresh != self._known or prompts is not None or system.refused is not None

        def edited(state: RunState) -> Event | None:
            before = state.pending_config or state.config
            event = _build_config_change(state, before, changed, prompts=found.prompts.version)
            after = before if event is None else RunConfig.model_validate(event.config)
            self._require_run_models(found, before, after)
            return event

        return await append_if_current(
            self._log,
            self._log.active_runs(),
            edited,
            with_=[NewEvent(SYSTEM_STREAM, taken)] if news else (),
            blobs=(found.prompts.to_json(),),
        )

    async def _record_refusal(self, error: ConfigError) -> None:
        if self._log.system_state().refused != str(error):
            info = ErrorInfo(code=error.code, message=str(error), hint=f"correct it in {self._home}")
            await self._log.append([NewEvent(SYSTEM_STREAM, ConfigRefused(error=info))])
        log.warning("config_refused", home=str(self._home), faults=list(error.faults))


def _key_files(config: DaemonConfig) -> Iterator[Path]:
    """Yield the key files that the configuration names."""
    for name in config.endpoint_names:
        if file := config.endpoint(name).key_file:
            yield Path(file).expanduser()


def _raise_new_faults(faults: Iterable[str], known: Iterable[str]) -> None:
    """Raise ConfigError if there are faults that are not in `known`."""
    if new := [fault for fault in faults if fault not in set(known)]:
        raise ConfigError(new)


def _file_stamps(paths: Iterable[Path]) -> Iterator[tuple[str, int, int, int]]:
    for path in paths:
        for follow in (True, False):  # a broken or circular link exists too
            with suppress(OSError):
                found = path.stat(follow_symlinks=follow)
                yield str(path), found.st_ctime_ns, found.st_size, found.st_ino
                break


def _build_config_change(
    state: RunState, before: RunConfig, changed: Mapping[str, tuple[Any, Any]], *, prompts: Digest
) -> ConfigChanged | None:
    """Return the event for what an edit changes in a run under way, None if it changes nothing.

    Raises:
        ConfigError: the change does not fit the settings of the run.
    """
    settings = {key: new for key, (_, new) in changed.items() if key not in {*state.pinned, *EVALUATION_KEYS}}
    after = apply_settings(before, settings)
    other = None if state.next_prompts in (None, prompts) else prompts
    if after == before and other is None:
        return None
    return ConfigChanged(config=after.model_dump(mode="json"), prompts=other)
