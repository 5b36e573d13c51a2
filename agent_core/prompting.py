"""Access to the prompts of LLM roles for the rest of the program.

`prompts` defines and checks prompt sets. A run names its set by version, and the log keeps the set as a blob.
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
