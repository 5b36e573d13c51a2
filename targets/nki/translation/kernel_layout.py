"""How a kernel is laid out: what a small search changes, judged by predictions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

_ROWS = 5
"""Choices of what lies on the partitions that are tried for each loop nest."""
_TILE_LENGTHS = (8192, 2048, 512)
"""float32 in one partition of a tile, up to which loops stay inside."""
_WAYS = (2, 4, 8, 1)
"""Iterations of outer loops that are side by side."""


@dataclass(frozen=True, slots=True)
class KernelLayout:
    """What lies on the partitions, by operation; how long tiles are; what goes side by side."""

    rows: Mapping[int, str | None] = field(default_factory=dict)
    has_moments: bool = False
    """Whether means and variances are taken by the instruction for both."""
    tile_length: int = _TILE_LENGTHS[0]
    ways: int = 1

    @property
    def name(self) -> str:
        """The layout as text, from which `from_name` makes it again."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_name(cls, name: str) -> KernelLayout:
        """Return the layout of a name."""
        given = json.loads(name)
        return cls(**{**given, "rows": {int(node): row for node, row in given["rows"].items()}})

    def neighbours(
        self, choices: Mapping[int, Sequence[str | None]], *, has_variance: bool, is_first: bool
    ) -> Iterator[KernelLayout]:
        """Layouts that differ in one thing; at first only in what decides about transfers and engines."""
        if not is_first:
            yield from (replace(self, ways=ways) for ways in _WAYS if ways != self.ways)
        if has_variance:
            yield replace(self, has_moments=not self.has_moments)
        if not is_first:
            lengths = (length for length in _TILE_LENGTHS if length != self.tile_length)
            yield from (replace(self, tile_length=length) for length in lengths)
        for node, rows in choices.items():
            for row in rows[:_ROWS]:
                if row != self.rows.get(node, rows[0]):
                    yield replace(self, rows={**self.rows, node: row})
