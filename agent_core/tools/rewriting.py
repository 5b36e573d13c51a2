"""The protocol of a target's rewrite engine, as a tool uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from pydantic import Field

from state.model import FrozenModel
from targets.base import import_part
from targets.registry import load_target

if TYPE_CHECKING:
    from seeds import ProblemSpec


@dataclass(frozen=True, slots=True)
class KernelPlace:
    """What kernels are for: a problem at a size on a target."""

    spec: ProblemSpec
    size: str
    target: str


class OfferedRewrite(FrozenModel):
    """One rewrite that applies: a technique at a site, with its parameters.

    `value` is the logarithm of the speed-up that a rough estimate expects; it only ranks.
    """

    technique: str
    site: str
    title: str = ""
    params: dict[str, int | str] = Field(default_factory=dict)
    value: float = 0.0

    @property
    def id(self) -> str:
        """The name by which a model picks it; parameters are chosen besides."""
        return f"{self.technique}@{self.site}"


class OfferedRewrites(FrozenModel):
    """All rewrites that apply to a kernel, best first, and why some others do not."""

    rewrites: tuple[OfferedRewrite, ...]
    refusals: tuple[str, ...] = ()


class AppliedRewrite(FrozenModel):
    """A kernel after a rewrite; `keeps` says why it computes the same."""

    source: str
    title: str
    keeps: str = ""


class Rewriter(Protocol):
    """Edits kernels safely. Answers follow from the arguments alone."""

    async def find_obstacles(self, source: str, place: KernelPlace) -> tuple[str, ...]:
        """Return what it cannot read, move or rename in a kernel; in canonical form there is nothing of it.

        Raises:
            agent_core.roles.RoleError: the engine failed.
        """
        ...

    async def list_rewrites(self, source: str, place: KernelPlace) -> OfferedRewrites:
        """Return all rewrites that apply.

        Raises:
            agent_core.roles.RoleError: the kernel cannot be read, or the engine failed.
        """
        ...

    async def apply_rewrite(self, source: str, rewrite: OfferedRewrite, place: KernelPlace) -> AppliedRewrite:
        """Return the kernel after one rewrite.

        Raises:
            agent_core.roles.RoleError: it does not apply, or the engine failed.
        """
        ...

    async def aclose(self) -> None: ...


def create_rewriter(target: str) -> Rewriter | None:
    """Return a new rewriter for a target's kernels; None if its target has no engine."""
    part = load_target(target).parts.tools.rewriter
    module: Any = None if part is None else import_part(part)
    return None if module is None else cast("Rewriter", module.create())
