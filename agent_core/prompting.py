"""Access to the prompts of LLM roles for the rest of the program.

`prompts` defines and checks prompt sets; targets bring the packs that speak of them. A run names its set by
version, and the log keeps the set as a blob.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import prompts
from prompts import (
    FileKind,
    PromptBlock,
    PromptSection,
    PromptSet,
    PromptsInvalid,
    RenderError,
    TextLifetime,
)
from targets.base import import_part
from targets.registry import load_families, load_target

__all__ = [
    "FileKind",
    "PromptBlock",
    "PromptSection",
    "PromptSet",
    "PromptsInvalid",
    "RenderError",
    "TextLifetime",
    "assemble_prompts",
    "builtin_prompts",
    "prompts_for",
]


@cache
def builtin_prompts() -> PromptSet:
    """Return this program's own set, with the packs of all families of targets."""
    families = list(load_families())
    packs = {one.family: one.parts.prompts for one in families if one.parts.prompts is not None}
    makers = [import_part(one.parts.prompt_files) for one in families if one.parts.prompt_files]
    return prompts.read_prompts(packs, {path: text for make in makers for path, text in make().items()})


def assemble_prompts(replacing: Mapping[str, bytes]) -> PromptSet:
    """Return this program's own set with some files replaced by a home's, checked as a whole.

    Raises:
        PromptsInvalid: names every fault of every file.
    """
    return prompts.assemble_prompts(builtin_prompts(), replacing)


def prompts_for(found: PromptSet, target: str) -> PromptSet:
    """Return a set that can be rendered for a target: with its pack, if that is not this program's own.

    Raises:
        UnknownTargetError: there is no such target.
    """
    pack = load_target(target).parts.prompt_pack
    if pack is None:
        return found
    return PromptSet({**found.files, **import_part(pack)(target)})
