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
from targets.registry import load_families

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
]


@cache
def builtin_prompts() -> PromptSet:
    """Return this program's own set, with the packs of all families of targets."""
    families = {target.family: target.parts.prompts for target in load_families()}
    return prompts.read_prompts({name: folder for name, folder in families.items() if folder is not None})


def assemble_prompts(replacing: Mapping[str, bytes]) -> PromptSet:
    """Return this program's own set with some files replaced by a home's, checked as a whole.

    Raises:
        PromptsInvalid: names every fault of every file.
    """
    return prompts.assemble_prompts(builtin_prompts(), replacing)
