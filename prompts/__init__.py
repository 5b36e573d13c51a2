"""The words that LLM roles are given, as data: templates by role and by target, versioned by their hash.

No code that decides or calls anything lives here, and this room imports no other: `agent_core` renders
what it finds here, and fills in menus, kernels and profiles. A home may replace single files. The
built-in proposer needs no words. Open `manifest.toml` first, which says what each role is told and in
which order, then `library.py`.
"""

from __future__ import annotations

from prompts.library import PromptBlock, PromptSection, PromptSet, assemble_prompts, builtin_prompts
from prompts.manifest import (
    FileKind,
    ManifestItem,
    PromptManifest,
    ReviewStatus,
    RolePrompt,
    TemplateValue,
    TextLifetime,
)
from prompts.template import PromptsInvalid, RenderError

__all__ = [
    "FileKind",
    "ManifestItem",
    "PromptBlock",
    "PromptManifest",
    "PromptSection",
    "PromptSet",
    "PromptsInvalid",
    "RenderError",
    "ReviewStatus",
    "RolePrompt",
    "TemplateValue",
    "TextLifetime",
    "assemble_prompts",
    "builtin_prompts",
]
