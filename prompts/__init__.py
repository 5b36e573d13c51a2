"""The prompts of LLM roles, as data: templates by role and target, versioned by their hash.

This room holds no code that decides or calls anything, and imports no other room. `agent_core` renders the
templates and fills in menus, kernels and profiles. A home may replace single files. The built-in proposer
uses no prompts. Open `library.py` first; `manifest.toml` lists what each role is told, in order.
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
