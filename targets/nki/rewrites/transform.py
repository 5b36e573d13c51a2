"""The base class of transformations: sites where one could apply, choices of parameters, and the rewrite.

A transformation that does not apply at a site raises `RewriteRefused` with the reason. It returns new source.
The estimate and the judge decide whether it pays. The transformation itself must keep the kernel's meaning;
`keeps` says why it does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

from nki_sim.targets import Target
from targets.nki.rewrites.kernel_ir import Kernel, KernelArgument, Statement
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.source_tree import SourceError

Choice = Mapping[str, int | str]
"""Parameters of one application, in JSON types."""

SiteT = TypeVar("SiteT")


class RewriteRefused(Exception):  # noqa: N818  a refusal is an answer, not a fault
    """The transformation does not apply here; the message says why."""


def read_rewritten(source: str, arguments: Sequence[KernelArgument], target: Target) -> Kernel:
    """Read a kernel that a rewrite made.

    Raises:
        RewriteRefused: it cannot be read.
    """
    try:
        return read_kernel(source, arguments, target)
    except SourceError as error:
        raise RewriteRefused(str(error)) from error


class Transform(ABC, Generic[SiteT]):
    """One entry of the menu."""

    id: ClassVar[str]
    """The id in the menu."""
    keeps: ClassVar[str]
    """Why the kernel still computes the same."""
    counter: ClassVar[str]
    """The profile counter that it should lower."""
    rounding: ClassVar[float] = 0.0
    """The relative error that it adds to a product; 0: at most the order of float32 operations changes."""
    rounds_products: ClassVar[bool] = False
    """Whether it quantises operands of products to MX, for which a problem has to say `mx = true`."""

    @abstractmethod
    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, SiteT]:
        """Return the sites where it might apply, by a stable and readable name."""

    @abstractmethod
    def list_choices(self, kernel: Kernel, target: Target, place: SiteT) -> tuple[Choice, ...]:
        """Return the sensible parameters there, never empty.

        Raises:
            RewriteRefused: it does not apply there.
        """

    @abstractmethod
    def apply(self, kernel: Kernel, target: Target, place: SiteT, choice: Choice) -> str:
        """The module's source after the rewrite.

        Raises:
            RewriteRefused: it does not apply there, or not with this choice.
        """

    def render_title(self, site: str, choice: Choice) -> str:
        """One line for people."""
        extra = ", ".join(f"{name} {value}" for name, value in choice.items())
        return f"{self.id} {site}" + (f" ({extra})" if extra else "")


def number_site(base: str, taken: Collection[str]) -> str:
    """A site's name, numbered if the name is taken."""
    count = sum(name.partition("#")[0] == base for name in taken)
    return f"{base}#{count + 1}" if count else base


def sites_by_result(items: Iterable[Statement]) -> dict[str, Statement]:
    """The instructions that have a result, by what they are and what they write."""
    found: dict[str, Statement] = {}
    for item in items:
        dst = item.find_access("dst")
        if dst is not None:
            found[number_site(f"{item.op} to {dst.tensor.name}", found)] = item
    return found
