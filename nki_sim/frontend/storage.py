"""The basis of tensor handles: memory regions and allocated tensors, and `fail`, which refuses kernels."""

from __future__ import annotations

from enum import StrEnum
from typing import NoReturn

from nki_sim.dtypes import DTYPES
from nki_sim.errors import KernelError
from nki_sim.forms import HBM_BUFFERS, Dims, Site
from nki_sim.refusals import DocumentedNames, note_refusal


def fail(code: str, message: str, hint: str = "") -> NoReturn:
    """Refuse what the kernel did; the recorder adds the line."""
    note_refusal(code, message, hint)
    raise KernelError(code, message, hint=hint)


class MemoryRegion(DocumentedNames, StrEnum):
    """A memory in which tensors live; equal to its name."""

    sbuf = "sbuf"
    psum = "psum"
    hbm = "hbm"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"
    register = "register"

    def __repr__(self) -> str:
        return f"nl.{self.value}"


StorageLayout = tuple[str, int, int, int, MemoryRegion, int, bool, bool]

_kinds: dict[tuple[int, str, str], int] = {}


def layout_of(site: Site, dtype: str) -> StorageLayout:
    """What all tensors of a declaration share, for elements of a data type."""
    declared, itemsize = DTYPES[site.dtype].itemsize, DTYPES[dtype].itemsize
    row = site.row * declared // itemsize
    kind = _kinds.setdefault((row, dtype, site.buffer), len(_kinds))
    region = MemoryRegion(site.buffer)
    on_chip = site.buffer not in HBM_BUFFERS
    return dtype, itemsize, row, site.size * declared // itemsize, region, kind, on_chip, region == "psum"


class Declaration:
    """A site in the recorder: what all its tensors share, and its number (-1 until it has a tensor)."""

    __slots__ = ("dims", "layout", "number", "site")

    def __init__(self, site: Site) -> None:
        self.site = site
        self.layout = layout_of(site, site.dtype)
        self.dims = row_major_dims(site.shape)
        self.number = -1


class Storage:
    """One allocated tensor as elements of one data type; `kind` interns (row, dtype, buffer).

    `started` has a bit per element that a matmul wrote. `root` is the storage as allocated; it differs from
    this one if a view reinterprets its bytes.
    """

    __slots__ = (
        "banked", "buffer", "dtype", "id", "itemsize", "kind", "on_chip", "root", "row", "site", "size",
        "started",
    )  # fmt: skip

    def __init__(self, number: int, site: Site, layout: StorageLayout, root: Storage | None = None) -> None:
        self.id = number
        self.site = site
        self.root = self if root is None else root
        self.dtype, self.itemsize, self.row, self.size, self.buffer, self.kind, self.on_chip, self.banked = (
            layout
        )
        self.started = 0

    def cast_to(self, dtype: str) -> Storage:
        """Return the same bytes as elements of another type; rows must hold a whole number of them."""
        row_bytes = self.row * self.itemsize
        if row_bytes % DTYPES[dtype].itemsize:
            fail("reinterpret", f"rows of {self.site.name} have {row_bytes} bytes, no whole {dtype} elements")
        return Storage(self.id, self.site, layout_of(self.site, dtype), self.root)


def row_major_dims(sizes: tuple[int, ...], *, step: int = 1) -> Dims:
    """Return the pattern of a whole tensor of these sizes, with innermost elements `step` apart."""
    dims = []
    for size in reversed(sizes):
        dims.append((step, size))
        step *= size
    return tuple(reversed(dims))
