"""Builds and checks folders of targets: which model is asked, and what it used."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent_core.ensemble import endpoint_of, parse_model_shares
from agent_core.proposers import is_llm_proposer
from agent_core.providers import registry
from agent_core.providers.completion import CompletionRequest, PromptPart, Provider
from agent_core.providers.failures import CallError
from agent_core.providers.keys import KeyFault, describe_key_sources, find_key
from agent_core.providers.registry import UnknownEndpoint
from daemon.config import Config
from daemon.errors import DaemonError
from targets.folders.builder.checks import example_codes, find_uncompilable
from targets.folders.builder.distillation import Distillate, NoAnswerError, distil_items
from targets.folders.builder.documents import Chunk, DocumentError, read_documents
from targets.folders.builder.extraction import extract_items
from targets.folders.builder.items import ItemKind
from targets.folders.builder.writer import WrittenFolder, write_folder
from targets.folders.description import CPipeline, TargetFolder, read_folder, text_digest
from targets.folders.target import load_folder_target

_ANSWER_TOKENS = 8000
_HOST_PIPELINE = CPipeline(compilers=("gcc", "clang"))


@dataclass
class BuiltTarget:
    """What was made: by which model, from how many tokens, how many items of each kind."""

    model: str | None
    tokens: int
    counts: dict[str, int]
    files: WrittenFolder
    refused: list[str]
    compiled: bool


@dataclass
class CheckedTarget:
    """What a check found: examples that compile, those that do not, and texts that were edited."""

    toolchain: str
    compiled: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    edited: dict[str, str] = field(default_factory=dict)


class ModelAsker:
    """Asks one model questions outside of runs, and counts tokens."""

    def __init__(self, model: str, provider: Provider, deadline_s: float) -> None:
        self.model, self.tokens = model, 0
        self._provider, self._deadline_s = provider, deadline_s

    async def ask(self, guide: str, case: str) -> str:
        """Return the answer.

        Raises:
            NoAnswerError: none came.
        """
        request = CompletionRequest(
            model=self.model.partition("/")[2],
            guide=(PromptPart(text=guide, cached=True),),
            case=(PromptPart(text=case),),
            max_output_tokens=_ANSWER_TOKENS,
        )
        try:
            answer = await self._provider.complete(
                request, deadline_seconds=self._deadline_s, observe=lambda _: None
            )
        except CallError as error:
            raise NoAnswerError(f"{self.model}: {error.failure.message}") from error
        self.tokens += answer.tokens.input + answer.tokens.output
        return answer.text

    async def aclose(self) -> None:
        """Close the connections."""
        await self._provider.aclose()


async def build_target(
    folder: Path,
    documents: Sequence[Path],
    config: Config,
    *,
    model: str | None,
    asks: bool,
    env: Mapping[str, str],
    said: Callable[[int, int], None],
) -> BuiltTarget:
    """Make a target's folder from documents; `said` is told how many chunks of how many were read.

    Raises:
        DaemonError: a document cannot be read, or the model cannot be asked.
        UnknownTargetError: the folder is there, and is no target.
    """
    try:
        known, chunks = await asyncio.to_thread(_read_all, folder, documents)
    except DocumentError as error:
        raise DaemonError(str(error), code=error.code) from error
    asker = create_asker(model or _configured_model(config), config, env) if asks else None
    if asker is None:
        found = Distillate(extract_items(chunks))
    else:
        try:
            found = await distil_items(chunks, asker.ask, lambda number: said(number, len(chunks)))
        except NoAnswerError as error:
            raise DaemonError(str(error), code=error.code) from error
        finally:
            await asker.aclose()
    codes = {one.name: one.text for one in found.items if one.kind is ItemKind.EXAMPLE}
    pipeline = known.description.c if known else _HOST_PIPELINE
    broken = await find_uncompilable(codes, pipeline) if pipeline else None
    files = write_folder(folder, folder.name, found.items, unusable=broken or {}, known=known)
    read_folder(folder)
    return BuiltTarget(
        model=asker.model if asker else None,
        tokens=asker.tokens if asker else 0,
        counts=dict(Counter(one.kind.value for one in found.items)),
        files=files,
        refused=found.refused,
        compiled=broken is not None,
    )


def _read_all(folder: Path, documents: Sequence[Path]) -> tuple[TargetFolder | None, list[Chunk]]:
    return read_folder(folder) if folder.exists() else None, list(read_documents(documents))


def _configured_model(config: Config) -> str | None:
    """Return the first model of runs; None if no planner asks models."""
    shares = parse_model_shares(config.run.llm.models)
    asked = any(map(is_llm_proposer, config.run.planner))
    return shares[0].model if shares and asked else None


def create_asker(model: str | None, config: Config, env: Mapping[str, str]) -> ModelAsker | None:
    """Return who asks a model; None for None.

    Raises:
        DaemonError: the endpoint is unknown, or its key is missing or unusable.
    """
    if model is None:
        return None
    endpoint = endpoint_of(model)
    try:
        settings = config.daemon.endpoint(endpoint)
        key = find_key(endpoint, env, Path(settings.key_file) if settings.key_file else None)
        chosen = settings.settings(key=key)
        if missing := registry.find_missing(endpoint, chosen, env):
            raise DaemonError(f"{model}: {'; '.join(missing)}", code="bad_model")
        if key is None and registry.find_service(endpoint, chosen).needs_key:
            hint = f"give it by {describe_key_sources(endpoint)}"
            raise DaemonError(f"{model}: no key for {endpoint}", code="no_key", hint=hint)
        provider = registry.create_provider(endpoint, chosen)
    except (UnknownEndpoint, KeyFault) as error:
        raise DaemonError(f"{model}: {error}", code="bad_model") from error
    return ModelAsker(model, provider, settings.deadline_seconds)


async def check_target(folder: Path) -> CheckedTarget:
    """Check a folder.

    Raises:
        UnknownTargetError: it is no target.
    """
    target = load_folder_target(str(folder))
    found = CheckedTarget(target.describe_toolchain())
    told, codes = target.folder, example_codes(target.folder)
    if told.description.c is not None and codes:
        broken = await find_uncompilable(codes, told.description.c)
        if broken is not None:
            found.broken = broken
            found.compiled = [name for name in codes if name not in broken]
    found.edited = {name: text_digest(told.texts[name]) for name in told.changed_items()}
    return found
