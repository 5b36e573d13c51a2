"""A kernel in its target's canonical form, as a tool gets it from the place that judges kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_core.tools.workbench import KernelLab, RefusedKernel
from targets.registry import load_target

if TYPE_CHECKING:
    from state.model import CanonicalKernel

RAISE, WHOLE_KERNEL = "raise", "kernel"
"""Technique and site of the rewrite that writes a kernel anew in this form."""


async def find_canonical_form(lab: KernelLab, source: str, target: str) -> CanonicalKernel | None:
    """Return a kernel's canonical form; unless it is ported, it issues the same program. None if it has none.

    Raises:
        agent_core.roles.RoleError: the infrastructure failed.
    """
    topic = load_target(target).parts.tools.canonical
    form = await _explain_form(lab, source, topic) if topic is not None else None
    if form is None or form.source is None or topic is None:
        return None
    again = await _explain_form(lab, form.source, topic)
    same = again is not None and (form.ported or again.program == form.program)
    return form if same else None


async def _explain_form(lab: KernelLab, source: str, topic: str) -> CanonicalKernel | None:
    found = await lab.explain(source, (topic,))
    return None if isinstance(found, RefusedKernel) else found.canonical
