"""The prompts of LLM roles, as data: templates by role and target, versioned by their hash.

This room holds the words that all targets share, and no code that decides or calls anything. It imports no
other room. What a target adds is a pack in its own folder. `agent_core` renders the templates and fills in
menus, kernels and profiles. A home may replace single files. The built-in proposer uses no prompts. Open
`library.py` first; `manifest.toml` lists what each role is told, in order.
"""

from __future__ import annotations

from prompts.library import PromptBlock, PromptSection, PromptSet, assemble_prompts, read_prompts
from prompts.manifest import (
    FileKind,
    ManifestItem,
    PromptManifest,
    PromptPack,
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
    "PromptPack",
    "PromptSection",
    "PromptSet",
    "PromptsInvalid",
    "RenderError",
    "ReviewStatus",
    "RolePrompt",
    "TemplateValue",
    "TextLifetime",
    "assemble_prompts",
    "read_prompts",
]
