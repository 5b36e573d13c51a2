"""Which tiles are in SBUF when: what does not fit is saved and read back, or loaded again.

The compiler does not refuse programs that need more SBUF than there is. The model walks the instructions in
order with the bytes of a partition; where a tile needs room, those leave whose next use is farthest away
(Belady). A tile that holds only what DMA loaded from tensors that nobody writes is loaded again; any other
is saved once after its last change and read back. An array of many tiles that does not stay whole is
not kept at all: loaded ones are streamed (see `stream`), the tiles of computed ones are `passing` [C].
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from nki_sim.compiler.compiled import LOAD_AGAIN, RELOAD, SAVE
from nki_sim.compiler.draft import Draft, Step
from nki_sim.flow.room import size
from nki_sim.forms import HBM_BUFFERS, Form, Operand, Site
from nki_sim.targets import Target

_NEVER = 1 << 60

KEPT_PARTS = 4
"""Parts of an array that is not kept which stay for the next use [I]."""


@dataclass(slots=True)
class Tile:
    """A tile on its way through SBUF: `uses` are the steps that touch it, `name` the tensor it is now."""

    room: int
    uses: list[int]
    loads: list[Step]
    name: int
    at: int = 0
    written: int = -1
    dirty: bool = False
    away: bool = False
    copy: int = -1

    @property
    def next(self) -> int:
        return self.uses[self.at] if self.at < len(self.uses) else _NEVER


@dataclass
class Plan:
    """Tiles that left SBUF while they were still wanted, and the instructions that this adds."""

    evicted: list[int] = field(default_factory=list)
    added: list[tuple[int, Step]] = field(default_factory=list)
    names: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))


class Residency:
    """One walk over the instructions of one core with a limit of bytes per partition."""

    def __init__(self, draft: Draft, target: Target, core: int, passing: Collection[int] = ()) -> None:
        self._draft = draft
        self._passing = passing
        self._recent: dict[int, OrderedDict[int, None]] = defaultdict(OrderedDict)
        self._free = target.sbuf_usable_bytes
        self.tiles = _tiles(draft, target, core)
        self._resident: set[int] = set()
        self._farthest: list[tuple[int, int]] = []
        self.plan = Plan()

    def run(self) -> Plan:
        """Walk all instructions."""
        for at, step in enumerate(self._draft.steps):
            mine = dict.fromkeys(tensor for tensor in step.tensors if tensor in self.tiles)
            if mine:
                self._visit(at, step, mine)
        return self.plan

    def _visit(self, at: int, step: Step, mine: dict[int, None]) -> None:
        for tensor in mine:
            if tensor not in self._resident:
                self._bring(at, step, tensor, mine)
            tile = self.tiles[tensor]
            if tile.name != tensor:
                self.plan.names[at][tensor] = tile.name
        for tensor, (write, _) in zip(step.tensors, self._draft.effects(step.form), strict=True):
            if write and tensor in mine:
                self.tiles[tensor].dirty, self.tiles[tensor].written = True, at
        for tensor in mine:
            self._advance(tensor)
        for tensor in mine:
            if tensor in self._passing:
                self._pass(tensor)

    def _pass(self, tensor: int) -> None:
        """Let a tile of an array that is not kept leave once a few others of it have been used."""
        recent = self._recent[self._draft.tensor_sites[tensor]]
        recent[tensor] = None
        recent.move_to_end(tensor)
        if len(recent) > KEPT_PARTS:
            oldest, _ = recent.popitem(last=False)
            if oldest in self._resident:
                self._evict(oldest)

    def _advance(self, tensor: int) -> None:
        tile = self.tiles[tensor]
        tile.at += 1
        if tile.next == _NEVER:
            self._resident.discard(tensor)
            self._free += tile.room
        else:
            heappush(self._farthest, (-tile.next, tensor))

    def _bring(self, at: int, step: Step, tensor: int, busy: dict[int, None]) -> None:
        tile = self.tiles[tensor]
        self._make_room(tile.room, busy)
        self._free -= tile.room
        self._resident.add(tensor)
        if not tile.away:
            return
        tile.away = False
        tile.name = self._draft.tensor(self._draft.site(tensor))
        if _overwrites(self._draft, step, tensor):
            return
        if tile.loads:
            for load in tile.loads:
                again = Step(load.form, (tile.name, load.tensors[1]), load.offsets, step.source, LOAD_AGAIN)
                self.plan.added.append((at, again))
        else:
            self._move(at, tile, step.source, RELOAD)

    def _make_room(self, wanted: int, busy: dict[int, None]) -> None:
        """Evict until there is room, or until only tiles of the instruction itself are left."""
        kept = []
        while self._free < wanted and self._farthest:
            following, tensor = heappop(self._farthest)
            if tensor not in self._resident or self.tiles[tensor].next != -following:
                continue
            if tensor in busy:
                kept.append((following, tensor))
            else:
                self._evict(tensor)
        for entry in kept:
            heappush(self._farthest, entry)

    def _evict(self, tensor: int) -> None:
        tile = self.tiles[tensor]
        self._resident.discard(tensor)
        self._free += tile.room
        tile.away = True
        self.plan.evicted.append(tensor)
        if tile.dirty and not tile.loads:
            if tile.copy < 0:
                tile.copy = self._draft.tensor(_spill_site(self._draft.site(tensor)))
            self._move(tile.written + 1, tile, self._draft.steps[tile.written].source, SAVE)
        tile.dirty = False

    def _move(self, at: int, tile: Tile, source: int, origin: int) -> None:
        form = self._draft.form(_spill_form(self._draft.site(tile.name), save=origin == SAVE))
        tensors = (tile.copy, tile.name) if origin == SAVE else (tile.name, tile.copy)
        self.plan.added.append((at, Step(form, tensors, (0, 0), source, origin)))


def _tiles(draft: Draft, target: Target, core: int) -> dict[int, Tile]:
    """The tiles that the compiler places in the SBUF of a core."""
    cores = draft.program.cores.tolist()
    found: dict[int, Tile] = {}
    written, computed = _written_hbm(draft), set()
    for at, step in enumerate(draft.steps):
        if cores[step.source] != core:
            continue
        load = draft.forms[step.form].op == "dma_copy" and step.tensors[1] not in written
        effects = draft.effects(step.form)
        for tensor, (write, _) in zip(step.tensors, effects, strict=True):
            site = draft.site(tensor)
            if site.buffer != "sbuf" or site.address is not None:
                continue
            tile = found.get(tensor)
            if tile is None:
                tile = found[tensor] = Tile(size(site, target), [], [], tensor)
            if not tile.uses or tile.uses[-1] != at:
                tile.uses.append(at)
            if write:
                tile.loads.append(step)
                if not load:
                    computed.add(tensor)
    for tensor in computed:
        found[tensor].loads = []
    return found


def _written_hbm(draft: Draft) -> set[int]:
    return {
        tensor
        for step in draft.steps
        for tensor, (write, _) in zip(step.tensors, draft.effects(step.form), strict=True)
        if write or draft.site(tensor).buffer not in HBM_BUFFERS
    }


def _overwrites(draft: Draft, step: Step, tensor: int) -> bool:
    """Whether an instruction writes all of a tile and reads nothing of it."""
    items = draft.forms[step.form].operands
    mine = [
        (item, effect)
        for item, effect, other in zip(items, draft.effects(step.form), step.tensors, strict=True)
        if other == tensor
    ]
    whole = any(item.elements == draft.site(tensor).size for item, _ in mine)
    return whole and all(write and not read for _, (write, read) in mine)


def _spill_site(site: Site) -> Site:
    return Site(f"{site.name}.spill", (site.shape[0], site.row), site.dtype, "private_hbm", site.line)


def _spill_form(site: Site, *, save: bool) -> Form:
    row, rows = site.row, site.shape[0]
    dims = ((row, rows), (1, row))
    chip, far = (
        Operand(role, dims, site.dtype, buffer, row, 0)
        for role, buffer in zip(
            ("src", "dst") if save else ("dst", "src"), ("sbuf", "private_hbm"), strict=True
        )
    )
    return Form("dma_copy", "dma", (far, chip) if save else (chip, far), ())


def insert(draft: Draft, plans: list[Plan]) -> None:
    """Put what plans add in front of the instructions that they name."""
    added: dict[int, list[Step]] = defaultdict(list)
    for plan in plans:
        for at, step in plan.added:
            added[at].append(step)
        for at, names in plan.names.items():
            step = draft.steps[at]
            step.tensors = tuple(names.get(tensor, tensor) for tensor in step.tensors)
    draft.steps = list(_merged(draft.steps, added))


def _merged(steps: list[Step], added: dict[int, list[Step]]) -> Iterator[Step]:
    for at, step in enumerate(steps):
        yield from added.get(at, ())
        yield step
    yield from added.get(len(steps), ())
