"""Whether a kernel's source is in the form that the rewrites read best, and what stands in their way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nki_sim.targets import Target
from targets.nki.rewrites.inlining import canonicalize_kernel
from targets.nki.rewrites.kernel_ir import Kernel, KernelArgument, Loop, Statement, StatementKind
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.source_tree import SourceError
from targets.nki.rewrites.values import Affine, Tensor, TensorView


@dataclass(frozen=True, slots=True)
class SourceForm:
    """`obstacles` are what rewrites cannot read, move or rename; a kernel without any is canonical.

    `readable` tells whether some instruction of a kernel can be read at all.
    """

    readable: bool
    obstacles: tuple[str, ...]


def describe_form(source: str, arguments: Sequence[KernelArgument], target: Target) -> SourceForm:
    """Return what stands in the way of rewrites in a kernel, in words for its author."""
    try:
        kernel = canonicalize_kernel(read_kernel(source, arguments, target), target)
    except SourceError as error:
        return SourceForm(readable=False, obstacles=(str(error),))
    readable = any(item.kind is StatementKind.OPERATE for item in kernel.statements)
    return SourceForm(readable=readable, obstacles=tuple(_find_obstacles(kernel)))


def _find_obstacles(kernel: Kernel) -> Iterator[str]:
    # A min or max of one iteration is no obstacle: the rewrite `peel` takes that iteration out of the loop.
    peeled = {item.path[-1] for item in kernel.statements if item.undecided is not None and item.path}
    for node in kernel.nodes:
        if isinstance(node, Loop) and (node.start != Affine(0) or node.step != 1):
            yield f"the loop over {node.var} does not count 0, 1, ..."
        elif isinstance(node, Statement):
            if node.kind is StatementKind.OPAQUE and peeled.isdisjoint(node.path):
                yield f"a statement cannot be read: {node.reason}"
            elif node.kind is StatementKind.BIND:
                yield from _second_names(node)


def _second_names(node: Statement) -> Iterator[str]:
    for name, value in node.arguments.items():
        if isinstance(value, Tensor | TensorView):
            tensor = value.tensor if isinstance(value, TensorView) else value
            yield f"`{tensor.name}` has a second name, `{name}`"
