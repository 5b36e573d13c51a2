"""The words that LLM roles are given, as data: templates by role and by target, versioned by their hash.

No code that decides or calls anything lives here, and this room imports no other: `agent_core` renders
what it finds here, and fills in menus, kernels and profiles. A home may replace single files. The
built-in proposer needs no words. Open `manifest.toml` first, which says what each role is told and in
which order, then `library.py`.
"""

from __future__ import annotations

from prompts.library import Block, Prompts, Section, assemble, builtin
from prompts.manifest import Item, Kind, Lasts, Manifest, Role, Status, Value
from prompts.template import PromptsInvalid, RenderError

__all__ = [
    "Block",
    "Item",
    "Kind",
    "Lasts",
    "Manifest",
    "Prompts",
    "PromptsInvalid",
    "RenderError",
    "Role",
    "Section",
    "Status",
    "Value",
    "assemble",
    "builtin",
]
