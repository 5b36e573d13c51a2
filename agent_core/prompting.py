"""The words of LLM roles, as the rest of the program meets them: sets of prompts, put together and checked.

What a set consists of and how it is checked is in `prompts`; a run names the set that holds by its version,
and the log keeps it as a blob.
"""

from __future__ import annotations

from prompts import (
    FileKind,
    PromptBlock,
    PromptSection,
    PromptSet,
    PromptsInvalid,
    RenderError,
    TextLifetime,
    assemble_prompts,
    builtin_prompts,
)

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
