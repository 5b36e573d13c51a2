"""Issues the last instructions of each iteration after the first ones of the next: a software pipeline.

An engine takes its instructions in the order of the program. One that begins an iteration and ends it, such
as ScalarE in a chain over VectorE, otherwise waits at the end for the others before it begins the next one.

The instructions of an iteration are cut into two or three stages. A *step* issues each stage for another
iteration: the first for the newest one, the last for the oldest. Tiles that a later stage reads keep a
second name (`bank_before`) until then.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise

from targets.nki.translation.interleave import change_statements, loop_count
from targets.nki.translation.statements import names_in

_NEST_LOOP = re.compile(r"i_(row|\d+)")
"""The variables of a nest's outer loops and of its row loop."""
_ORDERS = {2: (0, 1), 3: (1, 0, 2)}
"""The order in which a step issues its stages, by their number."""

_Place = Mapping[str, str]
"""An iteration: what the variables of the loops are."""


def delay_last(source: str, late: int, later: int = 0) -> str | None:
    """Return a kernel whose loops issue their last instructions late; None if no loop is long enough.

    `late` counts instructions that are at least one iteration late, `later` those of them that are two late.
    Iterations of `nl.affine_range` depend on nothing but tiles from before the loop, so any order will do.
    """
    if late == 0:
        return None

    def delay(kernel: ast.FunctionDef) -> list[ast.stmt]:
        taken = {node.id for node in ast.walk(kernel) if isinstance(node, ast.Name)}
        return [new for item in kernel.body for new in _delay_statement(item, late, later, taken)]

    return change_statements(source, delay)


def _delay_statement(statement: ast.stmt, late: int, later: int, taken: set[str]) -> list[ast.stmt]:
    """A loop as a pipeline; other statements as they are."""
    if not isinstance(statement, ast.For):
        return [statement]
    loops = [statement]
    while _is_nest_loop(last := loops[-1].body[-1]):
        assert isinstance(last, ast.For)
        loops.append(last)
    while loops:
        stages = _cut(loops[-1], late, later)
        if stages is not None:
            return _Pipeline(loops, stages, taken).statements()
        loops.pop()  # the one around it may be long enough
    return [statement]


def _is_nest_loop(statement: ast.stmt) -> bool:
    """Whether a statement is a loop around tiles; those inside of tiles may share one."""
    target = statement.target if isinstance(statement, ast.For) else None
    return isinstance(target, ast.Name) and _NEST_LOOP.fullmatch(target.id) is not None


def _cut(loop: ast.For, late: int, later: int) -> list[list[ast.stmt]] | None:
    """The stages of a loop's body; None if it has too few iterations or instructions."""
    instructions = [at for at, item in enumerate(loop.body) if not isinstance(item, ast.Assign)]
    if loop_count(loop) < 2 or len(instructions) <= late:
        return None
    bounds = [0, *(instructions[-count] for count in (late, later) if count), len(loop.body)]
    return [loop.body[start:end] for start, end in pairwise(bounds)]


@dataclass(frozen=True)
class _Kept:
    """A tile that later stages read: the stage that makes it, and its names, one for each step since then."""

    stage: int
    names: Sequence[str]


class _Pipeline:
    """A nest of loops as steps: some that fill the pipeline, loops over steps, and some that empty it."""

    def __init__(
        self, loops: Sequence[ast.For], stages: Sequence[Sequence[ast.stmt]], taken: set[str]
    ) -> None:
        self._loops, self._stages, self._depth = loops, stages, len(stages) - 1
        self._around: dict[str, tuple[list[ast.stmt], list[ast.stmt]]] = {}
        first, *middle, last = stages
        early, late = [item for stage in stages[:-1] for item in stage], [*last]
        for loop in reversed(loops[:-1]):
            needed, others = _split_needed(loop.body[:-1], early)
            self._around[_variable(loop)] = needed, others
            early, first, late = [*needed, *early], [*needed, *first], [*others, *late]
        self._kept = _find_kept([first, *middle, late], taken)

    def statements(self) -> list[ast.stmt]:
        """The statements in the place of the outermost loop."""
        found = self._enter(self._loops, {}, None, [])
        last = {_variable(loop): str(loop_count(loop) - 1) for loop in self._loops[:-1]}
        for step in range(self._depth):
            held = [] if step else self._held(last)
            found += self._step(self._places(last, None, loop_count(self._loops[-1]) + step), held)
        return found

    def _enter(
        self, loops: Sequence[ast.For], place: _Place, before: _Place | None, after: Sequence[ast.stmt]
    ) -> list[ast.stmt]:
        """The steps of a loop, with other statements after those that fill the pipeline.

        `before` is the iteration of the loops around it that the pipeline still holds.
        """
        loop, *inside = loops
        variable, count = _variable(loop), loop_count(loop)
        if not inside:
            return self._enter_innermost(loop, place, before, after)
        needed, others = self._around[variable]
        is_held = self._holds(loop)

        def enter_iteration(now: _Place, old: _Place | None, after: Sequence[ast.stmt]) -> list[ast.stmt]:
            last = [*after, *([] if is_held else _moved(others, now))]
            return [*_moved(needed, now), *self._enter(inside, now, old, last)]

        final = None if before is None else {**before, variable: str(count - 1)}
        found = enter_iteration({**place, variable: "0"}, final, after)
        if count > 1:
            now, old = {**place, variable: f"{variable} + 1"}, {**place, variable: variable}
            found.append(_with_iterations(loop, count - 1, enter_iteration(now, old, [])))
        return found

    def _holds(self, loop: ast.For) -> bool:
        """Whether the last stage of a loop's iterations begins while the next one fills the pipeline."""
        return [loop] == [*self._loops[-2:-1]] and loop_count(self._loops[-1]) == self._depth

    def _held(self, before: _Place | None) -> list[ast.stmt]:
        """What only the last stage of an iteration reads, if no statement has made it yet."""
        if before is None or not any(self._holds(loop) for loop in self._loops[-2:-1]):
            return []
        _, others = self._around[_variable(self._loops[-2])]
        return _moved(others, {**before, **self._names(self._depth)})

    def _enter_innermost(
        self, loop: ast.For, place: _Place, before: _Place | None, after: Sequence[ast.stmt]
    ) -> list[ast.stmt]:
        count, found = loop_count(loop), list[ast.stmt]()
        for step in range(self._depth):
            found += self._step(self._places(place, before, step), [] if step else self._held(before))
        found += after
        if count > self._depth:
            variable = _variable(loop)
            places = [
                {**place, variable: f"{variable} + {ahead}" if ahead else variable}
                for ahead in range(self._depth, -1, -1)
            ]
            found.append(_with_iterations(loop, count - self._depth, self._step(places)))
        return found

    def _places(self, place: _Place, before: _Place | None, step: int) -> list[_Place | None]:
        """The iterations that the stages of a step belong to; None for those that there are not."""
        variable, count = _variable(self._loops[-1]), loop_count(self._loops[-1])
        found: list[_Place | None] = []
        for stage in range(len(self._stages)):
            at = step - stage
            around = before if at < 0 else place
            is_there = around is not None and at < count
            found.append({**(around or {}), variable: str(at % count)} if is_there else None)
        return found

    def _step(self, places: Sequence[_Place | None], held: Sequence[ast.stmt] = ()) -> list[ast.stmt]:
        """One step: its stages, others before the last one, and the names of tiles for the next step."""
        found = [*held]
        for stage in _ORDERS[len(places)]:
            place = places[stage]
            if place is not None:
                found += _moved(self._stages[stage], {**place, **self._names(stage)})
        for kept in self._kept:
            pairs = list(pairwise(kept.names))
            found += [
                _assign(new, old)
                for age, (old, new) in reversed([*enumerate(pairs)])
                if places[kept.stage + age] is not None  # else no stage of the next step reads it
            ]
        return found

    def _names(self, stage: int) -> dict[str, str]:
        """The names by which a stage knows tiles of earlier stages."""
        return {
            kept.names[0]: kept.names[stage - kept.stage]
            for kept in self._kept
            if 0 < stage - kept.stage < len(kept.names)
        }


def _split_needed(
    items: Sequence[ast.stmt], early: Sequence[ast.stmt]
) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The statements around a loop that its early stages need, and those that only the last one needs.

    The loads of the latter would keep those of the first stage waiting, also in the iterations that follow.
    """
    own = {*_assigned(items)}
    names = [own & names_in([item]) for item in items]
    needed, before = own & names_in(early), set[str]()
    while needed != before:
        before = needed
        needed = needed.union(*(item for item in names if item & needed))
    is_needed = [bool(item & needed) for item in names]
    return (
        [item for item, wanted in zip(items, is_needed, strict=True) if wanted],
        [item for item, wanted in zip(items, is_needed, strict=True) if not wanted],
    )


def _find_kept(stages: Sequence[Sequence[ast.stmt]], taken: set[str]) -> list[_Kept]:
    """The tiles that stages read after the one that makes them, with names for as many steps."""
    found = []
    used = [names_in(stage) for stage in stages]
    for at, stage in enumerate(stages):
        for name in _assigned(stage):
            ages = [later - at for later in range(at + 1, len(stages)) if name in used[later]]
            if ages:
                names = [name]
                for _ in range(max(ages)):
                    names.append(_free_name(f"{names[-1]}_before", taken))
                found.append(_Kept(at, names))
    return found


def _assigned(items: Sequence[ast.stmt]) -> Iterator[str]:
    """The names that statements assign, each once."""
    names = dict.fromkeys(
        item.targets[0].id
        for item in items
        if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name)
    )
    yield from names


def _variable(loop: ast.For) -> str:
    assert isinstance(loop.target, ast.Name)
    return loop.target.id


def _assign(name: str, value: str) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], ast.Name(value, ast.Load()))


def _moved(items: Sequence[ast.stmt], names: Mapping[str, str]) -> list[ast.stmt]:
    """Copies of statements with expressions in the place of names: for one iteration, with its tiles."""
    change = _Renaming(names)
    return [change.visit(deepcopy(item)) for item in items]


def _with_iterations(loop: ast.For, count: int, body: Sequence[ast.stmt]) -> ast.For:
    found = deepcopy(loop)
    assert isinstance(found.iter, ast.Call)
    found.iter.args = [ast.Constant(count)]
    found.body = deepcopy([*body])
    return found


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


class _Renaming(ast.NodeTransformer):
    """Puts expressions in the place of names that are read."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return what a name stands for now."""
        if node.id in self._names and isinstance(node.ctx, ast.Load):
            return ast.parse(self._names[node.id], mode="eval").body
        return node
