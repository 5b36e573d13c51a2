"""The parts of a long effect, so that a delivery goes on where the one before it was cut off.

Predictions decide what a look-ahead asks next, so they are kept in the log: as a blob that an
`EffectProgressed` event names. Answers of the pools that rewrite kernels are large, follow from their request
alone, and are worthless once the effect has ended: they are kept in files of `<home>/cache/steps`, each with
its digest, and only the fact is logged, from the second delivery on.

An effect whose last `MAX_VAIN_DELIVERIES` deliveries brought nothing is poisoned: something in it may end
this process. It fails by that name, and its run goes on. Only deliveries with a fair chance count: their work
had begun, together they had `FAIR_SECONDS` for it, and no process ended in between whose work had not begun.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from agent_core.effects import LookAheadRequest, SimplifyRequest, TranslateRequest
from daemon.structured_log import structlog
from remote.evaluator import PredictionRequest
from state.effect_progress import VainDeliveries
from state.errors import BlobMissing
from state.events import EffectPoisoned, EffectProgressed
from state.log import EventLog
from state.model import SYSTEM_STREAM, EffectKey, ErrorInfo, canonical_json, digest_of
from state.records import NewEvent

T = TypeVar("T")

MAX_VAIN_DELIVERIES = 5
"""Deliveries in a row without progress after which an effect fails, if they worked for `FAIR_SECONDS`."""

FAIR_SECONDS = 60

MAX_SHORT_DELIVERIES = 15
"""The same, if they worked for less: fewer than the starts that a service manager allows."""

MAX_DELIVERIES = 200
"""The same, if processes also ended before the work of the effect had begun: it is hardly to blame."""

MANY_DELIVERIES = 4
"""From this delivery on, an effect is performed only when no other such effect is."""

BATCH_KERNELS = 16
"""Kernels predicted between two records of a look-ahead; a quarter after each delivery in vain."""

_DIGEST_BYTES = 64
_SECONDS_FILE = "seconds"

log: structlog.stdlib.BoundLogger = structlog.get_logger("steps")


class EffectSteps:
    """The parts of one effect, in this delivery and in those before it."""

    def __init__(
        self, event_log: EventLog, run: str, key: EffectKey, *, turns: asyncio.Lock | None = None
    ) -> None:
        """`turns` is held by one effect at a time of those that were cut off again and again."""
        self._log = event_log
        self._run = run
        self._key = str(key)
        self._folder = steps_folder(event_log.home) / _folder_name(run, self._key)
        parts = event_log.effect_parts(run, self._key)
        self._part = parts[-1].part if parts else 0
        self._answers: dict[str, Any] = {}
        for part in parts:
            with suppress(BlobMissing):  # pruned: it is done again
                self._answers |= {} if part.answers is None else json.loads(event_log.get_blob(part.answers))
        opened = event_log.run_state(run).open.get(self._key)
        delivery = 1 if opened is None else opened.delivery
        self._is_first = delivery == 1
        self._turns = turns if delivery >= MANY_DELIVERIES else None
        self._in_vain = (
            VainDeliveries() if self._is_first else event_log.count_vain_deliveries(run, self._key)
        )
        self._has_begun = self._is_first
        self._seconds = 0 if self._is_first else _read_number(self._folder / _SECONDS_FILE)
        self._own: set[str] = set()
        """What this delivery has kept, which its next try need not do again."""
        self.done = 0

    @property
    def vain(self) -> int:
        """How many deliveries in a row began to work and brought nothing."""
        return self._in_vain.begun

    @property
    def is_poisoned(self) -> bool:
        """Whether the effect is not to be delivered again."""
        enough = MAX_VAIN_DELIVERIES if self._seconds >= FAIR_SECONDS else MAX_SHORT_DELIVERIES
        return self._in_vain.blamed >= enough or self._in_vain.all >= MAX_DELIVERIES

    @property
    def deliveries(self) -> int:
        """How many deliveries in a row brought nothing."""
        return self._in_vain.all

    @property
    def batch_size(self) -> int:
        """How many kernels are predicted between two records."""
        return max(1, BATCH_KERNELS >> 2 * self.vain)

    def find_answer(self, asked: str) -> Any | None:
        """Return the recorded answer to what has the digest `asked`, as JSON-like data."""
        return self._answers.get(asked)

    async def record_answers(self, answers: Mapping[str, Any]) -> None:
        """Record answers, by the digest of what was asked."""
        blob = canonical_json(answers)
        await self._append_part(digest_of(blob), len(answers), blob)
        self._answers |= answers
        self.done += 1

    async def note_part(self) -> None:
        """Record that a part is done whose result is kept elsewhere; a first delivery needs no record."""
        self.done += 1
        if not self._is_first:
            await self._append_part(None, 1)

    async def _append_part(self, answers: str | None, count: int, *blobs: bytes) -> None:
        self._part += 1  # before the append: others of this effect may record meanwhile
        event = EffectProgressed(run=self._run, key=self._key, part=self._part, answers=answers, count=count)
        await self._log.append([NewEvent(SYSTEM_STREAM, event)], blobs=blobs)
        if count and self._seconds:
            self._note_seconds(0)

    @asynccontextmanager
    async def take_turn(self) -> AsyncIterator[None]:
        """Let an effect that was cut off many times have the machine's CPUs before the next one does.

        Each needs processes. All of them at once would start more slowly than the first one alone, and this
        process may not live for so long.
        """
        async with self._turns or nullcontext():
            yield

    @asynccontextmanager
    async def count_seconds(self) -> AsyncIterator[None]:
        """Count for how long an effect that is delivered again works in vain; a kill leaves the count."""
        counting = None if self._is_first else asyncio.create_task(self._count_on())
        try:
            yield
        finally:
            if counting is not None:
                counting.cancel()

    async def _count_on(self) -> None:
        while True:
            await asyncio.sleep(1)
            if self._has_begun:
                self._note_seconds(self._seconds + 1)

    def _note_seconds(self, seconds: int) -> None:
        self._seconds = seconds
        with suppress(OSError):  # what is not counted is not held against the effect
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / _SECONDS_FILE).write_text(str(seconds), encoding="ascii")

    async def note_begun(self) -> None:
        """Record that the work of this delivery begins; that of a first delivery needs no record."""
        if not self._has_begun:
            self._has_begun = True
            await self._append_part(None, 0)

    async def recall(
        self,
        asked: str,
        perform: Callable[[], Awaitable[str]],
        /,
        *,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> str:
        """Return the kept answer to `asked`; if there is none, `prepare`, then perform and keep it."""
        kept = await self.find(asked)
        if kept is not None:
            return kept
        if prepare is not None and not self._has_begun:
            await prepare()
            await self.note_begun()
        answer = await perform()
        await self.keep(asked, answer)
        return answer

    async def find(self, asked: str, /) -> str | None:
        """Return the kept answer to `asked`, None if there is none."""
        path = self._path_of(asked)
        is_kept = not self._is_first or path.name in self._own
        return await asyncio.to_thread(_read_kept, path) if is_kept else None

    async def keep(self, asked: str, answer: str, /) -> None:
        """Keep an answer, instead of an earlier one to the same."""
        path = self._path_of(asked)
        try:
            await asyncio.to_thread(_keep, path, answer)
        except OSError as error:  # only a later delivery would have gained from it
            log.warning("step_not_kept", run=self._run, key=self._key, error=str(error))
        else:
            self._own.add(path.name)
            await self.note_part()

    def _path_of(self, asked: str) -> Path:
        return self._folder / digest_of(asked.encode())

    def discard(self) -> None:
        """Delete the files of an effect that has ended."""
        shutil.rmtree(self._folder, ignore_errors=True)


def prune_steps(event_log: EventLog) -> None:
    """Delete the files of effects that ended while this process, or one before it, was ending."""
    open_ = {
        _folder_name(run, key) for run in event_log.active_runs() for key in event_log.run_state(run).open
    }
    for folder in steps_folder(event_log.home).glob("*"):
        if folder.name not in open_:
            shutil.rmtree(folder, ignore_errors=True)


def _folder_name(run: str, key: str) -> str:
    return digest_of(f"{run}/{key}".encode())[:32]


def steps_folder(home: Path) -> Path:
    """Return where the answers of pools are kept, while their effects are open."""
    return home / "cache" / "steps"


def _keep(path: Path, answer: str) -> None:
    """Write an answer with its digest; a kill or a power cut leaves a file that is not believed.

    The digest includes the file's name, which is that of the question: no answer counts for another one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = zlib.compress(answer.encode(), 1)
    draft = path.with_suffix(".new")
    draft.write_bytes(_seal(path, data) + data)
    draft.replace(path)


def _read_number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # none yet, or cut off while it was written
        return 0


def _read_kept(path: Path) -> str | None:
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    digest, data = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
    return zlib.decompress(data).decode() if _seal(path, data) == digest else None


def _seal(path: Path, data: bytes) -> bytes:
    return digest_of(path.name.encode() + data).encode()


def poisoned_error(deliveries: int) -> ErrorInfo:
    """Return why an effect is not delivered again."""
    text = f"it was delivered {deliveries} times, and each time this process ended before any part was done"
    return ErrorInfo(code="poisoned", message=text)


def poisoned_event(run: str, key: EffectKey, deliveries: int) -> NewEvent:
    """Return the event that names a poisoned effect."""
    return NewEvent(run, EffectPoisoned(key=str(key), deliveries=deliveries))


def prediction_request(
    asked: LookAheadRequest | SimplifyRequest | TranslateRequest,
    author: str,
    sources: Sequence[str],
    dims: Mapping[str, int] | None,
) -> PredictionRequest:
    """Return what a role asks about these sources; `dims` are instead of those of its size."""
    return PredictionRequest(
        author=author,
        sources=tuple(sources),
        problem=asked.problem,
        size=asked.size,
        target=asked.target,
        toolchain=asked.toolchain,
        dims=dims,
    )


def name_prediction(request: PredictionRequest, source: str) -> str:
    """Return the digest of what is asked of one kernel, whatever it is asked together with."""
    dims = None if request.dims is None else sorted(request.dims.items())
    asked = (source, request.problem.digest, request.size, request.target, request.toolchain, dims)
    return digest_of(canonical_json((*asked, request.canonical)))


def batched(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """Yield the items in tuples of `size`, the last one perhaps shorter."""
    rest = iter(items)
    while batch := tuple(islice(rest, size)):
        yield batch
