"""Edits of configuration file and prompts while a process owns the home: taken as a whole, recorded.

A changed `[daemon]` counts at once. What changed in `[run]` counts for runs to come, and from their next
round on for those under way, but for keys that somebody set for a run, and for what kernels are judged by,
which a run keeps. Prompts count for all runs, from their next round on. What changed is told by the log,
which has what was last taken: edits that were made while nobody owned the home are found when somebody does,
and so are prompts that a new version of this program brings. An edit with faults changes nothing: it is
refused, with every fault of every file, in the log and in the status, until all is right again. Files are
looked at periodically, by what the system tells of them alone, and read only when that has changed and two
looks in a row find the same: editors write in steps. Files with keys are looked at likewise: an edit that
names a model without a key, or takes a model's key away, has a fault.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError

from agent_core.prompting import PromptSet
from agent_core.providers import registry
from daemon import prompt_overrides
from daemon.calls import model_checks
from daemon.config import FILE_NAME, Config, ConfigError, DaemonConfig, load_config, read_all
from daemon.name_checks import find_unknown_names
from daemon.optimistic_append import append_if_current
from daemon.run_settings import EVALUATION_KEYS, apply_settings, diff_configs
from state.events import ConfigChanged, ConfigRefused, Event
from state.fold import RunState
from state.log import EventLog
from state.model import SYSTEM_STREAM, Digest, ErrorInfo, RunConfig
from state.records import NewEvent, RecordedEvent

LOOK_SECONDS = 1.0

FileStamp = tuple[tuple[str, int, int, int], ...]
"""Of each file that is there: its path, when it or its mode was last changed, its size and its inode."""

NEVER_READ: FileStamp = (("", 0, 0, 0),)
"""The stamp of no files: whatever is there was not taken yet."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("config")


@dataclass(frozen=True, slots=True)
class HomeFiles:
    """What the files of a home say: `fresh` by itself, `effective` with the environment of this process."""

    fresh: Config
    effective: DaemonConfig
    prompts: PromptSet


def load_start_config(home: Path, event_log: EventLog, env: Mapping[str, str]) -> DaemonConfig:
    """Return the process's settings to begin with: those of a file with faults are the ones last in force.

    A service that starts again by itself, after a crash, must not stay down for an edit that was refused.
    `ConfigWatcher` refuses the file. In a log without events nothing was in force.

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
    """Return what the file said when it was last taken, by this process or one before it."""
    try:
        return Config.model_validate(event_log.system_state().config or {})
    except ValidationError:  # another version's, with keys that are gone
        return Config()


class ConfigWatcher:
    """Watches configuration file and prompts of the home that is owned, and applies what changes in them."""

    def __init__(
        self,
        event_log: EventLog,
        *,
        turn: asyncio.Lock,
        apply: Callable[[DaemonConfig], None],
        env: Mapping[str, str] = os.environ,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """`turn` is held while settings are read and changed; `apply` puts the daemon's own into force."""
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
        """Take the file as it is, then look at it now and then, until cancelled."""
        await self.poll()
        while True:
            await asyncio.sleep(self._look_seconds)
            await self.poll()

    async def poll(self) -> None:
        """Take the file if it changed, and did not change again since the last look."""
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
        if found.effective != self._in_force:  # else flags of this process would be undone by other edits
            self._in_force = found.effective
            self._apply(found.effective)
        if changed:
            log.info(
                "config_changed",
                home=str(self._home),
                runs=sorted({one.stream for one in changed} - {SYSTEM_STREAM}),
            )

    def _read_files(self) -> HomeFiles:
        """Return what the files say.

        Raises:
            ConfigError: naming every fault of every file.
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
        """Make sure that models of runs to come are known and have keys, as far as they had before the edit.

        Raises:
            ConfigError: some are or have not, and why.
        """
        before = model_checks.find_unusable_models(self._known.run, self._config_before(found), self._env)
        now = model_checks.find_unusable_models(found.fresh.run, found.effective, self._env)
        _raise_new_faults(now, before)

    def _config_before(self, found: HomeFiles) -> DaemonConfig:
        """Return the process's settings as they were before an edit."""
        return found.effective if self._in_force is None else self._in_force

    def _require_run_models(self, found: HomeFiles, run: RunConfig, after: RunConfig) -> None:
        """Make sure that an edit leaves a run under way its models.

        Raises:
            ConfigError: it does not, and why.
        """
        before = model_checks.find_model_faults(run, self._config_before(found), self._env)
        _raise_new_faults(model_checks.find_model_faults(after, found.effective, self._env), before)

    async def _record_edit(self, found: HomeFiles) -> Sequence[RecordedEvent]:
        """Store what is new in the files, and what that changes in the runs under way.

        Raises:
            ConfigError: what it changes does not go with what a run has.
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
            event = _build_config_change(state, before, changed, found.prompts.version)
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
    """Yield the files in which keys are, as far as the configuration names them."""
    for name in registry.endpoint_names():
        if file := config.endpoint(name).key_file:
            yield Path(file).expanduser()


def _raise_new_faults(faults: Iterable[str], known: Iterable[str]) -> None:
    """Raise ConfigError for faults that were not there before."""
    if new := [fault for fault in faults if fault not in set(known)]:
        raise ConfigError(new)


def _file_stamps(paths: Iterable[Path]) -> Iterator[tuple[str, int, int, int]]:
    for path in paths:
        for follow in (True, False):  # a link that leads nowhere, or in a circle, is there too
            with suppress(OSError):
                found = path.stat(follow_symlinks=follow)
                yield str(path), found.st_ctime_ns, found.st_size, found.st_ino
                break


def _build_config_change(
    state: RunState, before: RunConfig, changed: Mapping[str, tuple[Any, Any]], prompts: Digest
) -> ConfigChanged | None:
    """Return what an edit changes in a run under way; what it was told is not changed unless recorded.

    Raises:
        ConfigError: what it changes does not go with what the run has.
    """
    settings = {key: new for key, (_, new) in changed.items() if key not in {*state.pinned, *EVALUATION_KEYS}}
    after = apply_settings(before, settings)
    other = None if state.next_prompts in (None, prompts) else prompts
    if after == before and other is None:
        return None
    return ConfigChanged(config=after.model_dump(mode="json"), prompts=other)
